"""Times on links of unequal bandwidth, beside the least possible."""

from markdown_table import before_planned, duration, number, sourced_table
from record import load


def unequal_links() -> str:
    result = load("unequal_links")
    sizes = {1e8: "100 MB", 1e9: "1 GB", 2.0**30: "1 GiB", 2.0**32: "4 GiB"}
    lines = [
        [
            row["network"],
            sizes[row["gradient_bytes"]],
            f"{row['least_ms']:.4g}",
            f"{row['ms']:.4g}",
            f"{row['gap']:.2%}",
            number(row["pieces_per_server"]),
            duration(row["seconds"]),
        ]
        for row in result["rows"]
        if row["kind"] != "random"
    ]
    random = [row for row in result["rows"] if row["kind"] == "random"]
    gap, worst = result["mean_gap"]["random"], result["worst_gap"]["random"]
    slowest = duration(max(row["seconds"] for row in random))
    lines.append(
        [f"{len(random)} meshes, links at random", "1 GiB", "", "", f"{gap:.2%}", "", slowest]
    )
    head = ["network", "gradient", "least, ms", "schedule, ms", "gap", "pieces a server", "search"]
    return (
        f"{sourced_table(result, head, lines)}{before_planned(result)}\n\n"
        "Of the meshes with links at random the mean gap is shown and the slowest search; the "
        f"worst gap is {worst:.2%}."
    )
