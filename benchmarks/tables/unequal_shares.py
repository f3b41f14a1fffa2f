"""Times of all-reduces with shares of the gradient, beside those without and the least possible."""

from markdown_table import before_planned, duration, sourced_table
from record import load


def unequal_shares() -> str:
    result = load("unequal_shares")
    sizes = {256e6: "256 MB", 1e9: "1 GB", 4e9: "4 GB"}
    lines = [
        [
            row["network"],
            sizes[row["gradient_bytes"]],
            f"{row['least_ms']:.4g}",
            f"{row['before']['ms']:.4g}",
            f"{row['best']['ms']:.4g}",
            f"{row['gap_before']:.1%}",
            f"{row['gap']:.1%}",
            row["best"]["winner"],
            duration(row["best"]["seconds"]),
        ]
        for row in result["rows"]
    ]
    head = [
        *("network", "gradient", "least, ms", "equal pieces, ms", "with shares, ms"),
        *("gap before", "gap", "by", "search"),
    ]
    return f"{sourced_table(result, head, lines)}{before_planned(result)}"
