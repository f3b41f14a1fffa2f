"""Placements trained in the lab: measured steps beside predicted ones, and losses.

    python benchmarks/experiments/train_pipeline.py

Needs root, as experiments/lab.py; the load of the last minute is recorded with each row. Three
networks with the published latencies (half of the delays, which are round trips) and with
bandwidths scaled down alike: two sites and four regions of "Decentralized Training of Foundation
Models in Heterogeneous Environments", and the ten cities of its table. Stages are those of its
GPT-3 XL, their bytes scaled down too. Passes sleep for their seconds, since two cores stand for all
devices; messages and averages are real. Losses are those of a small GPT that two stages of two
pipelines compute for real, beside one process.

What is done is kept in a file beside the results until all is, so that the same command goes on
where it was ended; ``--finish`` records what is kept.
"""

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from placement_cases import ACTIVATION_BYTES, FOUR_REGIONS, GRADIENT_BYTES
from placement_cases import network as complete_network
from record import RESULTS, record, show

import gradweave as gw
from gradweave.placement import Placement, Transformer, Workload, even_stages, place
from gradweave.placement.training.running import Settings, Trainers, on_this_machine

KEPT = RESULTS / "train_pipeline.partial.jsonl"
PICTURE = RESULTS / "train_pipeline.png"
SETTINGS = Settings("1f1b", steps=5, time_limit=20.0)
MICROBATCHES = 8
GRADIENT_MB = 3.0
"""Of a stage, in place of 650 MB; activations in proportion."""
FORWARD_S, BACKWARD_S = 0.03, 0.06
"""Of a micro-batch."""


MESSAGE_S = 1e-3
"""Overhead of a message between processes of which a dozen and more share two cores: a millisecond
or so, as experiments/message_cost.py and experiments/lab.py find."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, and the shape of the pipelines on it."""

    make: Callable[[], gw.Topology]
    stages: int
    data: int


def halved(figures: Callable[[str, str], tuple[float, float]], one: str, other: str) -> Any:
    delay_ms, gbit = figures(one, other)
    return delay_ms / 2, gbit


def scaled(topology: gw.Topology, slowest_mbit: float) -> gw.Topology:
    from gradweave.lab.measure import emulated

    slow = emulated(topology, bandwidth_bytes_per_s=slowest_mbit * 125e3)
    return dataclasses.replace(slow, overhead_s=np.full(len(slow.source), MESSAGE_S))


def two_sites() -> gw.Topology:
    """Four servers each, 5.5 ms apart; bandwidths a thirtieth or so."""
    homes = ["Ohio"] * 4 + ["Virginia"] * 4
    figures = functools.partial(halved, lambda a, b: (1.0, 5.0) if a == b else (11.0, 1.12))
    return scaled(complete_network("two sites", homes, figures), 10.0)


def four_regions() -> gw.Topology:
    """Three servers each."""

    def between(one: str, other: str) -> tuple[float, float]:
        if one == other:
            return 5.0, 2.0
        return FOUR_REGIONS.get((one, other)) or FOUR_REGIONS[other, one]

    homes = [name for name in ("Virginia", "Oregon", "California", "Ohio") for _ in range(3)]
    made = complete_network("four regions", homes, functools.partial(halved, between))
    return scaled(made, 10.0)


def ten_cities() -> gw.Topology:
    """Two servers each, all over the world."""
    return dataclasses.replace(scaled(gw.topology.cities(each=2), 4.0), name="ten cities")


CASES = {
    "two sites": Case(two_sites, 4, 2),
    "four regions": Case(four_regions, 4, 3),
    "ten cities": Case(ten_cities, 4, 5),
}
CONTENDERS = {
    "ours": ("annealing", "exchange", "schedule"),
    "ours, cost scheduled": ("annealing", "scheduled", "schedule"),
    "rank order, pipelines first": ("rank_order", "exchange", "schedule"),
    "rank order, groups first": ("rank_order:first=data", "exchange", "schedule"),
    "ours, averages by gloo": ("annealing", "exchange", "gloo"),
    "ours, all by PyTorch": ("annealing", "exchange", "pytorch"),
    "rank order, groups first, all by PyTorch": ("rank_order:first=data", "exchange", "pytorch"),
}
"""Strategy, what it minimises, and how gradients are averaged."""
LOSSES = "losses"
MODEL = Transformer(
    layers=4, width=64, sequence=64, batch=16, microbatches=4, vocabulary=128, value_bytes=4
)
LOSS_STEPS = 30


def workload(stages: int) -> Workload:
    scale = GRADIENT_MB * 1e6 / GRADIENT_BYTES
    return even_stages(
        stages,
        activation_bytes=ACTIVATION_BYTES * scale / MICROBATCHES,
        gradient_bytes=GRADIENT_BYTES * scale,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        microbatches=MICROBATCHES,
        name="GPT-3 XL, scaled down",
    )


@functools.cache
def placed(network: str, strategy: str, cost: Any) -> Placement:
    case = CASES[network]
    return place(
        case.make(), workload(case.stages), data=case.data, strategy=strategy, cost=cost,
        bound=False, time_limit=SETTINGS.time_limit,
    )  # fmt: skip


def trained(trainers: Trainers, network: str, contender: str) -> dict[str, Any]:
    """A row: one contender on one network."""
    strategy, cost, averages = CONTENDERS[contender]
    placement = placed(network, strategy, cost)
    placement = dataclasses.replace(placement, topology=trainers.topology)
    load = os.getloadavg()[0]
    run = trainers.train(contender, placement, SETTINGS, averages=averages)
    predicted = run.predicted
    if (network, contender) == ("ten cities", "ours") and predicted is not None:
        from gradweave.report.step_chart import step_chart

        steps = [("measured", run.measured), ("predicted", predicted)]
        step_chart(steps, "A step of GPT-3 XL, scaled down, on ten cities", PICTURE)
    return {
        "network": network,
        "contender": contender,
        "averages": averages,
        "load": load,
        "servers": placement.servers.tolist(),
        "exchange_cost_s": placement.cost_s,
        "steps_s": [step.seconds for step in run.steps],
        "passes_s": [step.passes_s for step in run.steps],
        "measured_s": run.measured_s,
        "predicted_s": None if predicted is None else predicted.seconds,
        "predicted_passes_s": None if predicted is None else predicted.passes_s,
        "ratio": run.ratio,
    }


def on_network(network: str) -> None:
    """All contenders that are not kept yet, by the same processes."""
    from gradweave.lab.pipeline import training_lab

    done = {(row["network"], row["contender"]) for row in kept()}
    left = [one for one in CONTENDERS if (network, one) not in done]
    if not left:
        return
    for contender in left:  # before the processes are there
        placed(network, *CONTENDERS[contender][:2])
    with training_lab(CASES[network].make()) as (trainers, emulation):
        for contender in left:
            row = trained(trainers, network, contender)
            row["emulated_together"] = emulation.together
            row["latest_round_trip"] = float(np.max(emulation.lateness))
            keep(row)


def losses() -> dict[str, Any]:
    """Two stages of two pipelines on processes of this machine, and one process."""
    from gradweave.placement.training.trainer import whole_losses

    net = gw.topology.cities(["Oregon", "Tokyo"], each=2)
    placement = place(net, MODEL, pipeline=2, bound=False)
    alone = whole_losses(MODEL, LOSS_STEPS)
    row: dict[str, Any] = {"network": LOSSES, "contender": LOSSES, "one_process": alone}
    with on_this_machine(net) as trainers:
        for averages in ("schedule", "gloo", "pytorch"):
            settings = Settings("1f1b", LOSS_STEPS)
            run = trainers.train(LOSSES, placement, settings, averages=averages, model=MODEL)
            apart = max(abs(a / b - 1) for a, b in zip(run.losses, alone, strict=True))
            row[averages] = {"losses": run.losses, "apart": apart}
    return row


def kept() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def keep(row: dict[str, Any]) -> None:
    with KEPT.open("a") as file:
        file.write(json.dumps(row) + "\n")
    show({name: value for name, value in row.items() if not isinstance(value, list | dict)})


def main() -> None:
    """Measures what is not kept yet, and records when all is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="network, for a process of its own")
    parser.add_argument("--finish", action="store_true", help="record what is kept")
    asked = parser.parse_args()
    if asked.only == LOSSES:
        keep(losses())
    elif asked.only is not None:
        on_network(asked.only)
    if asked.only is not None:
        return
    for name in [] if asked.finish else [LOSSES, *CASES]:
        if name == LOSSES and any(row["network"] == LOSSES for row in kept()):
            continue
        # A fresh process has none of the last one's threads.
        subprocess.run([sys.executable, __file__, "--only", name], check=True)
    shapes = {name: [case.stages, case.data] for name, case in CASES.items()}
    record(
        "train_pipeline",
        libraries=("torch",),
        shapes=shapes,
        microbatches=MICROBATCHES,
        gradient_bytes=GRADIENT_MB * 1e6,
        activation_bytes=workload(2).stages[0].activation_bytes,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        order=SETTINGS.order,
        steps=SETTINGS.steps,
        model=dataclasses.asdict(MODEL),
        rows=kept(),
    )
    KEPT.unlink()


if __name__ == "__main__":
    main()
