"""The paper's Table 2, and the front page's excerpt."""

from markdown_table import NETWORKS, number, sourced_table
from record import load


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
    names = {
        "parameter_server": "parameter server",
        "ring:steps=paper": "ring, N steps",
        "merged": "merged trees",
        "grown:restarts=1": "grown, one run",
        "learned:samples=1,greedy=false": "learned, one drawn, repaired",
        "learned": "learned, best of 16, repaired",
        "portfolio": "portfolio",
    }
    return _by_scheduler(names)


def table_2() -> str:
    names = dict.fromkeys(row["scheduler"] for row in load("table_2")["rows"])
    return _by_scheduler({name: f"`{name}`" for name in names})
