"""What readers of files make of inputs that a fuzzer finds."""

from markdown_table import sourced_table
from record import load


def fuzz() -> str:
    result = load("fuzz")
    lines = [
        [
            row["reader"],
            f"{row['executions']:,}",
            f"{row['outcomes'].get('value', 0):,}",
            f"{row['inputs_kept']:,}",
            str(len(row["findings"])),
        ]
        for row in result["rows"]
    ]
    total = sum(row["executions"] for row in result["rows"])
    found = sum(len(row["findings"]) for row in result["rows"])
    lines.append(["**all**", f"**{total:,}**", "", "", f"**{found}**"])
    head = ["reader", "inputs", "read as a value", "kept for new coverage", "findings"]
    return sourced_table(result, head, lines)
