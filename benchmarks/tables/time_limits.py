"""How well a time limit is kept: by network, objective and limit."""

from markdown_table import duration, number, sourced_table
from record import load


def time_limits() -> str:
    """Seconds of each search beside its limit; those not kept in bold."""
    result = load("time_limits")
    limits = sorted({row["limit_s"] for row in result["rows"]})
    rows = {(row["network"], row["objective"], row["limit_s"]): row for row in result["rows"]}
    lines = []
    for name, objective in dict.fromkeys(key[:2] for key in rows):
        own = [rows[name, objective, limit] for limit in limits]
        cells = [f"{row['seconds']:.2f}" for row in own]
        lines.append(
            [
                name,
                number(own[0]["servers"]),
                objective,
                *(
                    text if row["kept"] else f"**{text}**"
                    for text, row in zip(cells, own, strict=True)
                ),
                duration(own[0]["first_s"]),
            ]
        )
    head = ["network", "servers", "objective", *(f"limit {limit:g} s" for limit in limits)]
    return sourced_table(result, [*head, "shortest possible"], lines)
