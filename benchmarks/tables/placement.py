"""Placements of the paper's five cases, small instances, and the world's groups by schedules."""

from markdown_table import duration, source, table
from record import load


def placement_cases() -> str:
    result = load("placement")
    lines = [
        [
            row["case"],
            f"{row['random_s']:.2f}",
            f"{row['published_random_s']:.2f}",
            f"{row['published_s']:.2f}",
            f"{row['evolutionary']['mean_s']:.2f}",
            f"{row['annealing']['best_s']:.2f}",
            f"{row['annealing']['mean_s']:.2f}",
            duration(row["annealing"]["search_s"]),
            f"{row['bound_s']:.2f}",
            f"{max(0.0, row['gap']):.1%}",
            duration(row["bound_search_s"]),
        ]
        for row in result["cases"]
    ]
    head = [
        *("case", "random, mean", "theirs", "their search", "the same here, mean"),
        *("annealing, best", "mean", "search, processor", "at least", "gap", "proof, wall"),
    ]
    return table(head, lines)


def placement_small() -> str:
    result = load("placement")["small"]
    names = {"exact": "exact", "annealing": "annealing (default)", "evolutionary": "evolutionary"}
    lines = [
        [
            names[name],
            f"{count} of {result['instances']}",
            duration(result["search_s"][name]),
        ]
        for name, count in result["equal"].items()
    ]
    bound = (
        f"The least cost is {result['gap_median']:.0%} above the bound in the median, "
        f"{result['gap_largest']:.0%} at most: where all devices differ, it is weak."
    )
    return f"{table(['strategy', 'reaches the least', 'processor time'], lines)}\n\n{bound}"


def placement_world() -> str:
    result = load("placement")
    lines = [
        [
            row["links"],
            f"{row['exchange_s']:.2f}",
            f"{row['schedule_s']:.2f}",
            f"{row['least_s']:.2f}",
            f"{row['exchange_s'] + row['pipeline_s']:.2f}",
            f"{row['schedule_s'] + row['pipeline_s']:.2f}",
        ]
        for row in result["world"]
    ]
    head = [
        *("each device has", "sent directly, s", "by schedules, s", "at least, s"),
        *("cost before, s", "cost, s"),
    ]
    return f"{table(head, lines)}\n\n{source(result)}"
