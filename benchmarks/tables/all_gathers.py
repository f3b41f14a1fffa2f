"""All-gather rounds of named networks, and of every torus, mesh and hypercube."""

from markdown_table import duration, number, source, table
from record import load


def all_gathers() -> str:
    result = load("all_gathers")
    named = [
        [
            f"`{row['network']}`", f"{row['servers']:,}", number(row["bound"]),
            number(row["rounds"]), number(row["tacos_rounds"]), duration(row["seconds"]),
        ]
        for row in result["named"]
    ]  # fmt: skip
    swept = [
        [
            {"torus": "tori", "mesh": "meshes", "hypercube": "hypercubes"}[row["family"]],
            f"{row['networks']:,}", f"{row['at_bound']:,}", f"{row['one_above']:,}",
            f"{row['more_above']:,}", duration(row["slowest_seconds"]),
        ]
        for row in result["sweep"]
    ]  # fmt: skip
    head = ["network", "servers", "bound", "rounds", "TACOS", "time"]
    all_head = ["up to 256 servers", "networks", "at the bound", "one above", "more", "slowest"]
    return f"{table(head, named)}\n\n{table(all_head, swept)}\n\n{source(result)}"
