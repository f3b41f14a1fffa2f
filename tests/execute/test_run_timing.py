"""What is checked and counted in a run, on servers that are rows of one array."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import gradweave as gw
from gradweave.errors import OptionError, RunError
from gradweave.execute import play
from gradweave.execute.running.correct import ResultCheck, sums_are_exact
from gradweave.execute.running.timing import measure
from gradweave.execute.running.trial import (
    DTYPES,
    NATIVE,
    RunReport,
    RunTimes,
    Trial,
    description,
)
from gradweave.schedulers.solving.variants import split
from gradweave.schedules import Schedule
from gradweave.schedules.schedule import OWN, Provenance

BCUBE = gw.topology.bcube(n=3, k=1)


class Rows:
    """A runner with all servers, or some of them, that plays the schedule in NumPy."""

    library = "rows"
    has_native = True

    def __init__(self, schedule: Schedule, trial: Trial) -> None:
        self.ranks = list(range(schedule.topology.num_servers))
        self._schedule, self._trial = schedule, trial
        self._held = self._placed = np.empty((len(self.ranks), 0))
        self._sent = np.zeros(len(self.ranks), np.int64)
        self.calls: list[str] = []
        self.spoil: Callable[[NDArray], None] = lambda _: None

    def use(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def place(self, contributions: Sequence[NDArray]) -> None:
        self._placed = self._held = np.stack(contributions)

    def restore(self) -> None:
        self._held = self._placed.copy()

    def run(self) -> None:
        self.calls.append("schedule")
        at = self._schedule.piece_offsets(self._held.shape[1])
        sizes = np.diff(at)[self._schedule.piece] * self._held.itemsize
        np.add.at(self._sent, self._schedule.topology.rank[self._schedule.source], sizes)
        self._held = play(self._schedule, self._held, self._trial.reduction)
        self.spoil(self._held)

    def run_native(self) -> None:
        self.calls.append("own")
        time.sleep(0.002)

    def results(self) -> Sequence[NDArray]:
        return list(self._held)

    def sent_bytes(self) -> NDArray[np.int64]:
        return self._sent.copy()

    def barrier(self) -> None:
        self.calls.append("barrier")

    def gathered(self, numbers: NDArray) -> NDArray:
        return numbers[None]


def ring(collective: str = "all_reduce") -> Schedule:
    return gw.schedulers.Ring().schedule(BCUBE, collective=collective)  # pyright: ignore


def measured(schedule: Schedule, trial: Trial) -> RunReport:
    return measure(Rows(schedule, trial), schedule, trial, lambda _: None)


def test_in_turns_each_behind_a_barrier():
    trial = Trial("mpi", 9_000, repetitions=2, warm_up=3)
    runner, told = Rows(ring(), trial), []
    report = measure(runner, ring(), trial, told.append)
    turns = [["schedule", "own"], ["own", "schedule"]]
    timed = [call for number in range(5) for call in turns[number % 2]]
    assert runner.calls[:2] == ["schedule"] * 2
    assert runner.calls[2:] == [call for one in timed for call in ("barrier", one)]
    assert told[-1] == "run 5 of 5" and "checking 9,000 elements" in told
    assert len(report.schedule.seconds) == 2
    assert report.native is not None
    assert min(report.native.seconds) > 0.001
    assert (report.oracle_elements, report.pattern_elements) == (9_000, 9_000)


def test_a_calibration_times_each_schedule_with_messages_of_each_size(monkeypatch):
    monkeypatch.setattr("gradweave.execute.running.timing.CALIBRATION_BYTES", (8, 64, 1 << 12))
    monkeypatch.setattr("gradweave.execute.running.timing._LARGEST_CALIBRATION", 1 << 11)
    trial = Trial("mpi", 9_000, repetitions=1, warm_up=0)
    fine = split(ring(), 2)
    report = measure(Rows(ring(), trial), ring(), trial, lambda _: None, [ring(), fine])
    sizes = [(each.schedule, each.gradient_bytes) for each in report.calibration]
    natives = [(NATIVE, size) for _, size in ((0, 72), (0, 576), (1, 144), (1, 1152))]
    assert sorted(sizes) == sorted([(0, 72), (0, 576), (1, 144), (1, 1152), *natives])
    assert all(each.seconds > 0 for each in report.calibration)
    native = [each.seconds for each in report.calibration if each.schedule == NATIVE]
    assert min(native) > 0.001


def test_a_runtimes_own_is_not_compared_with_the_oracle():
    own = ring().replace(scheduler=Provenance("ring", {OWN: True, "runtime": "mpi"}))
    trial = Trial("mpi", 9_000, repetitions=1, warm_up=0)
    report = measured(own, trial)
    assert (report.oracle_elements, report.pattern_elements) == (0, 9_000)
    assert description(own, report, trial)["runs_own"]
    assert not description(ring(), report, trial)["runs_own"]


@pytest.mark.parametrize("elements", [0, 1, 9, 9_000])
def test_bytes_of_one_run(elements: int):
    sent = measured(ring(), Trial("mpi", elements, repetitions=2, warm_up=1)).schedule.sent_bytes
    assert sent is not None
    assert sum(sent) == 2 * 8 * 4 * elements
    if elements % 9 == 0:
        assert set(sent) == {2 * 8 * 4 * elements // 9}


def test_runs_that_send_different_amounts():
    trial = Trial("mpi", 90, repetitions=3, warm_up=0)
    runner = Rows(ring(), trial)
    counted, calls = runner.sent_bytes, iter(range(10))
    runner.sent_bytes = lambda: counted() + next(calls)
    with pytest.raises(RunError, match="3 equal runs sent different amounts"):
        measure(runner, ring(), trial, lambda _: None)


def test_at_most_a_million_elements_for_the_oracle():
    report = measured(ring(), Trial("mpi", 200_000, repetitions=1, warm_up=0))
    assert report.oracle_elements == (1 << 20) // 9
    assert report.pattern_elements == 200_000


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES["mpi"])
def test_right_results_are_found_right(collective, reduction, dtype):
    if reduction == "mean" and "int" in dtype:
        with pytest.raises(OptionError, match="the mean needs a floating-point type"):
            Trial("mpi", 100, dtype, reduction)
        return
    measured(ring(collective), Trial("mpi", 100, dtype, reduction, repetitions=1, warm_up=0))


@pytest.mark.parametrize("kind", ["oracle", "pattern"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_one_wrong_bit_is_found_where_it_means_anything(collective, kind):
    trial, schedule = Trial("mpi", 100), ring(collective)
    check = ResultCheck(schedule, trial, 100, kind)
    ends = play(schedule, np.stack([check.contribution(rank) for rank in range(9)]))
    at = schedule.piece_offsets(100)
    for rank, element in ((0, 0), (4, 50), (8, 99)):
        spoilt = ends.copy()
        spoilt[rank].view(np.uint32)[element] ^= 1
        wrong = check.first_error({rank: spoilt[rank]})
        piece = int(np.searchsorted(at, element, "right")) - 1
        if collective == "reduce_scatter" and schedule.root[piece] != rank:
            assert wrong[0] == -1
            continue
        assert wrong[:2].tolist() == [rank, element]
        assert f"server {rank} (rank {rank}), piece {piece}, element {element}: expected" in str(
            check.explained(wrong)
        )


def test_a_wrong_result_is_an_error():
    trial = Trial("mpi", 90)
    runner = Rows(ring(), trial)

    def spoil(held: NDArray) -> None:
        held[7, 31] = 3

    runner.spoil = spoil
    with pytest.raises(
        RunError, match=r"wrong result at server 7 .* piece 3, element 31: .*got 3;"
    ):
        measure(runner, ring(), trial, lambda _: None)


def test_not_a_number_is_right_where_it_should_be():
    check = ResultCheck(ring(), Trial("mpi", 10, "float16"), 10, "oracle")
    ends = check._expected().copy()
    assert check.first_error({0: ends[0]})[0] == -1
    ends[0, 3] = np.nan
    assert check.first_error({0: ends[0]})[:2].tolist() == [0, 3]


def test_types_that_do_not_hold_the_sum():
    pytest.importorskip("ml_dtypes")
    many = gw.schedulers.Ring().schedule(gw.topology.ring(65))
    few = gw.schedulers.Ring().schedule(gw.topology.ring(64))
    trial = Trial("jax", 100, "bfloat16", repetitions=1, warm_up=0)
    assert sums_are_exact(few, trial) and not sums_are_exact(many, trial)
    assert sums_are_exact(many, dataclasses.replace(trial, reduction="max"))
    assert measured(many, trial).pattern_elements == 0
    assert measured(few, trial).pattern_elements == 100


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (("nccl", 1), "backend: expected one of mpi, torch, jax, got 'nccl'"),
        (("mpi", 1, "bfloat16"), "dtype: mpi has .*; got 'bfloat16'"),
        (("mpi", -1), "elements: expected at least 0, got -1"),
        (("mpi", 1, "float32", "sum", 0), "repetitions: expected at least 1, got 0"),
        (("mpi", 1, "float32", "median"), "reduction: expected one of sum"),
    ],
)
def test_trials_that_cannot_be(trial, message):
    with pytest.raises(OptionError, match=message):
        Trial(*trial)


def test_a_report_survives_json():
    report = measured(ring(), Trial("mpi", 90, repetitions=2, warm_up=0))
    assert RunReport.of(json.loads(json.dumps(dataclasses.asdict(report)))) == report
    alone = dataclasses.replace(report, native=None)
    assert RunReport.of(json.loads(json.dumps(dataclasses.asdict(alone)))) == alone


def test_median_and_quartiles():
    timing = RunTimes((5.0, 1.0, 2.0, 4.0, 3.0), None)
    assert (timing.median, timing.quartiles) == (3.0, (2.0, 4.0))


@pytest.mark.parametrize("scheduler", [gw.schedulers.Ring(), gw.schedulers.Binomial()])
@pytest.mark.parametrize("elements", [9, 100, 1001])
def test_bytes_in_jax_are_those_of_the_ppermutes(scheduler, elements):
    jax = pytest.importorskip("jax")
    from gradweave import jax as jax_mesh
    from gradweave.execute.running.jax_runner import permuted_bytes

    schedule = scheduler.schedule(BCUBE)
    run = jax_mesh.Collective(schedule)
    program = jax.make_jaxpr(run, axis_env=[("server", 9)])(np.ones(elements, np.float32))
    counted = np.zeros(9, np.int64)
    count(program.jaxpr, 1, counted)
    assert counted.tolist() == permuted_bytes(schedule, elements, 4).tolist()
    assert counted.sum() >= 2 * 8 * elements * 4


def count(jaxpr, times: int, counted: NDArray[np.int64]) -> None:
    """Adds what a program without branches sends, run so many times."""
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        assert name != "cond"
        if name == "ppermute":
            (sent,) = equation.invars
            for source, _ in parameters["perm"]:
                counted[source] += times * sent.aval.size * sent.aval.dtype.itemsize
        elif name == "custom_linear_solve":
            count(parameters["jaxprs"].solve.jaxpr, times, counted)
        elif name == "scan":
            count(parameters["jaxpr"].jaxpr, times * parameters["length"], counted)
        elif "jaxpr" in parameters:
            count(parameters["jaxpr"].jaxpr, times, counted)
