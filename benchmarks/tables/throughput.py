"""Rounds per piece of grown all-gathers, beside the least possible."""

from markdown_table import source, table
from record import load


def throughput() -> str:
    result = load("throughput")
    at = {(row["label"], row["pieces_per_server"]): row for row in result["rows"]}
    labels = dict.fromkeys(label for label, _ in at)
    counts = sorted({count for _, count in at})
    lines = []
    for label in labels:
        cells = []
        for count in counts:
            row = at[label, count]
            rounds = sorted(row["rounds"])[len(row["rounds"]) // 2]
            above = f" ({row['bound']})" if rounds > row["bound"] else ""
            cells.append(f"{rounds / count:.4g} = {rounds}{above}/{count}")
        lines.append([label, at[label, counts[0]]["least_time_per_piece"], *cells])
    head = ["network", "1/x*", *(f"c = {count}" for count in counts)]
    above = any(" (" in cell for line in lines for cell in line)
    note = "In brackets, the bound where more rounds were needed. " if above else ""
    return f"{table(head, lines)}\n\n{note}{source(result)}"
