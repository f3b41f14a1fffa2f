"""`gradweave measure` in the lab, against the truth."""

from markdown_table import sourced_table
from record import load


def measure() -> str:
    """Every network: how long it took, how far off it is, and what its schedule costs."""
    result = load("measure")
    in_lab = any("lab_truth_s" in row for row in result["rows"])
    head = ["network", "s", "groups found", "links found", "worst link", "pairs alone, worst"]
    head += ["pairs at once, median", "worst", "schedule, ms: truth's", "measured's"]
    if in_lab:
        head += ["in the lab, ms: truth's", "measured's"]
    lines = []
    for row in result["rows"]:
        worst = row["worst_link_error"]
        cells = [
            row["network"],
            f"{row['command_s']:.0f}",
            f"{row['groups_found']} of {row['groups']}",
            f"{row['links_found']} of {row['links']}",
            "–" if worst is None else f"{worst:.1%}",
            f"{row['pairs_alone']['worst']:.1%}",
            f"{row['pairs_together']['median']:.1%}",
            f"{row['pairs_together']['worst']:.1%}",
            f"{1e3 * row['schedule_of_truth_s']:.0f}",
            f"{1e3 * row['schedule_of_measured_s']:.0f}",
        ]
        if in_lab:
            cells += [
                f"{1e3 * row[key]:.0f}" if key in row else "–"
                for key in ("lab_truth_s", "lab_measured_s")
            ]
        lines.append(cells)
    return sourced_table(result, head, lines)
