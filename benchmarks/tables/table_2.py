"""The paper's Table 2, and the front page's excerpt."""

from typing import Any

from markdown_table import NETWORKS, number, sourced_table
from record import load

REPAIRED_SINCE = "2026-11-24"
"""First whole day on which `learned` repaired its episodes, and drew 16 by default."""


def _by_scheduler(schedulers: dict[str, str]) -> str:
    """Mean rounds.

    The paper's ring has an asterisk where ours differs from it by more than 3 %.

    Args:
        schedulers: specifications, and how the head names them.
    """
    result = load("table_2")
    at = {(row["scheduler"], row["label"]): row for row in result["rows"]}
    head = ["network", *schedulers.values(), "lower bound", "paper: PS", "paper: ring", "paper: RL"]
    lines = []
    for label, name in NETWORKS.items():
        rows = [at[scheduler, label] for scheduler in schedulers]
        paper_ring = at["ring:steps=paper", label]
        differs = abs(paper_ring["rounds_mean"] - paper_ring["paper"]) > 0.03 * paper_ring["paper"]
        lines.append(
            [
                name,
                *(number(row["rounds_mean"]) for row in rows),
                number(rows[0]["bound"]),
                number(at["parameter_server", label]["paper"]),
                number(paper_ring["paper"]) + "*" * differs,
                number(result["paper_learned"][label]),
            ]
        )
    shown = [row for row in result["rows"] if row["scheduler"] in {*schedulers, "ring:steps=paper"}]
    return sourced_table(result, head, lines, shown)


def results() -> str:
    """The front page: four columns."""
    result = load("table_2")
    at = {(row["scheduler"], row["label"]): row for row in result["rows"]}
    lines = []
    for label, name in NETWORKS.items():
        ring, best = at["ring", label], at["portfolio", label]
        rounds = (ring["rounds_mean"], best["rounds_mean"], best["bound"])
        lines.append([name, *map(number, rounds)])
    head = ["network", "ring", "Gradweave", "lower bound"]
    shown = [row for row in result["rows"] if row["scheduler"] in ("ring", "portfolio")]
    return sourced_table(result, head, lines, shown)


def table_2_short() -> str:
    repaired = _repaired(load("table_2"))
    names = {
        "parameter_server": "parameter server",
        "ring:steps=paper": "ring, N steps",
        "merged": "merged trees",
        "grown:restarts=1": "grown, one run",
        "learned:samples=1,greedy=false": f"learned, one drawn, {repaired}",
        "learned": f"learned, best of {'16' if repaired == 'repaired' else '64'}, {repaired}",
        "portfolio": "portfolio",
    }
    return _by_scheduler(names)


def table_2() -> str:
    result = load("table_2")
    text = _by_scheduler({name: f"`{name}`" for name in _schedulers(result)})
    if _repaired(result) == "repaired":
        return text
    return (
        f"{text} Measured before episodes of `learned` were repaired, and when it drew at most 64 "
        "by default, which is 16 now."
    )


def _schedulers(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["scheduler"] for row in result["rows"]))


def _repaired(result: dict[str, Any]) -> str:
    """Whether the rows of `learned` are of repaired episodes, 16 at most, or of 64 others."""
    places = {row["source"] for row in result["rows"] if row["scheduler"].startswith("learned")}
    since = min(result["sources"][place]["date"] for place in places)
    return "repaired" if since >= REPAIRED_SINCE else "not repaired"
