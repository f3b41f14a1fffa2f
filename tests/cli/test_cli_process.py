"""The command as a process: end to end, on a terminal, interrupted, in odd encodings."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

import gradweave as gw
from gradweave.schedules.file import load
from tests.patience import PATIENCE_S

COMMANDS = {
    "script": [str(Path(sys.executable).with_name("gradweave"))],
    "module": [sys.executable, "-m", "gradweave"],
}


def run(*arguments: str, command: str = "module", cwd: Path, **environment: str):
    return subprocess.run(
        [*COMMANDS[command], *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
    )


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def to_full(*arguments: str, stream: str, cwd: Path):
    """The command with standard output or standard error on a full device."""
    with open("/dev/full", "w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        return subprocess.run(
            [*COMMANDS["module"], *arguments], **streams, text=True, cwd=cwd, timeout=PATIENCE_S
        )


@pytest.fixture(autouse=True, scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    """Compiles what the commands below use, which takes longer than the time to first progress."""
    arguments = ["compare", "torus:3x3", "--scheduler", "parameter_server,merged,ring"]
    folder = tmp_path_factory.mktemp("compiled")
    subprocess.run([*COMMANDS["module"], *arguments], cwd=folder, check=True, timeout=PATIENCE_S)


def said(stderr: str) -> list[str]:
    """The lines that are not progress, which begins after two seconds: soon on a busy machine."""
    return [line for line in stderr.splitlines() if not re.match(r" *\d+ s  ", line)]


@pytest.mark.parametrize("command", COMMANDS)
def test_schedule_then_verify_then_show(command, tmp_path):
    if not Path(COMMANDS[command][0]).exists():
        pytest.skip("the package is not installed with its script")
    arguments = ["solve", "bcube:n=3,k=1", "--scheduler", "merged", "--output", "b3.json"]
    made = run(*arguments, "--json", command=command, cwd=tmp_path)
    assert (made.returncode, said(made.stderr)) == (0, [])
    assert json.loads(made.stdout)["rounds"] == 12
    checked = run("verify", "b3.json", command=command, cwd=tmp_path)
    assert (checked.returncode, said(checked.stderr)) == (0, [])
    assert checked.stdout.startswith("valid: all_reduce on bcube:n=3,k=1, 12 rounds, 144 ")
    shown = run("show", "b3.json", command=command, cwd=tmp_path)
    assert (shown.returncode, said(shown.stderr)) == (0, [])
    assert {path.name for path in tmp_path.iterdir()} == {"b3.json", "b3.html"}


def test_compare(tmp_path):
    done = run("compare", "torus:3x3", "--scheduler", "merged,ring", "--json", cwd=tmp_path)
    assert (done.returncode, said(done.stderr)) == (0, [])
    rows = json.loads(done.stdout)["rows"]
    assert [row["scheduler"] for row in rows] == ["merged", "ring"]


def test_bad_input_and_a_negative_answer(tmp_path):
    refused = run("solve", "nocube:3", "--json", cwd=tmp_path)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    none = run("solve", "mesh:3", "--scheduler", "ring:order=hamiltonian", cwd=tmp_path)
    assert (none.returncode, none.stdout, none.stderr.count("\n")) == (1, "", 1)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = " ".join(COMMANDS["module"])
    done = subprocess.run(
        ["bash", "-c", f"{command} solve --help | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@needs_full
@pytest.mark.parametrize("arguments", [["verify", "s.json"], ["verify", "s.json", "--json"]])
def test_a_full_disk_behind_standard_output_ends_in_one_line(arguments, tmp_path):
    gw.schedulers.Ring().schedule(gw.topology.ring(4)).save(tmp_path / "s.json")
    done = to_full(*arguments, stream="stdout", cwd=tmp_path)
    wanted = "gradweave: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, wanted)


@needs_full
def test_a_full_disk_behind_standard_error_changes_nothing_else(tmp_path):
    refused = to_full("solve", "nocube:3", stream="stderr", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    shown = to_full("--version", stream="stderr", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"gradweave, version {gw.__version__}\n")


def test_output_in_an_encoding_without_arrows(tmp_path):
    gw.schedulers.Ring().schedule(gw.topology.ring(4)).save(tmp_path / "s.json")
    held = json.loads((tmp_path / "s.json").read_text())
    held["transfers"]["round"][0] = 1
    (tmp_path / "s.json").write_text(json.dumps(held))
    done = run("verify", "s.json", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "link 0\\u21921 carries 2 transfers" in done.stdout


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_on_a_terminal_hostile_names_stay_text(tmp_path):
    made = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    made.save(tmp_path / "s.json")
    text = (tmp_path / "s.json").read_text().replace('"ring:n=4"', '"\\u001b]0;owned\\u0007"')
    (tmp_path / "s.json").write_text(text)
    ours, theirs = os.openpty()
    done = subprocess.run(
        [*COMMANDS["module"], "verify", "s.json"], stdout=theirs, stderr=theirs, cwd=tmp_path
    )
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert shown.startswith("valid: all_reduce on \\x1b]0;owned\\x07, 6 rounds")
    assert all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "dcell:n=6,k=1", "--seeds", "100000", "--output", "out"],
        # A search of the solver's, which has a way of its own with Ctrl-C.
        ["solve", "mesh:30x30", "--scheduler", "ring:order=hamiltonian", "--time-limit", "60",
         "--output", "out.json"],
    ],
    ids=["compare", "search"],
)  # fmt: skip
def test_ctrl_c_ends_the_run_in_one_line(arguments, tmp_path):
    process = subprocess.Popen(
        [*COMMANDS["module"], *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
    )
    assert process.stderr is not None
    progress = process.stderr.readline()  # which means that the work has begun
    assert " s  " in progress
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert out == ""
    lines = [line for line in err.splitlines() if line and " s  " not in line]
    assert lines == ["gradweave: interrupted"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_search_with_the_best_so_far(workers, tmp_path):
    # On which nothing has met the bound in a million tries.
    tutte = [f"{a} {b}" for a, b in nx.tutte_graph().edges]
    (tmp_path / "tutte.txt").write_text("\n".join(tutte))
    process = subprocess.Popen(
        [*COMMANDS["module"], "solve", "tutte.txt", "--scheduler",
         "ring,grown:restarts=1000000", "--workers", str(workers), "--objective", "seconds",
         "--output", "out.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
    )  # fmt: skip
    assert process.stderr is not None
    progress = " "
    while "trying grown" not in progress:  # and so the ring is there
        progress = process.stderr.readline()
        assert progress, "it ended too soon"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert f"found by {'ring' if workers > 1 else 'grown'}" in out and "s, until Ctrl-C" in out
    assert load(tmp_path / "out.json").num_transfers > 0
