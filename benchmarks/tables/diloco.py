"""Talking less: losses and bytes of local updates beside synchronous training."""

import statistics

from markdown_table import sourced_table
from record import load


def diloco() -> str:
    """Every method: its loss over the seeds, beside synchronous training, and what it sends.

    Runs on several texts are apart: beside each stands synchronous training on the same one.
    """
    result = load("diloco")
    base = {
        (row["seed"], row["text"]): row for row in result["rows"] if row["name"] == "synchronous"
    }
    texts = list(dict.fromkeys(row["text"] for row in result["rows"]))
    by_name: dict[tuple[int, str], list[dict]] = {}
    for row in result["rows"]:
        by_name.setdefault((texts.index(row["text"]), row["name"]), []).append(row)
    head = ["method", "loss, nats a character", "beside synchronous", "worst seed", "seeds"]
    head += ["bytes, 1 part of", "most in a step, MB"]
    if len(texts) > 1:
        head.insert(0, "text")
    lines = []
    for (text, name), rows in sorted(by_name.items(), key=lambda item: -item[0][0]):
        beside = [row["loss"] / base[row["seed"], row["text"]]["loss"] - 1 for row in rows]
        whole = base[rows[0]["seed"], rows[0]["text"]]["bytes_a_worker"]
        line = [
            name,
            f"{statistics.mean(row['loss'] for row in rows):.4f}",
            "–" if name == "synchronous" else f"{statistics.mean(beside):+.2%}",
            "–" if name == "synchronous" else f"{max(beside):+.2%}",
            str(len(rows)),
            f"{whole / rows[0]['bytes_a_worker']:.0f}",
            f"{rows[0]['peak_bytes_a_step'] / 1e6:.3f}",
        ]
        lines.append([str(len(texts) - text), *line] if len(texts) > 1 else line)
    return sourced_table(result, head, lines)
