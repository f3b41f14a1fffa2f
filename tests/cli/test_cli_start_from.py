"""``gradweave schedule --start-from``: planned as the one before was; what is kept is said."""

import dataclasses
import json

import pytest

import gradweave as gw

FAST = ("--scheduler", "packed:pieces=32")
BEFORE = ("torus:3x3", "--slow", "0-1=0.5")
AFTER = (*BEFORE, "--without-link", "3-4", "--start-from", "before.json")


@pytest.fixture
def planned(gradweave, here):
    """A schedule for 20 MB; its file says so."""
    options = ("--objective", "seconds", "--gradient-bytes", "20MB")
    assert gradweave("schedule", *BEFORE, *FAST, *options, "--output", "before.json").status == 0
    return gw.schedule.load(here / "before.json")


def test_size_and_objective_are_those_of_the_file(gradweave, planned):
    answer = gradweave("schedule", *AFTER, *FAST)
    lines = answer.stdout.splitlines()
    assert "for the least time, for 20 MB: as before.json was planned" in lines
    held = gradweave("schedule", *AFTER, *FAST, "--json").json
    assert held["gradient_bytes"] == 20e6 and held["seconds"] < 2e-3
    given = ("--gradient-bytes", "40MB")
    assert gradweave("schedule", *AFTER, *FAST, *given, "--json").json["gradient_bytes"] == 40e6


def test_what_is_kept_and_its_cost_are_said(gradweave, planned):
    held = gradweave("schedule", *AFTER, *FAST, "--json").json
    kept, of, share = (
        held[name] for name in ("kept_transfers", "start_transfers", "kept_bytes_share")
    )
    assert of == planned.num_transfers and 0 < kept < of and 0 < share < 1
    repair = held["repair"]
    assert repair["as_before_s"] is None
    assert not repair["chosen"] or repair["repaired_s"] == pytest.approx(held["seconds"])
    lines = gradweave("schedule", *AFTER, *FAST).stdout.splitlines()
    assert (
        f"kept {kept:,} of the {of:,} transfers in before.json, {share:.0%} of its bytes" in lines
    )
    assert any(line.startswith("a link that it uses is lost; repaired ") for line in lines)
    slower = ("torus:3x3", "--slow", "0-1=0.25", "--start-from", "before.json")
    (line,) = (
        line
        for line in gradweave("schedule", *slower, *FAST).stdout.splitlines()
        if line.startswith("as it was it would take ")
    )
    assert "; repaired " in line


def test_few_rounds_are_planned_where_they_are_asked_for(gradweave, planned):
    held = gradweave("schedule", *AFTER, "--objective", "rounds", "--scheduler", "merged", "--json")
    assert "repair" not in held.json and held.json["gradient_bytes"] == 100e6


def test_a_runtime_by_name_is_taken_and_one_of_a_file_asked_for(gradweave, planned, here):
    for runtime in ("gloo", "mine"):
        options = dict(planned.scheduler.options) | {"runtime": runtime}
        stated = dataclasses.replace(planned.scheduler, options=options)
        planned.replace(scheduler=stated).save(here / "before.json")
        answer = gradweave("schedule", *AFTER, *FAST)
        if runtime == "gloo":
            assert "for 20 MB, on gloo: as before.json was planned" in answer.stdout
        else:
            assert answer.status == 2 and "planned for the runtime 'mine', whose" in answer.stderr
            assert gradweave("schedule", *AFTER, *FAST, "--runtime", "ideal").status == 0


@pytest.mark.parametrize("size", [-1, "much", True, None])
def test_a_file_may_state_anything(gradweave, planned, here, size):
    text = json.loads((here / "before.json").read_text())
    text["scheduler"]["options"] |= {"gradient_bytes": size, "objective": ["seconds"], "runtime": 3}
    (here / "before.json").write_text(json.dumps(text))
    answer = gradweave("schedule", *AFTER, *FAST)
    assert answer.status == 0 and "was planned" not in answer.stdout
