"""Time of the chosen schedule by gradient size, beside its own coarser cuts."""

from markdown_table import sourced_table
from record import load

from gradweave.topology.units import format_size


def time_against_size() -> str:
    result = load("time_against_size")
    sizes = sorted({row["gradient_bytes"] for row in result["rows"]})
    shown = [size for size in sizes if f"{size:e}".startswith("1")]
    at = {(row["topology"], row["gradient_bytes"]): row for row in result["rows"]}
    lines = []
    for name in dict.fromkeys(row["topology"] for row in result["rows"]):
        rows = [at[name, size] for size in sizes]
        coarser = [row["coarser_cuts"] for row in rows]
        faster = sum(
            cut["fastest_s"] is not None and cut["fastest_s"] < row["portfolio"]["seconds"]
            for cut, row in zip(coarser, rows, strict=True)
        )
        cells = (at[name, size]["portfolio"] for size in shown)
        lines.append(
            [
                f"`{name.partition(',latency')[0]}`",
                *(f"{1e3 * cell['seconds']:.3g} ({cell['pieces']})" for cell in cells),
                f"{faster} of {sum(cut['tried'] for cut in coarser)}",
            ]
        )
    head = ["ms (pieces)", *map(format_size, shown), "coarser cuts that are faster"]
    return sourced_table(result, head, lines)
