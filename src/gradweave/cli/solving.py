"""Options of the commands that search for a schedule, and the search."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

import click

from gradweave.cli.options import (
    FILE,
    FaultOptions,
    fault_options,
    grouped,
    is_given,
    network_of,
    option,
    refuse,
    scheduler_option,
    seed_option,
    time_limit_option,
)
from gradweave.common.stop import Interrupt
from gradweave.common.wording import counted
from gradweave.errors import OptionError, SpecError
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.solve import OBJECTIVES, Objective, default_objective, solve
from gradweave.schedulers.spread import local_processes
from gradweave.schedules.demand import NAMES as NAMES_OF_COLLECTIVES
from gradweave.schedules.file import load
from gradweave.schedules.objective import JOB_OBJECTIVES
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.ready import planned_ready_times
from gradweave.schedules.schedule import Collective
from gradweave.simulator.runtime import NAMES
from gradweave.topology.names import find_node
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_size, parse_seconds


class ShownOptions(FaultOptions):
    """Values of the options of a search, except its strategies."""

    collective: str
    root: str | None
    objective: Objective | None
    runtime: str
    seed: int
    time_limit: float | None
    workers: int
    ready_at: tuple[str, ...]
    start_from: Path | None


class SearchOptions(ShownOptions):
    """Values of the options of `solving_options`."""

    scheduler: str | None


_MINIMISED = (
    "What to minimise: rounds, or the predicted time, which depends on latency, bandwidth and size."
)
_CHOSEN = "  [default: seconds if bandwidths differ or a runtime is given, else rounds]"
chosen_objective_option = option("--objective", f"{_MINIMISED}{_CHOSEN}", click.Choice(OBJECTIVES))
searched_objective_option = option(
    "--objective",
    f"{_MINIMISED} With --job: the end of the last job (makespan, the default), the sum of "
    f"their ends, that sum weighted, or the largest slowdown (fair).{_CHOSEN}",
    click.Choice((*OBJECTIVES, *JOB_OBJECTIVES)),
)
runtime_option = option(
    "--runtime",
    f"Plan with the message costs of this runtime: {', '.join(NAMES)}, or a TOML file from "
    "gradweave bench --write-runtime. If no plan is faster, the answer is the runtime's own "
    "all-reduce.",
    metavar="NAME|FILE",
    default="ideal",
)


def objective_of(topology: Topology, given: SearchOptions) -> Objective:
    """The given objective, or the default."""
    collective = cast(Collective, given["collective"])
    return given["objective"] or default_objective(topology, given["runtime"], collective)


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
        return super().convert(collective_named(str(value), self.choices), param, ctx)


collective_option = option(
    "--collective",
    "Schedule this collective of all servers.",
    CollectiveType(NAMES_OF_COLLECTIVES),
    default="all_reduce",
)
root_option = option(
    "--root",
    "Root of a broadcast, reduce, scatter or gather.  [default: the first server]",
    metavar="SERVER",
)
search_options = grouped(
    collective_option,
    root_option,
    runtime_option,
    seed_option,
    time_limit_option,
    option(
        "--workers",
        "Try strategies in parallel in this many processes.",
        click.IntRange(1, 1024),
        default=1,
    ),
    fault_options,
    option(
        "--ready-at",
        "Release time of this server's gradient, as in 3=50ms. Repeatable. Needs --objective "
        "seconds.",
        multiple=True,
        metavar="SERVER=SECONDS",
    ),
    option(
        "--start-from",
        "Keep as much as possible of this schedule, made for the network before a fault. It "
        "also gives defaults for objective, size and runtime.",
        FILE,
        metavar="FILE",
    ),
)
"""The options of a search, except --scheduler and --objective; see `SearchOptions`."""


solving_options = grouped(
    scheduler_option(
        "Try these strategies (by default all), such as ring,merged:rule=deepest, and keep the "
        "best result."
    ),
    searched_objective_option,
    search_options,
)
"""All options of a search; see `SearchOptions`."""


def ready_times_of(topology: Topology, texts: Sequence[str]) -> list[float] | None:
    """[N] release times of the servers in seconds, from ``SERVER=SECONDS``; None if all are zero.

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
        node = find_node(topology, server, "ready-at")
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
        The options, the size, and a line about what was taken from the file, or "".
    """
    file = given["start_from"]
    if file is None or given["objective"] == "rounds":
        return given, gradient_bytes, ""
    schedule = load(file)
    stated, said, ready = planned_for(schedule), [], planned_ready_times(schedule)
    if given["objective"] is None and stated.objective == "seconds":
        given = {**given, "objective": "seconds"}
        said.append("for the shortest time")
    if stated.gradient_bytes and not is_given("gradient_bytes"):
        gradient_bytes = stated.gradient_bytes
        said.append(f"for {format_size(gradient_bytes)}")
    if ready is not None and given["objective"] == "seconds" and not given["ready_at"]:
        late = [(s, t) for s, t in zip(schedule.topology.servers, ready.tolist(), strict=True) if t]
        given = {**given, "ready_at": tuple(f"{server}={time!r}s" for server, time in late)}
        said.append(f"with {counted(len(late), 'late server')}")
    if stated.runtime and not is_given("runtime"):
        if stated.runtime not in NAMES:
            raise OptionError(
                f"--start-from: {file} was planned for the runtime {stated.runtime!r:.60}, whose "
                "profile is not known by name; give its file or another profile by --runtime"
            )
        given = {**given, "runtime": stated.runtime}
        said.append(f"on {stated.runtime}")
    return given, gradient_bytes, f"{', '.join(said)}: as {file} was planned" if said else ""


def search(
    network: str | Topology,
    gradient_bytes: float,
    progress: Callable[[str], None],
    given: SearchOptions,
) -> Solution:
    """Searches for a schedule with the options of `solving_options`; Ctrl-C ends with the best."""
    start_from = given["start_from"]
    topology = network if isinstance(network, Topology) else network_of(network, given)
    objective = objective_of(topology, given)
    ready = ready_times_of(topology, given["ready_at"])
    if objective != "seconds":
        refuse(["ready_at"], "--objective seconds with it")
    with _workers(given["workers"]) as executor, ended_by_ctrl_c(progress) as interrupt:
        return solve(
            topology,
            collective=cast(Collective, given["collective"]),
            schedulers=given["scheduler"],
            objective=objective,
            runtime=given["runtime"],
            gradient_bytes=gradient_bytes,
            ready_at_s=ready,
            start_from=None if start_from is None else load(start_from),
            seed=given["seed"],
            time_limit=given["time_limit"],
            executor=executor,
            interrupt=interrupt,
            progress=progress,
        )


def _workers(count: int) -> contextlib.AbstractContextManager[Executor | None]:
    """The processes in which strategies are tried in parallel, or None."""
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
