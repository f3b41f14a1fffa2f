"""``gradweave advise``: a table, JSON, and a configuration that trains."""

import tomllib

import pytest

from gradweave.aggregate.advice import CANDIDATES
from gradweave.aggregate.spec import GossipSpec, parse
from gradweave.marl.request import read_request

RING = ("advise", "ring:4,bandwidth=1Gbit/s", "--size", "4MB", "--compute-time", "100ms")
TWO = ("--aggregation", "mean", "--aggregation", "d_psgd")


def test_the_table_states_conditions(gradweave):
    answer = gradweave(*RING, *TWO)
    assert answer.status == 0
    lines = answer.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["d_psgd", "mean"]
    assert "advised: mean" in answer.stdout
    assert "predicted, if every worker computes for the same time" in answer.stdout
    assert "the profile gloo" in answer.stdout


def test_json_has_every_figure(gradweave):
    said = gradweave(*RING, "--json", "--time-limit", "1").json
    assert {one["aggregation"] for one in said["forecasts"]} == set(CANDIDATES)
    assert said["workers"] == 4 and said["compute_s"] == 0.1
    for one in said["forecasts"]:
        assert one["step_s"] >= 0.1 and one["step_bytes"] > 0 and one["reached_after"] >= 1


def test_doubts_are_warnings(gradweave):
    answer = gradweave(*RING, "--aggregation", "ecd_psgd:bits=4")
    assert "ecd_psgd:bits=4: in doubt" in answer.stderr and answer.status == 0


def test_what_is_written_trains(gradweave, here):
    written = gradweave(
        *RING, *TWO[:2], "--compute-time", "10s", "--aggregation", "scheduled", "--output", "t.toml"
    )
    assert written.status == 0, written
    settings = tomllib.loads((here / "t.toml").read_text())
    assert settings["devices"] == 4
    parse(settings["aggregation"]).check_workers(4)
    request = read_request(here / "t.toml", {"env": "coin_game"}, [])
    assert request.config.aggregation == settings["aggregation"]


def test_gossip_is_written_with_its_network(gradweave, here):
    lost = ("--without-link", "0-1", "--aggregation", "d_psgd", "--output", "g.toml")
    assert gradweave(*RING, *lost).status == 0
    spec = parse(tomllib.loads((here / "g.toml").read_text())["aggregation"])
    assert isinstance(spec, GossipSpec)
    weights = spec.mixing_matrix(4).weights[0]
    assert weights[0, 1] == 0 < weights[1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["advise", "ring:4"], "--compute-time"),
        (["advise", "ring:4", "--compute-time", "soon"], "time"),
        (["advise", "ring:4", "--compute-time", "-1"], "time"),
        ([*RING, "--aggregation", "men"], "did you mean mean"),
        ([*RING, "--output", "t.json"], "expected a name ending in .toml"),
        ([*RING, "--runtime", "x"], "runtime: expected"),
    ],
)
def test_bad_input_is_refused_in_one_line(refused, here, arguments, message: str):
    assert message in refused(*arguments)
