"""Writes the figures of benchmarks/results into README.md and docs/, between their markers.

python benchmarks/render.py            write
python benchmarks/render.py --check    say what is out of date, and exit with 1
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NETWORKS = {
    "B3": "BCube(3,1)", "B4": "BCube(4,1)", "B5": "BCube(5,1)",
    "D4": "DCell(4,1)", "D5": "DCell(5,1)", "D6": "DCell(6,1)",
    "J10": "Jellyfish, 10", "J15": "Jellyfish, 15", "J20": "Jellyfish, 20",
}  # fmt: skip


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")


def made_with(result: dict[str, Any]) -> str:
    hardware, versions = result["hardware"], result["versions"]
    learns = ("jax", "jaxmarl", "optax", "brax", "ray")
    names = learns if any(name in versions for name in learns) else ("numpy", "numba", "ortools")
    packages = ", ".join(
        f"{name} {versions[name]}" for name in ("python", *names) if name in versions
    )
    return (
        f"`{result['command']}`, {result['date']}, {hardware['cores']} cores of {hardware['cpu']}, "
        f"{hardware['memory_gib']} GiB; {packages}."
    )


def table_2(schedulers: dict[str, str]) -> str:
    result = load("table_2")
    at = {(row["scheduler"], row["label"]): row for row in result["rows"]}
    head = ["network", *schedulers.values(), "lower bound", "paper: PS", "paper: ring", "paper: RL"]
    lines = []
    for label, name in NETWORKS.items():
        rows = [at[scheduler, label] for scheduler in schedulers]
        paper_ring = at["ring:steps=paper", label]
        differs = abs(paper_ring["rounds_mean"] - paper_ring["paper"]) > 0.03 * paper_ring["paper"]
        lines.append(
            [
                name,
                *(number(row["rounds_mean"]) for row in rows),
                number(rows[0]["bound"]),
                number(at["parameter_server", label]["paper"]),
                number(paper_ring["paper"]) + "*" * differs,
                number(result["paper_learned"][label]),
            ]
        )
    return table(head, lines)


def short_table_2() -> str:
    names = {
        "parameter_server": "parameter server",
        "ring:steps=paper": "ring, N steps",
        "merged": "merged trees",
        "grown:restarts=1": "grown, one run",
        "learned:samples=1,greedy=false": "learned, drawn",
        "learned": "learned, best of 64",
        "portfolio": "portfolio",
    }
    return f"{table_2(names)}\n\n{made_with(load('table_2'))}"


def results() -> str:
    """What is at the front: four columns."""
    result = load("table_2")
    at = {(row["scheduler"], row["label"]): row for row in result["rows"]}
    lines = []
    for label, name in NETWORKS.items():
        ring, best = at["ring", label], at["portfolio", label]
        rounds = (ring["rounds_mean"], best["rounds_mean"], best["bound"])
        lines.append([name, *map(number, rounds)])
    head = ["network", "ring", "Gradweave", "lower bound"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def full_table_2() -> str:
    names = dict.fromkeys(row["scheduler"] for row in load("table_2")["rows"])
    return f"{table_2({name: f'`{name}`' for name in names})}\n\n{made_with(load('table_2'))}"


def scaling() -> str:
    result = load("scaling")
    head = ["servers", "transfers", "rounds", "fixed-tree bound", "schedule", "verify",
            "simulate, rounds", "simulate, events", "lower bound"]  # fmt: skip
    columns = ("schedule_s", "verify_s", "simulate_rounds_s", "simulate_events_s", "bound_s")
    lines = [
        [
            f"{row['servers']:,}", f"{row['transfers']:,}", f"{row['rounds']:,}",
            f"{row['fixed_tree_bound']:,}", *(f"{row[column]:.3g} s" for column in columns),
        ]
        for row in result["rows"]
    ]  # fmt: skip
    return f"{table(head, lines)}\n\n{made_with(result)}"


def large_files() -> str:
    result = load("large_files")
    rows = result["rows"]

    def spread(name: str) -> str:
        taken = sorted(rows[name])
        return f"{taken[len(taken) // 2]:.2f} s ({taken[0]:.2f} to {taken[-1]:.2f})"

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
    return f"{table(head, lines)}\n\n{made_with(result)}"


def mutations() -> str:
    result = load("mutations")
    head = ["mutation", "tried", "rejected", "another valid schedule"]
    lines = [
        [row["mutation"], f"{row['tried']:,}", f"{row['rejected']:,}", f"{row['still_valid']:,}"]
        for row in result["rows"]
    ]
    total = [
        sum(row[key] for row in result["rows"]) for key in ("tried", "rejected", "still_valid")
    ]
    lines.append(["**all**", *(f"**{count:,}**" for count in total)])
    return f"{table(head, lines)}\n\n{made_with(result)}"


def grown_rules() -> str:
    result = load("grown_rules")
    labels = list(dict.fromkeys(row["label"] for row in result["rows"]))
    rules = list(dict.fromkeys(row["rule"] for row in result["rows"]))
    at = {(row["rule"], row["label"]): row for row in result["rows"]}
    lines = [
        [
            rule,
            *(
                f"{at[rule, label]['mean']:.1f} ({at[rule, label]['share_at_bound']:.0%})"
                for label in labels
            ),
        ]
        for rule in rules
    ]
    lines.append(["bound", *(number(at[rules[0], label]["bound"]) for label in labels)])
    head = ["mean (share of runs at the bound)", *labels]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def throughput() -> str:
    result = load("throughput")
    at = {(row["label"], row["pieces_per_server"]): row for row in result["rows"]}
    labels = dict.fromkeys(label for label, _ in at)
    counts = sorted({count for _, count in at})
    lines = []
    for label in labels:
        cells = []
        for count in counts:
            row = at[label, count]
            rounds = sorted(row["rounds"])[len(row["rounds"]) // 2]
            above = f" ({row['bound']})" if rounds > row["bound"] else ""
            cells.append(f"{rounds / count:.4g} = {rounds}{above}/{count}")
        lines.append([label, at[label, counts[0]]["least_time_per_piece"], *cells])
    head = ["network", "1/x*", *(f"c = {count}" for count in counts)]
    said = "In brackets, the bound where more rounds were needed."
    return f"{table(head, lines)}\n\n{said} {made_with(result)}"


def seconds_text(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


def optimum() -> str:
    result = load("optimum")
    by_label: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        by_label.setdefault(row["label"], []).append(row)
    lines = []
    for label, rows in by_label.items():
        seconds = sorted(row["seconds"] for row in rows)
        lines.append(
            [
                NETWORKS[label],
                rows[0]["collective"].replace("_", "-"),
                number(rows[0]["bound"]),
                number(sum(row["rounds"] for row in rows) / len(rows)),
                f"{sum(row['optimal'] for row in rows)} of {len(rows)}",
                seconds_text(seconds[len(seconds) // 2]),
                seconds_text(seconds[-1]),
            ]
        )
    head = ["network", "collective", "bound", "rounds", "proved optimal", "median", "slowest"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def all_gathers() -> str:
    result = load("all_gathers")
    named = [
        [
            f"`{row['network']}`", f"{row['servers']:,}", number(row["bound"]),
            number(row["rounds"]), number(row["tacos_rounds"]), seconds_text(row["seconds"]),
        ]
        for row in result["named"]
    ]  # fmt: skip
    swept = [
        [
            {"torus": "tori", "mesh": "meshes", "hypercube": "hypercubes"}[row["family"]],
            f"{row['networks']:,}", f"{row['at_bound']:,}", f"{row['one_above']:,}",
            f"{row['more_above']:,}", seconds_text(row["slowest_seconds"]),
        ]
        for row in result["sweep"]
    ]  # fmt: skip
    head = ["network", "servers", "bound", "rounds", "TACOS", "time"]
    all_head = ["up to 256 servers", "networks", "at the bound", "one above", "more", "slowest"]
    return f"{table(head, named)}\n\n{table(all_head, swept)}\n\n{made_with(result)}"


def large_networks() -> str:
    result = load("large_networks")
    head = ["network", "servers", "transfers", "bound", "rounds", "schedule", "verify",
            "lower bound", "in all", "peak memory"]  # fmt: skip
    parts = ("schedule_s", "verify_s", "bound_s", "total_s")
    lines = [
        [
            f"`{row['network']}`", f"{row['servers']:,}", f"{row['transfers']:,}",
            f"{row['bound']:,}", f"{row['rounds']:,}",
            *(seconds_text(row[part]) for part in parts), f"{row['peak_memory_gb']:.1f} GB",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    return f"{table(head, lines)}\n\n{made_with(result)}"


def strategies_scaling() -> str:
    result = load("strategies_scaling")
    gaps = {
        (row["family"], row["strategy"]): row["gap"]
        for row in result["rows"]
        if row["servers"] == 1024
    }
    lines = [
        [
            row["family"],
            f"`{result['strategies'][row['strategy']]}`",
            f"{row['microseconds_at_64']:.2g} µs",
            f"{row['microseconds_at_1024']:.2g} µs",
            f"{row['factor']:.2g}",
            f"{gaps[row['family'], row['strategy']]:.0%}",
        ]
        for row in result["growth"]
    ]
    head = ["network", "strategy", "a transfer, 64 servers", "1,024 servers", "factor",
            "gap, 1,024 servers"]  # fmt: skip
    return f"{table(head, lines)}\n\n{made_with(result)}"


def random_networks_gap() -> str:
    result = load("random_networks_gap")
    lines = []
    for row in result["strategies"]:
        lines.append(
            [
                row["networks_of"],
                row["strategy"],
                number(row["networks"]),
                *(
                    f"{row[key]:.1%}" if key in row else "–"
                    for key in ("mean_gap", "mean_gap_to_free_trees_bound", "worst_gap")
                ),
                number(row.get("proved_optimal")),
                f"{row['mean_seconds']:.2g} s",
                f"{row['slowest_seconds']:.2g} s",
            ]
        )
    head = ["100 networks", "strategy", "applies to", "mean gap", "to free trees' bound",
            "worst gap", "proved optimal", "mean time", "slowest"]  # fmt: skip
    return f"{table(head, lines)}\n\n{made_with(result)}"


PICTURES = (
    "time_against_size.png",
    "table_2.png",
    "scaling.png",
    "throughput.png",
    "strategies_scaling.png",
    "random_networks_gap.png",
    "shipped_training.png",
    "learning_choices.png",
    "lab.png",
    "bytes_sent.png",
    "decentralized.png",
    "stragglers.png",
    "marl_learning.png",
    "rllib.png",
)
"""Copied to docs/images, since the site has only what lies in docs/."""


def exact_proofs() -> str:
    result = load("exact_proofs")
    head = ["network", "trees", "pieces a server", "proved", "rounds", "impossible below", "s"]
    lines = [
        [
            f"`{row['topology']}`",
            row["trees"],
            str(row["pieces_per_server"]),
            row["kind"],
            str(row["rounds"]),
            str(row["impossible_below"]),
            f"{row['wall_s']:.2g}",
        ]
        for row in result["fewest"]
    ]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def replan() -> str:
    result = load("replan")
    head = ["network", "links lost, one at a time", "re-planned at the new bound", "slowest"]
    head.append("transfers kept")
    lines = [
        [
            NETWORKS[row["label"]],
            str(row["links"]),
            str(row["optimal"]),
            f"{1e3 * row['slowest_s']:.0f} ms",
            f"{row['transfers_kept']:.0%}",
        ]
        for row in result["rows"]
    ]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def learned_rows(trees: str, group: str | None = None) -> list[dict[str, Any]]:
    rows = load("learned_decoding")["rows"]
    return [r for r in rows if r["trees"] == trees and group in (None, r["group"])]


def learned_table_2() -> str:
    """Per stage; the paper's figures count both on BCube and Jellyfish."""
    fixed = {row["label"]: row for row in learned_rows("fixed", "table 2")}
    lines = []
    for row in learned_rows("grown", "table 2"):
        label, other = row["label"], fixed[row["label"]]
        paper = row["paper"] / (1 if label.startswith("D") else 2)
        lines.append(
            [
                NETWORKS[label],
                f"{row['mean']:.2f}",
                *(str(row[key]) for key in ("greedy", "best", "bound")),
                f"{row['rarest near: mean']:.2f}",
                f"{paper:.1f}",
                f"{other['mean']:.2f}",
                *(str(other[key]) for key in ("greedy", "best", "bound")),
            ]
        )
    head = ["network", "drawn", "best actions", "best of 64", "optimum", "greedy rule",
            "paper: RL", "fixed trees: drawn", "best actions", "best of 64",
            "their bound"]  # fmt: skip
    return f"{table(head, lines)}\n\n{made_with(load('learned_decoding'))}"


def learned_groups() -> str:
    rules = ("rarest everywhere", "rarest near", "rarest near, swaps")
    names = {
        "table 2": "Table 2, five of them never seen",
        "held out": "held out: tori, meshes, hypercubes, larger ones",
        "heterogeneous": "heterogeneous: unequal capacities, several servers a switch",
        "random": "100 random, unequal capacities",
        "well connected": "20 random, well connected",
    }

    def gap(rows: list[dict[str, Any]], key: str) -> str:
        return f"{sum(row[key] / row['bound'] - 1 for row in rows) / len(rows):.1%}"

    lines = []
    for group, name in names.items():
        rows = learned_rows("grown", group)
        lines.append(
            [
                name,
                *(gap(rows, key) for key in ("untrained_mean", "mean", "greedy", "best")),
                *(gap(rows, f"{rule}: {key}") for rule in rules for key in ("mean", "best")),
                *(gap(rows, f"{rule}: best in the time of greedy") for rule in rules),
            ]
        )
    head = ["mean gap", "untrained: drawn", "learned: drawn", "best actions", "best of 64"]
    head += [f"{rule}: {what}" for rule in rules for what in ("one pass", "best of 64")]
    head += [f"{rule}, in the time of the best actions" for rule in rules]
    return f"{table(head, lines)}\n\n{made_with(load('learned_decoding'))}"


def shipped_training() -> str:
    result = load("shipped_training")
    return (
        f"{result['updates']} updates took {result['minutes']:.0f} minutes and "
        f"{result['decisions'] / 1e6:.0f} million drawn workloads, "
        f"{result['decisions_per_second']:,} a second with learning. Over the last 50 updates "
        f"drawn episodes were {result['last_50_over_bound']:.1%} over the bound.\n\n"
        f"{made_with(result)}"
    )


def learning_choices() -> str:
    result = load("learning_choices")
    last: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        last.setdefault(row["variant"], []).append(row)
    lines = []
    for name, rows in last.items():
        first, end = rows[0]["over_bound"], rows[-5:]
        over = [sum(each) / len(each) for row in end for each in [row["over_bound"]]]
        lines.append(
            [
                name,
                f"{sum(first) / len(first):.1%}",
                f"{sum(over) / len(over):.1%}",
                f"{end[-1]['selected']:.0%}",
                f"{end[-1]['seconds'] / 60:.1f} min",
            ]
        )
    head = ["variant", "over the bound at first", "at the end", "trees selected", "time"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def environment_speed() -> str:
    result = load("environment_speed")
    names = ("step", "rounds", "rollouts 1", "rollouts 64", "rollouts 1024")

    def short(value: float) -> str:
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"

    lines = []
    for row in result["rows"]:
        speeds = row["decisions_per_s"]
        plain = 1e6 / min(row["plain_decision_us"].values())
        lines.append(
            [
                f"{NETWORKS[row['label']]}, {row['trees']}",
                short(plain),
                *(short(speeds[name]) for name in names),
                f"{row['speedup']['rollouts 1024']:.0f}",
                short(row["rounds_per_s"]["rollouts 1024"]),
                f"{row['compile_s']['rollouts 1024']:.1f} s",
            ]
        )
    head = ["workloads a second", "plain Python", "`step`, 1,024", "`select`, `send`, 1,024",
            "rollouts, 1", "rollouts, 64", "rollouts, 1,024", "times plain Python",
            "rounds a second", "compilation"]  # fmt: skip
    memory = "; ".join(
        f"{row['trees']} trees {row['state_bytes'] / 1e6:.1f} MB of states, "
        f"{row['step_bytes'] / 1e6:.0f} MB more while `step` runs, "
        f"{row['rollouts_bytes'] / 1e6:.1f} MB in the rollouts"
        for row in result["memory"]
    )
    said = f"Memory of 1,024 environments on BCube(5,1): {memory}."
    return f"{table(head, lines)}\n\n{said}\n\n{made_with(result)}"


def lab() -> str:
    result = load("lab")
    backend = {
        (row["network"], row["mbit_per_s"], row["gradient_bytes"]): row["measured_s"]
        for row in result["rows"]
        if row["name"] == "gloo"
    }
    head = ["network, link", "schedule", "MB", "rounds", "predicted ms", "measured ms"]
    head += ["measured / predicted", "times as fast as gloo", "of the bytes not data"]
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
    return f"{table(head, lines)}\n\n{made_with(result)}"


LAB_NAMES = {
    "bcube:n=3,k=1": "BCube(3,1)",
    "dcell:n=3,k=1": "DCell(3,1)",
    "jellyfish:reference=J10": "Jellyfish, 10",
}


def short_lab() -> str:
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
    for network, name in LAB_NAMES.items():
        cells = [name]
        for strategy in ("portfolio", "ring", "parameter_server"):
            row = at[network, strategy]
            cells.append(f"{1e3 * row['measured_s']:.0f} ms (×{row['ratio']:.2f})")
        backend = at[network, "gloo"]["measured_s"]
        cells.append(f"{1e3 * backend:.0f} ms")
        cells.append(f"{backend / at[network, 'portfolio']['measured_s']:.2f}")
        lines.append(cells)
    return f"{table(head, lines)}\n\n{made_with(result)}"


def jax_speed() -> str:
    result = load("jax_all_reduce")
    at = {row["elements"]: row for row in result["speed"]}
    head = ["8 devices, elements of float32", *(f"{elements:,}" for elements in at)]
    names = list(next(iter(at.values()))["times_best_by_hand"])
    lines = [
        [name.replace("_", " "), *(f"{row['times_best_by_hand'][name]:.2f}" for row in at.values())]
        for name in names
    ]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def jax_compilation() -> str:
    result = load("jax_all_reduce")
    networks = list(dict.fromkeys(row["network"] for row in result["compilation"]))
    at = {(row["scheduler"], row["network"]): row for row in result["compilation"]}
    schedulers = list(dict.fromkeys(row["scheduler"] for row in result["compilation"]))
    parts = ("steps_s", "trace_and_lower_s", "compile_s")
    head = [f"seconds to compile, {result['compilation_devices']} devices"]
    lines = [
        [
            scheduler.replace("_", " "),
            *(
                f"{sum(at[scheduler, network][part] for part in parts):.1f}"
                if (scheduler, network) in at
                else "–"
                for network in networks
            ),
        ]
        for scheduler in schedulers
    ]
    return f"{table([*head, *(f'`{n}`' for n in networks)], lines)}\n\n{made_with(result)}"


def bytes_sent() -> str:
    result = load("bytes_sent")
    workers = sorted({row["workers"] for row in result["rows"]})
    at = {(row["aggregation"], row["workers"]): row["of_the_gradient"] for row in result["rows"]}
    names = dict.fromkeys(row["aggregation"] for row in result["rows"])
    lines = [[name, *(f"{at[name, count]:.3g}" for count in workers)] for name in names]
    head = ["sent by the busiest worker, in gradients", *(f"N = {count}" for count in workers)]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def scientific(value: float | None) -> str:
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
            cells = [scientific(at[method, None, batch]), *["–"] * len(bits)]
            lines.append([method, str(batch), *cells])
        for method in ("naive", "DCD", "ECD", "CHOCO"):
            cells = [scientific(at[method, each, batch]) for each in bits]
            lines.append([method, str(batch), "–", *cells])
    head = ["loss above the least one", "batch", "32 bits", *(f"{each} bits" for each in bits)]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def decentralized_grid() -> str:
    result = load("decentralized")
    rows = result["quadratic"]
    head = ["messages on an absolute grid", *(row["method"] for row in rows)]
    lines = [["loss above the least one", *(scientific(row["above_best"]) for row in rows)]]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def stragglers() -> str:
    result = load("stragglers")
    lines = []
    for row in result["compared"]:
        own = [
            one
            for one in result["rows"]
            if (one["scenario"], one["rule"]) == (row["scenario"], row["rule"])
        ]
        times, bound = row["times_sync"], own[0]["staleness_bound"]
        most = str(max(one["staleness_most"] for one in own))
        lines.append(
            [
                f"{row['scenario']}, {row['rule']}",
                f"{mean(one['gradients_per_s'] for one in own):.0f}",
                f"{mean(times):.2f} ({min(times):.2f} to {max(times):.2f})",
                f"{mean(row['simulated_times_sync']):.2f}",
                f"{mean(one['staleness_mean'] for one in own):.1f}",
                most if bound is None else f"{most} of {bound}",
                f"{mean(one['curve']['loss'][-1] for one in own):.3f}",
                f"{mean(one['seconds'] for one in own):.1f} s",
            ]
        )
    head = ["slowness, rule", "gradients a second", "times sync (range)", "simulated",
            "mean staleness", "most, of its bound", "loss at the end", "after"]  # fmt: skip
    return f"{table(head, lines)}\n\n{made_with(result)}"


def stragglers_price() -> str:
    result = load("stragglers")
    rates = sorted({row["rate"] for row in result["prices"]})

    def cell(rule: str, rate: float, key: str) -> str:
        losses = [
            row[key] for row in result["prices"] if (row["rule"], row["rate"]) == (rule, rate)
        ]
        return "diverges" if None in losses else f"{mean(losses):.3f}"

    lines = [
        [
            f"{rule}, {result[f'price_{what}']} {what}",
            *(cell(rule, rate, f"loss_after_{what}") for rate in rates),
        ]
        for what in ("updates", "gradients")
        for rule in dict.fromkeys(row["rule"] for row in result["prices"])
    ]
    head = ["loss after equal numbers, simulated", *(f"η = {rate:g}" for rate in rates)]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def marl_learning() -> str:
    result = load("marl_learning")
    lines = []
    for row in result["rows"]:
        found = row["return"][row["judged"]]
        plain, best = best_known(row["command"])
        within = "–"
        if "interval" in found:
            within = " to ".join(f"{value:.3g}" for value in found["interval"])
        lines.append(
            [
                row["case"],
                f"{row['steps']:,}",
                f"{row['return']['random']['mean']:.3g}",
                plain,
                best,
                f"{row['target']:.3g}",
                f"{found['mean']:.3g}",
                within,
                ", ".join(f"{value:.3g}" for value in found["by_seed"]),
                f"{row['episodes']:,}",
                row["judged"],
                "yes" if row["reached"] else "**no**",
            ]
        )
    head = ["", "steps", "at random", "plain policy", "the best", "target"]
    head += ["mean", "95 %", "each seed", "episodes", "actions", "reached"]
    hidden = [
        f"{row['case']}: {', '.join(f'{value:.3g}' for value in hidden['by_seed'])}"
        for row in result["rows"]
        if (hidden := row["return"].get("hidden"))
    ]
    told = f"With the light hidden, in the order of the seeds: {'; '.join(hidden)}.\n\n"
    return f"{table(head, lines)}\n\n{told if hidden else ''}{made_with(result)}"


PLAIN = {
    "switch_riddle": "never touches the switch, at best",
    "coin_game:shared_rewards=true": "each to its own coin",
    "MPE_simple_spread_v3": "each to a landmark of its own",
}
BEST = {
    "switch_riddle": "knows all",
    "coin_game:shared_rewards=true": "the best",
    "overcooked": "one pot allows at most",
}
"""Of `marl_lines`: who plays by a rule, and who plays as well as can be."""


def best_known(command: str) -> tuple[str, str]:
    """What a plain policy earns in the game that was trained, and the most there is to earn."""
    words = command.split()
    env = words[words.index("--env") + 1]
    lines = {
        (row["env"], row["what"]): f"{row['return']:.3g}" for row in load("marl_lines")["rows"]
    }
    best = lines.get((env, BEST.get(env)), "–")
    return lines.get((env, PLAIN.get(env)), "–"), f"≤ {best}" if env == "overcooked" else best


def marl_lines() -> str:
    result = load("marl_lines")
    lines = [
        [
            f"`{row['env']}`",
            row["what"],
            f"{row['return']:.3g}" + (f" = {row['exactly']}" if "exactly" in row else ""),
            row["how"],
        ]
        for row in result["rows"]
    ]
    return f"{table(['', 'agents', 'return', 'known by'], lines)}\n\n{made_with(result)}"


def marl_matrix() -> str:
    result = load("marl_matrix")
    names = list(dict.fromkeys(row["algorithm"] for row in result["rows"]))
    whys: list[str] = []

    def cell(env: str, name: str) -> str:
        both = [row for row in result["rows"] if (row["env"], row["algorithm"]) == (env, name)]
        if all(row["runs"] for row in both):
            return "runs"
        why = next(row["reason"] for row in both if not row["runs"])
        why = why.removeprefix(f"{name}: ").replace(env, "this environment")
        if why not in whys:
            whys.append(why)
        return f"({whys.index(why) + 1})"

    lines = [
        [f"`{env}`", *(cell(env, name) for name in names)]
        for env in dict.fromkeys(row["env"] for row in result["rows"])
    ]
    notes = "\n".join(f"{i}. {why}" for i, why in enumerate(whys, 1))
    return f"{table(['', *names], lines)}\n\n{notes}\n\n{made_with(result)}"


def rllib() -> str:
    result = load("rllib")
    fixed, target = f"{result['fixed_steps']:,}", f"{result['target']:g}".replace("-", "−")
    head = [
        *("PPO, two cores, median of three seeds", "steps/s", "first update, s"),
        *(f"{fixed} steps, s", "return there", f"return {target}, s", "steps to it"),
    ]
    lines = [
        [
            row["case"],
            f"{row['sustained_steps_per_s']:,.0f}",
            f"{row['first_update_s']:.1f}",
            f"{row['wall_s_to_fixed_steps']:.1f}",
            f"{row['return_at_fixed_steps']:.1f}".replace("-", "−"),
            "–" if row["wall_s_to_target"] is None else f"{row['wall_s_to_target']:.1f}",
            "–" if row["steps_to_target"] is None else f"{row['steps_to_target']:,.0f}",
        ]
        for row in sorted(result["medians"], key=lambda row: row["side"], reverse=True)
    ]
    best, times = result["faster_way"], result["times_rllib"]

    def each(key: str) -> str:
        return ", ".join(f"{value:.1f}" for value in times[key])

    versions = result["versions"]
    packages = ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "jaxmarl"))
    packages += ", " + ", ".join(
        f"{name} {versions[f'rllib side: {name}']}" for name in ("ray", "torch", "mpe2")
    )
    hardware = result["hardware"]
    return (
        f"{table(head, lines)}\n\n"
        f"{best['gradweave']}, against {best['rllib']}, seed by seed: "
        f"{each('sustained_steps_per_s')} times the sustained rate; {fixed} steps in "
        f"{each('wall_s_to_fixed_steps')} times less time; a return of {target} in "
        f"{each('wall_s_to_target')} times less.\n\n"
        f"`{result['command']}`, {result['date']}, {hardware['cores']} cores of {hardware['cpu']}, "
        f"{hardware['memory_gib']} GiB; {packages}."
    )


def rllib_parity() -> str:
    result = load("rllib")["parity"]
    one, whole = (result[f"largest_difference_{over}"] for over in ("of_one_step", "in_an_episode"))
    head = ["largest difference", *one]
    lines = [
        ["one step from the same state", *(f"{value:.1e}" for value in one.values())],
        ["25 steps from the same start", *(f"{value:.1e}" for value in whole.values())],
    ]
    share = result["share_of_steps_with_agents_touching"]
    return (
        f"{table(head, lines)}\n\n"
        f"{result['episodes']} episodes of random actions, {result['steps']:,} steps, agents touch "
        f"in {share:.1%} of them."
    )


def marl_speed() -> str:
    result = load("marl_speed")
    lines = [
        [
            row["learner"],
            f"{row['steps_per_processor_s']:,.0f}",
            *(f"{row[f'of_{beside}_by_processor']:.2f}" for beside in ("bare", "jaxmarl")),
        ]
        for row in result["rows"]
    ]
    head = ["one core, simple_spread", "steps a processor second", "of bare", "of JaxMARL's"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def marl_commands() -> str:
    result = load("marl_commands")
    names = {
        "jaxmarl": "`python jaxmarl_ppo.py`",
        "first run": "`gradweave train`, first run",
        "later run": "`gradweave train`, later runs",
    }
    lines = [
        [
            names[row["program"]],
            f"{row['processor_s']['median']:.0f} s",
            f"{row['processor_s']['times_as_quick_as_jaxmarl']:.2f}",
        ]
        for row in result["rows"]
    ]
    head = [f"{result['steps']:,} steps, one core", "processor time", "times as quick"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def first_result() -> str:
    result = load("first_result")
    lines = [
        [
            f"`{row['command']}`",
            *(f"{row['least_cpu_s'][cache]:.1f} s" for cache in ("cold", "warm")),
        ]
        for row in result["rows"]
    ]
    runs = len(result["rows"][0]["runs"])
    head = [f"processor time, least of {runs}", "nothing compiled yet", "afterwards"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def killed() -> str:
    result = load("killed")
    lines = [
        [
            f"`gradweave {row['verb']}`",
            str(row["updates"]),
            str(row["kills"]),
            "yes" if row["same"] else "**no**",
        ]
        for row in result["rows"]
    ]
    head = ["", "updates", "kills at random moments", "weights and checkpoint of the unkilled run"]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def killed_servers() -> str:
    result = load("killed_servers")
    lines = [
        [
            f"a server, {row['kills']} times",
            str(row["inside_a_save"]),
            f"{row['readable_and_same']} times",
            str(row["recovered"]),
            "the same bits" if row["same"] else "**other bits**",
        ]
        for row in result["rows"]
    ]
    head = [
        "killed",
        "inside a save",
        "readable, with the unkilled run's parameters",
        "recovered",
        "end",
    ]
    return f"{table(head, lines)}\n\n{made_with(result)}"


def killed_ray() -> str:
    result = load("killed_ray")
    lines = [
        [name, str(len(seconds)), f"{min(seconds):.1f} to {max(seconds):.1f} s"]
        for name, seconds in zip(
            ("the raylet", "the GCS"), result["seconds_to_the_end"].values(), strict=True
        )
    ]
    head = ["killed", "times", "until the command ended"]
    load_average = f"Load average at the start: {result['load_at_start']:.1f}."
    return f"{table(head, lines)}\n\n{made_with(result)} {load_average}"


PARTS: dict[str, Callable[[], str]] = {
    "results": results,
    "first_result": first_result,
    "killed": killed,
    "killed_servers": killed_servers,
    "killed_ray": killed_ray,
    "table_2_short": short_table_2,
    "table_2": full_table_2,
    "scaling": scaling,
    "large_files": large_files,
    "mutations": mutations,
    "throughput": throughput,
    "grown_rules": grown_rules,
    "optimum": optimum,
    "all_gathers": all_gathers,
    "large_networks": large_networks,
    "strategies_scaling": strategies_scaling,
    "random_networks_gap": random_networks_gap,
    "exact_proofs": exact_proofs,
    "replan": replan,
    "learned_table_2": learned_table_2,
    "learned_groups": learned_groups,
    "shipped_training": shipped_training,
    "learning_choices": learning_choices,
    "environment_speed": environment_speed,
    "lab": lab,
    "lab_short": short_lab,
    "jax_speed": jax_speed,
    "jax_compilation": jax_compilation,
    "bytes_sent": bytes_sent,
    "decentralized": decentralized,
    "decentralized_grid": decentralized_grid,
    "stragglers": stragglers,
    "stragglers_price": stragglers_price,
    "marl_learning": marl_learning,
    "marl_lines": marl_lines,
    "marl_speed": marl_speed,
    "marl_commands": marl_commands,
    "marl_matrix": marl_matrix,
    "rllib": rllib,
    "rllib_parity": rllib_parity,
}


def rendered(text: str) -> str:
    """The text with what stands between the markers of each part replaced by the part."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        if begin in text:
            before, rest = text.split(begin, 1)
            _, after = rest.split(end, 1)
            text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


def main() -> None:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        fresh = rendered(text)
        if fresh != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(fresh)
    for name in PICTURES:
        picture, copy = RESULTS / name, ROOT / "docs" / "images" / name
        if not copy.exists() or copy.read_bytes() != picture.read_bytes():
            stale.append(str(copy.relative_to(ROOT)))
            if "--check" not in sys.argv:
                shutil.copyfile(picture, copy)
    if "--check" in sys.argv and stale:
        sys.exit(f"out of date, run python benchmarks/render.py: {', '.join(stale)}")
    done = "checked" if "--check" in sys.argv else "written"
    print(f"{done}: {', '.join(stale) or 'all up to date'}")


if __name__ == "__main__":
    main()
