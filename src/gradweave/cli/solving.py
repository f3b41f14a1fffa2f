"""Options of the verbs that search for a schedule, and the search."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gradweave.cli.options import (
    FaultOptions,
    Parameters,
    Result,
    SizeType,
    fault_options,
    network_of,
    seed_option,
    time_limit_option,
    with_options,
)
from gradweave.errors import OptionError, SpecError
from gradweave.schedule.file import load
from gradweave.schedule.objective import JOB_OBJECTIVES
from gradweave.schedule.planned_for import planned_for
from gradweave.schedule.schedule import COLLECTIVES, Collective
from gradweave.schedulers.solve.seconds_bound import has_equal_links
from gradweave.schedulers.solve.solution import Solution
from gradweave.schedulers.solve.solve import OBJECTIVES, Objective, solve
from gradweave.schedulers.spread import local_processes
from gradweave.simulate.runtime import NAMES
from gradweave.stop import Interrupt
from gradweave.topology.names import find_node
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_size, parse_seconds


class SearchOptions(FaultOptions):
    """Values of the options of `solving_options`."""

    scheduler: str | None
    collective: Collective
    objective: Objective | None
    runtime: str
    seed: int
    time_limit: float | None
    workers: int
    ready_at: tuple[str, ...]
    start_from: Path | None


_MINIMISED = "Minimise rounds, or seconds, which latency, bandwidth and the gradient's size decide."
objective_option = click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="rounds",
    show_default=True,
    help=_MINIMISED,
)
chosen_objective_option = click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    help=f"{_MINIMISED}  [default: seconds where bandwidths differ or a runtime is given, else "
    "rounds]",
)
searched_objective_option = click.option(
    "--objective",
    type=click.Choice((*OBJECTIVES, *JOB_OBJECTIVES)),
    help=f"{_MINIMISED}  [default: seconds where bandwidths differ or a runtime is given, else "
    "rounds]  Of jobs: when the last ends (makespan, the default), the sum of when each does, or "
    "that by weights, or the largest slowdown (fair).",
)


runtime_option = click.option(
    "--runtime",
    metavar="NAME|FILE",
    default="ideal",
    show_default=True,
    help=f"Plan for what messages cost where the schedule is to run: {', '.join(NAMES)}, or a "
    "TOML file that gradweave run --write-runtime wrote. If no plan is faster, the runtime's own "
    "all-reduce is the answer.",
)


def objective_of(topology: Topology, given: SearchOptions) -> Objective:
    """What was asked for, or the default."""
    return given["objective"] or default_objective(topology, given["runtime"], given["collective"])


def default_objective(
    topology: Topology, runtime: str, collective: Collective = "all_reduce"
) -> Objective:
    """Seconds where rounds do not tell the time."""
    tells = has_equal_links(topology) or collective != "all_reduce"
    return "rounds" if tells and runtime == "ideal" else "seconds"


def collective_named(text: str, names: Sequence[str]) -> str:
    """The collective of that name, also spelt as all-reduce or AllReduce; else the text itself.

    Args:
        text: what a user wrote.
        names: collectives as the library spells them.
    """
    spelt = {one.replace("_", ""): one for one in names}
    return spelt.get(text.lower().replace("_", "").replace("-", ""), text)


class CollectiveType(click.Choice):
    """A collective; see `collective_named`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The collective as the library spells it."""
        return super().convert(collective_named(str(value), COLLECTIVES), param, ctx)


def solving_options(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Adds the options of a search to a verb; see `SearchOptions`."""
    options = (
        click.option(
            "--scheduler",
            metavar="SCHEDULERS",
            multiple=True,
            callback=lambda _context, _option, given: ",".join(given) if given else None,
            help="Try these strategies, comma-separated, such as merged:rule=deepest; keep the "
            "best.  [default: all]",
        ),
        click.option(
            "--collective",
            type=CollectiveType(COLLECTIVES),
            default="all_reduce",
            show_default=True,
            help="Schedule this collective.",
        ),
        searched_objective_option,
        runtime_option,
        seed_option,
        time_limit_option,
        click.option(
            "--workers",
            type=click.IntRange(1, 1024),
            default=1,
            show_default=True,
            help="Try strategies side by side in this many processes.",
        ),
        fault_options,
        click.option(
            "--ready-at",
            multiple=True,
            metavar="SERVER=SECONDS",
            help="Take this server's own gradient to be ready late, as in 3=50ms; may be repeated. "
            "Needs --objective seconds.",
        ),
        click.option(
            "--start-from",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Keep what still works of this schedule, made for the network before a fault. "
            "Objective, size and runtime are its own if they are not given.",
        ),
    )
    return with_options(command, options)


gradient_option = click.option(
    "--gradient-bytes",
    type=SizeType(),
    default="100MB",
    show_default=True,
    help="Predict, and minimise, the seconds for a gradient of this size.",
)


def ready_times_of(topology: Topology, texts: Sequence[str]) -> list[float] | None:
    """[N] seconds at which each server is ready, from ``SERVER=SECONDS``; None if none is late.

    Raises:
        SpecError: for a text of another form, or a server that is given twice.
        TopologyError: for a node that is no server of the network.
    """
    if not texts:
        return None
    ready: dict[int, float] = {}
    for text in texts:
        server, equals, seconds = text.rpartition("=")
        if not equals:
            raise SpecError(
                f"ready-at {text!r:.60}: expected a server and when it is ready, as in 3=50ms"
            )
        node = find_node(topology, server, "server")
        if not topology.is_server[node]:
            raise SpecError(f"ready-at {text!r:.60}: is a switch; expected a server")
        if node in ready:
            raise SpecError(f"ready-at {text!r:.60}: the server is given twice; give one time")
        ready[node] = parse_seconds("ready-at", seconds)
    return [ready.get(server, 0.0) for server in topology.servers.tolist()]


def as_planned(given: SearchOptions, gradient_bytes: float) -> tuple[SearchOptions, float, str]:
    """Objective, size and runtime that are not given, as the schedule to start from states them.

    Args:
        given: the options.
        gradient_bytes: the size, given or not.

    Returns:
        The options, the size, and a line that says what was taken; no line where nothing was.
    """
    file = given["start_from"]
    if file is None or given["objective"] == "rounds":
        return given, gradient_bytes, ""
    stated, said = planned_for(load(file)), []
    if given["objective"] is None and stated.objective == "seconds":
        given = {**given, "objective": "seconds"}
        said.append("for the least time")
    if stated.gradient_bytes and not is_given("gradient_bytes", "min_bytes", "max_bytes"):
        gradient_bytes = stated.gradient_bytes
        said.append(f"for {format_size(gradient_bytes)}")
    if stated.runtime and not is_given("runtime"):
        if stated.runtime not in NAMES:
            raise OptionError(
                f"--start-from: {file} was planned for the runtime {stated.runtime!r:.60}, whose "
                "profile is not known by name; give --runtime, its file or another one"
            )
        given = {**given, "runtime": stated.runtime}
        said.append(f"on {stated.runtime}")
    return given, gradient_bytes, f"{', '.join(said)}: as {file} was planned" if said else ""


def is_given(*names: str) -> bool:
    """Whether one of these options is on the command line.

    Args:
        names: of the parameters of the verb.
    """
    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in names)


def search(
    network: str, gradient_bytes: float, progress: Callable[[str], None], given: SearchOptions
) -> Solution:
    """Searches for a schedule with the options of `solving_options`; Ctrl-C ends with the best."""
    start_from = given["start_from"]
    topology = network_of(network, given)
    with _workers(given["workers"]) as executor, ended_by_ctrl_c(progress) as interrupt:
        return solve(
            topology,
            collective=given["collective"],
            schedulers=given["scheduler"],
            objective=objective_of(topology, given),
            runtime=given["runtime"],
            gradient_bytes=gradient_bytes,
            ready_at_s=ready_times_of(topology, given["ready_at"]),
            start_from=None if start_from is None else load(start_from),
            seed=given["seed"],
            time_limit=given["time_limit"],
            executor=executor,
            interrupt=interrupt,
            progress=progress,
        )


def _workers(count: int) -> contextlib.AbstractContextManager[Executor | None]:
    """Where strategies are tried side by side; None for one after the other."""
    return contextlib.nullcontext() if count == 1 else local_processes(count)


@contextlib.contextmanager
def ended_by_ctrl_c(progress: Callable[[str], None]) -> Iterator[Interrupt]:
    """Ctrl-C ends the search; the second time, all.

    As it was where Ctrl-C does something else already, such as nothing under nohup.
    """
    interrupt = Interrupt()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return

    def end(number: int, frame: object) -> None:
        if interrupt.flag[0]:
            raise KeyboardInterrupt
        interrupt.end()
        progress("ending with the best so far; Ctrl-C again to end without")

    signal.signal(signal.SIGINT, end)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
