"""How many of `learned`'s episodes are alike, on two networks whose bound is hard to meet."""

from markdown_table import sourced_table
from record import load


def learned_draws() -> str:
    result = load("learned_draws")
    lines = [
        [
            f"{row['servers']} servers, {row['bound']} rounds",
            str(row["temperature"]),
            "yes" if row["returns"] else "no",
            f"{row['distinct']} of {row['episodes']}",
            f"{row['at_bound'] / row['episodes']:.1%}",
            f"{row['milliseconds']:.0f} ms",
        ]
        for row in result["rows"]
    ]
    head = [
        "network",
        "temperature",
        "goes back",
        "different episodes",
        "at the bound",
        "an episode",
    ]
    return sourced_table(result, head, lines)
