"""``gradweave train``: what it says and what it refuses; tests of its processes kill it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.patience import PATIENCE_S

MODULE = [sys.executable, "-m", "gradweave"]
QUICK = {
    **os.environ,
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
TRAINING = """
env = "switch_riddle"
algorithm = "mappo"
steps = 90
seeds = 2

[settings]
environments = 2
rollout = 5
minibatches = 1
epochs = 1
hidden = [4]
recurrent = false
"""


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """The first test to compile anything may take longer than it takes to show progress."""
    monkeypatch.setattr("gradweave.cli.console.PATIENCE_S", 1000.0)


@pytest.fixture
def quick():
    jax = pytest.importorskip("jax")
    for module in ("equinox", "optax", "jaxtyping", "jaxmarl", "tensorboardX"):
        pytest.importorskip(module)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def config(here) -> Path:
    (here / "train.toml").write_text(TRAINING)
    return here / "train.toml"


def said(stderr: str) -> list[str]:
    """The lines on standard error, progress aside."""
    return [line for line in stderr.splitlines() if line and " s  " not in line]


def test_it_trains_judges_and_answers_in_json(gradweave, config, here, quick):
    command = ("train", "--config", config, "--output", "out", "--episodes", 8, "--json")
    answer = gradweave(*command, "--render", "episode.gif")
    assert (answer.status, said(answer.stderr)) == (0, [])
    held = answer.json
    assert json.loads((here / "out" / "result.json").read_text()) == held
    assert held["env"] == "switch_riddle" and held["algorithm"] == "mappo"
    assert (held["steps"], held["updates"], held["resumed_from"]) == (90, 9, 0)
    assert held["rendered"] == "episode.gif"
    for how, seeds in (("greedy", 2), ("sampled", 2), ("random", 1)):
        evaluated = held["return"][how]
        assert len(evaluated["by_seed"]) == len(evaluated["standard_error"]) == seeds
        assert evaluated["mean"] == pytest.approx(np.mean(evaluated["by_seed"]))
        assert -1 <= evaluated["mean"] <= 1 and 1 <= evaluated["length"] <= 6
        assert set(evaluated["by_agent"]) == {"agent_0", "agent_1", "agent_2"}
    assert "reward" in held["return_is"]
    made = {path.name for path in (here / "out").iterdir()}
    assert made == {
        *("checkpoint.safetensors", "policy.safetensors", "log.jsonl", "result.json"),
        "tensorboard",
    }
    from PIL import Image

    with Image.open(here / "episode.gif") as picture:
        assert picture.n_frames >= 1 and picture.size == (416, 432)

    again = gradweave("train", "--config", config, "--output", "out", "--episodes", 8)
    assert again.status == 0
    assert said(again.stderr) == ["resumes from out: 9 of 9 updates are done"]
    assert json.loads((here / "out" / "result.json").read_text())["return"] == held["return"]
    lines = again.stdout.splitlines()
    assert lines[0].startswith("mappo on switch_riddle: 90 steps, 0 of 9 updates now, in ")
    assert " device" in lines[0] and " processes" not in lines[0], "there was one"
    assert lines[1].startswith("return: greedy ") and ", at random " in lines[1]

    more = gradweave(*command, "--steps", 100)
    assert said(more.stderr) == ["resumes from out: 9 of 10 updates are done"]
    assert (more.json["steps"], more.json["extended_from"]) == (100, [90])

    evaluated = gradweave("evaluate", "out", "--episodes", 8, "--json", "--render", "again.gif")
    assert (evaluated.status, said(evaluated.stderr)) == (0, [])
    for name in ("return", "return_is", "episodes", "env", "algorithm", "steps", "extended_from"):
        assert evaluated.json[name] == more.json[name], name
    assert (here / "again.gif").exists()

    other = gradweave("train", "--config", config, "--output", "out", "--seed", 5)
    assert (other.status, other.stdout) == (2, "")
    assert "belongs to another training: seed 0 there, 5 here; steps 100 there" in other.stderr


BAD = {
    "not TOML": ("seed 3", "train.toml: "),
    "unknown field": ("tempo = 3\n" + TRAINING, "train.toml: tempo: unknown; known are env,"),
    "unknown setting": (TRAINING + "speed = 3\n", "train.toml: settings: speed: unknown; known"),
    "out of range": (
        TRAINING + "clip_ratio = 0\n",
        "train.toml: settings: clip_ratio: expected a number above 0",
    ),
    "another type": (TRAINING.replace("= 90", '= "many"'), "steps: expected a whole number"),
    "another type of setting": (TRAINING + 'clip_ratio = "much"\n', "settings: Expected `float`"),
    "no table": ("settings = 3", "train.toml: settings: expected a table, got 3"),
    "misspelt field": ("stepz = 3\n" + TRAINING, "stepz: unknown; did you mean steps? known"),
    "misspelt setting": (
        TRAINING + "clib_ratio = 1\n",
        "settings: clib_ratio: unknown; did you mean clip_ratio?",
    ),
    "misspelt game": (TRAINING.replace("switch_riddle", "switch_ridle"), "did you mean switch_rid"),
    "misspelt algorithm": (TRAINING.replace("mappo", "mapo"), "'mapo'; did you mean mappo?"),
    "unknown game": (TRAINING.replace("switch_riddle", "chess"), "environment: expected one of"),
    "unknown algorithm": (TRAINING.replace("mappo", "magic"), "algorithm: expected one of ippo"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD.keys())
def test_a_config_that_is_none(refused, here, text, reason, quick):
    (here / "train.toml").write_text(text)
    assert reason in refused("train", "--config", "train.toml", "--output", "out")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--config", "nowhere.toml"], "nowhere.toml: cannot be read: No such file"),
        (["--output", "train.toml"], "train.toml: is not a directory; give another name"),
        (["--devices", "0"], "--devices"),
        (["--devices", "2"], "devices: expected at most 1, got 2"),
        (["--devices", "3"], "environments: expected a multiple of the 3 devices, got 2"),
        (["--aggregation", "rumour"], "no aggregation 'rumour'"),
        (["--set", "clip"], "--set: expected NAME=VALUE, got 'clip'"),
        (["--set", "clip_ratio=-1"], "clip_ratio: expected a number above 0, got -1"),
        (["--env", "switch_riddle:lamps=2"], "unknown option 'lamps'; it takes num_agents"),
        (["--env", "gradweave:nocube:4"], "unknown family of networks"),
        (["--render", "episode.mp4"], "expected a name ending in .gif"),
        (["--checkpoint-minutes", "0"], "--checkpoint-minutes"),
        (["--fast"], "No such option"),
        (["--aggregation", "scheduled:ring:8"], "ring:n=8 has 8 servers, but there is 1 worker"),
        (["--aggregation", "asynchronous:bound=many"], "bound must be an integer, got 'many'"),
        (["--aggregation", "asynchronous:consistency=ssp"], "ssp needs its bound in clocks"),
        (["--aggregation", "asynchronous:servrs=2"], "is not an option; did you mean servers"),
        (["--aggregation", "asynchronous:step_s=1,slow=4"], "slow: expected workers 0 to 0, got 4"),
        (
            ["--aggregation", "asynchronous", "--set", "normalise_values=true"],
            "normalise_values: n",
        ),
        (["--aggregation", "asynchronous", "--distributed"], "starts its workers itself; omit"),
        (["--aggregation", "scheduled:rnig:8"], "unknown family of networks; did you mean ring?"),
    ],
)
def test_options_that_it_does_not_take(refused, config, arguments, reason, quick):
    import jax

    if len(jax.devices()) > 1 and arguments == ["--devices", "2"]:
        pytest.skip("there are more devices than this test knows of")
    assert reason in refused("train", "--config", "train.toml", *arguments)


ANSWERED_AT_ONCE = [
    ["--env", "switch_ridle"],
    ["--env", "switch_riddle:lamps=2"],
    ["--env", "gradweave:nocube:4"],
    ["--algorithm", "ipo"],
    ["--set", "clib=0.1"],
    ["--set", "clip_ratio=-1"],
    ["--devices", "3"],
    ["--aggregation", "rnig"],
    ["--aggregation", "parameter_server:server=4"],
    ["--aggregation", "scheduled:ring:8"],
    ["--aggregation", "scheduled:nocube:4"],
    ["--output", "train.toml"],
    ["--render", "episode.mp4"],
]


UNSUITED = {
    ("SMAX", "qmix"): "in SMAX their interests are opposed; use iql or ippo",
    ("storm", "vdn"): "in storm their interests are opposed; use iql or ippo",
    ("MPE_simple_facmac_v1", "iql"): "expected discrete actions, unlike those of MPE_simple_fac",
    ("MPE_simple_tag_v3:continuous=true", "iql"): "expected discrete actions, unlike those of MPE",
    ("HeuristicEnemySMAX", "fen"): "fen: HeuristicEnemySMAX does not report the utility of each",
}


@pytest.mark.parametrize(("env", "algorithm"), UNSUITED)
def test_an_algorithm_that_cannot_learn_the_game(refused, env, algorithm, quick):
    line = refused("train", "--env", env, "--algorithm", algorithm)
    assert UNSUITED[env, algorithm] in line


def test_options_are_checked_before_jax_is_even_imported(tmp_path):
    (tmp_path / "train.toml").write_text(TRAINING)
    program = f"""
import contextlib, io, sys
from gradweave.cli.main import main

unsuited = [["--env", env, "--algorithm", name] for env, name in {[*UNSUITED]!r}]
for options in [*(["--config", "train.toml", *one] for one in {ANSWERED_AT_ONCE!r}), *unsuited]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main(["train", *options])
    assert said.getvalue().startswith("gradweave: "), options
    assert "jax" not in sys.modules, options
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.toml"]


def test_evaluate_refuses_what_is_no_training(refused, here, quick):
    (here / "out").mkdir()
    assert "out: there is no policy.safetensors; give the folder" in refused("evaluate", "out")
    (here / "out" / "policy.safetensors").write_bytes(b"nothing")
    assert "cannot be read as safetensors" in refused("evaluate", "out", "--json")
    assert "a name ending in .gif" in refused("evaluate", "out", "--render", "soup.mp4")


@pytest.mark.parametrize("module", ["jax", "equinox", "jaxmarl"])
def test_without_the_extra_it_says_what_to_install(tmp_path, module):
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from gradweave.cli.main import main\nmain(['train'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    wanted = f"gradweave train needs {module}: pip install 'gradweave[marl]'"
    assert done.stderr.splitlines() == [f"gradweave: {wanted}"]
    assert list(tmp_path.iterdir()) == []


def test_the_command_trains_fen_and_judges_its_fairness(gradweave, quick, tmp_path):
    answer = gradweave(
        *("train", "--env", "job_scheduling:max_steps=25", "--algorithm", "fen", "--steps", "400"),
        *("--gossip", "ring", "--set", "environments=4", "--set", "rollout=25", "--episodes", "2"),
        *("--set", "hidden=[8]", "--output", str(tmp_path / "fair"), "--json"),
    )
    found = answer.json["return"]["sampled"]["fairness"][0]
    assert set(found) == {"utilisation", "variation", "least", "greatest", "jain"}
    lines = (tmp_path / "fair" / "log.jsonl").read_text().splitlines()
    assert len(lines) == 4 and "variation" in json.loads(lines[-1])
