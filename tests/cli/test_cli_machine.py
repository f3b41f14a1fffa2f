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


def test_show_draws_every_machine(gradweave, file, here):
    answer = gradweave("machine", "show", file, "--json")
    assert answer.status == 0 and answer.json["machines"] == 4
    text = (here / "m.html").read_text()
    assert text.count("<svg class=") == 4 and "<script" not in text


def test_bad_machines_are_refused(refused, here):
    (here / "m.yaml").write_text(GENERATOR.replace("start: begin", "start: beginning"))
    assert "unknown state 'beginning'; did you mean begin?" in refused("machine", "check", "m.yaml")
    (here / "m.yaml").write_text(GENERATOR.partition("agents:")[0])
    assert "which events each agent sees" in refused("machine", "check", "m.yaml")
    assert "No such file" in refused("machine", "check", "none.yaml")
