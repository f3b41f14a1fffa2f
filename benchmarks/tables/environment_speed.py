"""Workloads a second of the scheduling environment, beside plain Python."""

from markdown_table import NETWORKS, source, table
from record import load


def environment_speed() -> str:
    result = load("environment_speed")
    names = ("step", "rounds", "rollouts 1", "rollouts 64", "rollouts 1024")

    def short(value: float) -> str:
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"

    lines = []
    for row in result["rows"]:
        speeds = row["decisions_per_s"]
        plain = 1e6 / min(row["plain_decision_us"].values())
        lines.append(
            [
                f"{NETWORKS[row['label']]}, {row['trees']}",
                short(plain),
                *(short(speeds[name]) for name in names),
                f"{row['speedup']['rollouts 1024']:.0f}",
                short(row["rounds_per_s"]["rollouts 1024"]),
                f"{row['compile_s']['rollouts 1024']:.1f} s",
            ]
        )
    head = ["workloads per second", "plain Python", "`step`, 1,024", "`select`, `send`, 1,024",
            "rollouts, 1", "rollouts, 64", "rollouts, 1,024", "times plain Python",
            "rounds per second", "compilation"]  # fmt: skip
    memory = "; ".join(
        f"{row['trees']} trees {row['state_bytes'] / 1e6:.1f} MB of states, "
        f"{row['step_bytes'] / 1e6:.0f} MB more during `step`, "
        f"{row['rollouts_bytes'] / 1e6:.1f} MB in the rollouts"
        for row in result["memory"]
    )
    note = f"Memory of 1,024 environments on BCube(5,1): {memory}."
    return f"{table(head, lines)}\n\n{note}\n\n{source(result)}"
