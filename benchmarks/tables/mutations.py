"""How many mutated schedules the verifier rejects."""

from markdown_table import sourced_table
from record import load


def mutations() -> str:
    result = load("mutations")
    head = ["mutation", "tried", "rejected", "another valid schedule"]
    lines = [
        [row["mutation"], f"{row['tried']:,}", f"{row['rejected']:,}", f"{row['still_valid']:,}"]
        for row in result["rows"]
    ]
    total = [
        sum(row[key] for row in result["rows"]) for key in ("tried", "rejected", "still_valid")
    ]
    lines.append(["**all**", *(f"**{count:,}**" for count in total)])
    return sourced_table(result, head, lines)
