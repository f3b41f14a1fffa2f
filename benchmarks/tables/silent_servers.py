"""Who is named when one server of a training is killed, stopped or asleep."""

import statistics

from markdown_table import sourced_table
from record import load

VERDICTS = ("named right", "named others", "torch's error alone", "late")


def silent_servers() -> str:
    result, lines = load("silent_servers"), []
    for kind in ("killed", "stopped", "asleep"):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        counts = [str(sum(row["verdict"] == verdict for row in rows)) for verdict in VERDICTS]
        median_s = statistics.median(row["seconds"] for row in rows)
        lines.append([kind, str(len(rows)), *counts, f"{median_s:.1f} s"])
    head = ["one of four is", "trainings", *VERDICTS, "median until all know"]
    return sourced_table(result, head, lines)
