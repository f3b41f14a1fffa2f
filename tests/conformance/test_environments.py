"""Arguments that `gradweave plugins check` accepts as a game, and the options it tries."""

import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxmarl")

from gradweave.conformance import conform, environment
from gradweave.errors import OptionError, SpecError
from gradweave.placement.strategies.annealing import Annealing
from gradweave.topology import ring
from tests.marl.own_parts import Corridor

HERE = "tests.conformance.test_environments"


def short(steps: int = 3) -> Corridor:
    return Corridor(max_steps=steps)


def rows(rows: int = 3, *, link: object = None) -> object:
    return ring(rows)


@pytest.fixture
def only_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_PROMISES", {"episodes end": environment.ends})


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("tests.marl.own_parts:Corridor:max_steps=4", None),
        ("tests.marl.own_parts:Corridor:max_steps=5000", "no episode of random actions ended"),
        (f"{HERE}:short:steps=4", None),
    ],
)
def test_games_are_tried_with_their_options(only_ends: None, target: str, fault: str | None):
    kind, findings = conform(target)
    made, ends = findings
    assert kind == f"environment {target.split(':')[1]}" and made.fault is None
    assert ends.fault is None if fault is None else fault in str(ends.fault)


def test_unknown_options_are_refused():
    with pytest.raises(OptionError, match="unknown option 'step'; did you mean steps"):
        conform(f"{HERE}:short:step=4")
    with pytest.raises((OptionError, SpecError), match="speed"):
        conform(Annealing, "speed=3")


def test_a_function_that_takes_links_makes_networks():
    assert conform(rows)[0] == "family of networks rows"
