"""``gradweave machine``: valid or not, by which trace, and drawn."""

import pytest

from tests.automata.machines import GENERATOR


@pytest.fixture
def file(here):
    (here / "m.yaml").write_text(GENERATOR)
    return "m.yaml"


def test_check_says_whether_the_division_is_right(gradweave, file):
    right = gradweave("machine", "check", file, "--json")
    assert right.status == 0 and right.stderr == ""
    assert right.json["valid"] and right.json["counterexample"] is None
    assert right.json["shared"] == {"c": ["one", "two"]}
    wrong = gradweave("machine", "check", file, "--without-causal", "--json")
    assert wrong.status == 1
    assert wrong.json["counterexample"] == ["c", "b", "a"]
    assert (wrong.json["team_done"], wrong.json["agents_done"]) == (False, [True, True])
    assert (
        "not valid: after c b a" in gradweave("machine", "check", file, "--without-causal").stdout
    )


def test_check_compares_rewards(gradweave, here):
    moves = "start: 0\nfinal: 2\nmoves: {0: {a: {to: 1, reward: -3}}, 1: {b: 2}}\n"
    (here / "m.yaml").write_text(f"{moves}agents: {{one: [b], two: [b]}}\n")
    lost = gradweave("machine", "check", "m.yaml", "--json")
    assert lost.status == 1 and lost.json["counterexample"] == ["a"]
    assert lost.json["reason"] == "after a the team is paid -3, and no agent hears of it"
    (here / "m.yaml").write_text(
        moves.replace("1: {b", "x: {b: {to: 2, reward: 5}}, 1: {b").replace("0: {", "0: {c: x, ")
        + "agents: {one: [b], two: [a, b, c]}\n"
    )
    mixed = gradweave("machine", "check", "m.yaml")
    assert mixed.status == 1 and "b in 0,x,1 pays 1 or 5, which one that hears b" in mixed.stdout
    assert "with the fewest told, if one tells" in mixed.stdout


def test_show_draws_every_machine(gradweave, file, here):
    answer = gradweave("machine", "show", file, "--json")
    assert answer.status == 0 and answer.json["machines"] == 4
    text = (here / "m.html").read_text()
    assert text.count("<svg class=") == 4 and text.count("<script") == 1


def test_bad_machines_are_refused(refused, here):
    (here / "m.yaml").write_text(GENERATOR.replace("start: begin", "start: beginning"))
    assert "unknown state 'beginning'; did you mean begin?" in refused("machine", "check", "m.yaml")
    (here / "m.yaml").write_text(GENERATOR.partition("agents:")[0])
    assert "which events each agent sees" in refused("machine", "check", "m.yaml")
    assert "No such file" in refused("machine", "check", "none.yaml")
