"""Fairness by hierarchy: variants in three worlds, and gossip's error."""

from typing import Any

from markdown_table import sourced_table
from record import load

_PUBLISHED = {
    "independent": "utilisation .96, CV 1.57, .00 to .88",
    "FEN, exact mean": "utilisation .90, CV .17, .18 to .28",
}
"""Job scheduling by Jiang and Lu 2019, cited at second hand."""


def fen_job() -> str:
    result = load("fen")
    lines = [
        [*_row(row), f"{row['mean']['gossip_bytes']:.0f}", _PUBLISHED.get(row["variant"], "–")]
        for row in result["job"]
    ]
    head = [*_HEAD, "bytes an agent sends a step", "published"]
    return sourced_table(result, head, lines, result["job"])


def fen_others() -> str:
    result = load("fen")
    worlds = {
        "matthew": "Matthew effect",
        "matthew_before": "Matthew effect, the ghost's place",
        "plant": "manufacturing plant",
    }
    lines = [
        [f"{name}: {_row(row)[0]}", *_row(row)[1:], _products(row)]
        for part, name in worlds.items()
        for row in result.get(part, [])
    ]
    shown = [row for part in worlds for row in result.get(part, [])]
    return sourced_table(result, [*_HEAD, "utilisation × Jain's index"], lines, shown)


def fen_scripted() -> str:
    result = load("fen")
    lines = [
        [
            f"{row['world'].replace('_', ' ')}: {row['script']}",
            *[f"{row[name]:.3f}" for name in ("utilisation", "variation", "least", "greatest")],
            f"{row['jain']:.3f}",
            f"{row['product']:.3f}",
        ]
        for row in result["scripted"]
    ]
    head = [
        "scripted agents", "utilisation", "coefficient of variation", "least", "greatest",
        "Jain's index", "utilisation × Jain's index",
    ]  # fmt: skip
    return sourced_table(result, head, lines, result["scripted"])


def fen_gossip() -> str:
    result = load("fen")
    lines = [
        [
            row["network"],
            str(row["exchanges"]),
            f"{row['rho']:.2f}",
            f"{row['bytes_a_step']:.0f}",
            f"{100 * row['error']:.2g} %",
            f"{100 * row['error_at_100']:.2g} %",
            f"{100 * row['error_at_end']:.2g} %",
        ]
        for row in result["gossip"]
    ]
    head = [
        "ten agents, network", "exchanges a step", "ρ", "bytes an agent sends a step",
        "error, mean of an episode", "after 100 steps", "after 1000",
    ]  # fmt: skip
    return sourced_table(result, head, lines, result["gossip"])


_HEAD = (
    "variant", "seeds", "steps", "utilisation", "coefficient of variation (worst seed)",
    "least", "greatest", "Jain's index", "processor minutes a seed",
)  # fmt: skip


def _row(row: dict[str, Any]) -> list[str]:
    mean, seeds = row["mean"], row["by_seed"]
    worst = max(one["variation"] for one in seeds)
    return [
        row["variant"],
        str(len(seeds)),
        f"{row['steps']:,}",
        f"{mean['utilisation']:.3f}",
        f"{mean['variation']:.3f} ({worst:.3f})",
        f"{mean['least']:.3f}",
        f"{mean['greatest']:.3f}",
        f"{mean['jain']:.3f}",
        f"{mean['processor_s'] / 60:.1f}",
    ]


def _products(row: dict[str, Any]) -> str:
    """The mean of utilisation times Jain's index, and the least and greatest of the seeds."""
    each = [one["product"] for one in row["by_seed"]]
    return f"{sum(each) / len(each):.3f} ({min(each):.3f} to {max(each):.3f})"
