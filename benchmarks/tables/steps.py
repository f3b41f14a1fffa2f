"""Time and steps with and without a limit on transfers in a row."""

from markdown_table import number, sourced_table
from record import load


def steps() -> str:
    result = load("steps")
    lines = [
        [
            f"`{row['network']}`",
            f"{row['gradient_bytes'] / 1e3:g} kB",
            *(
                cell
                for side in ("without", "with")
                for cell in (f"{1e6 * row[side]['seconds']:.4g}", number(row[side]["steps"]))
            ),
        ]
        for row in result["rows"]
    ]
    head = ["network", "gradient", "µs without", "steps", "µs with", "steps"]
    return sourced_table(result, head, lines)
