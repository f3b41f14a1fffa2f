"""A placement trained by processes of this machine, against one process alone."""

import dataclasses
import importlib.util
import time
from typing import Any

import pytest

import gradweave as gw
from gradweave.errors import LostServerError, OptionError
from gradweave.placement import Transformer, place
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")

MODEL = Transformer(
    layers=3, width=32, sequence=16, batch=8, microbatches=2, vocabulary=128, value_bytes=4
)
STEPS = 3


def test_losses_equal_those_of_one_process():
    """Two stages of two pipelines, not in order of rank: ours, and all by PyTorch's own."""
    from gradweave.placement.training.running import Settings, on_this_machine
    from gradweave.placement.training.trainer import whole_losses

    net = gw.topology.cities(["Oregon", "Tokyo"], each=2)
    placed = place(net, MODEL, pipeline=2, strategy="rank_order", bound=False)
    turned = dataclasses.replace(placed, servers=placed.servers[:, ::-1][::-1])
    alone = whole_losses(MODEL, STEPS)
    assert alone[-1] < alone[0]
    with on_this_machine(net) as trainers:
        for averages in ("schedule", "pytorch"):
            run = trainers.train(
                averages, turned, Settings("gpipe", STEPS), averages=averages, model=MODEL
            )
            assert run.losses == pytest.approx(alone, rel=1e-5), averages
            assert len(run.steps) == STEPS and run.predicted is None


def test_a_model_that_is_not_trained_as_estimated_is_refused():
    from gradweave.placement.training.plan import Plan

    for wrong, name in ((dict(vocabulary=64), "vocabulary"), (dict(value_bytes=2), "value_bytes")):
        model = dataclasses.replace(MODEL, **wrong)
        with pytest.raises(OptionError, match=name):
            Plan(((0,),), model.workload(1, 1), model)
    with pytest.raises(OptionError, match="interleaved"):
        Plan(((0,),), MODEL.workload(1, 1), MODEL, order="interleaved")


def test_parameters_are_those_that_are_estimated():
    from gradweave.placement.training.gpt import stage_of

    for stage, one in enumerate(MODEL.workload(2, 1).stages):
        parameters = sum(p.numel() for p in stage_of(MODEL, 2, stage, 0).parameters())
        assert 4 * parameters == one.gradient_bytes


def test_no_token_sees_what_follows_it():
    import torch

    from gradweave.placement.training.gpt import _normed, stage_of

    tokens = torch.randint(MODEL.vocabulary, (1, 6), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 4:] = (changed[0, 4:] + 1) % MODEL.vocabulary
    model = stage_of(MODEL, 1, 0, 0)
    before, after = model(tokens)[0], model(changed)[0]
    torch.testing.assert_close(after[:4], before[:4])
    assert ((after - before)[4:].abs().amax(1) > 0.01).all()
    # Each token by itself: 3 and 4 have a mean square of 12.5.
    both = _normed(torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
    torch.testing.assert_close(both, torch.tensor([[3.0, 4.0]] * 2) / 12.5**0.5)


def test_a_process_lost_while_schedules_are_sought_is_named_before_the_next_task():
    from gradweave.placement.training.running import Settings, Trainers

    class Untouched:
        def ask(self, task):
            raise AssertionError("a task was given")

    def lost():
        raise LostServerError(1, 1, "its process was ended by SIGKILL")

    net = gw.topology.from_spec("ring:4")
    placement = place(net, MODEL, pipeline=2, strategy="rank_order", bound=False)
    told: list[str] = []
    trainers = Trainers(net, Untouched(), None, check=lost)
    with pytest.raises(LostServerError, match="lost server 1"):
        trainers.train("x", placement, Settings(), model=MODEL, progress=told.append)
    assert told == []


def test_the_search_for_schedules_ends_when_a_process_is_lost(monkeypatch):
    from gradweave.placement.training import running

    looks = iter([None])

    def check():
        if next(looks, check) is check:
            raise LostServerError(1, 1, "its process was ended by SIGKILL")

    def search(*_, **options):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            time.sleep(0.01)

    monkeypatch.setattr(running, "step_time", search)
    net = gw.topology.from_spec("ring:4")
    placement = place(net, MODEL, pipeline=2, strategy="rank_order", bound=False)
    processes: Any = None
    trainers = running.Trainers(net, processes, None, check=check)
    with pytest.raises(LostServerError, match="lost server 1"):
        trainers.train("x", placement, running.Settings(), model=MODEL)
