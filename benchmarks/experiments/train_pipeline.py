"""Placements trained in the lab: measured steps beside predicted ones, and losses.

    python benchmarks/experiments/train_pipeline.py

Needs root, as experiments/lab.py; the load of the last minute is recorded with each row. Three
networks with the published latencies (half of the delays, which are round trips) and with
bandwidths scaled down alike: two sites and four regions of "Decentralized Training of Foundation
Models in Heterogeneous Environments", and the ten cities of its table. Stages are those of its
GPT-3 XL, their bytes scaled down too. Passes sleep for their seconds, since two cores stand for all
devices; messages and averages are real. Losses are those of a small GPT that two stages of two
pipelines compute for real, beside one process.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.placement_cases import FOUR_REGIONS
from benchmarks.placement_cases import network as complete_network
from gradweave.placement import Placement, Stage, Transformer, Workload, place
from gradweave.placement.training.running import Settings, Trainers, on_this_machine

SETTINGS = Settings(steps=3, time_limit=10.0)
GPT = Transformer(layers=24, width=2048, sequence=2048, batch=960, microbatches=8)
"""GPT-3 XL with two million tokens a step, values of two bytes, at 100 Tflop/s a device."""
FASTER = 8
"""How much sooner everything but latencies happens here: seconds of a pass, and of a byte."""
MESSAGE_S = 1e-3
"""Overhead of a message, with which schedules are chosen and predicted: about the 0.89 ms that one
more message of a schedule takes through gloo between two processes (results/message_cost.json).
Messages of processes that share two busy cores cost more (see experiments/lab_delays.py)."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, and the shape of the pipelines on it."""

    make: Callable[[], gw.Topology]
    slowest_mbit: float
    """Of its slowest link in the lab; the others keep their proportion."""
    stages: int
    data: int

    @functools.cached_property
    def scale(self) -> float:
        """Bandwidths in the lab over published ones."""
        return self.slowest_mbit * 125e3 / float(self.make().bandwidth_bytes_per_s.min())

    def network(self) -> gw.Topology:
        """As the lab emulates it."""
        made = self.make()
        return dataclasses.replace(
            made,
            bandwidth_bytes_per_s=made.bandwidth_bytes_per_s * self.scale,
            overhead_s=np.full(len(made.source), MESSAGE_S),
        )


def complete(name: str, homes: list[str], figures: Callable[[str, str], Any]) -> gw.Topology:
    """A link between every two servers; published delays are round trips, so half is a latency."""
    made = complete_network(name, homes, figures)
    return dataclasses.replace(made, latency_s=made.latency_s / 2)


def two_sites() -> gw.Topology:
    """Four servers each."""
    homes = ["Ohio"] * 4 + ["Virginia"] * 4
    return complete("two sites", homes, lambda a, b: (1.0, 5.0) if a == b else (11.0, 1.12))


def four_regions() -> gw.Topology:
    """Three servers each."""

    def between(one: str, other: str) -> tuple[float, float]:
        if one == other:
            return 5.0, 2.0
        return FOUR_REGIONS.get((one, other)) or FOUR_REGIONS[other, one]

    homes = [name for name in ("Virginia", "Oregon", "California", "Ohio") for _ in range(3)]
    return complete("four regions", homes, between)


def ten_cities() -> gw.Topology:
    """Two servers each, all over the world."""
    return dataclasses.replace(gw.topology.cities(each=2), name="ten cities")


CASES = {
    "two sites": Case(two_sites, 20.0, 4, 2),
    "four regions": Case(four_regions, 20.0, 4, 3),
    "ten cities": Case(ten_cities, 8.0, 4, 5),
}
GROUPS_FIRST = "rank_order:first=data"
CONTENDERS: dict[str, tuple[str, Any, Any, Any]] = {
    "ours": ("annealing", "exchange", "schedule", "1f1b"),
    "rank order, pipelines first": ("rank_order", "exchange", "schedule", "1f1b"),
    "rank order, groups first": (GROUPS_FIRST, "exchange", "schedule", "1f1b"),
    "ours, averages by gloo": ("annealing", "exchange", "gloo", "1f1b"),
    "ours, all by PyTorch": ("annealing", "exchange", "pytorch", "1f1b"),
    "rank order, groups first, all by PyTorch": (GROUPS_FIRST, "exchange", "pytorch", "1f1b"),
    "ours, GPipe": ("annealing", "exchange", "schedule", "gpipe"),
    "rank order, pipelines first, GPipe": ("rank_order", "exchange", "schedule", "gpipe"),
    "rank order, groups first, GPipe": (GROUPS_FIRST, "exchange", "schedule", "gpipe"),
}
"""Strategy, what it minimises, how gradients are averaged, and the order of passes."""
LOSSES = "losses"
MODEL = Transformer(
    layers=4, width=64, sequence=64, batch=16, microbatches=4, vocabulary=128, value_bytes=4
)
LOSS_STEPS = 30


def workload(network: str) -> Workload:
    """The stages, with fewer bytes as there is less bandwidth, and everything sooner."""
    case = CASES[network]
    sooner, fewer = 1 / FASTER, case.scale / FASTER
    whole = GPT.workload(case.stages, case.data)
    stages = [
        Stage(
            one.forward_s * sooner,
            one.backward_s * sooner,
            one.activation_bytes * fewer,
            one.gradient_bytes * fewer,
        )
        for one in whole.stages
    ]
    return Workload(tuple(stages), whole.microbatches, "GPT-3 XL, scaled down")


@functools.cache
def placed(network: str, strategy: str, cost: Any) -> Placement:
    case = CASES[network]
    return place(
        case.network(), workload(network), data=case.data, strategy=strategy, cost=cost,
        bound=False, time_limit=SETTINGS.time_limit,
    )  # fmt: skip


def trained(trainers: Trainers, network: str, contender: str) -> dict[str, Any]:
    """A row: one contender on one network."""
    strategy, cost, averages, order = CONTENDERS[contender]
    placement = placed(network, strategy, cost)
    placement = dataclasses.replace(placement, topology=trainers.topology)
    load = os.getloadavg()[0]
    settings = dataclasses.replace(SETTINGS, order=order)
    run = trainers.train(contender, placement, settings, averages=averages)
    predicted = run.predicted
    return {
        "contender": contender,
        "averages": averages,
        "order": order,
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


def measure(network: str) -> list[dict[str, Any]]:
    """The contenders, by the same processes; a fresh process has none of the last one's threads."""
    from gradweave.lab.pipeline import training_lab

    if network == LOSSES:
        return [losses()]
    for contender in CONTENDERS:  # before the processes are there
        placed(network, *CONTENDERS[contender][:2])
    with training_lab(CASES[network].network()) as (trainers, emulation):
        together, latest = emulation.together, float(np.max(emulation.lateness))
        about = {"emulated_together": together, "latest_round_trip": latest}
        return [trained(trainers, network, contender) | about for contender in CONTENDERS]


def losses() -> dict[str, Any]:
    """Two stages of two pipelines on processes of this machine, and one process."""
    from gradweave.placement.training.trainer import whole_losses

    net = gw.topology.cities(["Oregon", "Tokyo"], each=2)
    placement = place(net, MODEL, pipeline=2, bound=False)
    alone = whole_losses(MODEL, LOSS_STEPS)
    row: dict[str, Any] = {"contender": LOSSES, "one_process": alone}
    with on_this_machine(net) as trainers:
        for averages in ("schedule", "gloo", "pytorch"):
            settings = Settings("1f1b", LOSS_STEPS)
            run = trainers.train(LOSSES, placement, settings, averages=averages, model=MODEL)
            apart = max(abs(a / b - 1) for a, b in zip(run.losses, alone, strict=True))
            row[averages] = {"losses": run.losses, "apart": apart}
    return row


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=[LOSSES, *CASES]), measure),
        alone=True,
        libraries=("torch",),
        cases={
            name: {
                "stages": case.stages,
                "data": case.data,
                "slowest_mbit": case.slowest_mbit,
                "scale": case.scale,
                "workload": dataclasses.asdict(workload(name)),
            }
            for name, case in CASES.items()
        },
        gpt=dataclasses.asdict(GPT),
        faster=FASTER,
        message_s=MESSAGE_S,
        steps=SETTINGS.steps,
        model=dataclasses.asdict(MODEL),
    )
