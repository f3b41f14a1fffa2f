"""``gradweave solve --start-from``: planned as the one before was; what is kept is said."""

import dataclasses
import json
import re

import pytest

import gradweave as gw
from gradweave.topology.units import parse_seconds

FAST = ("--scheduler", "packed:pieces=32")
BEFORE = ("torus:3x3", "--slow", "0-1=0.5")
AFTER = (*BEFORE, "--without-link", "3-4", "--start-from", "before.json")


@pytest.fixture
def planned(gradweave, here):
    """A schedule for 20 MB; its file says so."""
    options = ("--objective", "seconds", "--size", "20MB")
    assert gradweave("solve", *BEFORE, *FAST, *options, "--output", "before.json").status == 0
    return gw.load(here / "before.json")


def test_size_and_objective_are_those_of_the_file(gradweave, planned):
    answer = gradweave("solve", *AFTER, *FAST)
    lines = answer.stdout.splitlines()
    assert "for the shortest time, for 20 MB: as before.json was planned" in lines
    held = gradweave("solve", *AFTER, *FAST, "--json").json
    assert held["gradient_bytes"] == 20e6 and held["seconds"] < 2e-3
    given = ("--size", "40MB")
    assert gradweave("solve", *AFTER, *FAST, *given, "--json").json["gradient_bytes"] == 40e6


def test_what_is_kept_and_its_cost_are_said(gradweave, planned):
    held = gradweave("solve", *AFTER, *FAST, "--json").json
    kept, of, share = (
        held[name] for name in ("kept_transfers", "start_transfers", "kept_bytes_share")
    )
    assert of == planned.num_transfers and 0 < kept < of and 0 < share < 1
    repair = held["repair"]
    assert repair["as_before_s"] is None
    assert not repair["chosen"] or repair["repaired_s"] == pytest.approx(held["seconds"])
    lines = gradweave("solve", *AFTER, *FAST).stdout.splitlines()
    assert (
        f"kept {kept:,} of the {of:,} transfers in before.json, {share:.0%} of its bytes" in lines
    )
    assert any(line.startswith("a link that it uses is lost; repaired ") for line in lines)
    slower = ("torus:3x3", "--slow", "0-1=0.25", "--start-from", "before.json")
    (line,) = (
        line
        for line in gradweave("solve", *slower, *FAST).stdout.splitlines()
        if line.startswith("as it was it would take ")
    )
    assert "; repaired " in line


def test_few_rounds_are_planned_where_they_are_asked_for(gradweave, planned):
    held = gradweave("solve", *AFTER, "--objective", "rounds", "--scheduler", "merged", "--json")
    assert "repair" not in held.json and held.json["gradient_bytes"] == 100e6


def test_a_runtime_by_name_is_taken_and_one_of_a_file_asked_for(gradweave, planned, here):
    for runtime in ("gloo", "mine"):
        options = dict(planned.scheduler.options) | {"runtime": runtime}
        stated = dataclasses.replace(planned.scheduler, options=options)
        planned.replace(scheduler=stated).save(here / "before.json")
        answer = gradweave("solve", *AFTER, *FAST)
        if runtime == "gloo":
            assert "for 20 MB, on gloo: as before.json was planned" in answer.stdout
        else:
            assert answer.status == 2 and "planned for the runtime 'mine', whose" in answer.stderr
            assert gradweave("solve", *AFTER, *FAST, "--runtime", "ideal").status == 0


@pytest.mark.parametrize("size", [-1, "much", True, None])
def test_a_file_may_state_anything(gradweave, planned, here, size):
    text = json.loads((here / "before.json").read_text())
    text["scheduler"]["options"] |= {"gradient_bytes": size, "objective": ["seconds"], "runtime": 3}
    (here / "before.json").write_text(json.dumps(text))
    answer = gradweave("solve", *AFTER, *FAST)
    assert answer.status == 0 and "was planned" not in answer.stdout


@pytest.mark.parametrize("runtime", ["ideal", "gloo"])
def test_no_line_about_a_plan_for_a_late_server_is_below_its_time(gradweave, here, runtime):
    network = ("solve", "star:3,bandwidth=10Gbit/s", "--runtime", runtime)
    late = ("--objective", "seconds", "--size", "10MB", "--ready-at", "0=5s")
    # So many pieces that their messages cost more on gloo than its own ring takes.
    made = gradweave(*network, *late, "--scheduler", "packed:pieces=200", "--output", "late.json")
    # 5 s, and 10 MB at 10 Gbit/s: 5.008 s. On gloo the answer is gloo's ring, which is late too.
    said = {"ideal": "on gloo it would take 5.0", "gloo": "on gloo: its own ring takes 5.0"}
    assert said[runtime] in made.stdout, made
    read = [gradweave(verb, "late.json") for verb in ("verify", "bound")]
    again = gradweave(*network, "--start-from", "late.json", "--scheduler", "packed")
    assert "for 10 MB, with 1 late server: as late.json was planned" in again.stdout
    assert "5.008 s" in read[0].stdout
    for answer in (made, *read, again):
        assert answer.status == 0, answer
        lines = [line for line in answer.stdout.splitlines() if "found by" not in line]
        times = [
            parse_seconds("time", time)
            for line in lines
            if "busiest" not in line  # says for how long a link is idle
            for time in re.findall(r"\d[\d.]* (?:us|ms|s)\b", line)
        ]
        assert all(time == 5.0 or time >= 5.008 for time in times), lines
    moments = gradweave("show", "late.json", "--output", "late.html")
    assert moments.status == 0
    assert re.search(r"5\.00[89]\d* s", (here / "late.html").read_text())
