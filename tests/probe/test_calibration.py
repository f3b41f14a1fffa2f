"""Profiles are found from the times that they predict, and read as they are written."""

import dataclasses

import pytest

import gradweave as gw
from gradweave.execute.running.trial import NATIVE, CalibrationTime, RunReport, RunTimes
from gradweave.probe import calibration
from gradweave.probe.calibration import as_toml, calibrated, calibrating, write
from gradweave.schedulers.solving.own import own_algorithms, own_schedule
from gradweave.simulator.runtime import Costs, Runtime, runtime_of

STAR = gw.topology.star(
    4, link=gw.topology.Link(bandwidth_bytes_per_s=1e15, latency_s=0.0, overhead_s=0.0)
)
SIZES = (64.0, 65536.0, 1048576.0)


def report_of(runtime: Runtime) -> RunReport:
    """What a run of a calibration would report if the profile were exact."""
    times = []
    for number, schedule in enumerate(calibrating(STAR)):
        for size in SIZES:
            gradient = round(size * schedule.pieces)
            times.append(CalibrationTime(number, gradient, runtime.seconds(schedule, gradient)))
            own = own_schedule(STAR, runtime, gradient)
            assert own is not None
            times.append(CalibrationTime(NATIVE, gradient, runtime.own_seconds(own, gradient)))
    nothing = RunTimes((1.0,), None)
    return RunReport("a library", 4, 0, 0, nothing, nothing, tuple(times))


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def test_what_messages_cost_is_found_from_times(two_cores):
    executor = Costs(SIZES, (5e-4, 8e-4, 3e-3), start_s=2e-4)
    (ring,) = own_algorithms("gloo", 4)
    own = dataclasses.replace(ring, bytes=(8.0, 1e6), seconds=(1e-4, 2e-3))
    true = Runtime("gloo", processors=2.0, executor=executor, own=(own,))
    found = calibrated("torch", STAR, report_of(true), one_machine=True)
    assert found.processors == 2.0 and found.name == "gloo"
    assert found.executor.bytes == SIZES
    assert found.executor.seconds == pytest.approx(executor.seconds, rel=1e-3)
    assert found.executor.start_s == pytest.approx(2e-4, rel=1e-2)
    for size in (1e3, 1e6, 4e6):
        schedule = own_schedule(STAR, true, size)
        assert schedule is not None
        assert found.own_seconds(schedule, size) == pytest.approx(
            true.own_seconds(schedule, size), rel=0.02
        )


def test_machines_of_a_launcher_have_processors_of_their_own():
    own = own_algorithms("mpi", 4)
    true = Runtime("mpi", executor=Costs(SIZES, (1e-4, 2e-4, 3e-4)), own=own)
    found = calibrated("mpi", STAR, report_of(true), one_machine=False)
    assert found.processors is None and [one.scheduler for one in found.own] == [
        one.scheduler for one in own
    ]


def test_a_profile_is_read_as_it_is_written(tmp_path):
    own = own_algorithms("mpi", 4)
    runtime = Runtime(
        "mpi",
        'said "so"\\',
        processors=2.0,
        at_once=3,
        barriers=True,
        round_s=0.5,
        executor=Costs((1.0, 2.0), (0.25, 0.5), start_s=0.125),
        own=own,
    )
    write(runtime, tmp_path / "mpi.toml")
    assert runtime_of(tmp_path / "mpi.toml") == runtime
    assert (tmp_path / "mpi.toml").read_text() == as_toml(runtime)


def test_cores_in_use_are_what_the_kernel_counts(tmp_path, monkeypatch):
    counts = tmp_path / "stat"
    later = "cpu  150 0 0 60 0 0 0 0 0 0\ncpu0 1 1\n"
    counts.write_text("cpu  100 0 0 10 0 0 0 0 0 0\ncpu0 1 1\n")
    monkeypatch.setattr(calibration.time, "sleep", lambda _: counts.write_text(later))
    monkeypatch.setattr(calibration.os, "cpu_count", lambda: 4)
    assert calibration.cores_in_use(counts) == 2.0  # as many ticks at work as not
    assert calibration.cores_in_use(tmp_path / "none") is None
    counts.write_text("intr 5\n")
    assert calibration.cores_in_use(counts) is None
