"""Measured beside predicted seconds in the emulated network."""

from markdown_table import sourced_table
from record import load

NAMES = {
    "bcube:n=3,k=1": "BCube(3,1)",
    "dcell:n=3,k=1": "DCell(3,1)",
    "jellyfish:reference=J10": "Jellyfish, 10",
}


def lab() -> str:
    result = load("lab")
    backend = {
        (row["network"], row["mbit_per_s"], row["gradient_bytes"]): row["measured_s"]
        for row in result["rows"]
        if row["name"] == "gloo"
    }
    head = ["network, link", "schedule", "MB", "rounds", "predicted ms", "measured ms"]
    head += ["measured / predicted", "times as fast as gloo", "share of overhead in bytes"]
    lines = []
    for row in result["rows"]:
        key = (row["network"], row["mbit_per_s"], row["gradient_bytes"])
        predicted, counted, data = row["predicted_s"], row["bytes_counted"], row["bytes_of_data"]
        lines.append(
            [
                f"`{row['network']}`, {row['mbit_per_s']} Mbit/s",
                row["name"].replace("_", " "),
                f"{row['gradient_bytes'] / 1e6:g}",
                "–" if row["rounds"] is None else str(row["rounds"]),
                "–" if predicted is None else f"{1e3 * predicted:.0f}",
                f"{1e3 * row['measured_s']:.0f}",
                "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
                f"{backend[key] / row['measured_s']:.2f}" if key in backend else "–",
                "–" if data is None else f"{1 - data / counted:.1%}",
            ]
        )
    return sourced_table(result, head, lines)


def lab_short() -> str:
    """Of the largest gradient on the fastest links alone."""
    result = load("lab")
    size = max(row["gradient_bytes"] for row in result["rows"])
    mbit = max(row["mbit_per_s"] for row in result["rows"])
    at = {
        (row["network"], row["name"]): row
        for row in result["rows"]
        if (row["gradient_bytes"], row["mbit_per_s"]) == (size, mbit)
    }
    head = [f"{size / 1e6:g} MB, {mbit} Mbit/s links", "portfolio", "ring", "parameter server"]
    head += ["gloo", "portfolio: times as fast as gloo"]
    lines = []
    for network, name in NAMES.items():
        cells = [name]
        for strategy in ("portfolio", "ring", "parameter_server"):
            row = at[network, strategy]
            cells.append(f"{1e3 * row['measured_s']:.0f} ms (×{row['ratio']:.2f})")
        backend = at[network, "gloo"]["measured_s"]
        cells.append(f"{1e3 * backend:.0f} ms")
        cells.append(f"{backend / at[network, 'portfolio']['measured_s']:.2f}")
        lines.append(cells)
    return sourced_table(result, head, lines)
