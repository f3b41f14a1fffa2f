"""The command line in this process, and a directory that shows what a run left behind."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gradweave.cli.main import cli, main


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a run of the command line came to."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object on one line and nothing else."""
        assert self.stdout.count("\n") == 1 and self.stdout.endswith("\n")
        return json.loads(self.stdout)


@pytest.fixture
def gradweave(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Runs ``gradweave``, or another command; however busy the machine, it says no progress."""
    monkeypatch.setattr("gradweave.cli.console.PATIENCE_S", 600.0)

    def run(*arguments: object, command: click.Command = cli) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments], command=command)
        out, err = capsys.readouterr()
        return Answer(exited.value.code, out, err)

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture
def refused(gradweave: Callable[..., Answer], here: Path) -> Callable[..., str]:
    """Runs ``gradweave`` with arguments that it must refuse, and returns the one line it says."""

    def run(*arguments: object, status: int = 2, command: click.Command = cli) -> str:
        before = contents(here)
        answer = gradweave(*arguments, command=command)
        assert answer.status == status, answer
        assert answer.stdout == ""
        assert answer.stderr.startswith("gradweave: ") and answer.stderr.endswith("\n")
        line = answer.stderr.removesuffix("\n")
        assert line.isprintable(), line  # which has no line break either
        assert len(line) < 400
        assert contents(here) == before, "a file was left, or changed"
        return line

    return run


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory, hidden ones too, and what is in it; None for a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }
