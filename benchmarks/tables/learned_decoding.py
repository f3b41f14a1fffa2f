"""Rounds of the learned scheduler, beside greedy rules and the optimum."""

from typing import Any

from markdown_table import NETWORKS, sourced_table
from record import load


def _rows(result: dict[str, Any], trees: str, group: str) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if (row["trees"], row["group"]) == (trees, group)]


def learned_table_2() -> str:
    """Per stage; the paper's figures count both on BCube and Jellyfish."""
    result = load("learned_decoding")
    fixed = {row["label"]: row for row in _rows(result, "fixed", "table 2")}
    lines = []
    for row in _rows(result, "grown", "table 2"):
        label, other = row["label"], fixed[row["label"]]
        paper = row["paper"] / (1 if label.startswith("D") else 2)
        lines.append(
            [
                NETWORKS[label],
                f"{row['mean']:.2f}",
                *(str(row[key]) for key in ("greedy", "best", "bound")),
                f"{row['rarest near: mean']:.2f}",
                f"{paper:.1f}",
                f"{other['mean']:.2f}",
                *(str(other[key]) for key in ("greedy", "best", "bound")),
            ]
        )
    head = ["network", "drawn, not repaired", "best actions, repaired", "best of 64, repaired",
            "optimum", "greedy rule", "paper: RL", "fixed trees, never repaired: drawn",
            "best actions", "best of 64", "their bound"]  # fmt: skip
    return sourced_table(result, head, lines)


def learned_groups() -> str:
    result = load("learned_decoding")
    rules = ("rarest everywhere", "rarest near", "rarest near, swaps")
    names = {
        "table 2": "Table 2, five of them never seen",
        "held out": "held out: tori, meshes, hypercubes, larger ones",
        "heterogeneous": "heterogeneous: unequal capacities, several servers a switch",
        "random": "100 random, unequal capacities",
        "well connected": "20 random, well connected",
    }

    own = ("untrained_mean", "untrained_repaired", "mean", "greedy_not_repaired", "greedy", "best")

    def gap(rows: list[dict[str, Any]], key: str) -> str:
        return f"{sum(row[key] / row['bound'] - 1 for row in rows) / len(rows):.1%}"

    lines = []
    for group, name in names.items():
        rows = _rows(result, "grown", group)
        lines.append(
            [
                name,
                *(gap(rows, key) for key in own),
                *(gap(rows, f"{rule}: {key}") for rule in rules for key in ("mean", "best")),
                *(gap(rows, f"{rule}: best in the time of greedy") for rule in rules),
            ]
        )
    head = ["mean gap", "untrained: drawn", "untrained, repaired", "learned: drawn, not repaired",
            "best actions, not repaired", "best actions, repaired",
            "best of 64, repaired"]  # fmt: skip
    head += [f"{rule}: {kind}" for rule in rules for kind in ("one pass", "best of 64")]
    head += [f"{rule}, in the time of the best actions" for rule in rules]
    return sourced_table(result, head, lines)
