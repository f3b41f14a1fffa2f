"""Live commands killed, stopped and starved: who was named, and what stayed."""

from markdown_table import sourced_table
from record import load


def attacked() -> str:
    result, lines = load("attacked"), []
    for command in sorted({row["command"] for row in result["rows"]}):
        rows = [row for row in result["rows"] if row["command"] == command]
        lost = [row["named"] for row in rows if row["named"] is not None]
        lines.append(
            [
                f"`{command}`",
                str(len(rows)),
                f"{sum(lost)} of {len(lost)}" if lost else "",
                str(sum(bool(row["left"]) for row in rows)),
                str(sum(bool(row["open"]) for row in rows)),
            ]
        )
    head = ["command", "attacks", "lost server named", "something left", "listened to others"]
    return sourced_table(result, head, lines)
