"""Saddle points over gossip: what the published method leaves, and what others do."""

from typing import Any

from markdown_table import sourced_table
from record import load


def _short(value: float) -> str:
    return f"{value:.1e}"


def saddle_networks() -> str:
    result = load("saddle")
    found = result["networks"]
    lines = []
    for row in found["rows"] + found["local_steps"]:
        least, median, most = (_short(value) for value in row["others"])
        alike = _short(row["like"][1])
        if row["like"][2] > 1.001 * row["like"][0]:
            alike += f" ({_short(row['like'][0])} to {_short(row['like'][2])})"
        what = row["what"] if row["what"] in found["p"] else f"ring, {row['what']}"
        others = f"{median} ({least} to {most})"
        lines.append([what, f"{row['rate']}/L", _short(row["reference"]), alike, others])
    head = ["‖z̄ − z*‖², from 0.8", "rate", "prototype", "nearest instance", "eight others"]
    return sourced_table(result, head, lines)


def saddle_methods() -> str:
    result = load("saddle")
    lines = [
        [
            row["method"],
            str(row["calls"]),
            str(row["bytes_per_iteration"]),
            _short(row["error"]),
            _short(row["changing clusters"]),
            _short(row["four local steps"]),
        ]
        for row in result["methods"]
    ]
    head = [
        "‖z̄ − z*‖²", "operator calls", "bytes an iteration", "ring, 4,000 iterations",
        "changing clusters, 8,000", "ring, H = 4, 8,000",
    ]  # fmt: skip
    return sourced_table(result, head, lines)


def saddle_messages() -> str:
    result = load("saddle")
    lines = [
        [
            row["method"],
            row["messages"],
            f"{row['message_bytes']:,}",
            *(_short(value) for value in row["after"].values()),
        ]
        for row in result["messages"]
    ]
    counts = [f"after {int(count):,}" for count in result["messages"][0]["after"]]
    head = ["‖z̄ − z*‖²", "messages", "bytes of a message", *counts]
    return sourced_table(result, head, lines)


def saddle_slopes() -> str:
    result = load("saddle")

    def line(row: dict[str, Any]) -> list[str]:
        pairs = zip(row["values"], row["errors"], strict=True)
        shown = "; ".join(f"{value:.3g}: {_short(error)}" for value, error in pairs)
        return [row["what"], shown, f"{row['exponent']:.2f}", f"{row['bound']:g}"]

    head = ["varied", "error at each value", "exponent measured", "in theory's bound"]
    return sourced_table(
        result, head, [line(row) for row in result["slopes"] + result["weaker_slopes"]]
    )


def saddle_many() -> str:
    result = load("saddle")
    many = result["many"]
    line = [
        "256",
        f"{many['size']}",
        f"{many['cores']}",
        f"{many['iterations_per_s']:.1f}",
        f"{many['data_and_state_mib']:.0f} MiB",
        f"{many['temporary_mib']:.1f} MiB",
    ]
    head = ["workers", "numbers", "cores", "iterations a second", "data and state", "temporary"]
    return sourced_table(result, head, [line])
