"""Tables of seconds that need more than a template: `seconds.toml` has the rest."""

from collections import Counter
from typing import Any

from benchmarks.markdown_table import before_planned, duration, sourced_table
from benchmarks.record import load
from benchmarks.table_templates import filled, grouped
from gradweave.topology.units import format_size


def unequal_links() -> str:
    """Times on links of unequal bandwidth, beside the least possible."""
    result = load("unequal_links")
    sizes = {1e8: "100 MB", 1e9: "1 GB", 2.0**30: "1 GiB", 2.0**32: "4 GiB"}
    random = [row for row in result["rows"] if row["kind"] == "random"]
    gap, worst = (f"{result[key]['random']:.2%}" for key in ("mean_gap", "worst_gap"))
    lines = [
        *filled(
            "{network} | {size} | {least_ms:.4g} | {ms:.4g} | {gap:.2%} | "
            "{pieces_per_server:number} | {seconds:duration}",
            [
                row | {"size": sizes[row["gradient_bytes"]]}
                for row in result["rows"]
                if row["kind"] != "random"
            ],
        ),
        f"{len(random)} meshes, links at random | 1 GiB |  |  | {gap} |  | "
        f"{duration(max(row['seconds'] for row in random))}",
    ]
    head = "network | gradient | least, ms | schedule, ms | gap | pieces a server | search"
    return (
        f"{sourced_table(result, head, lines)}{before_planned(result)}\n\n"
        "Meshes with random links: the mean gap and the slowest search; the "
        f"worst gap is {worst}."
    )


def unequal_networks_gap() -> str:
    """Gaps to the least time by kind, where latency is small, and the rest."""
    result = load("unequal_networks_gap")
    lines = filled(
        "{rows} | {count:number} | {mean_gap:.1%} | {worst_gap:.1%} | {over_3_percent:number} | "
        "{over_10_percent:number} | {mean_equal_gap:.1%} | {worst_equal_gap:.1%} | "
        "{mean_seconds:duration} | {slowest_seconds:duration}",
        result["summaries"],
    )
    head = "kind | cases | mean gap | worst gap | over 3% | over 10% | equal pieces: mean gap"
    head += " | worst | mean search | slowest"
    return f"{sourced_table(result, head, lines, result['rows'])}{_measured(result)}"


def _measured(result: dict[str, Any]) -> str:
    """How many networks there are, of which commits, and how many searches their limit ended."""
    sources = result["sources"]
    networks = {row["seed"]: sources[row["source"]]["commit"][:7] for row in result["rows"]}
    commits = Counter(networks.values()).most_common()
    text = f"{before_planned(result, result['rows'])}\n\n"
    text += f"{len(networks)} of the {len(networks) + len(result['missing'])} networks: "
    text += ", ".join(f"{count} at commit {commit}" for commit, count in commits)
    limited = sum(row["limited"] for row in result["rows"])
    ended = "1 search was" if limited == 1 else f"{limited} searches were"
    end = f"; {ended} ended by the limit of {result['limit_s']:g} s that pass"
    return text + end * bool(limited) + "."


def late_servers() -> str:
    """All-reduces for servers that are ready late, beside the bound and waiting for them."""
    result, lines = load("late_servers"), []
    for row in result["rows"]:
        slow = row["speed_of_server_1"]
        who = "servers" if len(row["late"]) > 1 else "server"
        named = {
            "network": f"`{row['network']}`" + (f", server 1 at {slow:g}" if slow else ""),
            "late": f"{who} {' and '.join(map(str, row['late']))} by {row['late_by']:g}",
        }
        lines += filled(
            "{network} | {late} | {intact_bound_ms:.4g} | {bound_ms:.4g} | {ms:.4g} | {gap:.1%} | "
            "{unaware_ms:.4g} | {waiting_ms:.4g} | {late_servers_root:.0%} | {search_s:duration}",
            [row | named],
        )
    head = "network | late | least in time, ms | least, ms | planned, ms | gap"
    head += " | not planned for, ms | waiting, ms | rooted by the late | search"
    return sourced_table(result, head, lines)


def time_against_size() -> str:
    """Time of the chosen schedule by gradient size, beside its own coarser cuts."""
    result = load("time_against_size")
    sizes = sorted({row["gradient_bytes"] for row in result["rows"]})
    shown = [size for size in sizes if f"{size:e}".startswith("1")]
    lines = []
    for rows in grouped(result["rows"], ["topology"]):
        faster = sum(
            row["coarser_cuts"]["fastest_s"] is not None
            and row["coarser_cuts"]["fastest_s"] < row["portfolio"]["seconds"]
            for row in rows
        )
        at = {row["gradient_bytes"]: row["portfolio"] for row in rows}
        cells = [f"{1e3 * at[size]['seconds']:.3g} ({at[size]['pieces']})" for size in shown]
        tried = sum(row["coarser_cuts"]["tried"] for row in rows)
        name = rows[0]["topology"].partition(",latency")[0]
        lines.append(" | ".join([f"`{name}`", *cells, f"{faster} of {tried}"]))
    head = ["ms (pieces)", *map(format_size, shown), "coarser cuts that are faster"]
    return sourced_table(result, " | ".join(head), lines)
