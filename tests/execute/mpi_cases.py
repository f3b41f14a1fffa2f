"""One process of an MPI job: `tests.execute.test_mpi` starts as many as there are servers.

    mpirun -n N python -m mpi4py -m tests.execute.mpi_cases FOLDER conformance
    mpirun -n 6 python -m mpi4py -m tests.execute.mpi_cases FOLDER checks
    mpirun -n N python -m mpi4py -m tests.execute.mpi_cases FOLDER lost RANK WHEN

Reads FOLDER/job.pickle and writes FOLDER/RANK.json.
"""

import array
import faulthandler
import functools
import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from gradweave import mpi
from gradweave.errors import GradweaveError, LostServerError, OptionError, RunError, ScheduleError
from gradweave.execute import play
from gradweave.schedules import Schedule
from gradweave.schedules.schedule import OWN, Provenance
from tests.execute.cases import Case, Checks, contribution, result_digest
from tests.execute.demands import ends

check = Checks()
Schedules = dict[tuple[str, str], Schedule]


def raised(kind: type[GradweaveError], call: Callable[[], object]) -> str:
    """The message of the error that a call raises."""
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        return str(error)
    raise AssertionError(f"raised no {kind.__name__}")


def brought(schedule: Schedule, elements: int, dtype: str = "float32") -> np.ndarray:
    servers = schedule.topology.num_servers
    return np.stack([contribution(rank, elements, dtype) for rank in range(servers)])


def same(got: Any, expected: np.ndarray) -> None:
    got = np.asarray(got)
    assert got.tobytes() == expected.tobytes(), (got, expected)


@check
def few_elements(schedules: Schedules, comm: MPI.Intracomm) -> None:
    for name in ("merged", "ring", "central", "recursive doubling", "portfolio"):
        schedule = schedules[name, "all_reduce"]
        for elements in (0, 1, 2, 5, 7):
            for reduction in ("sum", "mean", "max"):
                whole = brought(schedule, elements)
                mine = whole[comm.rank].copy()
                mpi.all_reduce(mine, schedule, comm, reduction=reduction)
                same(mine, play(schedule, whole, reduction)[comm.rank])
    nothing = np.empty((3, 0, 2))
    mpi.all_reduce(nothing, schedules["merged", "all_reduce"], comm)


@check
def demands(schedules: Schedules, comm: MPI.Intracomm) -> None:
    for _, schedule in sorted(one for one in schedules.items() if one[0][1] == "demand"):
        for reduction in ("sum", "mean", "max"):
            send, expected = ends(schedule, "float64", reduction)[comm.rank]
            got = np.empty_like(expected)
            mpi.exchange(send, got, schedule, comm, reduction=reduction)
            same(got, expected)
    long = np.zeros(9999)
    schedule = schedules["0", "demand"]
    message = raised(OptionError, lambda: mpi.exchange(long, long, schedule, comm))
    assert "contiguous elements of float64, got 9,999" in message


@check
def the_runtimes_own(schedules: Schedules, comm: MPI.Intracomm) -> None:
    ring = schedules["ring", "all_reduce"]
    for runtime, counted in (("mpi", False), ("gloo", True)):
        own = ring.replace(scheduler=Provenance("ring", {OWN: True, "runtime": runtime}))
        for reduction, value in (("sum", 15.0), ("mean", 2.5), ("max", 5.0), ("min", 0.0)):
            mine = np.full(14, float(comm.rank))
            plan = mpi.Collective(own, mine, comm, reduction=reduction)
            plan.run()
            assert (mine == value).all(), (reduction, mine)
            assert bool(plan.sent_bytes.sum()) is counted
    half = np.full(5, comm.rank, np.float16)  # which MPI does not have: the schedule itself runs
    mpi.all_reduce(half, own.replace(scheduler=Provenance("ring", {OWN: True, "runtime": "mpi"})))
    assert (half == 15).all()


@check
def another_number_of_servers(schedules: Schedules, comm: MPI.Intracomm) -> None:
    four = schedules["ring of four", "all_reduce"]
    for call in (mpi.all_reduce, lambda *a: mpi.Collective(a[1], a[0], a[2])):
        said = raised(ScheduleError, lambda call=call: call(np.zeros(3), four, comm))
        assert "4 servers" in said and "6 MPI processes" in said, said


@check
def disagreement(schedules: Schedules, comm: MPI.Intracomm) -> None:
    merged, ring = schedules["merged", "all_reduce"], schedules["ring", "all_reduce"]
    whole = brought(merged, 50)
    for odd in (0, 1, comm.size - 1):
        different = comm.rank == odd
        named = f"rank {odd}" if odd else "rank 1"  # the first that differs from rank 0
        for length, dtype, reduction, schedule, said in (
            (51, "float32", "sum", merged, "51 elements of float32"),
            (50, "int32", "sum", merged, "50 elements of int32"),
            (50, "float32", "max", merged, "the max"),
            (50, "float32", "sum", ring, "a different schedule"),
        ):
            call = functools.partial(mpi.all_reduce, np.ones(50, np.float32), merged, comm)
            if different:
                odd_one = np.ones(length, dtype)
                call = functools.partial(
                    mpi.all_reduce, odd_one, schedule, comm, reduction=reduction
                )
            message = raised(RunError, call)
            assert said in message, message
            assert named in message, message
            mine = whole[comm.rank].copy()
            mpi.all_reduce(mine, merged, comm)
            same(mine, play(merged, whole)[comm.rank])


@check
def strides(schedules: Schedules, comm: MPI.Intracomm) -> None:
    schedule = schedules["merged", "all_reduce"]
    whole = brought(schedule, 60, "float64")
    for view in (
        lambda a: a[::2],
        lambda a: a[::-1],
        lambda a: a.reshape(6, 10).T,
        lambda a: a.reshape(6, 10)[:, 2:5],
        lambda a: np.asfortranarray(a.reshape(3, 20)),
        lambda a: a.reshape(3, 4, 5).transpose(1, 2, 0)[::3],
        lambda a: a[8:9].reshape(()),
        lambda a: a.view(np.float32)[1::2],
    ):
        mine = whole[comm.rank].copy()
        part = view(mine)
        rest = mine.copy()
        flat = np.stack([np.ascontiguousarray(view(row.copy())).reshape(-1) for row in whole])
        expected = play(schedule, flat)[comm.rank].reshape(part.shape)
        mpi.all_reduce(part, schedule, comm)
        same(part, expected)
        if part.base is not None and np.shares_memory(part, mine):
            view(rest)[...] = expected
            same(mine, rest)  # what lies between stays


@check
def buffers(schedules: Schedules, comm: MPI.Intracomm) -> None:
    schedule = schedules["merged", "all_reduce"]
    rank = comm.rank
    raw = bytearray(range(rank, rank + 20))
    mpi.all_reduce(raw, schedule, comm)
    assert raw == bytearray(6 * i + 15 for i in range(20))
    doubles = array.array("d", [rank, 2.0 * rank, 0.5])
    mpi.all_reduce(doubles, schedule, comm, reduction="mean")
    assert list(doubles) == [2.5, 5, 0.5]
    for step in (1, 3, -2):
        numbers = array.array("i", range(rank, rank + 12))
        mpi.all_reduce(memoryview(numbers)[::step], schedule, comm)
        summed = set(range(0, 12, 3) if step == 3 else range(1, 12, 2) if step == -2 else range(12))
        assert list(numbers) == [6 * i + 15 if i in summed else rank + i for i in range(12)]
    truth = np.array([rank == 3, False])
    mpi.all_reduce(truth, schedule, comm)
    assert truth.tolist() == [True, False]


@check
def refused_buffers(schedules: Schedules, comm: MPI.Intracomm) -> None:
    schedule = schedules["merged", "all_reduce"]
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    for buffer, said in (
        (fixed, "read-only"),
        (b"abc", "read-only"),
        (memoryview(bytes(4)), "read-only"),
        (np.array([1, None], object), "expected numbers, got object"),
        ([1.0, 2.0], "a list"),
        (None, "a NoneType"),
        (3.0, "a float"),
    ):
        for call in (mpi.all_reduce, lambda *a: mpi.Collective(a[1], a[0], a[2])):
            assert said in raised(OptionError, lambda c=call, b=buffer: c(b, schedule, comm))
    for dtype in ("int8", "uint64", "bool"):
        said = raised(
            OptionError,
            lambda dtype=dtype: mpi.all_reduce(
                np.zeros(3, dtype), schedule, comm, reduction="mean"
            ),
        )
        assert f"mean needs a floating-point type, got {dtype}" in said, said
    said = raised(
        OptionError,
        lambda: mpi.all_reduce(np.zeros(3), schedule, comm, reduction="product"),  # type: ignore
    )
    assert "product" in said
    said = raised(OptionError, lambda: mpi.Collective(schedule, np.zeros((4, 4)).T[1:], comm))
    assert "contiguous" in said


@check
def types_without_a_sum(schedules: Schedules, comm: MPI.Intracomm) -> None:
    schedule = schedules["merged", "all_reduce"]
    for buffer in (
        np.zeros(3, [("x", "f4"), ("y", "i4")]),
        np.zeros(3, "datetime64[s]"),
        np.zeros(3, "V8"),
    ):
        raised(OptionError, lambda buffer=buffer: mpi.all_reduce(buffer, schedule, comm))


@check
def one_stage(schedules: Schedules, comm: MPI.Intracomm) -> None:
    for strategy in ("merged", "ring"):
        for elements in (0, 1, 60, 61):
            scatter, gather = (
                schedules[strategy, stage] for stage in ("reduce_scatter", "all_gather")
            )
            whole = brought(scatter, elements)
            mine = whole[comm.rank].copy()
            first, second = mpi.Collective(scatter, mine, comm), mpi.Collective(gather, mine, comm)
            first.run()
            between = play(scatter, whole)
            second.run()
            same(mine, play(gather, between)[comm.rank])
    for stage in ("reduce_scatter", "all_gather"):
        said = raised(
            ScheduleError,
            lambda stage=stage: mpi.all_reduce(np.zeros(4), schedules["ring", stage], comm),
        )
        assert stage in said


@check
def subgroups(schedules: Schedules, comm: MPI.Intracomm) -> None:
    # Four of six, in another order, while the other two do nothing.
    four = schedules["ring of four", "all_reduce"]
    members = [5, 2, 0, 3]
    color = 0 if comm.rank in members else MPI.UNDEFINED
    part = comm.Split(color, members.index(comm.rank) if color == 0 else 0)
    if part != MPI.COMM_NULL:
        whole = brought(four, 33)
        mine = whole[part.rank].copy()
        mpi.all_reduce(mine, four, part)
        same(mine, play(four, whole)[part.rank])
        part.Free()
    # Two groups of three at the same time, and all six between.
    three = schedules["ring of three", "all_reduce"]
    halves = comm.Split(comm.rank % 2, comm.rank)
    for seed in range(3):
        whole = brought(three, 20 + seed)
        mine = whole[halves.rank].copy()
        mpi.all_reduce(mine, three, halves)
        same(mine, play(three, whole)[halves.rank])
        everyone = np.ones(5)
        mpi.all_reduce(everyone, schedules["merged", "all_reduce"], comm)
        assert (everyone == 6).all()
    halves.Free()
    single = comm.Split(comm.rank)
    assert "1 MPI processes" in raised(
        ScheduleError, lambda: mpi.all_reduce(np.zeros(2), three, single)
    )
    single.Free()


@check
def many_runs_of_many_plans(schedules: Schedules, comm: MPI.Intracomm) -> None:
    names = ("merged", "ring", "central", "recursive doubling")
    buffers = {name: np.empty(100 + i, np.float32) for i, name in enumerate(names)}
    plans = {
        name: mpi.Collective(schedules[name, "all_reduce"], buffers[name], comm, reduction="mean")
        for name in names
    }
    for turn in range(5):
        for name in names[:: 1 if turn % 2 else -1]:
            schedule = schedules[name, "all_reduce"]
            whole = brought(schedule, buffers[name].size) * np.float32(turn + 1)
            buffers[name][:] = whole[comm.rank]
            if comm.rank == turn:
                time.sleep(0.01)
            plans[name].run()
            same(buffers[name], play(schedule, whole, "mean")[comm.rank])
    plans["ring"].free()
    plans["ring"].free()
    del plans["ring"]
    for _ in range(30):
        buffer = np.ones(3)
        mpi.Collective(schedules["merged", "all_reduce"], buffer, comm).run()
        assert (buffer == 6).all()


@check
def bytes_sent(schedules: Schedules, comm: MPI.Intracomm) -> None:
    servers, elements = comm.size, 600
    whole = 8 * elements

    def sent(name: str) -> np.ndarray:
        buffer = np.ones(elements, np.float64)
        plan = mpi.Collective(schedules[name, "all_reduce"], buffer, comm)
        for runs in (1, 2):
            plan.run()
            every = np.empty((servers, servers), np.int64)
            comm.Allgather(plan.sent_bytes, every)
            assert not (every % runs).any()
        assert every.sum(1)[comm.rank] == plan.sent_bytes.sum()
        return every // 2

    ring = sent("ring")
    assert (ring.sum(1) * servers == 2 * (servers - 1) * whole).all()
    assert (np.count_nonzero(ring, axis=1) == 1).all()
    central = sent("central")
    assert central[0].sum() == central[:, 0].sum() == (servers - 1) * whole
    assert (central[1:, 1:] == 0).all()
    assert sent("portfolio").sum() == ring.sum()


@check
def a_late_process(schedules: Schedules, comm: MPI.Intracomm) -> None:
    schedule = schedules["merged", "all_reduce"]
    whole = brought(schedule, 200_000)
    for late in range(comm.size):
        mine = whole[comm.rank].copy()
        plan = mpi.Collective(schedule, mine, comm)
        if comm.rank == late:
            time.sleep(0.1)
        plan.run()
        same(mine, play(schedule, whole)[comm.rank])


@check
def messages_of_others(schedules: Schedules, comm: MPI.Intracomm) -> None:
    # On the same communicator, with tags that we use too.
    schedule = schedules["ring", "all_reduce"]
    theirs = np.empty(1)
    waits = comm.Irecv(theirs, MPI.ANY_SOURCE, MPI.ANY_TAG)
    mine = np.ones(7)
    mpi.all_reduce(mine, schedule, comm)
    assert (mine == 6).all()
    early = waits.Test()
    comm.Barrier()
    comm.Send(np.array([comm.rank + 0.5]), (comm.rank + 1) % 6, 0)
    waits.Wait()
    assert not early
    assert theirs[0] == (comm.rank - 1) % 6 + 0.5


def conformance(schedules: Schedules, rows: list[tuple], comm: MPI.Intracomm) -> dict:
    digests = []
    for row in rows:
        case = Case(*row)
        schedule = schedules[case.strategy, case.collective]
        mine = contribution(comm.rank, case.elements, case.dtype).copy()
        mpi.Collective(schedule, mine, comm, reduction=case.reduction).run()
        digests.append(result_digest(comm.rank, schedule, mine))
    return {"digests": digests}


def checks(schedules: Schedules, comm: MPI.Intracomm) -> dict:
    wrong, seconds = {}, {}
    for name, run in check.by_name.items():
        begin = time.perf_counter()
        own = comm.Dup()  # so that what one leaves behind does not meet another
        try:
            run(schedules, own)
        except Exception:
            wrong[name] = traceback.format_exc()
        seconds[name] = round(time.perf_counter() - begin, 2)
    return {"wrong": wrong, "seconds": seconds}


def lost(schedule: Schedule, comm: MPI.Intracomm, folder: Path, rank: int, when: str) -> dict:
    """Runs on until a process is lost, which is one that kills itself."""
    mine = np.ones(400_000)
    plan = mpi.Collective(schedule, mine, comm, reduction="max")
    if comm.rank == rank and when == "during":
        threading.Timer(0.3, die, [folder]).start()
    if when == "idle":  # until it is dead, nobody calls anything
        plan.run()
        if comm.rank == rank:
            die(folder)
        time.sleep(1)
    for turn in range(100_000):
        if comm.rank == rank and when == "between" and turn == 3:
            die(folder)
        try:
            plan.run()
        except LostServerError as error:
            return {"kind": "lost", "rank": error.rank, "server": error.server, "at": time.time()}
        except RunError as error:
            return {"kind": str(error), "at": time.time()}
    return {"kind": "never"}


def die(folder: Path) -> None:
    (folder / "died").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, job: str, *options: str) -> None:
    comm = MPI.COMM_WORLD
    faulthandler.dump_traceback_later(90, exit=True)
    schedules, rows = pickle.loads((folder / "job.pickle").read_bytes())
    if job == "conformance":
        report = conformance(schedules, rows, comm)
    elif job == "checks":
        report = checks(schedules, comm)
    else:
        (schedule,) = schedules.values()
        report = lost(schedule, comm, folder, int(options[0]), options[1])
    (folder / f"{comm.rank}.json").write_text(json.dumps(report))
    if job == "lost":
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
