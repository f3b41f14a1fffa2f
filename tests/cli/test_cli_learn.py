"""``gradweave learn``: what it says, what it refuses, how it goes on after Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradweave.cli.commands import learn as command
from gradweave.cli.commands.learn import learn
from tests.patience import PATIENCE_S

MODULE = [sys.executable, "-m", "gradweave.learning"]

TRAINING = """
iterations = 3
tree_updates = 1
workload_updates = 2
draws = 2

[[groups]]
at_once = 1
episodes = 6
exercises = [{ topology = "ring:n=4" }]
"""


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """The first test to compile anything may take longer than it takes to show progress."""
    monkeypatch.setattr("gradweave.cli.console.PATIENCE_S", 1000.0)


@pytest.fixture
def stands_still(monkeypatch):
    """Updates that take no time: learners stay as they were."""
    jax = pytest.importorskip("jax")
    training = pytest.importorskip("gradweave.learning.training")

    def program(trainer, agent, devices):
        def run(learners, batch, keys):
            shape = keys.shape[1], len(batch.busiest)
            names = ("rounds", "over_bound", "at_bound", "finished", "selected", "decisions")
            figures = {name: np.full(shape, 0.5, np.float32) for name in names}
            return learners, figures | {"moved": np.zeros(shape[0], np.float32)}

        return run

    monkeypatch.setattr(training, "CompiledUpdate", program)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def said(stderr: str) -> list[str]:
    """The lines on standard error, progress aside."""
    return [line for line in stderr.splitlines() if line and " s  " not in line]


@pytest.fixture
def config(here) -> Path:
    (here / "train.toml").write_text(TRAINING)
    return here / "train.toml"


def test_it_answers_in_json(gradweave, config, here, stands_still):
    answer = gradweave("--config", config, "--output", "out/first", "--json", command=learn)
    assert (answer.status, said(answer.stderr)) == (0, [])
    held = answer.json
    wall_s, devices = held.pop("wall_s"), held.pop("devices")
    assert held == {
        "output": "out/first",
        "weights": "out/first/weights.safetensors",
        "scheduler": "learned:weights=out/first/weights.safetensors",
        "updates": 9,
        "resumed_from": 0,
        "over_bound": 0.5,
        "aggregation": "mean",
    }
    assert wall_s > 0 and 6 % devices == 0
    made = gradweave("solve", "ring:5", "--scheduler", held["scheduler"], "--json")
    assert made.status == 0
    assert made.json["scheduler"] == held["scheduler"]


def test_it_says_what_to_do_with_the_weights(gradweave, config, here, stands_still):
    answer = gradweave("--config", config, command=learn)
    assert (answer.status, said(answer.stderr)) == (0, [])
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("9 updates, 9 of them now, in ")
    assert lines[1] == "weights: learned/weights.safetensors"
    command = "gradweave solve NET --scheduler learned:weights=learned/weights.safetensors"
    assert lines[2] == f"use them: {command}"
    assert {path.name for path in (here / "learned").iterdir()} == {
        *("weights.safetensors", "checkpoint.safetensors", "log.jsonl", "tensorboard")
    }


def test_it_goes_on_by_itself_and_says_so(gradweave, config, here, stands_still, monkeypatch):
    from gradweave.learning import training

    train = training.train

    def interrupted(*arguments, report, **options):
        def told(made):
            report(made)
            if made.update == 4:
                raise KeyboardInterrupt

        return train(*arguments, report=told, **options)

    monkeypatch.setattr(training, "train", interrupted)
    answer = gradweave("--config", config, "--output", "out", command=learn)
    assert (answer.status, answer.stdout) == (130, "")
    wanted = ["out holds 4 of 9 updates; learn again to continue", "gradweave: interrupted"]
    assert said(answer.stderr) == wanted
    assert not (here / "out" / "weights.safetensors").exists()

    monkeypatch.setattr(training, "train", train)
    answer = gradweave("--config", config, "--output", "out", command=learn)
    assert answer.status == 0
    assert said(answer.stderr) == ["resumes from out: 4 of 9 updates are done"]
    assert answer.stdout.startswith("9 updates, 5 of them now, in ")

    answer = gradweave("--config", config, "--output", "out", "--json", command=learn)
    assert said(answer.stderr) == ["resumes from out: 9 of 9 updates are done"]
    assert (answer.json["resumed_from"], answer.json["over_bound"]) == (9, None)


def test_progress_tells_the_agent_and_the_time_left(gradweave, config, stands_still, monkeypatch):
    told = []

    class Told(command.Progress):
        def __call__(self, doing: str) -> None:
            told.append(doing)

    monkeypatch.setattr(command, "Progress", Told)
    assert gradweave("--config", config, command=learn).status == 0
    assert told[:3] == ["reading the networks", "preparing mean", "compiling"]
    told = told[3:]
    assert len(told) == 9
    assert told[0].startswith("update 1 of 9, flow-tree selection: 50.0% over the bound; about ")
    assert told[1].startswith("update 2 of 9, workload scheduling: ")
    assert told[-1].endswith("; about 0 s left")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7200, "2.0 h")],
)
def test_durations_are_short(seconds, words):
    from gradweave.training.pace import duration

    assert duration(seconds) == words


def test_the_papers_training_stands_next_to_what_else_is_known(gradweave, here, stands_still):
    pytest.importorskip("matplotlib")
    answer = gradweave("learn", "--paper", "B3", "--output", "B3")
    assert (answer.status, said(answer.stderr)) == (0, [])
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("120 updates, 120 of them now, in ")
    each = "64 drawn episodes each"
    assert lines[1:4] == [
        "B3, shortest paths, ties broken evenly, seed 0: rounds of one stage",
        f"  before training            0.5   the first update, {each}",
        f"  trained by Algorithm 1     0.5   the last 10 of 120 updates, {each}",
    ]
    constants = re.fullmatch(
        r"  19 constants  +(\S+)   64 drawn episodes, without repair", lines[4]
    )
    assert constants and 4 <= float(constants[1]) < 6
    assert lines[5:8] == [
        "  bound                        4   of any schedule on these trees",
        "  the paper                  5.1   10.2 in Table 2, both stages; its trees are not known",
        "curve: B3/curve.png",
    ]
    assert (here / "B3" / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_the_papers_training_on_any_network(gradweave, here, stands_still):
    options = ("--paper", "ring:3", "--trees", "grown", "--seed", "7", "--output", "out")
    answer = gradweave("learn", *options, "--json")
    assert answer.status == 0, answer
    made = answer.json["paper"]
    assert (made["network"], made["trees"], made["seed"]) == ("ring:3", "grown", 7)
    assert (made["bound"], made["constants"], made["paper"]) == (1, 1.0, None)
    again = gradweave("learn", *options)
    assert said(again.stderr) == ["resumes from out: 120 of 120 updates are done"]
    assert "the paper " not in again.stdout and "seed 7: rounds of one stage" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--paper", "B7"], "--paper: expected B3, B4, B5, D4, D5, D6, J10, J15, J20, or a netw"),
        (["--paper", "ring:1"], "ring: n must be at least 2, got 1"),
        (["--paper", "B3", "--config", "train.toml"], "--config: expected no --paper with it"),
        (["--seed", "1"], "--seed: expected --paper with it"),
        (["--paper", "B3", "--trees", "pinned"], "--trees"),
    ],
)
def test_what_the_papers_training_does_not_take(refused, arguments, reason):
    pytest.importorskip("jax")
    assert reason in refused("learn", *arguments)


BAD = {
    "not TOML": ("seed 3", "train.toml: not TOML"),
    "unknown field": ("tempo = 3\n" + TRAINING, "train.toml: tempo: unknown; known are groups,"),
    "misspelt field": ("sead = 3\n" + TRAINING, "sead: unknown; did you mean seed? known are"),
    "out of range": (TRAINING.replace("draws = 2", "draws = 0"), "draws: expected at least 1"),
    "unknown network": (TRAINING.replace("ring:n=4", "nocube:4"), "unknown family of networks"),
    "network that cannot be": (TRAINING.replace("ring:n=4", "ring:n=1"), "n must be at least 2"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD.keys())
def test_a_config_that_is_none(refused, here, text, reason):
    pytest.importorskip("jax")
    (here / "train.toml").write_text(text)
    assert reason in refused("--config", "train.toml", "--output", "out", command=learn)
    assert reason in refused("--config", "train.toml", "--json", command=learn)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read: No such file"),
        (["--config", "."], ".: cannot be read: Is a directory"),
        (["--output", "train.toml"], "train.toml: is not a directory; give another name"),
        (["--output", "train.toml/out"], "cannot be made a directory"),
        (["--devices", "0"], "--devices"),
        (["--devices", "many"], "--devices"),
        (["--devices", "4096"], "episodes: expected a multiple of the 4096 devices, got 6"),
        (["--aggregation", "rnig"], "no aggregation 'rnig'; did you mean ring?"),
        (["--devices", "1", "--aggregation", "d_psgd"], "use one of mean, ring, parameter_server"),
        (["--fast"], "No such option"),
        (["ring:4"], "unexpected extra argument"),
    ],
)
def test_options_that_it_does_not_take(refused, config, arguments, reason, stands_still):
    import jax

    jax.devices()  # so that it is too late for more of them
    assert reason in refused("--config", "train.toml", *arguments, command=learn)


def test_another_configs_checkpoint(gradweave, refused, config, stands_still):
    assert gradweave("--config", config, "--output", "out", command=learn).status == 0
    config.write_text(TRAINING.replace("draws = 2", "draws = 3"))
    line = refused("--config", config, "--output", "out", command=learn)
    assert "out/checkpoint.safetensors belongs to another training: draws 2 there, 3 here" in line


def run(
    *arguments: str, cwd: Path, before: str = "", module: str = "gradweave.learning"
) -> subprocess.CompletedProcess:
    start = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    program = f"{before}\nimport runpy, sys\nsys.argv[1:] = {list(arguments)!r}\n{start}"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=cwd, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("module", ["jax", "equinox", "optax"])
def test_without_the_extra_it_says_what_to_install(tmp_path, module):
    done = run(cwd=tmp_path, before=f"import sys; sys.modules[{module!r}] = None")
    assert (done.returncode, done.stdout) == (2, "")
    wanted = f"gradweave learn needs {module}: pip install 'gradweave[learn]'"
    assert done.stderr.splitlines() == [f"gradweave: {wanted}"]
    assert list(tmp_path.iterdir()) == []


def test_the_other_commands_do_without_jax(tmp_path):
    before = "import sys\nfor name in ('jax', 'equinox', 'optax'): sys.modules[name] = None"
    solve = ("solve", "ring:4", "--scheduler", "learned")
    done = run(*solve, cwd=tmp_path, before=before, module="gradweave")
    assert (done.returncode, said(done.stderr)) == (0, [])
    assert "verified" in done.stdout
    assert "--aggregation" in run("--help", cwd=tmp_path, before=before).stdout


def test_devices_must_divide_the_episodes(tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "train.toml").write_text(TRAINING)
    options = ["--config", "train.toml", "--devices", "4", "--json"]
    done = run(*options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    wanted = "gradweave: episodes: expected a multiple of the 4 devices, got 6"
    assert said(done.stderr) == [wanted]
    assert not (tmp_path / "learned").exists()


@pytest.mark.slow
def test_ctrl_c_writes_the_checkpoint(tmp_path):
    """On two devices, while it learns."""
    pytest.importorskip("jax")
    endless = TRAINING.replace("iterations = 3", "iterations = 100000").replace(
        "tree_updates = 1", "tree_updates = 0"
    )
    (tmp_path / "train.toml").write_text(endless)
    process = subprocess.Popen(
        [*MODULE, "--config", "train.toml", "--devices", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert process.stderr is not None
    line = ""
    while "  update " not in line:
        line = process.stderr.readline()
        assert " s  " in line, line
    assert "of 200000, workload scheduling: " in line and line.endswith(" left\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    lines = said(err)
    assert lines[0].startswith("learned holds ") and lines[1:] == ["gradweave: interrupted"]
    done = int(lines[0].split()[2])
    assert done > 0
    logged = (tmp_path / "learned" / "log.jsonl").read_text().splitlines()
    assert json.loads(logged[-1])["update"] in (done, done + 1)
    assert not (tmp_path / "learned" / "weights.safetensors").exists()
    assert not list((tmp_path / "learned").glob(".*"))
