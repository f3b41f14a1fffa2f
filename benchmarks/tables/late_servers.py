"""Times of all-reduces for servers that are ready late, beside the bound and waiting for them."""

from markdown_table import duration, sourced_table
from record import load


def late_servers() -> str:
    result = load("late_servers")
    lines = []
    for row in result["rows"]:
        slow = row["speed_of_server_1"]
        network = f"`{row['network']}`" + (f", server 1 at {slow:g}" if slow else "")
        who = "servers" if len(row["late"]) > 1 else "server"
        late = f"{who} {' and '.join(map(str, row['late']))} by {row['late_by']:g}"
        lines.append(
            [
                network,
                late,
                f"{row['intact_bound_ms']:.4g}",
                f"{row['bound_ms']:.4g}",
                f"{row['ms']:.4g}",
                f"{row['gap']:.1%}",
                f"{row['unaware_ms']:.4g}",
                f"{row['waiting_ms']:.4g}",
                f"{row['late_servers_root']:.0%}",
                duration(row["search_s"]),
            ]
        )
    head = [
        *("network", "late", "least in time, ms", "least, ms", "planned, ms", "gap"),
        *("not planned for, ms", "waiting, ms", "rooted by the late", "search"),
    ]
    return sourced_table(result, head, lines)
