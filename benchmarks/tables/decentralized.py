"""Losses reached by decentralized methods at each precision."""

from markdown_table import sourced_table
from record import load


def _scientific(value: float | None) -> str:
    if value is None:
        return "diverges"
    return f"{value:.1e}" if value < 100 else f"{value:.0e}"


def decentralized() -> str:
    result = load("decentralized")
    bits = sorted({row["bits"] for row in result["logistic"] if row["bits"]}, reverse=True)
    batches = list(dict.fromkeys(row["batch"] for row in result["logistic"]))
    at = {
        (row["method"], row["bits"], row["batch"]): row["above_best"] for row in result["logistic"]
    }
    lines = []
    for batch in batches:
        for method in ("all-reduce", "D-PSGD"):
            cells = [_scientific(at[method, None, batch]), *["–"] * len(bits)]
            lines.append([method, str(batch), *cells])
        for method in ("naive", "DCD", "ECD", "CHOCO"):
            cells = [_scientific(at[method, each, batch]) for each in bits]
            lines.append([method, str(batch), "–", *cells])
    head = ["loss above the minimum", "batch", "32 bits", *(f"{each} bits" for each in bits)]
    return sourced_table(result, head, lines)


def decentralized_grid() -> str:
    result = load("decentralized")
    rows = result["quadratic"]
    head = ["messages on an absolute grid", *(row["method"] for row in rows)]
    lines = [["loss above the minimum", *(_scientific(row["above_best"]) for row in rows)]]
    return sourced_table(result, head, lines)
