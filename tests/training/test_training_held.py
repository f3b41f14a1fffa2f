"""Folders to which only a single training may write at a time."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradweave.errors import FileError
from gradweave.training.held import held, one_at_a_time

HOLDER = """
import sys
from pathlib import Path
from gradweave.training.held import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_training_is_refused_in_one_line_until_the_first_has_ended(tmp_path: Path):
    folder = tmp_path / "trained"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        with pytest.raises(FileError, match="trained: another training writes there; wait") as told:
            with held(folder):
                pass
        assert "\n" not in str(told.value)
        first.kill()  # which lets go of it
        first.wait()
    with held(folder):
        (folder / "log.jsonl").touch()
    with held(folder), held(tmp_path / "other"):
        assert folder.exists()


def test_what_is_left_empty_is_removed_and_nothing_else(tmp_path: Path):
    with pytest.raises(ValueError, match="refused"), held(tmp_path / "new" / "run"):
        raise ValueError("refused")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    with held(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").exists()
    with held(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "policy").touch()
    assert (tmp_path / "a" / "b" / "policy").exists()


def test_a_training_holds_its_folder_however_it_is_given(tmp_path: Path):
    @one_at_a_time
    def train(steps: int, folder: Path) -> int:
        with pytest.raises(FileError, match="another training writes there"), held(folder):
            pass
        return steps

    assert train(3, tmp_path / "x") == train(folder=tmp_path / "x", steps=3) == 3
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="file: cannot be made a directory"):
        train(1, tmp_path / "file")


@pytest.mark.parametrize("training", ["agents", "asynchronous", "sweep", "policies", "plans"])
def test_every_training_holds_its_folder_before_all_else(training: str, tmp_path: Path):
    pytest.importorskip("jaxmarl")
    with held(tmp_path), pytest.raises(FileError, match="another training writes there"):
        _start(training, tmp_path)


def _start(training: str, folder: Path) -> None:
    nothing: Any = None  # which would be a separate error later on
    if training == "agents":
        from gradweave.marl.config import PPO, Config
        from gradweave.marl.training import train

        train(Config("switch_riddle", "ippo", PPO(), 1), folder)
    elif training == "asynchronous":
        from gradweave.marl.asynchronous.training import train as train_by_server

        train_by_server(nothing, folder)
    elif training == "sweep":
        from gradweave.marl.training import train_sweep

        train_sweep(nothing, nothing, folder)
    elif training == "policies":
        from gradweave.learning.training import train as train_policies

        train_policies(nothing, folder, report=nothing)
    else:
        from gradweave.learning.plans import train_plan

        train_plan(nothing, nothing, folder, nothing)
