"""Tables of the learned scheduler that need more than a template: `learned.toml` has the rest."""

from statistics import fmean
from typing import Any

from benchmarks.markdown_table import NETWORKS, duration, number, sourced_table
from benchmarks.record import load
from benchmarks.table_templates import filled, grouped


def _rows(result: dict[str, Any], part: str, trees: str, group: str) -> list[dict[str, Any]]:
    """Those of the trained policies (rows) or of the rule, on some trees and of one group."""
    return [row for row in result[part] if (row["trees"], row["group"]) == (trees, group)]


def learned_table_2() -> str:
    """Per stage; the paper's figures count both on BCube and Jellyfish."""
    result, lines = load("learned_decoding"), []
    fixed = {
        (part, row["label"]): row
        for part in ("rows", "rule")
        for row in _rows(result, part, "fixed", "table 2")
    }
    trained = {row["label"]: row for row in _rows(result, "rows", "grown", "table 2")}
    for row in _rows(result, "rule", "grown", "table 2"):
        label, other = row["label"], trained[row["label"]]
        paper = row["paper"] / (1 if label.startswith("D") else 2)
        lines.append(
            f"{NETWORKS[label]} | {row['mean']:.2f} | {row['greedy']} | {row['best']} | "
            f"{other['mean']:.2f} | {other['greedy']} | {other['best']} | {row['bound']} | "
            f"{row['rarest near: mean']:.2f} | {fixed['rule', label]['mean']:.2f} | "
            f"{fixed['rows', label]['mean']:.2f} | {fixed['rows', label]['bound']} | {paper:.1f}"
        )
    head = "a stage's rounds | rule: drawn, not repaired | best actions, repaired | best of 64"
    head += " | trained policies: drawn, not repaired | best actions, repaired | best of 64"
    head += " | optimum | greedy rule | pinned trees: rule, drawn | trained policies, drawn"
    return sourced_table(result, f"{head} | their bound | paper: RL, as settled", lines)


def learned_groups() -> str:
    """Mean gaps by group of networks, beside greedy rules."""
    result = load("learned_decoding")
    names = {
        "table 2": "Table 2, five of them never seen",
        "held out": "held out: tori, meshes, hypercubes, larger ones",
        "heterogeneous": "heterogeneous: unequal capacities, several servers a switch",
        "random": "100 random, unequal capacities",
        "well connected": "20 random, well connected",
    }
    own = {
        "mean": "drawn, not repaired",
        "greedy_not_repaired": "best actions, not repaired",
        "greedy": "best actions, repaired",
        "best": "best of 64, repaired",
    }
    swaps = "rarest near, swaps"
    columns = {
        ("rows", "untrained_mean"): "untrained: drawn",
        ("rows", "untrained_repaired"): "repaired",
        **{("rule", key): f"{'rule: ' * (key == 'mean')}{name}" for key, name in own.items()},
        **{("rows", key): f"{'trained: ' * (key == 'mean')}{name}" for key, name in own.items()},
        ("rule", f"{swaps}: mean"): "swaps of `grown`: one pass",
        ("rule", f"{swaps}: best"): "best of 64",
        ("rule", f"{swaps}: best in the time of greedy"): "in the time of the rule's best actions",
    }
    lines = []
    for group, name in names.items():
        gaps = (
            fmean(row[key] / row["bound"] - 1 for row in _rows(result, part, "grown", group))
            for part, key in columns
        )
        lines.append(" | ".join([name, *(f"{gap:.1%}" for gap in gaps)]))
    return sourced_table(result, " | ".join(["mean gap", *columns.values()]), lines)


def learned_large() -> str:
    """Best actions of the rule on large networks."""
    result = load("learned_large")

    def time(row: dict[str, Any]) -> str:
        if "seconds" in row:
            return duration(row["seconds"])
        return f"not played: about {duration(row['reckoned_s'])} by reckoning"

    lines = filled(
        "`{network}` | {servers:number} | {hops:,} | {bound:number} | {rounds:number} | "
        "{gap:.1%} | {time} | {repaired_rounds:number} | {repaired_gap:.1%} | "
        "{repaired_seconds:duration} | {memory_bytes / 1073741824:.1f} GiB",
        [row | {"time": time(row)} for row in result["rows"]],
    )
    head = "network | servers | hops | bound | best actions | gap | time | repaired | gap | time"
    return sourced_table(result, f"{head} | memory", lines)


def learning_choices() -> str:
    """Variants of the training of the scheduling policies."""
    result, lines = load("learning_choices"), []
    for rows in grouped(result["rows"], ["variant"]):
        ends = fmean(fmean(row["over_bound"]) for row in rows[-5:])
        last = rows[-1]
        lines.append(
            f"{last['variant']} | {fmean(rows[0]['over_bound']):.1%} | {ends:.1%} | "
            f"{last['selected']:.0%} | {last['seconds'] / 60:.1f} min"
        )
    head = "variant | over the bound at the start | at the end | trees selected | time"
    return sourced_table(result, head, lines)


def training_speed() -> str:
    """Samples a second of training the scheduling policies, before and after."""
    result = load("training_speed")
    each = result["samples_per_second"]
    lines = [f"{name} | {n:,.0f} | {n / each['before']:.1f}" for name, n in each.items()]
    return sourced_table(result, "one core | samples a second | times before", lines)


def paper_method() -> str:
    """The paper's training of each network, and which trainings are still missing."""
    result, lines = load("paper_method"), []
    trained = {_key(rows[0]): rows for rows in grouped(result["rows"], ["label", "trees"])}
    for known in result["networks"]:
        rows, paper = trained.get(_key(known), []), known["paper"] / known["stages"]
        cells = [NETWORKS[known["label"]], known["trees"], known["bound"]]
        cells += [f"{known['constants']:.1f}", "not yet trained", "", "", "", number(paper), ""]
        if rows:
            last = [row["last"] for row in rows]
            between = f" ({min(last):.1f} to {max(last):.1f})" * (len(last) > 1)
            cells[4:8] = [
                f"{fmean(row['first'] for row in rows):.1f}",
                f"{fmean(last):.1f}{between}",
                f"{fmean(last) / known['bound'] - 1:.0%}",
                len(rows),
            ]
            cells[9] = f"{fmean(last) / paper - 1:+.0%}"
        lines.append(" | ".join(map(str, [*cells, number(known["paper"])])))
    head = "a stage's rounds | trees | bound | 19 constants, drawn | first update"
    head += " | last ten of 120 | over the bound | seeds | paper: RL, as settled"
    head += " | ours from it | paper, if one stage each"
    return sourced_table(result, head, lines, result["rows"])


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["label"], row["trees"]
