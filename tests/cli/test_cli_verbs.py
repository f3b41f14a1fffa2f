"""What the verbs answer: JSON objects, text, exit statuses."""

import csv
import json
import struct
import sys
import time
from pathlib import Path

import pytest

import gradweave as gw
import gradweave_check
from gradweave.cli.console import Progress, Table, print_table, printable
from gradweave.report.comparison import LEARNED, TABLE_2
from gradweave.report.paper import NOT_REPRODUCED, PAPER
from gradweave.schedules.schedule import COLLECTIVES, Provenance
from gradweave.schedules.schedule import Schedule as ScheduleOf
from gradweave.topology.units import format_seconds

BARRIER = (
    "schedules that root a piece at each server, sum each piece at one server and finish every sum "
    "before the first copy"
)
PIECE = "root a piece at each server"
NUMBER = (int, float)


def spoil(path, **changes) -> None:
    """Rewrites a schedule file with some of its first transfer's columns changed."""
    held = json.loads(path.read_text())
    for column, value in changes.items():
        held["transfers"][column][0] = value
    path.write_text(json.dumps(held))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_schedule_answers_in_json(gradweave, here, collective):
    options = ["--collective", collective, "--output", "s.json.gz", "--json"]
    answer = gradweave("solve", "bcube:n=3,k=1", "--scheduler", "ring,merged", *options)
    held = answer.json
    assert answer.status == 0 and answer.stderr == ""
    assert {key: type(value) for key, value in held.items()} == {
        "topology": str,
        "scheduler": str,
        "collective": str,
        "servers": int,
        "links": int,
        "rounds": int,
        "stages": dict,
        "steps": int,
        "bound": dict,
        "optimal": bool,
        "optimal_in": list,
        "verified": bool,
        "wall_s": float,
        "stopped": str,
        "output": str,
        "busiest_links": list,
    }
    both = {"all_reduce": (6, 6), "reduce_scatter": (6, 0), "all_gather": (0, 6)}[collective]
    assert held["stages"] == dict(zip(("reduce_scatter", "all_gather"), both, strict=True))
    assert held["rounds"] == sum(both)
    assert held["bound"] == {
        "rounds": 4 * held["rounds"] // 6,
        "kind": "cut",
        "source": "computed",
        "certified": True,
        "holds_for": BARRIER if collective == "all_reduce" else "schedules that " + PIECE,
    }
    assert (held["servers"], held["links"], held["optimal"]) == (9, 18, False)
    assert (held["scheduler"], held["verified"]) == ("merged", True)
    assert (held["topology"], held["output"]) == ("bcube:n=3,k=1", "s.json.gz")
    written = gw.load("s.json.gz")
    assert (written.rounds, written.bound.rounds) == (held["rounds"], held["bound"]["rounds"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["solve", "ring:4", "--scheduler", "ring"],
        ["solve", "ring:4", "--scheduler", "ring", "--json"],
        *(["compare", "ring:4", "--scheduler", "ring", "--seeds", "1"], ["verify", "s.json"]),
        *(["show", "s.json"], ["show", "s.json", "--json"], ["--help"], ["train", "--help"]),
        ["export", "s.json", "--format", "mscclpp-json", "--output", "plan.json"],
    ],
    ids=" ".join,
)
def test_a_full_disk_behind_standard_output(arguments, gradweave, here, monkeypatch):
    gw.schedulers.Ring().schedule(gw.topology.ring(4)).save("s.json")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        answer = gradweave(*arguments)
    (line,) = [line for line in answer.stderr.splitlines() if " s  " not in line]
    assert answer.status == 2
    assert line.startswith("gradweave: ") and line.endswith("No space left on device")


def test_compare_without_matplotlib_writes_all_but_the_chart(gradweave, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (here / "out").mkdir()
    (here / "out/comparison.png").write_bytes(b"an earlier chart")
    arguments = ["ring:4", "--scheduler", "ring", "--seeds", "1", "--output", "out"]
    answer = gradweave("compare", *arguments)
    assert answer.status == 0
    assert "written to out: comparison.csv, comparison.json\n" in answer.stdout
    assert {path.name for path in (here / "out").iterdir()} == {
        "comparison.csv",
        "comparison.json",
    }
    (line,) = [line for line in answer.stderr.splitlines() if " s  " not in line]
    assert line == (
        "gradweave: warning: no comparison.png: a chart needs matplotlib: pip install "
        "'gradweave[plot]'"
    )


def test_without_an_output_nothing_is_written(gradweave, here):
    assert gradweave("solve", "ring:4", "--json").json["output"] is None
    assert list(here.iterdir()) == []


def test_schedule_says_what_it_found(gradweave):
    answer = gradweave(
        "solve", "ring:4,bandwidth=1GB/s,latency=0s", "--scheduler", "parameter_server,ring"
    )
    assert answer.status == 0
    lines = answer.stdout.splitlines()
    assert lines[0].endswith(": 4 servers, 0 switches, 4 links")
    assert lines[1].startswith(("6 rounds (3 reduce_scatter, 3 all_gather)", "4 rounds (2"))
    assert lines[1].endswith("transfers, verified")
    assert "at least 4 rounds (cut)" in lines[2]
    assert lines[3].startswith("100 MB: ") and "ms with a barrier per round" in lines[3]
    assert lines[4].startswith("busiest link ")
    assert lines[5].startswith("found by ")


def test_the_seconds_on_shared_links_are_told_where_asked_for(gradweave):
    network = "ring:4,bandwidth=1GB/s,latency=0s,overhead=0s"
    command = ("solve", network, "--scheduler", "ring", "--size", "4e9")
    assert "shared" not in gradweave(*command).stdout
    said = gradweave(*command, "--fair").stdout
    assert "6 s without, 6 s with links shared fairly" in said
    held = gradweave(*command, "--fair", "--json").json
    assert held["fair_seconds"] == pytest.approx(6.0) and held["gradient_bytes"] == 4e9


def test_optimal_says_in_what(gradweave, here):
    (here / "unequal.json").write_text(json.dumps(unequal_ring()))
    rounds = ("--scheduler", "merged", "--objective", "rounds")
    answer = gradweave("solve", "unequal.json", *rounds)
    lines = answer.stdout.splitlines()
    assert lines[2].startswith("optimal in rounds only among such schedules: at least 2 rounds")
    assert "% above the lower bound in seconds: at least " in lines[3]
    held = gradweave("solve", "unequal.json", *rounds, "--json").json
    assert (held["optimal"], held["optimal_in"]) == (True, ["rounds"])
    assert held["seconds_gap"] == pytest.approx(
        held["seconds"] / held["seconds_bound"]["seconds"] - 1
    )
    assert held["seconds_gap"] > 0.2 and "attempts" not in held
    equal = gradweave("solve", "ring:3", "--scheduler", "ring", "--json").json
    assert "seconds" not in equal


def unequal_ring() -> dict:
    """Three servers, on links of 73, 73 and 16 GiB/s with one transfer per round each."""
    source, target = [0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]
    rate = [73.0 if 1 in ends else 16.0 for ends in zip(source, target, strict=True)]
    return {
        "name": "unequal",
        "servers": [0, 1, 2],
        "switches": [],
        "links": {
            "source": source,
            "target": target,
            "bandwidth_bytes_per_s": [each * 2**30 for each in rate],
            "latency_s": [0.0] * 6,
            "capacity": [1] * 6,
        },
    }


def test_the_gradient_decides_the_seconds(gradweave):
    network = "ring:4,bandwidth=1GB/s,latency=0s"
    answer = gradweave("solve", network, "--scheduler", "ring", "--size", "4e9")
    assert "4 GB: 6 s with a barrier per round, 6 s without" in answer.stdout


def test_sizes_may_have_units(gradweave):
    network = "ring:4,bandwidth=1GB/s,latency=0s"
    for size in ("4e9", "4GB", "4000MB"):
        answer = gradweave("solve", network, "--scheduler", "ring", "--size", size)
        assert answer.stderr == "" and "4 GB: 6 s with" in answer.stdout
    answer = gradweave("solve", network, "--scheduler", "ring", "--size", "1GiB")
    assert "1 GiB: 1.611 s" in answer.stdout


def test_a_fault_is_replanned_from_the_schedule_before(gradweave, here):
    (here / "net.csv").write_text(
        "# switches: leaf-0 leaf-1\nsource,target,bandwidth\n"
        + "".join(f"gpu{i},leaf-{j},100Gbit/s\n" for i in range(4) for j in range(2))
    )
    quick = ("--scheduler", "merged", "--json")
    before = gradweave("solve", "net.csv", "--output", "before.json", *quick)
    assert before.status == 0, before
    lost = ("--without-link", "gpu0-leaf-1", "--slow", "leaf-0-gpu1=0.5")
    after = gradweave(
        "solve",
        "net.csv",
        *lost,
        "--start-from",
        "before.json",
        "--output",
        "after.json",
        *quick,
    )
    assert after.status == 0, after
    assert after.json["topology"] == "net.csv with 1 slow link without 1 link"
    assert gw.load(here / "after.json").topology.num_links == 7
    fewer = gradweave("solve", "net.csv", "--without-server", "gpu2", "--start-from",
                      "before.json", "--output", "fewer.json", *quick)  # fmt: skip
    assert fewer.json["servers"] == 3
    assert "gpu2" not in gw.load(here / "fewer.json").topology.labels


def test_a_schedule_under_way_is_replanned(gradweave, here):
    slower = ("ring:4", "--slow", "0-1=0.5")
    seconds = ("--objective", "seconds", "--size", "1GB", "--json")
    scheduler = ("--scheduler", "packed:pieces=64", "--output", "running.json")
    assert gradweave("solve", "ring:4", *scheduler, *seconds).status == 0
    running = ("--start-from", "running.json", "--changed-at")
    rest = gradweave("solve", *slower, *running, "30ms", *seconds, "--output", "rest.json")
    assert rest.status == 0, rest
    assert rest.json["seconds"] < rest.json["as_before_s"]
    assert gradweave("verify", "rest.json").status == 0
    alone = gradweave("solve", *slower, "--changed-at", "30ms", *seconds)
    assert alone.status == 2 and "expected --start-from with it" in alone.stderr


def test_what_was_understood_is_one_line(gradweave, here):
    answer = gradweave("solve", "ring:4,bandwidth=100", "--scheduler", "ring", "--json")
    assert answer.status == 0 and answer.json["servers"] == 4
    (line,) = [one for one in answer.stderr.splitlines() if "gradweave" in one]
    assert line == (
        "gradweave: warning: ring: bandwidth 100 has no unit: understood as 100 bytes/s; "
        "write 100Gbit/s, or 100B/s for those"
    )
    (here / "net.edges").write_text("a b 97Gbit/s\nb c 100.3Gbit/s\na c 33.333Gbit/s\n")
    answer = gradweave("solve", "net.edges", "--scheduler", "ring", "--json")
    warned = [line for line in answer.stderr.splitlines() if "gradweave" in line]
    assert len(warned) == 1 and warned[0].startswith("gradweave: warning: net.edges: bandwidths 33")


def test_the_seed_decides_the_schedule(gradweave, here):
    for seed in (1, 1, 2):
        name = f"{seed}-{len(list(here.iterdir()))}.json"
        gradweave(
            "solve", "dcell:n=3,k=1", "--scheduler", "parameter_server", "--seed", seed,
            "--output", name,
        )  # fmt: skip
    first, second, third = (path.read_bytes() for path in sorted(here.iterdir()))
    assert first == second != third


def test_no_schedule_is_a_negative_answer(refused):
    line = refused("solve", "mesh:3", "--scheduler", "ring:order=hamiltonian", status=1)
    assert "no schedule for 'mesh:3'" in line


@pytest.mark.parametrize("verb", ["solve", "compare", "verify", "show"])
def test_help(gradweave, verb):
    answer = gradweave(verb, "--help")
    assert answer.status == 0 and answer.stderr == ""
    assert answer.stdout.startswith(f"Usage: gradweave {verb} ") and "--json" in answer.stdout


def test_version(gradweave):
    answer = gradweave("--version")
    assert (answer.status, answer.stdout) == (0, f"gradweave, version {gw.__version__}\n")


def test_bound_says_why_and_writes_what_the_checker_accepts(gradweave, here):
    answer = gradweave("bound", "ring:4", "--size", "1MB", "--output", "b.json")
    assert answer.status == 0
    assert answer.stdout.splitlines() == [
        "at least 2 rounds for every schedule: each server that has a contribution passes it to at "
        "most 2 others per round",
        "at least 3 rounds for schedules that root a piece at each server: 24 transfers in all "
        "must leave the servers at 8 per round",
        "at least 4 rounds for schedules that root a piece at each server, sum each piece at one "
        "server and finish every sum before the first copy: 3 pieces must leave server 0 at 2 per "
        "round, and come back in the all-gather",
        "at least 62 us for every schedule: the gradient (1 MB) must leave the servers 6 times in "
        "all at 800 Gbit/s",
        "written to b.json",
    ]
    found = gradweave_check.check(json.loads((here / "b.json").read_text()))
    assert [text for _, _, text in found] == [
        "proved for every schedule: at least 2 rounds",
        "proved for schedules that root a piece at each server: at least 3 rounds",
        "proved for schedules that root a piece at each server, sum each piece at one server and "
        "finish every sum before the first copy: at least 4 rounds",
        "proved for every schedule: at least 6.2e-05 seconds",
    ]


def test_verify_answers_in_json(gradweave, here):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", "s.json")
    answer = gradweave("verify", "s.json", "--json")
    assert answer.status == 0
    assert answer.json == {
        "file": "s.json",
        "valid": True,
        "topology": "ring:n=4",
        "collective": "all_reduce",
        "rounds": 6,
        "transfers": 24,
        "forwarded": 0,
        "violation": None,
        "bound": {
            "rounds": 4,
            "kind": "cut",
            "source": "computed",
            "certified": True,
            "holds_for": BARRIER,
        },
        "optimal": False,
        "stated_bound": {"rounds": 4, "kind": "cut"},
        "certificates": [
            {
                "unit": "rounds",
                "least": "4",
                "taken": 6.0,
                "holds": True,
                "optimal": False,
                "holds_for": BARRIER,
                "reason": "3 pieces must leave server 0 at 2 per round, and come back in the "
                "all-gather: 4 rounds",
                "source": "file",
            }
        ],
    }
    answer = gradweave("verify", "s.json")
    assert answer.status == 0
    assert answer.stdout.splitlines() == [
        "valid: all_reduce on ring:n=4, 6 rounds, 24 transfers",
        f"50% above the bound in rounds: at least 4 rounds (cut) for {BARRIER}, since 3 pieces "
        "must leave server 0 at 2 per round, and the reverse in the other stage",
    ]


def test_an_invalid_schedule_exits_with_1_and_names_the_violation(gradweave, here):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", "s.json")
    spoil(here / "s.json", round=1)
    message = "round 1: link 0→1 carries 2 transfers; expected at most 1"
    answer = gradweave("verify", "s.json")
    assert (answer.status, answer.stdout) == (1, f"invalid: {message}\n")
    answer = gradweave("verify", "s.json", "--json")
    assert answer.status == 1 and answer.json["valid"] is False
    violation = answer.json["violation"]
    assert (violation["kind"], violation["message"], violation["link"]) == (
        "capacity",
        message,
        [0, 1],
    )
    assert set(violation) == {
        "kind", "message", "round", "expected", "found", "transfer", "link", "server", "piece",
        "link_names", "server_name", "server_rank",
    }  # fmt: skip


def test_show_draws_no_invalid_schedule(gradweave, refused, here):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", "s.json")
    spoil(here / "s.json", round=1)
    assert "round 1: link 0→1 carries 2 transfers" in refused("show", "s.json", status=1)
    assert not (here / "s.html").exists()


def test_strict_refuses_routes_through_servers(gradweave, here):
    gradweave("solve", "mesh:3", "--scheduler", "parameter_server", "--output", "s.json")
    answer = gradweave("verify", "s.json")
    assert answer.status == 0 and "of them through other servers" in answer.stdout
    answer = gradweave("verify", "s.json", "--strict")
    assert answer.status == 1
    assert answer.stdout.startswith("invalid: ") and "passes through server 1" in answer.stdout


def test_aggregating_switches_are_valid_with_the_flag(gradweave, here):
    scheduler = "merged:aggregating_switches=true"
    gradweave("solve", "fat_tree:4", "--scheduler", scheduler, "--output", "s.json")
    assert gradweave("verify", "s.json").status == 1
    assert gradweave("verify", "s.json", "--aggregating-switches").status == 0
    assert gradweave("show", "s.json").status == 0


def test_show_plays_two_schedules_of_one_network(gradweave, refused, here):
    answer = gradweave(
        "show", "ring:6", "--scheduler", "ring", "--scheduler", "portfolio", "--json"
    )
    assert (answer.json["schedulers"], answer.json["rounds"]) == (["ring", "portfolio"], [10, 6])
    assert answer.json["output"] == "ring-6-and-portfolio.html"
    page = (here / "ring-6-and-portfolio.html").read_text()
    assert "ring" in page and "portfolio" in page
    gw.schedulers.Ring().schedule(gw.topology.ring(4)).save(here / "s.json")
    two = ("--scheduler", "ring", "--scheduler", "merged")
    assert "--scheduler is for a NETWORK" in refused("show", "s.json", *two)
    pair = refused("show", "ring:4", "ring:5", *two)
    assert "--scheduler: expected one NETWORK and a page" in pair
    picture = ("show", "ring:4", *two, "--output", "a.svg")
    assert "--scheduler is for a schedule" in refused(*picture)
    assert "--scheduler: expected one NETWORK" in refused(*picture, "--round", 1)
    assert "expected one or two schedules, got 3" in refused("show", "ring:4", *two, *two[:2])


@pytest.mark.parametrize("name", ["s.json", "s.json.gz"])
def test_show_writes_a_page_beside_the_file(gradweave, here, name):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", name)
    answer = gradweave("show", name, "--json")
    assert answer.status == 0
    bound = {"rounds": 4, "kind": "cut", "source": "computed", "certified": True}
    bound["holds_for"] = BARRIER
    assert answer.json == {"file": name, "output": "s.html", "rounds": 6, "bound": bound}
    assert (here / "s.html").read_text().startswith("<!")
    answer = gradweave("show", name, "--output", "other.htm", "--title", "A ring of four")
    assert answer.stdout == "other.htm: 6 rounds; open it in a browser\n"
    assert "A ring of four" in (here / "other.htm").read_text()


def test_compare_answers_in_json(gradweave):
    options = ("--scheduler", "merged,ring", "--seeds", 2, "--json")
    answer = gradweave("compare", "ring:4", "star:3", *options)
    assert answer.status == 0 and answer.stderr == ""
    assert set(answer.json) == {"rows"}
    rows = answer.json["rows"]
    assert [(row["topology"], row["scheduler"]) for row in rows] == [
        ("ring:4", "merged"),
        ("ring:4", "ring"),
        ("star:3", "merged"),
        ("star:3", "ring"),
    ]
    for row in rows:
        assert list(row) == [
            "label", "topology", "scheduler", "stages", "rounds_mean", "rounds_min", "seeds",
            "bound", "paper", "search_s",
        ]  # fmt: skip
        assert isinstance(row["rounds_mean"], NUMBER) and isinstance(row["bound"], NUMBER)
        assert isinstance(row["rounds_min"], int) and row["seeds"] == 2
        assert row["stages"] == "all_reduce" and row["paper"] is None


def test_compare_by_seconds(gradweave):
    network = ("star:4", "mesh:3", "--objective", "seconds", "--size", "100MB")
    schedulers = ("--scheduler", "ring,packed,ring:order=hamiltonian")
    rows = gradweave("compare", *network, *schedulers, "--json").json["rows"]
    assert len(rows) == 6
    for row in rows[:-1]:
        assert row["seconds_mean"] == row["seconds_min"] >= row["seconds_bound"] > 0
        assert row["seconds_gap"] == row["seconds_mean"] / row["seconds_bound"] - 1
        assert (row["seeds"], row["gradient_bytes"], row["stages"]) == (1, 1e8, "all_reduce")
    assert rows[-1]["seconds_mean"] is None and "Hamiltonian" in rows[-1]["reason"]
    answer = gradweave("compare", *network, *schedulers)
    lines = [line.split() for line in answer.stdout.splitlines()]
    assert ["lower", "bound", *format_seconds(rows[0]["seconds_bound"]).split()] in [
        line[:4] for line in lines
    ]
    assert lines[1][:3] == ["ring", *format_seconds(rows[0]["seconds_mean"]).split()]
    assert "none: mesh:3, ring:order=hamiltonian" in answer.stdout


def test_a_sweep_of_sizes_is_that_of_nccl_tests(gradweave, here):
    sweep = ("star:4,bandwidth=1GB/s", "--size", "1KiB..1MiB*32")
    options = (*sweep, "--scheduler", "ring,binomial", "--output", "out")
    rows = gradweave("compare", *options, "--json").json["rows"]
    assert [row["gradient_bytes"] for row in rows[::2]] == [1 << 10, 1 << 15, 1 << 20]
    for row in rows:
        assert row["algbw_bytes_per_s"] == row["gradient_bytes"] / row["seconds_mean"]
        assert row["busbw_bytes_per_s"] == pytest.approx(1.5 * row["algbw_bytes_per_s"])
        assert row["search_s"] >= 0
    shown = gradweave("compare", *options).stdout
    assert "1 KiB" in shown and "lower bound" in shown and "busbw" in shown
    assert "binomial (binomial tree)" in shown
    assert (here / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    found = gradweave("solve", *sweep, "--collective", "all-gather", "--json").json["sizes"]
    assert [one["gradient_bytes"] for one in found] == [1 << 10, 1 << 15, 1 << 20]
    assert all(one["seconds"] and one["collective"] == "all_gather" for one in found)
    shown = gradweave("solve", *sweep).stdout
    assert [line.split()[:2] for line in shown.splitlines()[2:]] == [
        ["1", "KiB"], ["32", "KiB"], ["1", "MiB"],
    ]  # fmt: skip


def test_schedulers_may_be_named_one_by_one(gradweave):
    answer = gradweave("solve", "ring:4", "--scheduler", "ring", "--scheduler", "merged")
    assert "also tried: ring" in answer.stdout


def test_schedule_says_where_time_goes(gradweave):
    uneven = ("star:8", "--slow", "0-8=0.5", "--scheduler", "packed:pieces=32")
    answer = gradweave("solve", *uneven)
    assert "busiest link " in answer.stdout and "% used, idle " in answer.stdout
    assert "equal parts would be 12.50%" in answer.stdout
    held = gradweave("solve", *uneven, "--json").json
    assert [one["rank"] for one in held["rooted_shares"]] == [*range(8)]
    assert [one["server"] for one in held["rooted_shares"]] == [*range(8)]
    assert sum(one["share"] for one in held["rooted_shares"]) == pytest.approx(1)
    busiest = held["busiest_links"]
    assert 0.5 < busiest[1]["used"] <= busiest[0]["used"] * (1 + 1e-9) <= 1
    assert "rooted_shares" not in gradweave("solve", "ring:4", "--json").json


def test_compare_shows_a_learned_scheduler_by_three_figures(gradweave):
    answer = gradweave("compare", "ring:4", "--scheduler", "learned", "--seeds", 1, "--json")
    names = [row["scheduler"] for row in json.loads(answer.stdout)["rows"]]
    assert names == list(LEARNED)


def test_compare_says_why_there_is_no_figure(gradweave):
    answer = gradweave(
        "compare", "mesh:3", "--scheduler", "ring:order=hamiltonian", "--seeds", 1, "--json"
    )
    (row,) = answer.json["rows"]
    assert answer.status == 0
    assert row["rounds_mean"] is None and row["rounds_min"] is None
    assert row["reason"].startswith("there is no Hamiltonian cycle")
    answer = gradweave("compare", "mesh:3", "--scheduler", "ring:order=hamiltonian", "--seeds", 1)
    assert "none: mesh:3, ring:order=hamiltonian: there is no Hamiltonian" in answer.stdout


def test_the_table_shows_the_papers_figures_and_marks_those_that_do_not_reproduce(gradweave):
    answer = gradweave("compare", "--seeds", 1, "--scheduler", "parameter_server,ring:steps=paper")
    assert answer.status == 0
    rows = [line.split() for line in answer.stdout.splitlines()]
    papers = [row[2:] for row in rows if row[:2] == ["the", "paper's"]]
    for figures, name in zip(papers, ("parameter_server", "ring:steps=paper"), strict=True):
        marked = [
            f"{figure:.1f}" + "*" * (name != "parameter_server" and label in NOT_REPRODUCED)
            for label, figure in PAPER[name].items()
        ]
        assert figures == marked
    assert "RL, the paper's 10.2 20.8 34.7 23.2 33.8 48.0 22.7 39.9 62.2".split() in rows
    assert "lower bound 8 16 24 10 15 21 18 28 38".split() in rows
    assert "stages counted both both both one one one both both both".split() in rows
    assert "*  does not reproduce: the paper's order of servers" in answer.stdout


def test_all_files_of_a_comparison_agree(gradweave, here, monkeypatch):
    drawn = []
    from gradweave.cli.commands import compare as module

    chart = module.comparison_chart
    monkeypatch.setattr(
        module, "comparison_chart", lambda rows, *rest: (drawn.extend(rows), chart(rows, *rest))
    )
    schedulers = "merged,ring:order=hamiltonian"
    answer = gradweave(
        "compare", "ring:4,mesh:3", "--scheduler", schedulers, "--seeds", 2, "--output", "a/table",
        "--json",
    )  # fmt: skip
    assert answer.status == 0
    rows = answer.json["rows"]
    table = here / "a" / "table"
    assert json.loads((table / "comparison.json").read_text()) == {"rows": rows}
    with (table / "comparison.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [{k: v for k, v in row.items() if v} for row in written] == [
        {k: str(v) for k, v in row.items() if v is not None} for row in rows
    ]
    assert drawn == [row for row in rows if row["rounds_mean"] is not None]
    picture = (table / "comparison.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 600 and height > 300
    assert {path.name for path in table.iterdir()} == {
        "comparison.csv", "comparison.json", "comparison.png",
    }  # fmt: skip


def test_without_a_figure_there_is_no_chart(gradweave, here):
    (here / "table").mkdir()
    (here / "table" / "comparison.png").write_text("of an earlier run")
    options = ("--scheduler", "ring:order=hamiltonian", "--seeds", 1)
    answer = gradweave("compare", "mesh:3", *options, "--output", "table")
    assert answer.status == 0
    assert "written to table: comparison.csv, comparison.json\n" in answer.stdout
    names = {path.name for path in (here / "table").iterdir()}
    assert names == {"comparison.csv", "comparison.json"}


def test_the_table_is_as_wide_as_its_names(gradweave):
    specs = [f"jellyfish:switches=10,degree=4,seed={seed}" for seed in range(6)]
    answer = gradweave("compare", *specs, "--scheduler", "merged", "--seeds", 1)
    header = answer.stdout.splitlines()[0]
    assert all(spec in header for spec in specs)


def test_names_with_brackets_are_no_markup(gradweave, here):
    (here / "net[red]:smile:.edges").write_text("a b\nb c\n")
    answer = gradweave("compare", "./net[red]:smile:.edges", "--scheduler", "merged", "--seeds", 1)
    assert "./net[red]:smile:.edges" in answer.stdout


HOSTILE = "evil\n\x1b[31m\x07\u202e\r name"


@pytest.fixture
def hostile_file(here):
    """A valid schedule of a network with a name that would act on a terminal."""
    made = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    topology = gw.topology.Topology(
        name=HOSTILE,
        is_server=made.topology.is_server,
        source=made.topology.source,
        target=made.topology.target,
        bandwidth_bytes_per_s=made.topology.bandwidth_bytes_per_s,
        latency_s=made.topology.latency_s,
        capacity=made.topology.capacity,
        labels=tuple(f"{HOSTILE}{i}" for i in range(4)),
    )
    hostile = made.replace(topology=topology, scheduler=Provenance(HOSTILE, {HOSTILE: HOSTILE}))
    assert isinstance(hostile, ScheduleOf)
    hostile.save(here / "hostile.json")
    return here / "hostile.json"


def test_show_finds_the_schedule_of_a_network(gradweave, here):
    answer = gradweave("show", "ring:8", "--scheduler", "ring", "--json")
    bound = {"rounds": 8, "kind": "cut", "source": "computed", "certified": True}
    bound["holds_for"] = BARRIER
    assert answer.json == {
        "file": "ring:8",
        "output": "ring-8.html",
        "rounds": 14,
        "bound": bound,
    }
    assert '"ring:n=8"' in (here / "ring-8.html").read_text()
    held = {"nodes": [{"id": 0}, {"id": 1}], "links": [{"source": 0, "target": 1}]}
    (here / "pair.json").write_text(json.dumps(held))
    answer = gradweave("show", "pair.json", "--scheduler", "ring", "--output", "a.html")
    assert answer.stdout == "a.html: 2 rounds; open it in a browser\n"


def test_the_page_knows_that_seconds_were_asked_for(gradweave, here):
    options = ["--scheduler", "ring", "--objective", "seconds"]
    gradweave("solve", "ring:4", *options, "--output", "ring.json")
    gradweave("show", "ring.json")
    gradweave("show", "ring:4", *options)
    for name in ("ring.html", "ring-4.html"):
        assert '"objective":"seconds"' in (here / name).read_text()


def test_show_compares_two(gradweave, here):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", "one.json")
    answer = gradweave("show", "one.json", "ring:4", "--scheduler", "merged", "--json")
    assert answer.json["files"] == ["one.json", "ring:4"]
    assert answer.json["output"] == "one-and-ring-4.html"
    assert len(answer.json["rounds"]) == 2
    assert (here / "one-and-ring-4.html").stat().st_size > 50_000


def test_show_refuses_what_says_nothing(gradweave, refused, here):
    gradweave("solve", "ring:4", "--scheduler", "ring", "--output", "one.json")
    line = refused("show", "one.json", "--scheduler", "merged")
    assert line.endswith("--scheduler is for a NETWORK; one.json is a schedule's file")
    assert "one or two schedules, got 3" in refused("show", "one.json", "one.json", "one.json")
    assert "no such file" in refused("show", "missing/of.this", "--output", "a.html")


@pytest.mark.parametrize("verb", ["verify", "show"])
def test_hostile_names_do_not_reach_the_terminal(gradweave, hostile_file, verb):
    for spoiling in ({}, {"round": 1}):
        spoil(hostile_file, **spoiling)
        answer = gradweave(verb, "hostile.json")
        for line in (answer.stdout + answer.stderr).splitlines():
            assert line.isprintable()
        lines = 2 if verb == "verify" and not spoiling else 1
        assert (answer.stdout + answer.stderr).count("\n") == lines
        assert answer.status == (1 if spoiling else 0)


def test_hostile_names_stay_whole_in_json(gradweave, hostile_file):
    answer = gradweave("verify", "hostile.json", "--json")
    assert answer.json["topology"] == HOSTILE
    assert answer.stdout.isascii()


def test_hostile_labels_in_an_error(refused, hostile_file):
    held = json.loads(hostile_file.read_text())
    held["topology"]["links"]["capacity"][0] = 0
    hostile_file.write_text(json.dumps(held))
    assert "\\x1b[31m" in refused("verify", "hostile.json")
    assert "\\x1b[31m" in refused("solve", "hostile.json")


def test_hostile_file_names(gradweave, here):
    name = "a\x1b[31mb\u202e.edges"
    (here / name).write_text("a b\nb c\n")
    for verb in ("solve", "compare"):
        answer = gradweave(verb, name, *["--seeds", 1] * (verb == "compare"))
        assert answer.status == 0
        assert all(line.isprintable() for line in answer.stdout.splitlines())
        assert "a\\x1b[31mb\\u202e.edges" in answer.stdout


def test_printable_leaves_text_alone():
    assert printable("link 0→1 ⌈2N/3⌉ ü") == "link 0→1 ⌈2N/3⌉ ü"
    assert printable("\ud800\x00\u2028") == "\\ud800\\x00\\u2028"


def test_progress_goes_to_standard_error_once_the_work_takes_long(capsys, monkeypatch):
    with Progress("quick work"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("gradweave.cli.console.PATIENCE_S", 0.0)
    with Progress("first") as progress:
        progress("second\x1b[2J")
        time.sleep(0.1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n") and "\x1b" not in err
    assert err.splitlines()[0].strip() in {"0 s  first", "0 s  second\\x1b[2J"}


def test_a_table_is_a_line_a_row_with_figures_to_the_right(capsys):
    print_table(Table(("name", "n"), [("a", "1"), ("bcd", "20")], ["a note"]))
    lines = [line.rstrip() for line in capsys.readouterr().out.split("\n")]
    assert lines == ["name   n", "a      1", "bcd   20", "a note", ""]


def test_progress_of_a_comparison_names_what_is_running(gradweave, monkeypatch):
    said = []
    monkeypatch.setattr(Progress, "__call__", lambda _, doing: said.append(doing))
    gradweave("compare", "ring:3", "--scheduler", "ring,merged", "--seeds", 1)
    assert said == ["ring:3: ring", "ring:3: merged"]


def test_the_default_comparison_is_the_papers_table():
    assert [case.label for case in TABLE_2] == list(PAPER["parameter_server"])
