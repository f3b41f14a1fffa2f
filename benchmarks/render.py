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
    packages = ", ".join(
        f"{name} {versions[name]}" for name in ("python", "numpy", "numba", "ortools")
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


PARTS: dict[str, Callable[[], str]] = {
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
