"""Trainings by several processes: the bits of one, whoever is killed, interrupted or told off.

The second process works in a folder of its own, as on another machine.
"""

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")
pytest.importorskip("jaxmarl")
pytest.importorskip("tensorboardX")

from safetensors.numpy import load_file

from gradweave.errors import OptionError
from gradweave.marl import training
from gradweave.processes.jax_distributed import join

ROOT = Path(__file__).parents[2]
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
TRAINING = """
env = "switch_riddle"
algorithm = "ippo"
aggregation = "scheduled:ring:2"
devices = 2
steps = 2000

[settings]
environments = 2
rollout = 5
minibatches = 1
epochs = 1
hidden = [4]
"""
GRADWEAVE = """
from gradweave.cli.main import main
from gradweave.marl import training
from tests.marl.doors import doors

training.make = lambda spec, **options: doors()
main()
"""
"""The command, with a game that is there sooner."""
LOST = "gradweave: another process of the training was lost ("
GO_ON = "): start the training again to continue from its checkpoint"


def environment(cache: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return kept | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(ROOT), kept.get("PYTHONPATH", "")]),
        **more,
    }


@dataclasses.dataclass
class Ended:
    status: int
    stdout: str
    stderr: list[str]
    """Progress aside."""


@dataclasses.dataclass
class Job:
    """Processes that run together."""

    each: list[subprocess.Popen[str]]

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.each:
            process.kill()
            process.communicate()

    def ended(self, *, within: float = 120.0) -> list[Ended]:
        made = []
        for process in self.each:
            out, err = process.communicate(timeout=within)
            lines = [line for line in err.splitlines() if line and " s  " not in line]
            made.append(Ended(process.returncode, out, lines))
        return made

    def wait_for(self, path: Path) -> None:
        until = time.monotonic() + 120
        while not path.exists():
            assert time.monotonic() < until
            if any(process.poll() is not None for process in self.each):
                pytest.fail(str(self.ended(within=20)))
            time.sleep(0.01)


class Place:
    """Folders of a training's processes, each on a machine of its own as it were."""

    def __init__(self, folder: Path, text: str, cache: Path) -> None:
        self.folders = [folder / "first", folder / "second"]
        for each in self.folders:
            each.mkdir(parents=True)
            (each / "train.toml").write_text(text)
        self.out = self.folders[0] / "out"
        self.checkpoint = self.out / "checkpoint.safetensors"
        self._cache = cache

    def start(self, processes: int, *options: str, optimised: bool = False) -> Job:
        """As the command line, by the three variables where there are several."""
        command = [sys.executable, "-c", GRADWEAVE, "train", "--config", "train.toml"]
        command += ["--output", "out", "--episodes", "4", *options]
        several = {}
        if processes > 1:
            command.append("--distributed")
            several = {VARIABLES[0]: f"127.0.0.1:{free_port()}", VARIABLES[1]: str(processes)}
        if optimised:  # as users run it
            several["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
        return Job(
            [
                started(
                    command,
                    self.folders[number],
                    environment(self._cache, **several, **{VARIABLES[2]: str(number)}),
                )
                for number in range(processes)
            ]
        )

    def bits(self) -> list[bytes]:
        names = ("policy.safetensors", "checkpoint.safetensors", "log.jsonl")
        return [(self.out / name).read_bytes() for name in names]

    def only_the_first_wrote(self) -> bool:
        return [path.name for path in self.folders[1].iterdir()] == ["train.toml"]


def started(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=variables, stdout=pipe, stderr=pipe, text=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache) -> Place:
    """The training by one process, unbroken."""
    place = Place(tmp_path_factory.mktemp("whole"), TRAINING, cache)
    with place.start(1) as job:
        (ended,) = job.ended()
    assert ended.status == 0, ended
    return place


@pytest.mark.slow
def test_two_processes_end_in_the_bits_of_one_whatever_happens(whole, cache, tmp_path):
    """First the first is killed, without which none writes: no more would be there if both
    were. Then the second. Then one is told to end, and all are started with another option, which
    the first says is wrong."""
    place = Place(tmp_path, TRAINING, cache)
    for killed in (0, 1):
        with place.start(2, "--checkpoint-minutes", "0.0001") as job:
            wait_for_another_checkpoint(place, job)
            job.each[killed].kill()
            ended = job.ended(within=30)
        assert not (place.out / "policy.safetensors").exists()
        for number, one in enumerate(ended):
            if number == killed:
                assert one.status == -9
                continue
            assert (one.status, one.stdout) == (1, ""), one
            *lines, last = one.stderr
            assert last.startswith(LOST) and last.endswith(GO_ON)
            assert len(lines) == (number == 0) and all("resumes from" in line for line in lines)

    with place.start(2, "--checkpoint-minutes", "0.0001") as job:
        wait_for_another_checkpoint(place, job)
        job.each[1].send_signal(signal.SIGINT)
        first, second = job.ended(within=30)
    assert (first.status, second.status) == (130, 130), (first, second)
    resumes, until, last = first.stderr
    assert re.fullmatch(r"resumes from out: \d+ of 200 updates are done", resumes)
    assert until.endswith("of 200 updates; train again to continue")
    assert last == "gradweave: interrupted"
    assert (first.stdout, second.stdout, second.stderr) == ("", "", [])

    with place.start(2, "--seed", "5") as job:
        first, second = job.ended()
    assert (first.status, second.status) == (2, 2), (first, second)
    assert "to another training: seed 0 there, 5 here; give another folder" in first.stderr[0]
    assert len(first.stderr) == 1 and second.stderr == []
    assert place.only_the_first_wrote()

    with place.start(2, "--json") as job:
        first, second = job.ended()
    assert (first.status, second.status) == (0, 0), (first, second)
    held = json.loads(first.stdout)
    assert held["processes"] == 2 and 0 < held["resumed_from"] < held["updates"] == 200
    resumes = f"resumes from out: {held['resumed_from']} of {held['updates']} updates are done"
    assert first.stderr == [resumes]
    assert (second.stdout, second.stderr) == ("", [])
    assert held["return"] == json.loads((whole.out / "result.json").read_text())["return"]
    assert place.bits() == whole.bits()


@pytest.mark.slow
def test_as_users_compile_it_two_processes_agree_with_one_to_rounding(cache, tmp_path):
    """XLA's optimisations may round otherwise in the program of two devices than in that of one."""
    policies = []
    for processes in (1, 2):
        place = Place(tmp_path / str(processes), TRAINING, cache)
        with place.start(processes, optimised=True) as job:
            ended = job.ended()
        assert {one.status for one in ended} == {0}, ended
        policies.append(load_file(place.out / "policy.safetensors"))
    one, two = policies
    assert one.keys() == two.keys()
    for name, expected in one.items():
        np.testing.assert_allclose(two[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def wait_for_another_checkpoint(place: Place, job: Job) -> None:
    before = place.checkpoint.stat().st_mtime_ns if place.checkpoint.exists() else 0
    job.wait_for(place.checkpoint)
    while place.checkpoint.stat().st_mtime_ns == before:
        assert job.each[0].poll() is None, job.ended()
        time.sleep(0.01)


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int


def test_every_process_gives_as_many_devices(monkeypatch):
    there = [Device(number, number // 3) for number in range(6)]
    monkeypatch.setattr("jax.devices", lambda: there)
    assert [device.id for device in training.devices_of(4)] == [0, 1, 3, 4]
    with pytest.raises(OptionError, match="devices: expected a multiple of the 2 processes, got 3"):
        training.devices_of(3)
    with pytest.raises(OptionError, match="expected at most 6, 3 in each process, got 8"):
        training.devices_of(8)


@pytest.mark.slow
def test_without_others_it_says_how_to_start_them(cache, tmp_path):
    command = [sys.executable, "-m", "gradweave", "train", "--distributed"]
    with Job([started(command, tmp_path, environment(cache))]) as job:
        (ended,) = job.ended()
    assert (ended.status, ended.stdout) == (2, "")
    (said,) = ended.stderr
    assert "gradweave: --distributed: no other processes were found; set JAX_COORD" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        (VARIABLES[0], "here", "JAX_COORDINATOR_ADDRESS: expected HOST:PORT, got 'here'"),
        (VARIABLES[2], "one", "JAX_PROCESS_ID: expected a number, got 'one'"),
    ],
)
def test_variables_that_make_no_sense(monkeypatch, variable, value, reason):
    monkeypatch.setenv(variable, value)
    with pytest.raises(OptionError, match=reason):
        join()


PROGRAM = """
import json, sys
from pathlib import Path
import jax
import numpy as np

address, processes, number, folder = *sys.argv[1:2], *map(int, sys.argv[2:4]), sys.argv[4]
jax.config.update("jax_num_cpu_devices", 4 // processes)
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, processes, number)
from gradweave.marl import training
from gradweave.marl.config import PPO, Config
from tests.marl.doors import doors

training.make = lambda spec, **options: doors()
settings = PPO(environments=8, rollout=6, hidden=(8,), minibatches=1, epochs=1)
said = []
for spec in sys.argv[5:]:
    config = Config("doors", "ippo", settings, steps=48 * 6, aggregation=spec, devices=4)
    reports = []
    trained = training.train(config, Path(folder, spec.replace(":", "_")), report=reports.append)
    assert bool(reports) == (number == 0)
    said.append([float(np.asarray(leaf).sum()) for leaf in jax.tree.leaves(trained.parameters)])
print(json.dumps(said))
"""
EXACTLY = {
    "mean": (),
    "d_psgd": ("checkpoint.safetensors",),
}
"""Files that have the same bits; the library's mean adds up in an order of its own, in a policy of
devices that differ as well."""


@pytest.fixture(scope="module")
def by_one_and_by_two(tmp_path_factory, cache) -> dict[int, Path]:
    folders = {}
    for processes in (1, 2):
        folders[processes] = tmp_path_factory.mktemp(f"of{processes}")
        address = f"127.0.0.1:{free_port()}"
        places = [str(folders[processes]), str(folders[processes] / "none")]
        with Job(
            [
                started(
                    [
                        *(sys.executable, "-c", PROGRAM, address, str(processes), str(number)),
                        *(places[number], *EXACTLY),
                    ],
                    ROOT,
                    environment(cache),
                )
                for number in range(processes)
            ]
        ) as job:
            ended = job.ended()
        assert [each.status for each in ended] == [0] * processes, ended
        told = {each.stdout.splitlines()[-1] for each in ended}
        assert len(told) == 1, "all processes have the same policy"
        assert not Path(places[1]).exists()
    return folders


def arrays(folders: dict[int, Path], spec: str, name: str) -> Any:
    where = spec.replace(":", "_")
    return [load_file(folders[processes] / where / name) for processes in (1, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", EXACTLY)
@pytest.mark.parametrize("name", ["policy.safetensors", "checkpoint.safetensors"])
def test_two_processes_of_two_devices_learn_what_one_of_four_does(by_one_and_by_two, spec, name):
    one, two = arrays(by_one_and_by_two, spec, name)
    assert one.keys() == two.keys()
    for key, array in one.items():
        assert array.dtype == two[key].dtype and array.shape == two[key].shape
        if name in EXACTLY[spec]:
            assert two[key].tobytes() == array.tobytes(), key
        else:
            np.testing.assert_allclose(two[key], array, rtol=1e-5, atol=1e-6, err_msg=key)
