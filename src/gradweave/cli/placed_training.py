"""``gradweave place --train``: a placement trained by processes, and its steps' times."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import needs
from gradweave.cli.console import Progress, Table, complain, fields_of
from gradweave.cli.labs import emulated
from gradweave.cli.options import grouped, network_of, option, writable
from gradweave.cli.placing import PlacementOptions, model_of, placement_lines
from gradweave.common.atomic import atomic_write
from gradweave.common.lazy import require
from gradweave.errors import OptionError
from gradweave.execute.running.joined import ended_at_once
from gradweave.placement.timeline.orders import Order
from gradweave.placement.workload import Workload
from gradweave.probe.launch import told_in_one_line
from gradweave.processes.launchers import launcher, rank_given
from gradweave.schedulers.spec import split_specs
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.placement.training.launched import LaunchedServers
    from gradweave.placement.training.running import Trainers, Training

_ALONE, _IN_LAB = "annealing", "annealing,rank_order,gloo"
_SAME = 1e-4
"""Relative difference of losses up to which they are called equal: float32, sums in other orders,
and an optimizer that divides by the gradient's size."""


training_options = grouped(
    option("--train", "Train what is placed, one process per server, and time its steps.", bool),
    option(
        "--steps", "With --train: train for this many steps.", click.IntRange(1, 100_000), default=6
    ),
    option(
        "--slept",
        "With --train: compute nothing; a pass sleeps for its stage's seconds, for a machine "
        "whose cores stand for many devices.",
        bool,
    ),
    option("--lab", "With --train: train on NETWORK, emulated here; needs root.", bool),
    option(
        "--bandwidth",
        "With --lab: give the slowest link this bandwidth; the others keep their proportion to it.",
        default="20Mbit/s",
    ),
    option("--latency", "With --lab: give every link this latency.  [default: each link's own]"),
    option("--check", "With --train: train in one process as well, and compare the losses.", bool),
    needs("--train", "--steps", "--slept", "--lab", "--check"),
    needs("--lab", "--bandwidth", "--latency"),
)
"""The options of a training; see `TrainingOptions`."""


class TrainingOptions(TypedDict):
    """Values of the options of `training_options`."""

    train: bool
    steps: int
    slept: bool
    lab: bool
    bandwidth: str
    latency: str | None
    check: bool


class TrainedOptions(PlacementOptions, TrainingOptions):
    """Options of the placement and of its training."""


def train_placed(
    network: str,
    given: TrainedOptions,
    order: Order,
    memory: int | None,
    output: Path | None,
    *,
    seed: int,
    time_limit: float | None,
) -> Answer | None:
    """Trains the placed model by processes, and times its steps."""
    with ended_at_once(complain):
        require("training a pipeline", "torch", extra="torch")
        if rank_given(launcher() or ""):  # rank 0 decides
            _follow()
            return None
        from gradweave.placement.training.contenders import Contest, contenders
        from gradweave.placement.training.running import Settings

        writable(output, ".json", ".png")
        workload, in_lab = model_of(given["model"]), given["lab"]
        trained = None if given["slept"] or isinstance(workload, Workload) else workload
        if given["check"] and trained is None:
            raise OptionError("--check: expected a transformer, and no --slept")
        topology = _trained_on(
            network_of(network, given), in_lab, given["bandwidth"], given["latency"]
        )
        first, *others = split_specs(given["scheduler"] or (_IN_LAB if in_lab else _ALONE))
        doing = f"training {given['model']} on {network}"
        with _launched(topology) as (topology, servers), Progress(doing) as progress:
            placing = {name: given[name] for name in ("pipeline", "data", "cost")}
            placing["memory_bytes"] = memory
            settings = Settings(order, given["steps"], seed, time_limit=time_limit)
            contest = Contest(topology, workload, settings, trained, placing, progress)
            trainers = _trainers(topology, servers, in_lab, progress)
            trainings = contest.trainings(contenders(first, others), trainers)
            alone = contest.alone() if given["check"] else None
    return _answer(trainings, alone, output)


def _answer(
    trainings: "Sequence[Training]", alone: list[float] | None, output: Path | None
) -> Answer:
    """The results, written if a file is given."""
    result = _as_object(trainings, alone)
    written = [] if output is None else _write(result, trainings[0], output)
    return Answer(result | {"output": written}, _text(trainings, alone, written))


def _follow() -> None:
    """Carries out the requests of the launcher's first process."""
    from gradweave.placement.training.launched import LaunchedServers

    with told_in_one_line(), LaunchedServers() as servers:
        servers.follow()


@contextlib.contextmanager
def _launched(topology: Topology) -> "Iterator[tuple[Topology, LaunchedServers | None]]":
    """The network and its processes, where a launcher started them."""
    if launcher() is None:
        yield topology, None
        return
    from gradweave.placement.training.launched import LaunchedServers, check_size

    check_size(topology)
    with told_in_one_line(), LaunchedServers() as servers:
        yield servers.network(topology), servers


def _trained_on(topology: Topology, in_lab: bool, bandwidth: str, latency: str | None) -> Topology:
    """The network that the processes are on."""
    if not in_lab:
        return topology
    if launcher() is not None:
        raise OptionError("--lab starts its processes itself: expected no launcher around it")
    return emulated(topology, bandwidth, latency)


def _trainers(
    topology: Topology, servers: "LaunchedServers | None", in_lab: bool, progress: Progress
) -> "contextlib.AbstractContextManager[Trainers]":
    """The processes that train: a launcher's, those of a lab, or new ones."""
    if servers is not None:
        return contextlib.nullcontext(servers.trainers(topology))
    if in_lab:
        return _in_lab(topology, progress)
    from gradweave.placement.training.running import on_this_machine

    return on_this_machine(topology)


@contextlib.contextmanager
def _in_lab(topology: Topology, progress: Progress) -> "Iterator[Trainers]":
    from gradweave.lab.pipeline import training_lab

    with training_lab(topology, progress) as (trainers, _):
        yield trainers


def _as_object(trainings: "Sequence[Training]", alone: list[float] | None) -> dict[str, Any]:
    first = trainings[0].placement
    return {
        "topology": first.topology.name,
        "servers": first.topology.num_servers,
        "workload": first.workload.name,
        "order": trainings[0].steps[0].order,
        "trainings": [_one(training) for training in trainings],
        "one_process_losses": alone,
    }


def _one(training: "Training") -> dict[str, Any]:
    predicted = training.predicted
    return {
        **fields_of(training, "name", "averages", "measured_s", "ratio", "losses"),
        "placement": training.placement.servers.tolist(),
        "steps_s": [step.seconds for step in training.steps],
        "passes_s": [step.passes_s for step in training.steps],
        "predicted_s": predicted and predicted.seconds,
        "predicted_passes_s": predicted and predicted.passes_s,
    }


def _write(result: dict[str, Any], ours: "Training", output: Path) -> list[str]:
    """The figures, and the picture of the first training's median step."""
    from gradweave.report.step_chart import step_chart

    figures, chart = output.with_suffix(".json"), output.with_suffix(".png")
    atomic_write(figures, json.dumps(result, indent=1).encode())
    steps = [("measured", ours.measured)]
    if ours.predicted is not None:
        steps.append(("predicted", ours.predicted))
    step_chart(steps, f"{result['workload']} on {result['topology']}", chart)
    return [str(figures), str(chart)]


def _text(
    trainings: "Sequence[Training]", alone: list[float] | None, written: Sequence[str]
) -> Iterator[str | Table]:
    ours = trainings[0]
    yield from placement_lines(ours.placement)
    heads = ("training", "predicted s", "measured s", "spread", "ratio", "first loss", "last loss")
    yield Table(heads, map(_cells, trainings))
    if alone is not None:
        apart = max(abs(a / b - 1) for a, b in zip(ours.losses, alone, strict=True))
        equal = "equal" if apart <= _SAME else "not equal"
        yield f"losses {equal} to those of one process: {apart:.1e} apart at most"
    if written:
        yield f"written to {', '.join(written)}"


def _cells(training: "Training") -> list[str]:
    seconds, predicted = [step.seconds for step in training.steps], training.predicted
    losses = training.losses
    return [
        training.name,
        "–" if predicted is None else f"{predicted.seconds:.3f}",
        f"{training.measured_s:.3f}",
        f"{(max(seconds) - min(seconds)) / training.measured_s:.0%}",
        "–" if training.ratio is None else f"{training.ratio:.2f}",
        f"{losses[0]:.4f}" if losses else "–",
        f"{losses[-1]:.4f}" if losses else "–",
    ]
