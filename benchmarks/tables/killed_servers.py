"""Asynchronous trainings whose servers, or whose Ray, were killed."""

from markdown_table import source, sourced_table, table
from record import load


def killed_servers() -> str:
    result = load("killed_servers")
    lines = [
        [
            f"a server, {row['kills']} times",
            str(row["inside_a_save"]),
            f"{row['readable_and_same']} times",
            str(row["recovered"]),
            "bit for bit the same" if row["same"] else "**different**",
        ]
        for row in result["rows"]
    ]
    head = [
        "killed",
        "inside a save",
        "checkpoint readable and as without kills",
        "recovered",
        "result",
    ]
    return sourced_table(result, head, lines)


def killed_ray() -> str:
    result = load("killed_ray")
    lines = [
        [name, str(len(seconds)), f"{min(seconds):.1f} to {max(seconds):.1f} s"]
        for name, seconds in zip(
            ("the raylet", "the GCS"), result["seconds_to_the_end"].values(), strict=True
        )
    ]
    head = ["killed", "times", "until the command ended"]
    load_average = f"Load average at the start: {result['load_at_start']:.1f}."
    return f"{table(head, lines)}\n\n{source(result)} {load_average}"
