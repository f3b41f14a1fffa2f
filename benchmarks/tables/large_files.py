"""Reading and verifying large schedules."""

from markdown_table import sourced_table
from record import load


def large_files() -> str:
    result = load("large_files")
    rows = result["rows"]

    def spread(name: str) -> str:
        times = sorted(rows[name])
        return f"{times[len(times) // 2]:.2f} s ({times[0]:.2f} to {times[-1]:.2f})"

    head = ["what", "median of 5 (range)", "size"]
    lines = [
        [
            f"read 1,000,000 transfers, `{suffix}`",
            spread(f"load_million{suffix}_s"),
            f"{rows[f'bytes{suffix}'] / 1e6:.1f} MB",
        ]
        for suffix in (".json", ".json.gz")
    ]
    verified = f"verify {rows['transfers']:,} transfers of {rows['servers']:,} servers"
    peak = f"{rows['verify_peak_memory_mib']} MiB at the peak"
    lines.append([verified, spread("verify_s"), peak])
    return sourced_table(result, head, lines)
