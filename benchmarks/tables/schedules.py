"""Tables of rounds that need more than a template: `schedules.toml` has the rest."""

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown_table import NETWORKS, duration, number, source, sourced_table, table
from benchmarks.record import load
from benchmarks.table_templates import grouped
from gradweave.topology.units import ROUNDING

REPAIRED_SINCE = "2026-11-24"
"""First whole day on which `learned` repaired its episodes, and drew 16 by default."""


def results() -> str:
    """The front page: Table 2's networks by two rings, the paper's method and the portfolio."""
    result = load("table_2")
    at = {(row["scheduler"], row["label"]): row for row in result["rows"]}
    ours = {"ring": "ring", "ring:order=hamiltonian": "Hamiltonian ring", "portfolio": "Gradweave"}
    lines = []
    for label, name in NETWORKS.items():
        ring, circle, best = (at[scheduler, label] for scheduler in ours)
        rounds = [ring["rounds_mean"], circle["rounds_mean"], result["paper_learned"][label]]
        rounds += [best["rounds_mean"], best["bound"]]
        lines.append(" | ".join([name, *map(number, rounds)]))
    head = "network | ring | Hamiltonian ring | the paper's RL | Gradweave | lower bound"
    shown = [row for row in result["rows"] if row["scheduler"] in ours]
    return sourced_table(result, head, lines, shown)


def _by_scheduler(result: dict[str, Any], schedulers: Mapping[str, str]) -> str:
    """Mean rounds, by specifications of schedulers and how the head names them.

    The paper's ring has an asterisk where ours differs from it by more than 3 %.
    """
    at = {(row["scheduler"], row["label"]): row for row in result["rows"]}
    lines = []
    for label, name in NETWORKS.items():
        rows = [at[scheduler, label] for scheduler in schedulers]
        ring = at["ring:steps=paper", label]
        differs = abs(ring["rounds_mean"] - ring["paper"]) > 0.03 * ring["paper"]
        ours = [*(row["rounds_mean"] for row in rows), rows[0]["bound"]]
        server = at["parameter_server", label]["paper"]
        published = [number(server), number(ring["paper"]) + "*" * differs]
        published.append(number(result["paper_learned"][label]))
        lines.append(" | ".join([name, *map(number, ours), *published]))
    head = ["network", *schedulers.values(), "lower bound", "paper: PS", "paper: ring", "paper: RL"]
    shown = [row for row in result["rows"] if row["scheduler"] in {*schedulers, "ring:steps=paper"}]
    return sourced_table(result, " | ".join(head), lines, shown)


def table_2_short() -> str:
    result = load("table_2")
    repaired = _repaired(result)
    names = {
        "parameter_server": "parameter server",
        "ring:steps=paper": "ring, N steps",
        "merged": "merged trees",
        "grown:restarts=1": "grown, one run",
        "learned:samples=1,greedy=false": f"learned, one drawn, {repaired}",
        "learned": f"learned, best of {'16' if repaired == 'repaired' else '64'}, {repaired}",
        "portfolio": "portfolio",
    }
    return _by_scheduler(result, names)


def table_2() -> str:
    result = load("table_2")
    text = _by_scheduler(
        result, {row["scheduler"]: f"`{row['scheduler']}`" for row in result["rows"]}
    )
    if _repaired(result) == "repaired":
        return text
    return (
        f"{text} Measured before episodes of `learned` were repaired, and when it drew at most 64 "
        "by default, which is 16 now."
    )


def _repaired(result: dict[str, Any]) -> str:
    """Whether the rows of `learned` are of repaired episodes, 16 at most, or of 64 others."""
    places = {row["source"] for row in result["rows"] if row["scheduler"].startswith("learned")}
    since = min(result["sources"][place]["date"] for place in places)
    return "repaired" if since >= REPAIRED_SINCE else "not repaired"


def throughput() -> str:
    """Rounds per piece of grown all-gathers, beside the least possible."""
    result = load("throughput")
    counts = sorted({row["pieces_per_server"] for row in result["rows"]})
    lines = []
    for rows in grouped(result["rows"], ["label"]):
        cells = [rows[0]["label"], rows[0]["least_time_per_piece"]]
        for count, row in zip(counts, rows, strict=True):
            rounds = sorted(row["rounds"])[len(row["rounds"]) // 2]
            above = f" ({row['bound']})" if rounds > row["bound"] else ""
            cells.append(f"{rounds / count:.4g} = {rounds}{above}/{count}")
        lines.append(" | ".join(cells))
    head = " | ".join(["network", "1/x*", *(f"c = {count}" for count in counts)])
    above = any(" (" in cell for line in lines for cell in line.split(" | ")[1:])
    note = "In brackets, the bound where more rounds were needed. " if above else ""
    return f"{table(head, lines)}\n\n{note}{source(result)}"


def strategies_scaling() -> str:
    """Time of each strategy as networks grow."""
    result = load("strategies_scaling")
    large = [row for row in result["rows"] if row["servers"] == 1024]
    gaps = {(row["family"], row["strategy"]): row["gap"] for row in large}
    lines = [
        f"{row['family']} | `{result['strategies'][row['strategy']]}` | "
        f"{row['microseconds_at_64']:.2g} µs | {row['microseconds_at_1024']:.2g} µs | "
        f"{row['factor']:.2g} | {gaps[row['family'], row['strategy']]:.0%}"
        for row in result["growth"]
    ]
    head = "network | strategy | a transfer, 64 servers | 1,024 servers | factor"
    return sourced_table(result, f"{head} | gap, 1,024 servers", lines)


def time_limits() -> str:
    """Seconds of each search beside its limit; those not kept in bold."""
    result = load("time_limits")
    lines = []
    for own in grouped(result["rows"], ["network", "objective"]):
        own.sort(key=lambda row: row["limit_s"])
        cells = [own[0]["network"], number(own[0]["servers"]), own[0]["objective"]]
        for row in own:
            cells.append(f"{row['seconds']:.2f}" if row["kept"] else f"**{row['seconds']:.2f}**")
        lines.append(" | ".join([*cells, duration(own[0]["first_s"])]))
    limits = sorted({row["limit_s"] for row in result["rows"]})
    head = ["network", "servers", "objective", *(f"limit {limit:g} s" for limit in limits)]
    return sourced_table(result, " | ".join([*head, "shortest possible"]), lines)


def large_files() -> str:
    """Reading and verifying large schedules."""
    result = load("large_files")
    rows = result["rows"]

    def spread(name: str) -> str:
        times = sorted(rows[name])
        return f"{times[len(times) // 2]:.2f} s ({times[0]:.2f} to {times[-1]:.2f})"

    lines = [
        f"read 1,000,000 transfers, `{suffix}` | {spread(f'load_million{suffix}_s')} | "
        f"{rows[f'bytes{suffix}'] / 1e6:.1f} MB"
        for suffix in (".json", ".json.gz")
    ]
    lines.append(
        f"verify {rows['transfers']:,} transfers of {rows['servers']:,} servers | "
        f"{spread('verify_s')} | {rows['verify_peak_memory_mib']} MiB at the peak"
    )
    return sourced_table(result, "what | median of 5 (range) | size", lines)


def leave_one_out() -> str:
    """Which strategies win, and which are missed where they are left out."""
    result = load("leave_one_out")
    rows = [row for row in result["rows"] if "winner" in row]
    texts = []
    for what, chosen in (("rounds", False), ("seconds", True)):
        of_it = [row for row in rows if (row["bytes"] is not None) == chosen]
        strategies = sorted({name for row in of_it for name in row["share_of_time"]})
        lines = []
        for name in strategies:
            won = [row for row in of_it if row["winner"] == name]
            longer = [row["without_winner"] / row["value"] - 1 for row in won]
            missed = sum(more > ROUNDING for more in longer)
            share = sum(row["share_of_time"].get(name, 0.0) for row in of_it) / len(of_it)
            mean = sum(longer) / len(longer) if longer else 0.0
            cells = (f"{len(won)}", f"{missed}", f"{mean:.1%}", f"{max(longer, default=0.0):.1%}")
            lines.append((-missed, -len(won), " | ".join((name, *cells, f"{share:.1%}"))))
        head = f"{what}, {len(of_it)} cases | wins | missed | mean loss | worst | share of time"
        texts.append(table(head, [line for *_, line in sorted(lines)]))
    return "\n\n".join([*texts, source(result)])
