"""``gradweave bench``: real processes, what it says of them, and what it refuses."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradweave as gw
from gradweave.execute.running.run import _PACKAGES
from gradweave.execute.running.trial import RunReport, RunTimes, SizeTimes
from gradweave.schedules.schedule import Provenance
from tests.execute.bench_process import COMMAND, MPIRUN, PATIENCE_S, left_behind, said, started

SERVERS = 9
BYTES = 36_000
"""A multiple of nine pieces of whole elements of any type."""
QUICK = ("--size", BYTES, "--repetitions", 4, "--warm-up", 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Schedules on BCube(3, 1), by name."""
    directory = tmp_path_factory.mktemp("schedules")
    network = gw.topology.bcube(n=3, k=1)
    made = {
        "ring": gw.schedulers.Ring().schedule(network),
        "central": gw.schedulers.CentralParameterServer().schedule(network),
        "best": gw.solve(network).schedule,
        "best of four": gw.solve(gw.topology.bcube(n=2, k=1)).schedule,
        "gather": gw.schedulers.Merged().schedule(network, collective="all_gather"),
    }
    for name, schedule in made.items():
        schedule.save(directory / f"{name}.json")
    return {name: directory / f"{name}.json" for name in made}


def answer(*arguments: object, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """The JSON object of a run that must succeed."""
    process = started([*arguments, "--json"], before=before)
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert [line for line in said(err) if "OMP_NUM_THREADS" not in line] == []
    assert out.count("\n") == 1
    assert not left_behind(process.pid)
    return json.loads(out)


def check(
    found: dict[str, Any],
    backend: str,
    processes: int,
    *,
    servers: int = SERVERS,
    topology: str = "bcube:n=3,k=1",
) -> None:
    """What holds for all backends and schedules."""
    assert (found["backend"], found["processes"]) == (backend, processes)
    assert (found["servers"], found["topology"]) == (servers, topology)
    assert (found["gradient_bytes"], found["elements"]) == (BYTES, BYTES // 4)
    assert found["correct"] is True
    assert found["oracle_elements"] == found["pattern_elements"] == BYTES // 4
    timings = [found["schedule"], *([found["own"]] if found["own"] else [])]
    for timing in timings:
        assert len(timing["seconds"]) == 4
        assert min(timing["seconds"]) == timing["min_s"] > 0
        low, high = timing["first_quartile_s"], timing["third_quartile_s"]
        assert timing["min_s"] <= low <= timing["median_s"] <= high
        assert timing["bandwidth_bytes_per_s"] == pytest.approx(BYTES / timing["median_s"])
    assert found["schedule"]["total_sent_bytes"] == sum(found["schedule"]["sent_bytes"])


def ring_sends(found: dict[str, Any]) -> bool:
    """Whether every server sent 2·(N−1)/N·M bytes."""
    return found["schedule"]["sent_bytes"] == [2 * (SERVERS - 1) * BYTES // SERVERS] * SERVERS


def test_mpi_ring(files):
    pytest.importorskip("mpi4py")
    found = answer(files["ring"], "--backend", "mpi", *QUICK)
    check(found, "mpi", SERVERS)
    assert ring_sends(found)
    assert (found["scheduler"], found["own"]["name"]) == ("ring", "MPI_Allreduce")


@pytest.mark.slow
def test_torch_best(files):
    pytest.importorskip("torch")
    found = answer(files["best of four"], *QUICK)  # torch is the default
    check(found, "torch", 4, servers=4, topology="bcube:n=2,k=1")
    assert found["schedule"]["total_sent_bytes"] == 2 * (4 - 1) * BYTES  # as the ring's
    assert found["own"]["name"] == "dist.all_reduce"


@pytest.mark.parametrize("processes", [1, 2])
def test_jax_ring(files, processes):
    pytest.importorskip("jax")
    more = ("--processes", processes, "--reduction", "mean")
    found = answer(files["ring"], "--backend", "jax", *QUICK, *more)
    check(found, "jax", processes)
    assert ring_sends(found)
    assert (found["reduction"], found["own"]["name"]) == ("mean", "jax.lax.psum")


def test_mpi_central_under_mpirun(files):
    pytest.importorskip("mpi4py")
    launcher = (*MPIRUN, "-n", str(SERVERS))
    found = answer(files["central"], "--backend", "mpi", *QUICK, before=launcher)
    check(found, "mpi", SERVERS)
    # The server sends all it has to each of the others, each of which sends its own.
    assert found["schedule"]["sent_bytes"] == [(SERVERS - 1) * BYTES] + [BYTES] * (SERVERS - 1)


def test_one_stage_has_nothing_beside_it(files):
    pytest.importorskip("jax")
    found = answer(files["gather"], "--backend", "jax", *QUICK)
    check(found, "jax", 1)
    assert found["own"] is None
    assert found["schedule"]["sent_bytes"] == [(SERVERS - 1) * BYTES // SERVERS] * SERVERS


@pytest.mark.parametrize("backend", ["jax", "mpi"])
def test_a_sweep_of_sizes(files, backend):
    pytest.importorskip("mpi4py" if backend == "mpi" else backend)
    sweep = ("--size", "8..32KiB*64", "--repetitions", 2, "--warm-up", 0)
    found = answer(files["best of four"], "--backend", backend, *sweep)
    assert [each["gradient_bytes"] for each in found["sizes"]] == [8, 512, 32768]
    assert found["gradient_bytes"] == 32768  # which is checked
    for each in found["sizes"]:
        for times in (each["schedule"], each["own"]):
            assert len(times["seconds"]) == 2
            rate = each["gradient_bytes"] / times["median_s"]
            assert times["bandwidth_bytes_per_s"] == pytest.approx(rate)
            assert times["busbw_bytes_per_s"] == pytest.approx(1.5 * rate)


@pytest.mark.parametrize("elements", [0, 1])
def test_hardly_anything(gradweave, files, elements):
    pytest.importorskip("jax")
    options = ("--backend", "jax", "--dtype", "float64", "--elements", elements)
    done = gradweave("bench", files["best"], *options, "--repetitions", 2, "--warm-up", 0)
    assert done.status == 0, done
    lines = done.stdout.splitlines()
    start = r"all_reduce on bcube:n=3,k=1 by \w+: 9 servers in 1 process on \d+ cores, JAX "
    assert re.match(start, lines[0])
    assert lines[1] == (
        f"{8 * elements} bytes of float64, sum: bit for bit as the oracle's, length {elements}"
    )
    assert lines[2].startswith("measured ") and "not emulated" in lines[2]
    assert [line.split()[0] for line in lines[3:]] == [
        "median",
        "best.json",
        "jax.lax.psum",
        "sent",
    ]
    assert len({len(line) for line in lines[3:6]}) == 1


def test_too_few_processes_under_mpirun(files):
    pytest.importorskip("mpi4py")
    done = subprocess.run(
        [*MPIRUN, "-n", "2", *COMMAND, str(files["ring"]), "--backend", "mpi"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    ours = [line for line in said(done.stderr) if "gradweave" in line]
    assert ours == [
        "gradweave: the schedule is for the 9 servers of bcube:n=3,k=1, but there are 2 MPI "
        "processes; start 9, or make a schedule for 2 servers"
    ]


def test_a_backend_under_the_launcher_of_another(files):
    done = subprocess.run(
        [*COMMAND, str(files["ring"]), "--backend", "torch"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9"},
    )
    assert done.returncode == 2
    assert "--backend torch does not run under the launcher of mpi" in done.stderr


OPTIONS = {
    "unknown backend": (["--backend", "nccl"], "'nccl' is not one of"),
    "unknown type": (["--dtype", "float8"], "'float8' is not one of"),
    "type unknown to the backend": (
        ["--backend", "mpi", "--dtype", "bfloat16"],
        "dtype: mpi has float16, float32, float64, int8, int16, int32, int64, uint8; got 'bfloat",
    ),
    "mean of whole numbers": (
        ["--dtype", "int32", "--reduction", "mean"],
        "the mean needs a floating-point type, got int32",
    ),
    "unknown reduction": (["--reduction", "median"], "'median' is not one of"),
    "negative size": (["--size", "-1"], "--size"),
    "size that is no number": (["--size", "nan"], "--size"),
    "negative length": (["--elements", "-1"], "--elements"),
    "more than there is memory for": (
        ["--size", "1e14"],
        "9 gradients of 100 TB and their copies need at least 3600 TB, and ",
    ),
    "more in one process": (["--backend", "jax", "--elements", 10**13], "of memory are available"),
    "no repetitions": (["--repetitions", "0"], "--repetitions"),
    "no time": (["--timeout", "0"], "--timeout"),
    "processes of torch": (["--processes", "3"], "--processes: expected --backend jax"),
    "devices of mpi": (["--backend", "mpi", "--devices", "cpu"], "--devices: expected --backend"),
    "no processes": (["--backend", "jax", "--processes", "0"], "--processes"),
    "too many processes": (
        ["--backend", "jax", "--processes", "10"],
        "processes: expected 1 to 9, one per server at most, got 10",
    ),
    "found devices in processes": (
        ["--backend", "jax", "--processes", "2", "--devices", "found"],
        "devices that JAX finds: expected one process",
    ),
    "logs nowhere": (["--logs", "nowhere/logs"], "--logs: there is no directory nowhere"),
    "logs in a file": (
        ["--logs", "ring.json"],
        "ring.json: is not a directory; give another name to --logs",
    ),
}


@pytest.mark.parametrize(("options", "reason"), OPTIONS.values(), ids=OPTIONS.keys())
def test_an_option_that_it_does_not_take(refused, here, files, options, reason):
    (here / "ring.json").write_bytes(files["ring"].read_bytes())
    for extra in ([], ["--json"]):
        assert reason in refused("bench", "ring.json", *options, *extra)


def test_a_file_that_holds_no_schedule(refused, here, files):
    assert "nowhere.json: No such file or directory" in refused("bench", "nowhere.json")
    (here / "other.json").write_text("{}")
    assert "other.json: not a schedule file" in refused("bench", "other.json", "--json")
    held = json.loads(files["ring"].read_text())
    held["transfers"]["piece"][0] = 5
    (here / "wrong.json").write_text(json.dumps(held))
    assert "cannot run: " in refused("bench", "wrong.json", status=1)


@pytest.mark.parametrize(("backend", "package"), _PACKAGES.items())
def test_a_package_that_is_not_there(refused, here, files, monkeypatch, backend, package):
    monkeypatch.setitem(sys.modules, package, None)
    line = refused("bench", files["ring"], "--backend", backend)
    assert line == (
        f"gradweave: the backend {backend} needs {package}: pip install 'gradweave[{backend}]'"
    )


def test_devices_that_are_not_found(gradweave, files, monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    done = gradweave("bench", files["ring"], "--backend", "jax", "--devices", "found")
    assert (done.status, done.stdout) == (2, "")
    (line,) = said(done.stderr)
    assert "expected 9 devices, one for each server of bcube:n=3,k=1, got 1" in line


def launched(report: RunReport) -> Callable[..., RunReport]:
    """Stands in for `launch` and `supervise`."""
    return lambda *_: report


REPORT = RunReport("a library", 40, 100, 2_000_000, RunTimes((0.5, 0.25), (1, 2)), None)


def test_more_servers_than_sensible_is_a_warning(gradweave, here, monkeypatch):
    gw.schedulers.Ring().schedule(gw.topology.ring(40)).save(here / "ring.json")
    monkeypatch.setattr("gradweave.execute.running.launch.supervise", launched(REPORT))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(
        "gradweave.execute.running.machine_check.available_bytes", lambda: 5 * 10**9
    )
    done = gradweave("bench", "ring.json", "--elements", 10**6)
    assert done.status == 0
    assert done.stderr.splitlines() == [
        "gradweave: warning: 40 servers share 4 cores; the times are those of the cores",
        "gradweave: warning: 40 gradients of 4 MB and their copies need up to 5.28 GB while "
        "results are checked, and 5 GB of memory are available",
    ]
    assert gradweave("bench", "ring.json", "--elements", 10, "--json").json["servers"] == 40


def test_what_it_says(gradweave, here, files, monkeypatch):
    native = RunTimes((0.1, 0.2, 0.4), None)
    report = dataclasses.replace(REPORT, native=native, processes=9)
    monkeypatch.setattr("gradweave.execute.running.run.launch", launched(report))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    done = gradweave("bench", files["ring"], "--backend", "mpi")
    assert done.stdout.splitlines() == [
        "all_reduce on bcube:n=3,k=1 by ring: 9 servers in 9 processes on 2 cores, a library",
        "8 MB of float32, sum: bit for bit as the oracle's, length 100; exact, length 2,000,000",
        "measured on this machine's loopback: bcube:n=3,k=1 is not emulated, and these times are "
        "not its times; 'gradweave lab' runs a plan on its network, emulated",
        "               median  fastest          quartiles   bandwidth",
        "ring.json      375 ms   250 ms  312.5 to 437.5 ms  21.33 MB/s",
        "MPI_Allreduce  200 ms   100 ms      150 to 300 ms     40 MB/s",
        "sent by each server, counted: 1 byte to 2 bytes; by all: 3 bytes",
    ]


def test_it_says_for_what_else_a_plan_was_made(gradweave, here, monkeypatch):
    asked = {"gradient_bytes": 100_000_000, "ready_at_s": [5.0, *[0.0] * 8]}
    ring = gw.schedulers.Ring().schedule(gw.topology.bcube(n=3, k=1))
    ring.replace(scheduler=Provenance("ring", asked)).save("late.json")
    for backend, place in (("torch", "this machine's loopback"), ("jax", "this machine's devices")):
        report = dataclasses.replace(REPORT, processes=9)
        monkeypatch.setattr("gradweave.execute.running.run.launch", launched(report))
        said = gradweave("bench", "late.json", "--backend", backend, "--json").json["conditions"]
        assert said[0].startswith(f"measured on {place}: bcube:n=3,k=1 is not emulated")
        assert said[1:] == [
            "planned for 100 MB, run with 8 MB",
            "planned for servers that are ready late; here all start at once",
        ]
    same = gradweave("bench", "late.json", "--size", "100MB", "--json")
    assert len(same.json["conditions"]) == 2


def test_what_it_says_of_a_sweep(gradweave, here, files, monkeypatch):
    native = RunTimes((0.1, 0.2, 0.4), None)
    sizes = tuple(SizeTimes(length, RunTimes((0.1,), (1,)), native) for length in (2, 250_000))
    report = dataclasses.replace(REPORT, native=native, processes=9, sweep=sizes)
    monkeypatch.setattr("gradweave.execute.running.run.launch", launched(report))
    done = gradweave("bench", files["ring"], "--backend", "mpi", "--size", "8,1MB")
    assert [line.split() for line in done.stdout.splitlines()[6:9]] == [
        ["size", "ring.json:", "median", "algbw", "busbw", "MPI_Allreduce:", "median", "algbw",
         "busbw", "times", "as", "fast"],
        ["8", "bytes", "100", "ms", "80", "B/s", "142", "B/s", "200", "ms", "40", "B/s", "71.1",
         "B/s", "2.00"],
        ["1", "MB", "100", "ms", "10", "MB/s", "17.8", "MB/s", "200", "ms", "5", "MB/s", "8.89",
         "MB/s", "2.00"],
    ]  # fmt: skip


def test_it_does_not_import_what_it_starts():
    program = (
        "import sys, gradweave.cli.commands.bench\n"
        "print(sorted({'jax', 'torch', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
