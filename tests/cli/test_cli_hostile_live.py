"""Names from strangers in the verbs that start processes or train: what they say before that."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gradweave as gw
from gradweave.execute.running.trial import RunReport, RunTimes
from gradweave.lab.emulation import Emulation
from gradweave.lab.measure import Experiment, Measurement
from gradweave.marl.folder import FORMAT
from gradweave.printable import MOST_IN_LINE, in_one_line
from tests.cli.test_cli_hostile_names import HOSTILE, IN_FILE_NAMES, write

# Arguments and names of files come from the system: without null characters, and what is no UTF-8
# in them has become half a pair of its own kind.
AS_ARGUMENTS = {**HOSTILE, "no UTF-8": "\udcff\udc80"}
del AS_ARGUMENTS["half a pair"]
AS_ARGUMENTS["quotes"] = HOSTILE["quotes"].replace("\0", "")
ANY_BYTES = sys.platform == "linux"
"""Whether names of files need not be UTF-8."""
AS_FILES = {
    name: AS_ARGUMENTS[name].replace("/", "|")
    for name in (*IN_FILE_NAMES, "HTML", *(["no UTF-8"] if ANY_BYTES else []))
}

REFUSED = {
    "bench": [
        ["bench", "NAME"], ["bench", "schedule.json", "--backend", "NAME"],
        ["bench", "schedule.json", "--dtype", "NAME"],
        ["bench", "schedule.json", "--reduction", "NAME"],
        ["bench", "schedule.json", "--size", "NAME"],
        ["bench", "schedule.json", "--logs", "nowhere/NAME/logs"],
        ["bench", "schedule.json", "NAME"],
        ["bench", "schedule.json", "--NAME"],
    ],
    "lab": [
        ["lab", "NAME"], ["lab", "network.json", "--scheduler", "NAME"],
        ["lab", "ring:3", "--scheduler", "ring", "--schedule", "NAME"],
        ["lab", "ring:3", "--scheduler", "ring", "--schedule", "schedule.json"],
        ["lab", "ring:3", "--bandwidth", "NAME"], ["lab", "ring:3", "--latency", "NAME"],
        ["lab", "network.json", "--without-link", "NAME"],
        ["lab", "network.json", "--without-link", "NAME0-NAME2"],
        ["lab", "network.json", "--without-server", "NAME"],
        ["lab", "network.json", "--slow", "NAME"], ["lab", "network.json", "--slow", "0-1=NAME"],
        ["lab", "ring:3", "--size", "NAME"], ["lab", "ring:3", "--output", "NAME"],
    ],
    "measure": [
        ["topology", "measure", "NAME", "--servers", "2"],
        ["topology", "measure", "a.json", "--backend", "NAME"],
        ["topology", "measure", "a.json", "--servers", "NAME"],
        ["topology", "measure", "a.json", "--slot", "NAME"],
        ["topology", "measure", "nowhere/NAME.json", "--servers", "2"],
    ],
    "train": [
        ["train", "--env", "NAME"], ["train", "--env", "MPE_NAME"],
        ["train", "--env", "coin_game:NAME=1"], ["train", "--env", "SMAX:map=NAME"],
        ["train", "--algorithm", "NAME"], ["train", "--aggregation", "NAME"],
        ["train", "--aggregation", "dcd_psgd:NAME=1"],
        ["train", "--aggregation", "scheduled:NAME", "--devices", "2"],
        ["train", "--set", "NAME"], ["train", "--set", "NAME=1"],
        ["train", "--set", "learning_rate=NAME"], ["train", "--machine", "NAME"],
        ["train", "--gossip", "NAME"], ["train", "--config", "NAME"],
        ["train", "--render", "NAME"], ["train", "--devices", "NAME"],
    ],
    "learn": [
        ["learn", "--config", "NAME"], ["learn", "--aggregation", "NAME"],
        ["learn", "--aggregation", "scheduled:NAME", "--devices", "2"],
        ["learn", "--devices", "NAME"], ["learn", "--paper", "NAME"],
    ],
    "evaluate": [
        ["evaluate", "NAME"], ["evaluate", ".", "--render", "NAME"],
        ["evaluate", ".", "--episodes", "NAME"],
    ],
}  # fmt: skip
"""Of each verb, what it refuses before it starts anything, with a name from a stranger."""

FILES = [
    ["bench", "NAME.json"], ["lab", "ring:3", "--scheduler", "ring", "--schedule", "NAME.json"],
    ["lab", "NAME.edges", "--scheduler", "nothing"],
    ["topology", "measure", "NAME", "--servers", "2"],
    ["train", "--config", "NAME.toml"], ["train", "--machine", "NAME.yaml"],
    ["train", "--output", "NAME.json"], ["train", "--aggregation", "scheduled:NAME.json"],
    ["learn", "--config", "NAME.toml"], ["learn", "--output", "NAME.json"],
    ["evaluate", "NAME"],
]  # fmt: skip
"""Refused for what is in files of such names."""

KEYS = (
    "{0} = 1", "[{0}]\na = 1", "env = {0}", "algorithm = {0}", "aggregation = {0}", "steps = {0}",
    "[settings]\n{0} = 1", "[settings]\nlearning_rate = {0}", "[settings.{0}]\na = 1",
    "[options]\n{0} = 1", "[[groups]]\n{0} = 1", "[[groups]]\nexercises = [{0}]", "groups = {0}",
    "{0} = 1\n{0} = 2", "a = {0} {0}",
)  # fmt: skip
"""Configurations that neither training takes."""


@pytest.fixture(autouse=True)
def as_root(monkeypatch):
    """So far as a lab asks before it starts."""
    monkeypatch.setattr("gradweave.cli.labs.require_lab", lambda: None)


def check_refusal(answer) -> None:
    assert answer.status in (1, 2) and answer.stdout == "", answer
    assert answer.stderr.startswith("gradweave: ") and answer.stderr.endswith("\n")
    line = answer.stderr.removesuffix("\n")
    assert line.isprintable(), line
    assert len(line) <= len("gradweave: ") + MOST_IN_LINE


@pytest.mark.parametrize("name", AS_ARGUMENTS)
@pytest.mark.parametrize("verb", REFUSED)
def test_a_hostile_argument_is_refused_in_one_printable_line(gradweave, here, verb, name):
    write(here, HOSTILE.get(name, "x"))
    (here / "policy.safetensors").write_bytes(b"nothing")
    for arguments in REFUSED[verb]:
        given = [argument.replace("NAME", AS_ARGUMENTS[name]) for argument in arguments]
        check_refusal(gradweave(*given))
    assert len(list(here.iterdir())) == 3


@pytest.mark.parametrize("name", AS_FILES)
def test_what_is_in_a_file_of_a_hostile_name_is_refused_so_too(gradweave, here, name):
    base = AS_FILES[name]
    for suffix, content in {"json": "{}", "toml": "x = ", "yaml": "x: 1", "edges": "a b"}.items():
        (here / f"{base}.{suffix}").write_text(content)
    (here / base).mkdir()
    (here / base / "policy.safetensors").write_bytes(b"nothing")
    for arguments in FILES:
        check_refusal(gradweave(*(argument.replace("NAME", base) for argument in arguments)))


def as_toml(text: str) -> str:
    """A string of TOML."""
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "half a pair"])
@pytest.mark.parametrize("verb", ["train", "learn"])
def test_hostile_configurations_are_refused_in_one_printable_line(gradweave, here, verb, name):
    for text in KEYS:
        (here / "a.toml").write_text(text.format(as_toml(HOSTILE[name])))
        check_refusal(gradweave(verb, "--config", "a.toml"))
    assert len(list(here.iterdir())) == 1


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_policy_is_refused_in_one_printable_line(gradweave, here, name, monkeypatch):
    monkeypatch.setattr("gradweave.cli.commands.evaluate.start_jax", lambda: None)
    hostile = HOSTILE[name]
    for config in ({hostile: 1}, {"env": hostile, "algorithm": hostile}, {"algorithm": hostile}):
        about = {"config": config}
        FORMAT.save(here / "policy.safetensors", {"a": np.zeros(1)}, about)
        check_refusal(gradweave("evaluate", here))


def test_a_long_message_keeps_both_ends():
    line = in_one_line(f"{'a' * 5000}: expected a name")
    assert len(line) == MOST_IN_LINE
    assert line.startswith("aaa") and line.endswith("a: expected a name") and " … " in line
    assert in_one_line("b" * MOST_IN_LINE) == "b" * MOST_IN_LINE


def named_everywhere(here: Path, name: str, file: str):
    """A schedule in which everything has this name, its network, and a run's figures."""
    write(here, name)
    (here / f"{file}.json").write_bytes((here / "schedule.json").read_bytes())
    return gw.load(here / "schedule.json")


def run_answers(made, file):
    times = RunTimes((1.0, 2.0), (4, 4, 4, 4))
    return made, RunReport("torch", 4, 8, 8, times, times)


def lab_answers(topology, contenders, **_):
    ones = np.ones(1)
    emulation = Emulation("none", 1, 1, np.zeros(1, int), ones, ones, ones, ones, ones)
    figures = ([0.1, 0.2], 0.1, 0.1, 0.1, np.ones(8), np.ones(8), [1] * 4, True)
    return Experiment(
        emulation, [Measurement(name, made, 1 << 20, *figures) for name, made in contenders]
    )


def measure_answers(topology, output):
    gw.topology.save(topology, output)
    said = json.loads(output.read_text())
    how = {"seconds": 1.0, "library": topology.name}
    output.write_text(json.dumps({**said, "graph": {**said.get("graph", {}), "measured": how}}))


RETURNS = {how: {"mean": 1.0, "measures": {}} for how in ("greedy", "sampled", "random")}


@pytest.mark.parametrize("name", AS_FILES)
def test_what_is_printed_around_processes_stays_text(gradweave, here, monkeypatch, name):
    """Processes are not started: what they would answer is given."""
    hostile, file = HOSTILE.get(name, "x"), AS_FILES[name]
    made = named_everywhere(here, hostile, file)
    verbs = "gradweave.cli.commands"
    monkeypatch.setattr(f"{verbs}.bench.run_file", lambda *_: run_answers(made, file))
    monkeypatch.setattr("gradweave.lab.measure.measure", lab_answers)
    monkeypatch.setattr(
        f"{verbs}.topology.measure.on_this_machine",
        lambda _, output, *__: measure_answers(made.topology, output),
    )
    monkeypatch.setattr(
        "gradweave.cli.commands.learn._train",
        lambda *_: {
            "resumed_from": 0, "devices": 1, "weights": hostile, "scheduler": f"learned:{hostile}"
        },
    )  # fmt: skip
    monkeypatch.setattr("gradweave.marl.folder.load_trained", lambda _: SimpleNamespace())
    monkeypatch.setattr("gradweave.marl.results.description", lambda _: {
        "algorithm": hostile, "env": hostile, "steps": 1
    })  # fmt: skip
    monkeypatch.setattr("gradweave.marl.results.evaluated", lambda *_: {
        "return": RETURNS, "return_is": hostile, "episodes": 1, "rendered": hostile
    })  # fmt: skip
    monkeypatch.setattr(f"{verbs}.evaluate.start_jax", lambda: None)
    for arguments in (
        ["bench", f"{file}.json"],
        ["lab", "network.json", "--schedule", f"{file}.json", "--scheduler", "ring"],
        ["topology", "measure", f"{file} measured.json", "--servers", "2"],
        ["learn"],
        ["evaluate", file],
    ):  # fmt: skip
        for as_json in ([], ["--json"]):
            answer = gradweave(*arguments, *as_json)
            assert answer.status == 0, answer
            for line in (answer.stdout + answer.stderr).splitlines():
                assert line.isprintable(), line
            assert not as_json or answer.json


def test_a_hostile_name_does_not_keep_a_chart_of_the_lab_from_being_drawn(
    gradweave, here, monkeypatch
):
    monkeypatch.setattr("gradweave.lab.measure.measure", lab_answers)
    named_everywhere(here, HOSTILE["mathematics"], file := AS_FILES["mathematics"])
    options = ("--scheduler", "ring", "--schedule", f"{file}.json", "--output", "lab.json")
    answer = gradweave("lab", "network.json", *options)
    assert answer.status == 0 and "written to lab.json and lab.png" in answer.stdout, answer
    assert (here / "lab.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.skipif(not ANY_BYTES, reason="names of files are UTF-8")
def test_a_network_of_a_file_whose_name_is_no_utf_8_is_scheduled(gradweave, here):
    (here / "\udcff.edges").write_text("a b\nb c\n")
    answer = gradweave("solve", "\udcff.edges", "--scheduler", "ring", "--output", "made.json")
    assert answer.status == 0 and answer.stdout.startswith("\\udcff.edges: 3 servers"), answer
    assert gw.load(here / "made.json").topology.name == "\\udcff.edges"
