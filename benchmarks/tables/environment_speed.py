"""Workloads a second of the scheduling environment, beside plain Python."""

from markdown_table import NETWORKS, source, table
from record import load


def environment_speed() -> str:
    result = load("environment_speed")

    def short(value: float) -> str:
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"

    lines = []
    for row in result["rows"]:
        plain = 1e6 / min(row["plain_decision_us"].values())
        lines.append(
            [
                f"{NETWORKS[row['label']]}, {row['trees']}",
                short(plain),
                short(row["decisions_per_s"]["step 1024"]),
                f"{row['speedup']['step 1024']:.0f}",
                f"{row['state_bytes'] / 1e3:.1f} kB",
                f"{row['compile_s']['step 1024']:.1f} s",
            ]
        )
    head = [
        "workloads per second",
        "plain Python",
        "`step`",
        "times plain Python",
        "a state",
        "compilation",
    ]
    return f"{table(head, lines)}\n\n{source(result)}"
