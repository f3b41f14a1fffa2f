"""``gradweave solve --job``: what it says, writes and refuses."""

import json
from pathlib import Path

import pytest

import gradweave as gw
import gradweave_check as checker

TWO = [
    *("solve", "leaf_spine:leaves=2,spines=1,servers_per_leaf=2", "--mesh", "dp=2,tp=2"),
    *("--job", "AllReduce:bytes=8MB,axis=tp", "--job", "all-to-all:bytes=4MB,axis=dp"),
]


def test_jobs_of_a_mesh_are_planned_together(gradweave, here):
    answer = gradweave(*TWO, "--output", "jobs.json")
    assert answer.status == 0, answer
    assert "2 × tp all_reduce + 2 × dp all_to_all: 24 MB in 6 blocks" in answer.stdout
    assert "verified; " in answer.stdout and "since " in answer.stdout
    assert "tp all_reduce ends after " in answer.stdout
    schedule = gw.load("jobs.json")
    assert gw.verify(schedule).valid and schedule.demand.jobs[-1] == "dp all_to_all"


def test_the_same_in_json(gradweave):
    answer = json.loads(gradweave(*TWO, "--json").stdout)
    assert len(answer["jobs"]) == 4
    assert answer["seconds"] == max(job["seconds"] for job in answer["jobs"])
    bound = answer["seconds_bound"]["seconds"]
    assert answer["seconds_gap"] == pytest.approx(answer["seconds"] / bound - 1)
    assert (answer["objective"], answer["value"]) == ("makespan", answer["seconds"])


def test_an_objective_and_a_runtime_are_those_of_all_jobs(gradweave):
    late = ("--job", "all_to_all:bytes=1MB,ready=2ms,weight=3")
    first = ("solve", "star:3", "--job", "all_reduce:bytes=1MB", *late, "--runtime", "gloo")
    answer = gradweave(*first, "--objective", "weighted", "--time-limit", "1")
    assert answer.status == 0 and "weighted 0.0" in answer.stdout, answer
    assert "above the lower bound: at least 0.0" in answer.stdout
    refused = gradweave("solve", "star:3", "--objective", "fair")
    assert refused.status == 2 and "expected one of rounds, seconds, got 'fair'" in refused.stderr


def test_groups_roots_and_relays_are_given_by_id_or_range(gradweave):
    job = "broadcast:bytes=1MB,servers=0-1.3,root=3,relays=2,name=weights"
    answer = gradweave("solve", "ring:4", "--job", job)
    assert answer.status == 0, answer
    assert "weights: 1 MB in 1 block" in answer.stdout


def test_the_error_of_servers_that_are_not_joined_names_the_option_that_helps(gradweave):
    apart = ("solve", "dgx1v", "--job", "all_reduce:bytes=100MB,servers=0.7")
    refused = gradweave(*apart)
    assert refused.status == 2 and "from server 0 to server 7 passes servers" in refused.stderr
    assert "relays=all in --job" in refused.stderr
    limits = ("--time-limit", "1", "--scheduler", "joint", "--json")
    answer = gradweave(*apart[:-1], f"{apart[-1]},relays=all", *limits)
    # 100 MB must leave server 0 over its links of 960 Gbit/s together: 833 us and some latency.
    assert 833e-6 < json.loads(answer.stdout)["seconds"] < 2 * 833e-6


def test_groups_along_an_axis_may_have_relays(gradweave):
    job = "all_reduce:bytes=1MB,axis=dp"
    grid = ("solve", "mesh:2x3", "--mesh", "tp=2,dp=3", "--time-limit", "1")
    answer = gradweave(*grid, "--job", f"{job},relays=all")
    assert answer.status == 0, answer


REFUSED = {
    "--job all_reduce": "job 'all_reduce': expected bytes, as in all_reduce:bytes=1GB",
    "--job allreduced:bytes=1MB": "did you mean all_reduce?",
    "--job all_reduce:bytes=1MB,serves=0": "serves: expected one of bytes, servers, axis",
    "--job all_reduce:bytes=1MB,servers=0-9": "0-9: expected a range of node ids",
    "--job all_reduce:bytes=1MB,axis=tp": "axis: expected --mesh, such as dp=4,tp=8",
    "--job all_reduce:bytes=1MB,axis=tp --mesh dp=4": "expected axes dp, got 'tp'",
    "--job all_reduce:bytes=1MB,axis=dp --mesh dp=3": "expected 4 places, one for each server",
    "--job all_reduce:bytes=1MB,axis=dp,root=1 --mesh dp=4": "root: expected no axis with it",
    "--job all_reduce:bytes=1MB,ready=soon": "ready 'soon': expected a number with a unit",
    "--job all_reduce:bytes=1MB,weight=much": "weight: expected a number, got 'much'",
    "--job all_reduce:bytes=1MB,weight=0": "weight: expected finite numbers above zero, got 0",
    "--mesh dp=4": "--mesh: expected --job with it",
    "--job all_reduce:bytes=1MB --scheduler rings": "no scheduler 'rings'; did you mean ring?",
    "--job all_reduce:bytes=1MB --size 1MB": "--size: expected no --job",
    "--job reduce:bytes=1MB": "reduce: expected a root, got None",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(gradweave, options: str):
    answer = gradweave("solve", "ring:4", *options.split())
    assert answer.status == 2, answer
    assert answer.stderr.count("\n") == 1 and REFUSED[options] in answer.stderr, answer


COMPARED = (
    *("compare", "star:4", "--mesh", "dp=2,tp=2", "--scheduler", "hierarchical_ring,bruck,ring"),
    *("--job", "all_reduce:bytes=1kB,axis=tp", "--job", "all_to_all:bytes=1kB,axis=dp"),
    *("--time-limit", "0.1"),
)


def test_strategies_for_jobs_are_compared(gradweave):
    answer = gradweave(*COMPARED)
    assert answer.status == 0, answer
    assert "mean time for" in answer.stdout and "hierarchical_ring (2D ring)" in answer.stdout
    assert "none: star:4, bruck: no schedule for 2 × tp all_reduce" in answer.stdout
    rows = json.loads(gradweave(*COMPARED, "--json").stdout)["rows"]
    best = min(row["seconds_mean"] for row in rows if row["seconds_mean"])
    assert [row["scheduler"] for row in rows] == ["hierarchical_ring", "bruck", "ring"]
    assert {row["seconds_bound"] for row in rows} == {rows[0]["seconds_bound"]}
    assert rows[0]["seconds_bound"] <= best and rows[0]["stages"] == "demand"


def test_what_is_not_for_jobs_is_refused_where_they_are_compared(gradweave):
    for options, line in (
        (("--objective", "rounds"), "--objective: expected no --job with it"),
        (("--scheduler", "brook"), "for demands also direct"),
        (("--job", "broadcast:bytes=1kB"), "broadcast: expected a root"),
    ):
        answer = gradweave(*COMPARED, *options)
        assert answer.status == 2 and line in answer.stderr, answer
        assert answer.stderr.count("\n") == 1
    assert "--mesh: expected --job" in gradweave("compare", "star:4", "--mesh", "dp=4").stderr


def test_a_plan_is_written_whatever_becomes_of_its_certificate(gradweave, here, monkeypatch):
    command = ("solve", "star:3,latency=0s,overhead=0s", "--job", "reduce:bytes=1MB,root=0")
    answer = gradweave(*command, "--output", "good.json")
    assert (answer.status, answer.stderr) == (0, ""), answer
    assert [good for good, *_ in checker.check(json.loads(Path("good.json").read_bytes()))] == [
        1,
        1,
    ]

    def refuse(self: checker.Proof, step: dict) -> None:
        raise checker.Wrong("reach: there is time enough")

    kinds = {unit: dict.fromkeys(each, refuse) for unit, each in checker.KINDS.items()}
    monkeypatch.setattr(checker, "KINDS", kinds)
    answer = gradweave(*command, "--output", "kept.json")
    assert answer.status == 0 and "written to kept.json" in answer.stdout
    (line,) = answer.stderr.splitlines()
    assert "warning: the bound has no certificate: " in line and "there is time enough" in line
    assert gw.verify(gw.load("kept.json")).valid
    answer = gradweave("bound", *command[1:])
    assert answer.status == 0 and answer.stdout.startswith(
        "at least 80 us for schedules that add at servers alone, not certified: "
    )
    assert gradweave("verify", "kept.json").status == 0
