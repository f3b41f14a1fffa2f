"""Tables of the lab and of what breaks that need more than a template: `runs.toml` has the rest."""

import statistics
from typing import Any

from benchmarks.markdown_table import source, sourced_table, table
from benchmarks.record import load
from benchmarks.table_templates import filled, grouped, key_of
from gradweave.topology.units import format_size

LEAST, MOST = 0.9, 1.15
"""Ratios of measured to predicted between which a prediction counts as held."""
VERDICTS = ("named right", "named others", "torch's error alone", "late")


def lab() -> str:
    """Measured beside predicted seconds in the emulated network."""
    result, case = load("lab"), ("network", "mbit_per_s", "gradient_bytes")
    gloo = {key_of(row, case): row["measured_s"] for row in result["rows"] if row["name"] == "gloo"}
    lines = filled(
        "`{network}`, {mbit_per_s} Mbit/s | {name:words} | {gradient_bytes / 1e6:g} | {rounds} | "
        "{1e3 * predicted_s:.0f} | {1e3 * measured_s:.0f} | {ratio:.2f} | "
        "{gloo_s / measured_s:.2f} | {1 - bytes_of_data / bytes_counted:.1%}",
        [row | {"gloo_s": gloo.get(key_of(row, case))} for row in result["rows"]],
    )
    head = "network, link | schedule | MB | rounds | predicted ms | measured ms"
    head += " | measured / predicted | times as fast as gloo | share of overhead in bytes"
    return sourced_table(result, head, lines)


def lab_short() -> str:
    """Of the largest gradient on the fastest links alone."""
    result = load("lab")
    size, mbit = (
        max(row[key] for row in result["rows"]) for key in ("gradient_bytes", "mbit_per_s")
    )
    names = {
        "bcube:n=3,k=1": "BCube(3,1)",
        "dcell:n=3,k=1": "DCell(3,1)",
        "jellyfish:reference=J10": "Jellyfish, 10",
    }
    at = {
        (row["network"], row["name"]): row
        for row in result["rows"]
        if (row["gradient_bytes"], row["mbit_per_s"]) == (size, mbit)
    }
    lines = []
    for network, name in names.items():
        rows = [at[network, strategy] for strategy in ("portfolio", "ring", "parameter_server")]
        cells = filled("{1e3 * measured_s:.0f} ms (×{ratio:.2f})", rows)
        gloo = at[network, "gloo"]["measured_s"]
        times = gloo / rows[0]["measured_s"]
        lines.append(" | ".join([name, *cells, f"{1e3 * gloo:.0f} ms", f"{times:.2f}"]))
    head = f"{size / 1e6:g} MB, {mbit} Mbit/s links | portfolio | ring | parameter server | gloo"
    return sourced_table(result, f"{head} | portfolio: times as fast as gloo", lines)


def lab_jobs() -> str:
    """Several collectives at once: plans beside gloo's own and Open MPI's."""
    result = load("lab_jobs")
    lines = []
    for row in result["rows"]:
        cells = [
            f"{row['case']} | {row['strategy']} | {row['transfers']:,} | {row['bound_s']:.2f}",
            f"{row['predicted_s']:.2f} | {_within(row, 'plan')} | {row['ratio']:.2f}",
        ]
        for library in ("gloo", "Open MPI"):
            if library in row["median_s"]:
                least, most = row["times_between"][library]
                times = f"{row['times_as_fast'][library]:.2f} ({least:.2f} to {most:.2f})"
                cells.append(f"{_within(row, library)} | {times}")
            else:
                cells.append("– | –")
        lines.append(" | ".join([*cells, f"{statistics.median(row['load']):.0f}"]))
    head = "network and jobs | plan by | transfers | least, s | predicted, s | plan, s"
    head += " | measured / predicted | gloo, s | plan: times as fast | Open MPI, s"
    head += " | plan: times as fast | load"
    return sourced_table(result, head, lines)


def _within(row: dict[str, Any], name: str) -> str:
    """A median of seconds with its interval."""
    least, most = row["between_s"][name]
    return f"{row['median_s'][name]:.2f} ({least:.2f} to {most:.2f})"


def lab_delays() -> str:
    """Measured over predicted seconds in emulated wide-area networks."""
    result = load("lab_delays")
    rows = [row | {"mark": "" if _held(row) else "**"} for row in result["rows"]]
    lines = filled(
        "{network} | {name:words} | {gradient_bytes / 1e6:g} | {pieces} | "
        "{1e3 * predicted_s:.0f} | {1e3 * measured_s:.0f} | {mark}{ratio:.2f}{mark}",
        rows,
    )
    head = "network | schedule | MB | pieces | predicted ms | measured ms | measured / predicted"
    return sourced_table(result, head, lines)


def lab_delays_short() -> str:
    """What was emulated, and how many predictions held."""
    result, lines = load("lab_delays"), []
    for emulated in result["emulated"]:
        asked, found = emulated["asked_round_trip_s"], emulated["round_trip_s"]
        late = [1e3 * (b - a) for a, b in zip(asked, found, strict=True)]
        rows = [row for row in result["rows"] if row["network"] == emulated["network"]]
        coarse = [row for row in rows if row["pieces"] <= 64]
        share = sum(emulated["together_bytes_per_s"]) / sum(emulated["asked_bytes_per_s"])
        trips = ", ".join(f"{1e3 * value:g}" for value in sorted(set(asked)))
        lines.append(
            f"{emulated['network']} | {trips} | {min(late):.2f} to {max(late):.2f} | {share:.1%} | "
            f"{sum(map(_held, rows))} of {len(rows)} | "
            f"{sum(map(_held, coarse))} of {len(coarse)}"
        )
    head = "network | round trips asked for, ms | longer by, ms | throughput, all links loaded"
    head += f" | predictions within {LEAST} to {MOST} | of those with at most 64 pieces"
    return sourced_table(result, head, lines)


def _held(row: dict[str, Any]) -> bool:
    return LEAST <= row["ratio"] <= MOST


def lab_shares() -> str:
    """Shares of the gradient on emulated unequal networks, beside the backend's own all-reduce."""
    result, rows = load("lab_shares"), []
    for one in result["networks"]:
        (gloo,) = (row["measured_s"] for row in one["rows"] if row["name"] == "gloo")
        of_network = {key: one[key] for key in ("network", "bound_s", "load")} | {"gloo_s": gloo}
        for row in one["rows"]:
            unpredicted = row["predicted_s"] is None
            rows.append(
                row | of_network | ({"pieces": None, "fair_s": None} if unpredicted else {})
            )
    lines = filled(
        "{network} | {1e3 * bound_s:.0f} | {name} | {pieces} | {1e3 * predicted_s:.0f} | "
        "{1e3 * fair_s:.0f} | {1e3 * measured_s:.0f} | {ratio:.2f} | {gloo_s / measured_s:.2f} | "
        "{load:.2f}",
        rows,
    )
    head = (
        "network | bound, ms | schedule | pieces | by events, ms | shared fairly, ms | measured, ms"
    )
    return sourced_table(
        result, f"{head} | measured / by events | times as fast as gloo | load", lines
    )


def rank_order_lab() -> str:
    """Stock libraries in the lab, by name and in the order found."""
    result = load("rank_order_lab")
    rows = [row | {"network": one["network"]} for one in result["networks"] for row in one["rows"]]
    lines = filled(
        "{network} | {library:words} | {named} | {by_name_s:.1f} | {seconds:.1f} | "
        "{times_as_fast:.2f} | {predicted_by_name_s / predicted_s:.2f} | "
        "{seconds / predicted_s:.2f}",
        rows,
    )
    head = "network | library | hosts named | by name, s | ordered, s | times as fast | predicted"
    return sourced_table(result, f"{head} | ordered: measured / predicted", lines)


def algorithm_tables() -> str:
    """Where a table names another algorithm than the library's default, measured."""
    result = load("algorithm_tables")
    rows = [
        row
        | {
            "size": format_size(row["bytes"]),
            "low": row["between"][0],
            "high": row["between"][1],
        }
        for row in result["rows"]
        if row["algorithm"] is not None
    ]
    lines = filled(
        "{library:words} | {network} | {collective:words} | {size} | {default:words} | "
        "{algorithm:words} | {1e3 * default_s:.0f} | {ratio:.2f} ({low:.2f} to {high:.2f}) | "
        "{predicted_ratio:.2f}",
        rows,
    )
    head = "library | network | collective | size | default | table | default, ms"
    return sourced_table(
        result, f"{head} | with the table, of the default's time | predicted", lines
    )


def rank_order() -> str:
    """Orders of ranks beside the exact best ring, by kind of network."""
    result = load("rank_order")
    lines = [
        line
        for kind in dict.fromkeys(row["kind"] for row in result["rows"])
        for line in filled(
            "{kind} | {count(rows.seconds)} | {100 * max(rows.over_exact):.2f}% | "
            "{100 * max(rows.annealed_over_exact):.2f}% | {100 * mean(rows.by_id_over_exact):.0f}% "
            "| {100 * max(rows.bound_gap):.0f}%",
            [
                {
                    "kind": kind,
                    "rows": [
                        row | {"bound_gap": -row["bound_over_exact"]}
                        for row in result["rows"]
                        if row["kind"] == kind
                    ],
                }
            ],
        )
    ]
    head = "networks | number | above the best, at most | by annealing alone, at most"
    return sourced_table(
        result, f"{head} | by id, on average | bound below the best, at most", lines
    )


def rank_order_many() -> str:
    """Orders of 128 ranks."""
    result = load("rank_order")
    lines = filled(
        "`{network}` | {library:words} | {algorithm:words} | {1e3 * by_id_s:.1f} | "
        "{1e3 * seconds:.1f} | {1e3 * bound_s:.1f} | {wall_s:.1f}",
        result["many_servers"],
    )
    head = "network, shuffled | library | its | by id, ms | ordered, ms | bound, ms | search, s"
    return sourced_table(result, head, lines)


def train_pipeline() -> str:
    """Placements trained in the lab: a step measured beside predicted."""
    result = load("train_pipeline")
    rows = [row for row in result["rows"] if row["network"] != "losses"]
    ours = {row["network"]: row["measured_s"] for row in rows if row["contender"] == "ours"}
    lines = filled(
        "{network}, {case.stages} × {case.data} | {contender} | {predicted_s:.2f} | "
        "{measured_s:.2f} | {ratio:.2f} | {steps_s:range .2f} | {measured_s / ours_s:.2f} | "
        "{load:.0f}",
        [
            row | {"case": result["cases"][row["network"]], "ours_s": ours[row["network"]]}
            for row in rows
        ],
    )
    head = "network, stages × pipelines | training | predicted, s | measured, s"
    head += " | measured / predicted | steps, s | times ours | load before"
    return sourced_table(result, head, lines)


def attacked() -> str:
    """Live commands killed, stopped and starved; of attacks that were repeated, the last."""
    result = load("attacked")
    running = {n for n, one in enumerate(result["sources"]) if "--running" in one["command"]}
    rows = [row | {"ran": row["source"] in running} for row in result["rows"]]
    every = sorted(grouped(rows, ["command"]), key=lambda rows: rows[0]["command"])
    lines = [_attacked(f"`{rows[0]['command']}`", rows) for rows in every]
    lines.append(_attacked("**all**", rows))
    head = "command | attacks | once all ran | lost server named | median until it ended | longest"
    head += " | did not end | something left | listened to others | wrong at first, then mended"
    return sourced_table(result, head, lines)


def _attacked(name: str, rows: list[dict[str, Any]]) -> str:
    lost = [row for row in rows if row.get("named") is not None]
    seconds = [row["seconds"] for row in lost if row["named"]]
    counts = [
        sum(row.get("ended") == "did not end" for row in rows),
        *(sum(bool(row.get(key)) for row in rows) for key in ("left", "open", "earlier")),
    ]
    cells: list[Any] = [name, len(rows), sum(row["ran"] for row in rows)]
    cells += [f"{sum(row['named'] for row in lost)} of {len(lost)}" * bool(lost)]
    cells += [f"{of(seconds):.1f} s" if seconds else "" for of in (statistics.median, max)]
    return " | ".join(map(str, [*cells, *counts]))


def silent_servers() -> str:
    """Who is named when one server of a training is killed, stopped or asleep."""
    result, lines = load("silent_servers"), []
    for kind in ("killed", "stopped", "asleep"):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        counts = [str(sum(row["verdict"] == verdict for row in rows)) for verdict in VERDICTS]
        median_s = statistics.median(row["seconds"] for row in rows)
        lines.append(" | ".join([kind, str(len(rows)), *counts, f"{median_s:.1f} s"]))
    head = ["one of four is", "trainings", *VERDICTS, "median until all know"]
    return sourced_table(result, " | ".join(head), lines)


def killed_ray() -> str:
    """Asynchronous trainings whose Ray was killed."""
    result = load("killed_ray")
    lines = [
        f"{name} | {len(seconds)} | {min(seconds):.1f} to {max(seconds):.1f} s"
        for name, seconds in zip(
            ("the raylet", "the GCS"), result["seconds_to_the_end"].values(), strict=True
        )
    ]
    text = table("killed | times | until the command ended", lines)
    return f"{text}\n\n{source(result)} Load average at the start: {result['load_at_start']:.1f}."


def mutants_by_room() -> str:
    """How many injected faults the tests of each room notice."""
    result, lines, total = load("mutants"), [], [0, 0, 0]
    for rows in grouped(result["rows"], ["room"]):
        alive = [row for row in rows if row["noticed_by"] is None]
        open_ = sum(row["why"] == "not explained" for row in alive)
        counts = [len(rows), len(rows) - len(alive), open_]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        lines.append(" | ".join([rows[0]["room"], *map(str, counts)]))
    lines.append(" | ".join(["**all**", *(f"**{count}**" for count in total)]))
    return sourced_table(result, "room | faults | noticed | not noticed, unexplained", lines)


def mutants_not_noticed() -> str:
    """Which they do not, and why."""
    rows = [row for row in load("mutants")["rows"] if row["noticed_by"] is None]
    lines = [f"`{_escaped(row['edit'])}` | {row['why']}" for row in rows]
    return table("fault that no test of its room notices | why", lines)


def _escaped(text: str) -> str:
    return text.removeprefix("src/gradweave/").replace("|", r"\|")
