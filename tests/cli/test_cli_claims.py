"""What answers claim: optimal only what is proved, gaps against the bound that they are of."""

import csv
import json
from fractions import Fraction

import numpy as np
import pytest

import gradweave as gw
from gradweave.schedules.schedule import StatedBound
from gradweave.topology.formats.files import read

BARRIER = (
    "schedules that root a piece at each server, sum each piece at one server and finish every sum "
    "before the first copy"
)
SLOW = ("star:4", "--slow", "0-4=0.25")


@pytest.fixture
def stated(here):
    """A ring of 30 rounds on BCube(4,1), where 16 do, whose file says that 30 are the least."""
    ring = gw.schedulers.Ring().schedule(gw.topology.bcube(n=4, k=1))
    ring.replace(bound=StatedBound(30, "cut")).save(here / "ring.json")
    return "ring.json"


def page_of(path):
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])


def test_a_stated_bound_is_no_proof(gradweave, here, stated):
    answer = gradweave("verify", stated)
    lines = answer.stdout.splitlines()
    assert answer.status == 0 and "optimal" not in answer.stdout
    said = f"88% above the bound in rounds: at least 16 rounds (cut) for {BARRIER}, since "
    assert lines[1].startswith(said)
    assert lines[2] == "the file states at least 30 rounds (cut); not checked here"
    held = gradweave("verify", stated, "--json").json
    computed = {"rounds": 16, "kind": "cut", "source": "computed", "certified": True}
    assert held["bound"] == {**computed, "holds_for": BARRIER}
    assert held["stated_bound"] == {"rounds": 30, "kind": "cut"}
    assert held["optimal"] is False
    assert gradweave("show", stated, "--json").json["bound"] == held["bound"]
    (drawn,) = page_of(here / "ring.html")["schedules"]
    assert drawn["bound"] == held["bound"]


def test_where_nothing_is_computed_the_file_is_named(gradweave, here, stated, monkeypatch):
    monkeypatch.setattr("gradweave.report.rounds_bound.of_schedule", lambda _: None)
    said = (
        "bound: at least 30 rounds (cut) for some class of schedules, as stated by the file; not "
        "checked here"
    )
    assert gradweave("verify", stated).stdout.splitlines()[1] == said
    assert gradweave("show", stated).stdout.splitlines()[1] == said
    held = gradweave("verify", stated, "--json").json
    assert (held["bound"]["source"], held["optimal"]) == ("stated", None)
    (drawn,) = page_of(here / "ring.html")["schedules"]
    stated_alone = {"rounds": 30, "kind": "cut", "source": "stated", "certified": False}
    assert drawn["bound"] == {**stated_alone, "holds_for": "some class of schedules"}


def test_of_unequal_pieces_a_file_may_state_what_it_likes(gradweave, here):
    made = gw.schedulers.Ring().schedule(gw.topology.star(4))
    unequal = made.replace(shares=np.array([1, 1, 1, 2]), bound=StatedBound(made.rounds, "cut"))
    unequal.save(here / "s.json")
    for verb in ("verify", "bound", "show"):
        answer = gradweave(verb, "s.json")
        assert "as stated by the file; not checked here" in answer.stdout
        assert "optimal in rounds" not in answer.stdout


def test_what_has_no_certificate_is_said_to_have_none(gradweave, here):
    pieces = gradweave("bound", "star:4", "--job", "broadcast:bytes=1MB,root=0", "--json").json
    *_, proved, beyond = pieces["bounds"]
    assert proved["certificate"] is not None and beyond["certificate"] is None
    assert float(beyond["least"]) > Fraction(proved["least"])
    jobs = ("--job", "all_reduce:bytes=1MB", "--job", "broadcast:bytes=1kB,root=0")
    summed = ("--objective", "sum", "--time-limit", "0.2")
    assert ", not certified, since " in gradweave("solve", "star:4", *jobs, *summed).stdout


def test_an_optimal_schedule_is_proved_so(gradweave, here):
    gradweave("solve", "star:4", "--scheduler", "ring", "--output", "s.json")
    lines = gradweave("verify", "s.json").stdout.splitlines()
    said = f"optimal in rounds among such schedules: at least 6 rounds (cut) for {BARRIER}, since "
    assert lines[1].startswith(said)
    assert len(lines) == 2
    assert gradweave("verify", "s.json", "--json").json["optimal"] is True


def test_an_invalid_schedule_has_no_bound(gradweave, here, stated):
    held = json.loads((here / stated).read_text())
    held["transfers"]["round"][0] = 1
    (here / stated).write_text(json.dumps(held))
    answer = gradweave("verify", stated)
    assert answer.status == 1 and answer.stdout.count("\n") == 1
    assert gradweave("verify", stated, "--json").json["bound"] is None


def test_seconds_have_no_gap_in_rounds(gradweave, here):
    seconds = ("--objective", "seconds", "--size", "64kB")
    packed = ("--scheduler", "packed:pieces=8", *seconds)
    answer = gradweave("solve", *SLOW, *packed, "--output", "s.json")
    lines = answer.stdout.splitlines()
    assert "above the bound in rounds" not in answer.stdout
    assert "rounds" not in lines[2] and "% above the lower bound in seconds: at least " in lines[2]
    assert lines[3].startswith("64 kB: ")
    held = gradweave("solve", *SLOW, *packed, "--json").json
    assert held["bound"] is None and held["seconds_gap"] > 0
    gradweave("show", "s.json")
    (drawn,) = page_of(here / "s.html")["schedules"]
    assert drawn["bound"] is None
    ring = gradweave("solve", *SLOW, "--scheduler", "ring", *seconds).stdout
    assert "above the bound in rounds" not in ring
    assert "above the lower bound in seconds: at least " in ring


def test_strategies_whose_rounds_do_not_compare_have_no_bound(gradweave):
    command = ("compare", "star:4", "--scheduler", "ring,binomial,packed:pieces=8", "--seeds", 1)
    ring, binomial, packed = gradweave(*command, "--json").json["rows"]
    assert (ring["bound"], binomial["bound"], packed["bound"]) == (6, None, None)
    lines = gradweave(*command).stdout.splitlines()
    table = {line.split("  ")[0]: line for line in lines}
    assert table["lower bound"].split() == ["lower", "bound", "6"]
    assert table["binomial (binomial tree)"].endswith("†") and not table["ring"].endswith("†")
    assert lines[-1].startswith("†  ")


def test_rounds_on_unequal_links_hint_at_seconds(gradweave):
    hint = "--objective seconds --size 100MB minimises the time"
    rounds = ("--objective", "rounds", "--scheduler", "ring")
    assert hint in gradweave("solve", *SLOW, *rounds).stdout
    assert "--objective" not in gradweave("solve", "star:4", "--scheduler", "ring").stdout
    seconds = ("--objective", "seconds", "--scheduler", "ring")
    assert "--objective" not in gradweave("solve", *SLOW, *seconds).stdout


def test_the_answer_says_whether_a_schedule_was_improved(gradweave):
    slower = ("torus:3x3", "--slow", "0-1=0.5", "--size", "4MB", "--scheduler", "planned")
    held = gradweave("solve", *slower, "--json").json
    first, second = held["attempts"]
    assert not first["improved"] and second["improved"]
    assert held["seconds"] == second["seconds"] < first["seconds"]


def test_without_an_objective_unequal_links_mean_seconds(gradweave):
    lines = gradweave("solve", *SLOW, "--scheduler", "ring,planned").stdout.splitlines()
    assert lines[2].startswith("its links differ, so the time for 100 MB is minimised")
    held = gradweave("solve", *SLOW, "--scheduler", "ring,planned", "--json").json
    tried = {one["scheduler"] for one in held["attempts"]}
    assert tried == {"ring", "planned:gradient_bytes=100000000"}
    equal = gradweave("solve", "star:4", "--scheduler", "ring,merged", "--json").json
    assert "attempts" not in equal
    stage = ("--collective", "all_gather", "--scheduler", "merged")
    assert "attempts" not in gradweave("solve", *SLOW, *stage, "--json").json


def test_a_plan_that_a_runtime_would_slow_down_is_told_from_one_for_it(gradweave):
    fine = ("star:4", "--objective", "seconds", "--size", "4MB")
    ideal = gradweave("solve", *fine, "--scheduler", "packed:pieces=64").stdout
    assert "gloo's own ring" in ideal and "--runtime gloo plans for that" in ideal
    gloo = gradweave("solve", *fine, "--runtime", "gloo", "--scheduler", "packed:pieces=64")
    assert "so this is gloo's own, which executors call" in gloo.stdout
    held = gradweave(
        "solve", *fine, "--runtime", "gloo", "--scheduler", "packed:pieces=64", "--json"
    ).json
    assert held["runtime"]["own_chosen"] and held["scheduler"] == "ring"
    assert held["seconds"] == held["runtime"]["own_s"] < held["runtime"]["plan_s"]


def test_what_is_kept_of_the_schedule_before_a_fault_is_counted(gradweave, here):
    quick = ("--scheduler", "merged")
    gradweave("solve", "bcube:n=3,k=1", *quick, "--output", "before.json")
    before = gw.load(here / "before.json")
    again = ("bcube:n=3,k=1", "--without-link", "0-9", "--start-from", "before.json", *quick)
    answer = gradweave("solve", *again, "--output", "after.json")
    held = gradweave("solve", *again, "--json").json
    assert held["start_transfers"] == before.num_transfers == 144
    assert 0 < held["kept_transfers"] < 144
    share = f"{held['kept_bytes_share']:.0%} of its bytes"
    kept = f"kept {held['kept_transfers']} of the 144 transfers in before.json, {share}"
    assert kept in answer.stdout.splitlines()

    def transfers(schedule):
        return sorted(
            (int(schedule.root[schedule.piece[t]]), int(schedule.op[t]), schedule.route(t))
            for t in range(schedule.num_transfers)
        )

    now = transfers(gw.load(here / "after.json"))
    assert held["kept_transfers"] == sum(
        min(now.count(one), transfers(before).count(one)) for one in set(transfers(before))
    )
    assert "kept" not in gradweave("solve", "ring:3", *quick).stdout


def test_servers_have_their_own_names(gradweave, here):
    (here / "net.csv").write_text("# switches: tor\nsource,target\nn1,tor\nn2,tor\nn3,tor\n")
    answer = gradweave("solve", "net.csv", "--scheduler", "ring", "--output", "s.json")
    assert "must leave server n1 at 1 per round" in answer.stdout
    busiest = gradweave("solve", "net.csv", "--scheduler", "ring", "--json").json["busiest_links"][
        0
    ]
    names = read(here / "net.csv").labels
    assert [busiest["source_name"], busiest["target_name"]] == [
        names[busiest["source"]],
        names[busiest["target"]],
    ]
    held = json.loads((here / "s.json").read_text())
    held["transfers"]["round"] = [0] * len(held["transfers"]["round"])
    held["rounds"] = 1
    (here / "s.json").write_text(json.dumps(held))
    violation = gradweave("verify", "s.json", "--json").json["violation"]
    assert violation["link_names"] == [names[node] for node in violation["link"]]
    assert "→".join(violation["link_names"]) in violation["message"]


def test_nodes_of_one_name_are_told_apart_by_their_ids():
    names = ("a", "b", "b", "")
    network = gw.topology.complete(4)
    network = gw.topology.Topology(
        **{
            name: getattr(network, name)
            for name in ("name", "is_server", *gw.topology.topology.LINK_COLUMNS)
        },
        labels=names,
    )
    assert [network.id_name(node) for node in range(4)] == ["a", "b (node 1)", "b (node 2)", "3"]
    assert network.pair_name(0, 2) == "a→b (node 2)"


def test_long_times_are_in_seconds(gradweave):
    slow = ("ring:4,bandwidth=1MB/s,latency=0s", "--scheduler", "ring", "--size", "8MB")
    assert "8 MB: 12 s with a barrier per round" in gradweave("solve", *slow).stdout
    compared = gradweave("compare", slow[0], "--scheduler", "ring", "--objective", "seconds",
                         "--size", "8MB").stdout  # fmt: skip
    assert "mean time for 8 MB" in compared and "e+0" not in compared


FAULTS = ("--without-link", "0-1", "--slow", "1-2=0.5")
FAULTY = "ring:n=4 with 1 slow link without 1 link"


@pytest.mark.parametrize("objective", [(), ("--objective", "seconds")])
def test_compare_says_which_networks_have_faults(gradweave, here, objective):
    """In the column's head, in JSON and in CSV, as `schedule` says it."""
    compare = ("compare", "ring:4", *FAULTS, "--scheduler", "ring", "--seeds", "1", *objective)
    table = gradweave(*compare)
    assert table.status == 0 and table.stdout.splitlines()[0].endswith(FAULTY), table
    rows = gradweave(*compare, "--output", "table", "--json").json["rows"]
    said = csv.DictReader((here / "table" / "comparison.csv").read_text().splitlines())
    for row in (*rows, *said):
        assert (row["topology"], row["label"]) == (FAULTY, FAULTY)
    assert gradweave("solve", "ring:4", *FAULTS, "--json").json["topology"] == FAULTY


def test_compare_calls_a_whole_network_as_it_was_given(gradweave):
    compare = ("compare", "ring:4", "--scheduler", "ring", "--seeds", "1")
    (row,) = gradweave(*compare, "--json").json["rows"]
    assert (row["topology"], row["label"]) == ("ring:4", "ring:4")


def test_a_plan_for_seconds_is_not_compared_with_a_bound_in_rounds(gradweave, here):
    gradweave("solve", *SLOW, "--scheduler", "ring", "--objective", "seconds", "--output", "p.json")
    answer = gradweave("verify", "p.json").stdout
    assert "bound in rounds" not in answer and "lower bound" in answer
    bare = json.loads((here / "p.json").read_text()) | {"certificates": []}
    (here / "bare.json").write_text(json.dumps(bare))
    assert "gradweave bound finds one" in gradweave("verify", "bare.json").stdout
