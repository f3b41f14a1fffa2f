"""Tables of trainings that need more than a template: `training.toml` has the rest."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.markdown_table import duration, sourced_table, table, two
from benchmarks.record import load
from benchmarks.table_templates import grouped

DIVERGED = 100.0
"""Fréchet distance above which a run has diverged: an untrained generator's is below."""


def decentralized() -> str:
    """Losses reached by decentralized methods at each precision."""
    result = load("decentralized")
    rows = result["logistic"]
    bits = sorted({row["bits"] for row in rows if row["bits"]}, reverse=True)
    at = {(row["method"], row["bits"], row["batch"]): row["above_best"] for row in rows}
    lines = []
    for batch in dict.fromkeys(row["batch"] for row in rows):
        for method in ("all-reduce", "D-PSGD"):
            cells = [_scientific(at[method, None, batch]), *["–"] * len(bits)]
            lines.append(" | ".join([method, str(batch), *cells]))
        for method in ("naive", "DCD", "ECD", "CHOCO"):
            cells = [_scientific(at[method, each, batch]) for each in bits]
            lines.append(" | ".join([method, str(batch), "–", *cells]))
    head = ["loss above the minimum", "batch", "32 bits", *(f"{each} bits" for each in bits)]
    return sourced_table(result, " | ".join(head), lines)


def decentralized_grid() -> str:
    """The same with messages on a grid."""
    result = load("decentralized")
    rows = result["quadratic"]
    head = " | ".join(["messages on an absolute grid", *(row["method"] for row in rows)])
    losses = (_scientific(row["above_best"]) for row in rows)
    return sourced_table(result, head, [" | ".join(["loss above the minimum", *losses])])


def _scientific(value: float | None) -> str:
    if value is None:
        return "diverges"
    return f"{value:.1e}" if value < 100 else f"{value:.0e}"


def diloco() -> str:
    """Local updates: each method's loss over the seeds beside synchronous training, and its bytes.

    Runs on several texts are apart: beside each stands synchronous training on the same one.
    """
    result = load("diloco")
    texts = list(dict.fromkeys(row["text"] for row in result["rows"]))
    base = {
        (row["seed"], row["text"]): row for row in result["rows"] if row["name"] == "synchronous"
    }
    head = "method | loss, nats a character | beside synchronous | worst seed | seeds"
    head += " | bytes, 1 part of | most in a step, MB"
    lines = []
    for number, text in enumerate(reversed(texts), 1):
        of_text = [row for row in result["rows"] if row["text"] == text]
        for rows in grouped(of_text, ["name"]):
            first, loss = rows[0], fmean(row["loss"] for row in rows)
            beside = [row["loss"] / base[row["seed"], text]["loss"] - 1 for row in rows]
            whole = base[first["seed"], text]["bytes_a_worker"] / first["bytes_a_worker"]
            shown = f"{fmean(beside):+.2%} | {max(beside):+.2%}"
            shown = "– | –" if first["name"] == "synchronous" else shown
            lines.append(
                f"{f'{number} | ' * (len(texts) > 1)}{first['name']} | {loss:.4f} | {shown} | "
                f"{len(rows)} | {whole:.0f} | {first['peak_bytes_a_step'] / 1e6:.3f}"
            )
    return sourced_table(result, "text | " * (len(texts) > 1) + head, lines)


def ten_cities() -> str:
    """Bytes and predicted seconds of one communication between ten cities, by method."""
    result = load("ten_cities")
    head = "method | MB sent by the busiest worker | predicted ms | steps in between"
    lines = [
        f"{row['name']} | {row['bytes_a_worker'] / 1e6:.3f} | {1e3 * row['seconds']:.0f} | "
        f"{row['steps_between']}"
        for row in result["exchanges"]
    ]
    return sourced_table(result, head, lines)


def ten_cities_small() -> str:
    """Losses of trainings between ten cities over the seeds, with their bytes and seconds."""
    result, lines = load("ten_cities_small"), []
    for row in result["summary"]:
        (low, high), to = row["between"], row["to"]
        there = "– | –" if to is None else (
            f"{to['seconds']:.1f} | {to['bytes_a_worker'] / 1e6:.2f}"
        )  # fmt: skip
        lines.append(
            f"{row['name']} | {row['rate']:g} | {row['loss']:.3f} ({low:.3f} to {high:.3f}) | "
            f"{row['seeds']} | {row['bytes_a_worker'] / 1e6:.2f} | {row['seconds']:.1f} | {there}"
        )
    head = "method | rate | loss at the end (95 %) | seeds | MB of a worker | seconds"
    return sourced_table(result, head + " | seconds to DiLoCo's loss | MB to it", lines)


def stragglers() -> str:
    """Asynchronous rules beside synchronous updates when some workers are slow."""
    result, lines = load("stragglers"), []
    for row in result["compared"]:
        case = (row["scenario"], row["rule"])
        runs = [run for run in result["rows"] if (run["scenario"], run["rule"]) == case]
        times, bound = row["times_sync"], runs[0]["staleness_bound"]
        most = str(max(run["staleness_most"] for run in runs))
        rate, stale, seconds = (
            fmean(run[key] for run in runs)
            for key in ("gradients_per_s", "staleness_mean", "seconds")
        )
        lines.append(
            f"{row['scenario']}, {row['rule']} | {rate:.0f} | "
            f"{fmean(times):.2f} ({min(times):.2f} to {max(times):.2f}) | "
            f"{fmean(row['simulated_times_sync']):.2f} | {stale:.1f} | "
            f"{most if bound is None else f'{most} of {bound}'} | "
            f"{fmean(run['curve']['loss'][-1] for run in runs):.3f} | {seconds:.1f} s"
        )
    head = "slowness, rule | gradients per second | times sync (range) | simulated"
    head += " | mean staleness | largest, of its bound | loss at the end | after"
    return sourced_table(result, head, lines)


def stragglers_price() -> str:
    """Losses after equal numbers of updates and of gradients."""
    result, lines = load("stragglers"), []
    rates = sorted({row["rate"] for row in result["prices"]})
    for counted in ("updates", "gradients"):
        for prices in grouped(result["prices"], ["rule"]):
            cells = [f"{prices[0]['rule']}, {result[f'price_{counted}']} {counted}"]
            for rate in rates:
                losses = [row[f"loss_after_{counted}"] for row in prices if row["rate"] == rate]
                cells.append("diverges" if None in losses else f"{fmean(losses):.3f}")
            lines.append(" | ".join(cells))
    head = ["loss after equal numbers, simulated", *(f"η = {rate:g}" for rate in rates)]
    return sourced_table(result, " | ".join(head), lines)


def asynchronous_marl() -> str:
    """Agents that learn by the asynchronous server beside a slow worker."""
    result, lines = load("asynchronous_marl"), []
    for rows in grouped(result["rows"], ["on", "rule"]):
        first, case = rows[0], (rows[0]["on"], rows[0]["rule"])
        reached = [row for row in result["compared"] if (row["on"], row["rule"]) == case]
        returns = [row["return"] for row in rows]
        killed = f"{first['replaced']} worker, {first['recovered']} server"
        cells = [
            *(f"{case[0]}: {case[1]}", f"{fmean(returns):.2f}"),
            *(", ".join(f"{one:.2f}" for one in returns), f"{first['seconds']:.0f}"),
            _mean(reached, "seconds", "{:.0f} s"),
            _mean(reached, "share_of_sync", "{:.2f}"),
            _mean(reached, "steps", "{:,.0f}"),
            f"{first['staleness_mean']:.1f}, {first['staleness_most']}",
            _mean(rows, "weight", "{:.3f}") if first["weight"] else "–",
            killed if first["replaced"] or first["recovered"] else "–",
        ]
        lines.append(" | ".join(cells))
    head = " | return at the end | each seed | seconds | reaches sync's return after"
    head += " | of sync's time | after steps | staleness, most | mean weight | killed"
    return sourced_table(result, head, lines)


def _mean(rows: list[dict[str, Any]], key: str, shown: str) -> str:
    """Of those that reached it; says how many did not."""
    there = [row[key] for row in rows if row[key] is not None]
    if not there:
        return "never"
    missing = len(rows) - len(there)
    return shown.format(fmean(there)) + (f" ({missing} of {len(rows)} never)" if missing else "")


def jax_speed() -> str:
    """Speed of the JAX executor beside loops written by hand."""
    result = load("jax_all_reduce")
    columns = [row["times_best_by_hand"] for row in result["speed"]]
    lines = [
        " | ".join([name.replace("_", " "), *(f"{column[name]:.2f}" for column in columns)])
        for name in columns[0]
    ]
    elements = (f"{row['elements']:,}" for row in result["speed"])
    head = " | ".join(["8 devices, elements of float32", *elements])
    return sourced_table(result, head, lines)


def message_cost() -> str:
    """What a message costs beside its bytes, by runtime."""
    result = load("message_cost")
    names = {"mpi": "MPI", "jax": "JAX, one process", "torch": "gloo"}
    lines = [
        f"{name} by itself | {two(1e6 * one['messages'][0]['each_s'])} µs"
        for name, one in result["own"].items()
    ]
    lines += [
        f"executor on {names[name]} | {two(1e6 * one['further_message_s'][0])} µs"
        for name, one in result["executors"].items()
    ]
    return sourced_table(result, "small messages, one after the other | each takes", lines)


def placement_small() -> str:
    """How often each strategy finds the least cost of small instances."""
    result = load("placement")["small"]
    names = {"exact": "exact", "annealing": "annealing (default)", "evolutionary": "evolutionary"}
    lines = [
        f"{names[name]} | {count} of {result['instances']} | {duration(result['search_s'][name])}"
        for name, count in result["equal"].items()
    ]
    met = result["gap_largest"] < 1e-6
    median, most = result["gap_median"], result["gap_largest"]
    above = f"{median:.0%} below it in the median, {most:.0%} at most"
    return (
        f"{table('strategy | reaches the least | processor time', lines)}\n\n"
        f"Given the minimum cost, the bound is {'that, in all of them' if met else above}."
    )


def compressed_gossip() -> str:
    """Losses of compressed gossip over D-PSGD's, by dimension, messages and gamma."""
    result, lines = load("compressed_gossip"), []
    gammas = (0.08, 0.1, 0.3, 0.6, 1.0)
    whole = [row for row in result["rows"] if row["method"] != "D-PSGD"]
    whole.sort(key=lambda row: (row["kind"] != "longer", row["size"]))
    for rows in grouped(whole, ["kind", "size", "messages"]):
        found = {row["gamma"]: _ratio(row) for row in rows}
        limit = next((row["limit"] for row in rows if "limit" in row), None)
        advised = "–" if not limit else f"{limit:.2g}"
        cells = [rows[0]["kind"], f"{rows[0]['size']:,}", rows[0]["messages"], found.get(None, "–")]
        lines.append(" | ".join([*cells, *(found.get(one, "–") for one in gammas), advised]))
    head = "samples | D | messages | DCD"
    head += "".join(f" | CHOCO, γ = {gamma:g}" for gamma in gammas)
    return sourced_table(result, f"{head} | γ advised, at most", lines)


def _ratio(row: dict[str, Any]) -> str:
    """With its interval."""
    if row["ratio"] is None:
        return "diverges"
    low, high = row["interval"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


OUTER = {
    "paper": "0.7, 0.9 (the default)",
    "less momentum": "1, 0.7",
    "half": "0.7, 0.5",
    "mean": "1, 0 (the mean)",
}
"""Outer rate and momentum of `diloco_outer`, by name."""


def diloco_outer() -> str:
    """What DiLoCo costs in loss beside synchronous training, by outer rate and momentum."""
    result, lines = load("diloco_outer"), []
    rows = [row for row in result["rows"] if row["outer"] != "synchronous"]
    for each in grouped(rows, ["steps", "text", "outer"]):
        beside = ", ".join(f"{100 * row['beside']:+.1f} %" for row in each)
        mean = f"{100 * fmean(row['beside'] for row in each):+.1f} %"
        one = each[0]
        lines.append(
            f"{one['text']} | {one['steps']:,} | {one['steps'] // 10} | {OUTER[one['outer']]} | "
            f"{mean} | {beside}"
        )
    head = "text | steps | averages | outer rate, momentum | beside synchronous | each seed"
    return sourced_table(result, head, lines)


NEAR = 0.2
"""By how much a figure may differ from the prototype's to count as reproduced."""


def saddle_networks() -> str:
    """What the published method leaves, by network."""
    result = load("saddle")
    found, lines = result["networks"], []
    for row in found["rows"] + found["local_steps"]:
        least, median, most = (f"{value:.1e}" for value in row["others"])
        alike = f"{row['like'][1]:.1e}"
        if row["like"][2] > 1.001 * row["like"][0]:
            alike += f" ({row['like'][0]:.1e} to {row['like'][2]:.1e})"
        what = row["what"] if row["what"] in found["p"] else f"ring, {row['what']}"
        near = sum(abs(each / row["reference"] - 1) < NEAR for each in row["each"])
        lines.append(
            f"{what} | {row['rate']}/L | {median} ({least} to {most}) | {row['reference']:.1e} | "
            f"{near} of {len(row['each'])} | {alike}"
        )
    head = "‖z̄ − z*‖², from 0.8 | rate | eight instances | prototype | within 20 % of it"
    return sourced_table(result, f"{head} | seed 27495, searched", lines)


def saddle_slopes() -> str:
    """Exponents measured beside those of theory."""
    result, lines = load("saddle"), []
    for row in result["slopes"] + result["weaker_slopes"]:
        pairs = zip(row["values"], row["errors"], strict=True)
        shown = "; ".join(f"{value:.3g}: {error:.1e}" for value, error in pairs)
        lines.append(f"{row['what']} | {shown} | {row['exponent']:.2f} | {row['bound']:g}")
    head = "varied | error at each value | exponent measured | in theory's bound"
    return sourced_table(result, head, lines)


def saddle_near() -> str:
    """Iterations, bytes and seconds to the accuracy that the published method reaches, too."""
    return _to_accuracy(0)


def saddle_far() -> str:
    """To one that it does not."""
    return _to_accuracy(1)


def _to_accuracy(place: int) -> str:
    result, lines = load("saddle_networks"), []
    goal = str(result["goals"][place])
    for row in result["rows"]:
        bits = "" if row["bits"] == 32 else f", {row['bits']} bits"
        cells, found = [f"{row['method']}{bits}", row["average"]], row["reached"][goal]
        if found is None:
            cells += ["not reached", *[""] * (1 + len(result["networks"]))]
        else:
            sent = found["iterations"] * row["bytes_per_iteration"] / 2**20
            seconds = (found["seconds"][name] for name in row["seconds_per_communication"])
            cells += [f"{found['iterations']:,}", f"{sent:.3g}", *(f"{one:.3g}" for one in seconds)]
        lines.append(" | ".join(cells))
    head = [f"to ‖z̄ − z*‖² ≤ {float(goal):.0e}", "average", "iterations", "MiB of a worker"]
    head += [f"s, {name}" for name in result["networks"]]
    return sourced_table(result, " | ".join(head), lines)


def saddle_games() -> str:
    """Two opposed teams, by simultaneous updates and by extra-gradient."""
    result, lines = load("saddle_games"), []
    ways = [row["way"] for row in result["ways"]]
    sides = [each for each in ("pursuers", "evader") if result["exploited"]]
    for way in ways:
        met = [row for row in result["cross_play"] if row["pursuers"] == way]
        returns = {row["evader"]: row["by_seed_of_pursuers"] for row in met}
        gains = {row["learns"]: row["gain"] for row in result["exploited"] if row["way"] == way}
        shown = [*(returns[other] for other in ways), *(gains[side] for side in sides)]
        lines.append(" | ".join([way, *map(_with_error, shown)]))
    head = ["pursuers, by", *(f"against evaders by {way}" for way in ways)]
    head += [f"gain of {side} that learn on" for side in sides]
    return sourced_table(result, " | ".join(head), lines)


def _with_error(values: list[float]) -> str:
    """The mean with its standard error over seeds."""
    each = np.array(values)
    return f"{each.mean():.1f} ± {each.std(ddof=1) / len(each) ** 0.5:.1f}"


def saddle_digits() -> str:
    """A convolutional GAN on digits: Fréchet distances beside that of a single worker."""
    result = load("saddle_digits")

    def mean(rows: Iterable[dict], what: str) -> float:
        return float(np.mean([row[what] for row in rows]))

    runs = grouped(sorted(result["rows"], key=lambda row: row["seed"]), ["run", "rate"])
    alone = [rows for rows in runs if rows[0]["run"] == "one worker"]
    most = max(map(len, alone))  # of the best rates there are more seeds
    best = min(mean(rows, "frechet") for rows in alone if len(rows) == most)
    runs.sort(key=lambda rows: (rows[0]["run"] != "one worker", rows[0]["run"], rows[0]["rate"]))
    lines = []
    for rows in runs:
        diverged = any(row["frechet"] > DIVERGED for row in rows)
        each = [f"{row['frechet']:.2f}" for row in rows if row["frechet"] <= DIVERGED]
        times = "–" if diverged else f"{mean(rows, 'frechet') / best:.2f}"
        each += ["diverged"] * diverged
        lines.append(
            f"{rows[0]['run']} | {rows[0]['rate']:g} | {', '.join(each)} | {times} | "
            f"{mean(rows, 'precision'):.2f} | {mean(rows, 'recall'):.2f} | "
            f"{rows[0]['bytes'] / 2**20:,.0f}"
        )
    head = "workers | rate | Fréchet distance, by seed | mean, of one worker's best | precision"
    return sourced_table(result, f"{head} | recall | MiB sent by a worker", lines)
