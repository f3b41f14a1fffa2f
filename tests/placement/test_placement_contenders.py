"""Who trains for whom, what is predicted once, and what is refused before processes are there."""

import contextlib
import dataclasses
import importlib.util
from typing import Any

import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.placement.placement import ScheduledCost
from gradweave.placement.placing import place
from gradweave.placement.timeline.step import step_time
from gradweave.placement.workload import Transformer, even_stages

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")

WORK = even_stages(2, activation_bytes=1e6, gradient_bytes=1e7)
NET = gw.topology.cities(["Oregon", "Tokyo"], each=2)


class Noted:
    """In place of `Trainers`: notes what it is asked for."""

    def __init__(self) -> None:
        self.predicted: list[Any] = []
        self.trained: list[tuple[str, str, Any]] = []

    def predict(self, placement, settings, *, groups, progress):
        self.predicted.append(groups)
        return f"prediction {len(self.predicted)}"

    def train(self, name, placement, settings, *, averages, model, predicted, progress):
        self.trained.append((name, averages, predicted))


def test_placements_of_the_same_servers_are_predicted_once(monkeypatch):
    from gradweave.placement.training import contenders as trained
    from gradweave.placement.training.running import Settings

    def placed(topology, workload, *, strategy, **_):
        """With schedules that were found while it was placed."""
        made = place(topology, workload, data=2, strategy=strategy, bound=False)
        return dataclasses.replace(made, scheduled=ScheduledCost(0.0, 0.0, (None, None)))

    monkeypatch.setattr(trained, "place", placed)
    noted: Any = Noted()
    first, second = "rank_order:first=data", "rank_order"
    these = trained.contenders(first, ["gloo", second, second])
    trained.Contest(NET, WORK, Settings()).trainings(these, contextlib.nullcontext(noted))
    assert noted.trained == [
        (first, "schedule", "prediction 1"),
        (f"{first}, gloo", "gloo", None),
        (second, "schedule", "prediction 2"),
        (second, "schedule", "prediction 2"),
    ]
    assert noted.predicted == [(None, None)] * 2


def test_what_cannot_be_trained_is_refused_before_processes_are_there():
    from gradweave.placement.training.contenders import Contest, contenders
    from gradweave.placement.training.running import Settings

    @contextlib.contextmanager
    def never():
        raise AssertionError("processes were started")
        yield

    contest = Contest(NET, WORK, Settings(), placing={"data": 2})
    with pytest.raises(OptionError, match="microbatches"):
        contest.trainings(contenders("rank_order", ["pytorch"]), never())
    odd = Transformer(layers=2, width=32, sequence=16, batch=8, microbatches=2, vocabulary=64)
    contest = Contest(NET, odd, Settings(), odd, placing={"data": 2})
    with pytest.raises(OptionError, match="vocabulary"):
        contest.trainings(contenders("rank_order", []), never())


def test_a_step_takes_schedules_that_are_known(monkeypatch):
    placed = place(NET, WORK, data=2, strategy="rank_order", bound=False)
    monkeypatch.setattr("gradweave.placement.timeline.step.group_schedules", None)
    step = step_time(placed, groups=[None, None])
    assert step.seconds == step.passes_s > 0
