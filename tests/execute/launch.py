"""How jobs of either backend are started and judged.

The parent makes the schedules and writes them, with the cases, into a file. The processes run the
cases in the same order and report a digest of what each ends with; the parent plays the same cases
in NumPy and compares. Nothing that the processes compute is taken for granted.
"""

import dataclasses
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

import gradweave as gw
from gradweave.execute import play
from gradweave.schedulers import RecursiveDoubling, Ring
from gradweave.schedules import COLLECTIVES, Schedule
from gradweave.schedules.schedule import Collective
from tests.conformance import made as conformance
from tests.conformance.strategies import STRATEGIES
from tests.execute.cases import (
    IN_SHARES,
    INTEGERS,
    Case,
    contribution,
    in_shares,
    result_digest,
)
from tests.execute.demands import planned
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]

RUN = [strategy for strategy in STRATEGIES if "aggregating" not in strategy]
MANY, SOME = 1_000_000, 10_007
SEVERAL = ("grown", "ring", "merged", "recursive doubling")
"""That reduce many elements: every second one on each small network."""


def kinds(dtypes: Iterable[str]) -> list[tuple[str, str]]:
    """Types and reductions that go together on all backends."""
    return [
        (dtype, reduction)
        for dtype, reduction in itertools.product(dtypes, ("sum", "mean", "max", "min"))
        if not (reduction == "mean" and dtype in INTEGERS)
        and not (dtype == "complex64" and reduction != "sum")
    ]


SMALL_NETWORKS = ("irregular", "bcube:n=3,k=1")
"""Of six and nine servers."""


def cases(name: str, dtypes: Sequence[str]) -> list[Case]:
    """Strategies, with few elements and one with many; which types comes in turn.

    Every backend runs every strategy. The program of a server they share, and `test_program` plays
    that on other networks. On the first network every type is reduced in every way, too, with every
    collective: see `all_kinds`.

    Args:
        name: of the network.
        dtypes: types that the backend knows.
    """
    at = SMALL_NETWORKS.index(name)
    found = []
    for number, strategy in enumerate(RUN):
        if name in STRATEGIES[strategy].none_on:
            continue
        sizes = (1, SOME) + (MANY,) * (strategy in SEVERAL[at::2])
        for i, elements in enumerate(sizes):
            dtype = dtypes[(number + 2 * at + i) % len(dtypes)]
            possible = [kind for kind in kinds(dtypes) if kind[0] == dtype]
            turn = 0 if elements == MANY else number // len(dtypes) + at + i  # the first is a sum
            kind = possible[turn % len(possible)]
            found.append(Case(strategy, "all_reduce", *kind, elements))
    return found + unequal(name) + (all_kinds(dtypes) if at == 0 else [])


def unequal(name: str) -> list[Case]:
    """Pieces of unequal size, one of them empty, by gradients of any length."""
    collectives = COLLECTIVES if name == SMALL_NETWORKS[0] else COLLECTIVES[:1]
    return [
        Case(strategy + IN_SHARES, collective, "float32", "sum", elements)
        for strategy in ("merged", "ring", "grown")
        for collective in collectives
        for elements in (1, SOME, MANY)
        if elements < MANY or strategy != "grown"
    ]


def all_kinds(dtypes: Sequence[str]) -> list[Case]:
    """Every collective with every type and reduction, on few strategies."""
    return [
        Case(strategy, collective, *kind, elements)
        for strategy in ("grown", "recursive doubling")
        for collective in COLLECTIVES
        for kind in kinds(dtypes)
        for elements in (1, 101)
    ]


def of_two(dtypes: Sequence[str]) -> list[Case]:
    """What two processes may show: a few strategies, each type, each collective."""
    return [
        Case(strategy, collective, dtype, "sum", SOME)
        for strategy in SEVERAL
        for collective in COLLECTIVES
        for dtype in dtypes
    ]


def all_with_all(dtypes: Sequence[str]) -> list[Case]:
    """Four servers that exchange everything at once: each adds its value in its place."""
    return [
        Case("all with all", "all_reduce", *kind, elements)
        for kind in kinds(dtypes)
        for elements in (1, SOME)
    ]


def expected(schedule: Schedule, case: Case) -> list[str]:
    """By rank."""
    servers = range(schedule.topology.num_servers)
    brought = np.stack([contribution(rank, case.elements, case.dtype) for rank in servers])
    ends = play(schedule, brought, case.reduction)  # pyright: ignore[reportArgumentType]
    return [result_digest(rank, schedule, ends[rank]) for rank in servers]


Schedules = dict[tuple[str, str], Schedule]
"""By strategy and collective."""


def made(name: str, strategy: str, collective: Collective = "all_reduce") -> Schedule:
    if strategy.endswith(IN_SHARES):
        return in_shares(conformance.made(name, strategy.removesuffix(IN_SHARES), collective))
    return conformance.made(name, strategy, collective)


def write_job(folder: Path, name: str, wanted: Iterable[Case]) -> Schedules:
    """Writes what `read_job` reads."""
    wanted = list(wanted)
    pairs = dict.fromkeys((case.strategy, case.collective) for case in wanted)
    schedules = {pair: made(name, *pair) for pair in pairs}
    rows = [dataclasses.astuple(case) for case in wanted]
    (folder / "job.pickle").write_bytes(pickle.dumps((schedules, rows)))
    return schedules


def check_reports(folder: Path, schedules: Schedules, wanted: Iterable[Case]) -> None:
    """Asserts that every process ended every case with the oracle's bits."""
    servers = next(iter(schedules.values())).topology.num_servers
    reports = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(servers)]
    wrong = []
    for number, case in enumerate(wanted):
        ends = expected(schedules[case.strategy, case.collective], case)
        for rank, report in enumerate(reports):
            if report["digests"][number] != ends[rank]:
                wrong.append((case, rank))
    assert not wrong, f"{len(wrong)} results are not the oracle's, first {wrong[:3]}"


def run(command: Sequence[str], folder: Path, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
    """Runs a job in a session of its own, all of which is ended with it.

    Returns:
        The exit status, and what was written to both outputs.
    """
    output = folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # mpirun passes it on
            time.sleep(2)
            status = -1
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    return status, output.read_text(errors="replace")


def torch_job(folder: Path, processes: int, *arguments: object, module: str = "torch_cases") -> str:
    """Runs `torch_cases`; returns what was written to its outputs."""
    start = (sys.executable, "-m", f"tests.execute.{module}", str(folder), str(processes))
    status, output = run(
        [*start, *map(str, arguments)], folder, PATIENCE_S * max(1, len(arguments))
    )
    assert status == 0, output
    return output


def write_schedules(folder: Path) -> None:
    """Writes what the checks want, for six servers that are not in a row."""
    names = ("merged", "ring", "central", "recursive doubling", "portfolio")
    schedules = {(name, "all_reduce"): made("irregular", name) for name in names}
    for stage in COLLECTIVES[1:]:
        schedules |= {(name, stage): made("irregular", name, stage) for name in ("merged", "ring")}
    for servers, word in ((3, "three"), (4, "four")):
        schedules[f"ring of {word}", "all_reduce"] = Ring().schedule(gw.topology.ring(servers))
    exchanging = RecursiveDoubling(radix=64).schedule(gw.topology.from_spec("complete:6"))
    schedules["all with all", "all_reduce"] = exchanging
    schedules |= {(str(number), "demand"): one for number, one in enumerate(planned())}
    (folder / "job.pickle").write_bytes(pickle.dumps((schedules, [])))


def check_all_name(folder: Path, servers: int, rank: int) -> None:
    """Asserts that every process left reports the loss of one."""
    assert (folder / "died").exists()
    for other in set(range(servers)) - {rank}:
        report = json.loads((folder / f"{other}.json").read_text())
        assert report["kind"] == "lost", f"rank {other}: {report}"
        assert (report["rank"], report["server"]) == (rank, rank), f"rank {other}: {report}"
    if (folder / f"{rank}.json").exists():  # it was stopped, and went on when all others had ended
        assert json.loads((folder / f"{rank}.json").read_text())["kind"] == "lost"
