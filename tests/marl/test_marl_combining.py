"""Which schedule a training's devices average by: the one that its aggregation names, and stays."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxmarl")

from pathlib import Path
from typing import Any

import gradweave as gw
from gradweave.errors import FileError, OptionError, ScheduleError
from gradweave.marl.config import PPO, Config
from gradweave.marl.folder import SCHEDULE, Combining, combining
from gradweave.processes.agreement import Processes


def found(aggregation: str, folder: Path, stated: dict[str, Any] | None = None) -> Combining:
    settings = PPO(environments=4, rollout=6, minibatches=1)
    config = Config("switch_riddle", "ippo", settings, 24, aggregation=aggregation, devices=4)
    return combining(config, folder, stated, Processes())


def name(by: Combining) -> str:
    assert by.schedule is not None
    return by.schedule.topology.name


def test_an_aggregation_without_a_schedule_keeps_none(tmp_path):
    by = found("ring", tmp_path)
    by.keep(tmp_path)
    assert (by.schedule, by.digest, list(tmp_path.iterdir())) == (None, None, [])


def test_a_start_that_failed_leaves_nothing_that_a_later_one_takes(tmp_path):
    folder = tmp_path / "out"
    for _ in range(2):
        with pytest.raises(ScheduleError, match="ring:n=8 has 8 servers, but there are 4"):
            found("scheduled:ring:8", folder)
        assert not folder.exists()
    assert name(found("scheduled:ring:4", folder)) == "ring:n=4"


def test_a_schedule_of_another_network_is_not_taken(tmp_path):
    """Without a checkpoint none that lies there is; beside one that says none, by its network."""
    gw.solve(gw.topology.ring(4)).schedule.save(tmp_path / SCHEDULE)
    for stated in (None, {"updates": 3}):
        assert name(found("scheduled:complete:4", tmp_path, stated)) == "complete:n=4"


def test_it_goes_on_by_the_schedule_that_it_began_by(tmp_path):
    begun = found("scheduled:ring:4", tmp_path)
    other = gw.schedulers.CentralParameterServer().schedule(gw.topology.ring(4))
    kept = Combining(begun.aggregate, other, kept=True)
    assert kept.digest != begun.digest
    kept.keep(tmp_path)
    again = found("scheduled:ring:4", tmp_path, {"schedule": kept.digest})
    assert again.digest == kept.digest, "though what is found now is another"

    assert found("scheduled:ring:4", tmp_path).digest == begun.digest, "a new start"
    assert found("scheduled:ring:4", tmp_path, {"schedule": begun.digest}).digest == begun.digest
    (tmp_path / SCHEDULE).unlink()
    assert found("scheduled:ring:4", tmp_path, {"schedule": begun.digest}).digest == begun.digest
    with pytest.raises(OptionError, match=r"schedule.json is not the schedule that the training"):
        found("scheduled:ring:4", tmp_path, {"schedule": kept.digest})


def test_a_file_that_holds_another_schedule_by_now_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    ring = gw.topology.ring(4)
    gw.solve(ring).schedule.save(path)
    begun = found(f"scheduled:{path}", tmp_path)
    assert not begun.kept
    assert found(f"scheduled:{path}", tmp_path, {"schedule": begun.digest}).digest == begun.digest
    gw.schedulers.CentralParameterServer().schedule(ring).save(path)
    with pytest.raises(OptionError, match=r"mine.json is not the schedule that the training in"):
        found(f"scheduled:{path}", tmp_path, {"schedule": begun.digest})
    path.write_text("{}")
    with pytest.raises(FileError, match=r"mine.json: not a schedule file"):
        found(f"scheduled:{path}", tmp_path)
