"""How many of `learned`'s episodes are alike, on the two networks whose bound it misses."""

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
        ]
        for row in result["rows"]
    ]
    head = ["network", "temperature", "goes back", "different episodes", "at the bound"]
    return sourced_table(result, head, lines)
