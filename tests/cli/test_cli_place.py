"""``gradweave place``: what it prints and writes, and what it refuses."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import gradweave as gw
from gradweave.cli import placed_training
from gradweave.cli.commands import place
from gradweave.cli.placing import placement_lines
from gradweave.report.placement import placement_page

MODEL = "transformer:layers=4,width=64,sequence=64,batch=8,microbatches=2,vocabulary=100"
FAST = ["--scheduler", "annealing:restarts=1,moves=1000", "--time-limit", "1"]


def test_it_prints_and_writes_the_placement_which_verify_counts_again(gradweave, refused, here):
    arguments = ["place", "cities:Oregon.Tokyo,each=2", "--model", MODEL, "--pipeline", 2, *FAST]
    answer = gradweave(*arguments, "--output", "p.html")
    assert answer.status == 0, answer
    assert "pipeline 1: " in answer.stdout and "a step by 1f1b" in answer.stdout
    assert {"p.html", "p.json", "p-stage-0.html"} <= {path.name for path in here.iterdir()}
    said = gradweave(*arguments, "--no-step", "--json").json
    assert said["servers"] == json.loads((here / "p.json").read_text())["servers"]
    assert said["bound_s"] <= said["cost_s"] and said["step"] is None
    assert said["stopped"] in ("time", "tried")
    again = gradweave("verify", "p.json")
    assert again.stdout.startswith("valid: 2 stages × 2 pipelines on ") and not again.status
    assert gradweave("verify", "p.json", "--json").json["bound_s"] == said["bound_s"]
    forged = json.loads((here / "p.json").read_text()) | {"data_s": 1.0}
    (here / "p.json").write_text(json.dumps(forged))
    assert "states a cost" in refused("verify", "p.json", status=1)


def test_of_a_steps_all_reduces_the_slowest_is_told():
    stages = [SimpleNamespace(gradient_bytes=size) for size in (1e6, 2e6)]
    placement: Any = SimpleNamespace(workload=SimpleNamespace(stages=stages))
    groups = [SimpleNamespace(seconds=s, bound_s=s - 1) for s in (2.0, 4.0, 3.0)]
    step: Any = SimpleNamespace(
        order="1f1b",
        seconds=9.0,
        passes_s=7.0,
        bubble=0.25,
        utilisation=0.5,
        groups=[None, *groups],
    )
    first, second = place._step_lines(placement, step)
    assert (
        first
        == "a step by 1f1b: 9 s, passes 7 s of it; bubble 25%, devices compute 50% of the time"
    )
    assert second.endswith(", up to 2 MB: 4 s at most, at least 3 s")


def test_servers_that_share_a_name_are_told_apart():
    net = dataclasses.replace(gw.topology.ring(4), labels=("gpu", "gpu", "host", ""))
    model = gw.placement.Transformer(layers=2, width=8)
    placed = gw.placement.place(net, model, pipeline=2, strategy="rank_order", bound=False)
    names = {"gpu (node 0)", "gpu (node 1)", "host", "3"}
    _, *lines = placement_lines(placed)
    assert {name for line in lines for name in line.split(": ")[1].split(" → ")} == names
    page = placement_page(placed)
    assert all(f"<td>server {name}</td>" in page for name in names)


def test_a_search_that_was_cut_short_says_so():
    work = gw.placement.even_stages(2, activation_bytes=1, gradient_bytes=1)
    endless, limit = "annealing:moves=10000000000", 0.05
    placed = gw.placement.place("ring:4", work, strategy=endless, bound=False, time_limit=limit)
    assert [*place._lines(placed, None, [])][-1].endswith(" s, when time was up")
    whole = gw.placement.place("ring:4", work, strategy="rank_order", bound=False)
    assert [*place._lines(whole, None, [])][-1].endswith(" s")


REFUSED = {
    "unknown city": (["cities:Paris.Tokyo", "--model", MODEL], "unknown city 'Paris'"),
    "too few servers": (
        ["ring:3", "--model", MODEL, "--pipeline", 4], "at most 3 stages, one for each device"),
    "uneven groups": (
        ["ring:6", "--model", MODEL, "--pipeline", 4], "6 devices cannot be balanced over 4"),
    "no memory": (
        ["ring:4", "--model", MODEL, "--pipeline", 4, "--memory", "1kB"], "stage 0"),
    "NaN delay": (["nan.edges", "--model", MODEL, "--pipeline", 2], "nan"),
    "unknown model": (["ring:4", "--model", "resnet:5"], "expected transformer:layers=24"),
    "unknown option": (["ring:4", "--model", "transformer:layer=4"], "did you mean layers?"),
    "no stages": (["ring:4", "--model", MODEL], "pipeline: expected the number of stages"),
    "a model's file": (["ring:4", "--model", "none.json"], "none.json: cannot be read"),
    "an output": (["ring:4", "--model", MODEL, "--output", "a.txt"], "ending in .html"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_it_refuses(refused, here, arguments, reason):
    (here / "nan.edges").write_text("a b 1Gbit/s nan\n")
    assert reason in refused("place", *arguments)


def test_servers_are_the_launchers_only_where_there_is_one(monkeypatch):
    monkeypatch.setattr(placed_training, "launcher", lambda: None)
    network = gw.topology.ring(3)
    with placed_training._launched(network) as (there, servers):
        assert there is network and servers is None


@pytest.mark.parametrize("output", [None, Path("trained.json")])
def test_a_pipelines_training_is_written_where_it_is_asked(monkeypatch, output):
    monkeypatch.setattr(placed_training, "_as_object", lambda *_: {"step_s": 1.0})
    monkeypatch.setattr(placed_training, "_write", lambda *given: [str(given[-1])])
    answer = placed_training._answer([cast(Any, None)], None, output)
    written = ["trained.json"] if output else []
    assert answer.as_object() == {"step_s": 1.0, "output": written}
