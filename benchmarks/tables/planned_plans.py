"""Gaps of `planned` by whose plan it is, and its training."""

from markdown_table import number, source, sourced_table
from record import load

WANTED_MS = 50
"""What a schedule should take on up to 32 servers."""


def planned_plans() -> str:
    """By kind, where latency is small, and the rest."""
    result = load("planned_plans")
    plans = ("even", "learned", "upper", "order", "shares", "shares and prices")
    lines = [
        [
            row["rows"],
            number(row["count"]),
            *(f"{row[plan]:.1%}" for plan in plans),
            f"{row['worst']:.1%}",
            f"{row['strategy ms']:.0f} ms",
            f"{row['packed']:.1%}",
            f"{row['packed ms']:.0f} ms",
        ]
        for row in result["summaries"]
    ]
    head = ["kind", "cases", "even plan", "learned plan", "its upper agent alone"]
    head += ["its order alone", "the programme's shares", "its shares and prices"]
    head += ["learned: worst", "learned: time", "`packed`", "its time"]
    rows = result["rows"]
    slow = sum(row["strategy ms"] > WANTED_MS for row in rows)
    slowest = max(row["strategy ms"] for row in rows)
    return (
        f"{sourced_table(result, head, lines)}\n\n{len(rows)} of the {result['cases']} cases; "
        f"{slow} took more than {WANTED_MS} ms, the slowest {slowest:.0f} ms."
    )


def planned_training() -> str:
    """One sentence."""
    result = load("planned_training")
    return (
        f"{result['updates']} updates, {result['decoded']:,} plans, took "
        f"{result['minutes']:.1f} minutes beside other work. Drawn plans gained "
        f"{result['first_fifth_gain']:.1%} of the even plan's time in the first fifth of the "
        f"updates and {result['last_fifth_gain']:.1%} in the last.\n\n{source(result)}"
    )


def planned_first() -> str:
    """By network: without `planned`, and with it first."""
    result = load("planned_first")
    columns = [
        f"{name}, {limit:g} s" for limit in result["limits_s"] for name in ("without", "with")
    ]
    lines = [
        [row["network"], *(f"{row[column]:.1%} ({row[f'{column}, by']})" for column in columns)]
        for row in result["rows"]
    ]
    return sourced_table(result, ["network, 4 GB", *columns], lines)
