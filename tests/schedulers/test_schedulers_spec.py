"""Strategies as text: parsing, printing, and refusals."""

import contextlib
import dataclasses
import itertools
import typing

import pytest

from gradweave.errors import GradweaveError, OptionError, SpecError
from gradweave.schedulers import (
    DEMAND_STRATEGIES,
    STRATEGIES,
    CentralParameterServer,
    Chain,
    Merged,
    ParameterServer,
    Ring,
    demand_strategy,
    to_spec,
)
from gradweave.schedulers.spec import as_demand_strategies, from_spec, split_specs

OTHER_VALUES = {
    "rule": ["random", "deepest"],
    "tries": [1, 99],
    "swap_passes": [0],
    "overlap": [True],
    "aggregating_switches": [True],
    "order": ["hamiltonian", "near", (3, 1, 0, 2), (0, 1)],
    "directions": [2],
    "cycles": [2],
    "ring:steps": ["paper"],
    "grown:steps": [3],
    "server": [0, 7],
}
"""Values of options other than their defaults, by option or by strategy and option."""


def strategies():
    for strategy in STRATEGIES.values():
        choices = []
        for field in dataclasses.fields(strategy):
            keys = field.name, f"{strategy.name}:{field.name}"
            others = [value for key in keys for value in OTHER_VALUES.get(key, [])]
            choices.append([(field.name, value) for value in [field.default, *others]])
        for options in itertools.product(*choices):
            with contextlib.suppress(OptionError):  # Not every value goes with every other.
                yield strategy(**dict(options))


@pytest.mark.parametrize("scheduler", list(strategies()), ids=to_spec)
def test_a_specification_leads_back_to_the_strategy(scheduler):
    assert from_spec(to_spec(scheduler)) == scheduler
    assert to_spec(from_spec(to_spec(scheduler))) == to_spec(scheduler)


def test_every_strategy_is_known_by_its_name():
    assert set(STRATEGIES) >= {"merged", "ring", "parameter_server", "central_parameter_server"}
    for name, strategy in STRATEGIES.items():
        assert from_spec(name) == strategy() and to_spec(strategy()) == name


@pytest.mark.parametrize(
    ("text", "scheduler"),
    [
        ("Merged", Merged()),
        ("parameter-server", ParameterServer()),
        (" ring : order = hamiltonian , steps = paper ", Ring("hamiltonian", "paper")),
        ("ring:order=0.2.1.3", Ring((0, 2, 1, 3))),
        ("merged:overlap=True,tries=4", Merged(tries=4, overlap=True)),
        ("merged:overlap=false", Merged()),
        ("central_parameter_server:server=3", CentralParameterServer(3)),
    ],
)
def test_spellings(text, scheduler):
    assert from_spec(text) == scheduler


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a name"),
        (
            "merge",
            "no scheduler 'merge'; did you mean merged? there are binomial, central_parameter",
        ),
        ("xyz", "no scheduler 'xyz'; there are binomial, central_parameter_server, "),
        ("ring:4", "ring: a value without a key is not an option; options are order, steps"),
        ("ring:size=4", "ring: 'size' is not an option; options are order, steps"),
        ("parameter_server:x=1", "parameter_server: 'x' is not an option; it has no options"),
        ("merged:tries=many", "merged: tries must be an integer, got 'many'"),
        ("merged:tries=1.5", "merged: tries must be an integer, got '1.5'"),
        ("merged:tries=" + "9" * 5000, "merged: tries must be an integer"),
        ("merged:tries=0", "merged: tries: expected 1 to 1,000,000, got 0"),
        ("merged:overlap=yes", "merged: overlap must be true or false, got 'yes'"),
        ("merged:rule=best", "merged: rule must be one of random, deepest, most_loaded, got"),
        ("merged:tries", "merged: a value without a key is not an option"),
        ("merged:tries=1,tries=2", "tries is given twice"),
        ("ring:order=a.b", "ring: order must be one of id, hamiltonian, boxes, got 'a.b'"),
        ("ring:steps=3", "ring: steps must be one of minimal, paper, got '3'"),
        ("central_parameter_server:server=first", "server must be an integer, got 'first'"),
        ("a\nb", "expected a name"),
    ],
)
def test_refusals_are_one_line_that_names_the_option(text, reason):
    with pytest.raises(GradweaveError) as caught:
        from_spec(text)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("", []),
        (" , ", []),
        ("ring", ["ring"]),
        ("ring,merged", ["ring", "merged"]),
        ("ring:order=id,steps=paper,merged", ["ring:order=id,steps=paper", "merged"]),
        ("bcube:n=3,k=1,torus:4x4", ["bcube:n=3,k=1", "torus:4x4"]),
        ("merged:tries=1, rule=deepest , ring", ["merged:tries=1,rule=deepest", "ring"]),
    ],
)
def test_a_list_of_specifications_is_taken_apart(text, specs):
    assert split_specs(text) == specs


def test_the_types_of_all_options_can_be_read():
    """`from_spec` reads an option by the type of its field."""
    for strategy in STRATEGIES.values():
        hints = typing.get_type_hints(strategy)
        assert hints.keys() >= {field.name for field in dataclasses.fields(strategy)}


@dataclasses.dataclass(frozen=True)
class OutsideChain(Chain):
    """A strategy for demands as another package would bring it."""

    name = "outside_chain"
    links: int = 1


def test_strategies_for_demands_are_named_as_schedulers_are():
    for name, strategy in DEMAND_STRATEGIES.items():
        assert demand_strategy(name) == strategy()
    assert demand_strategy(f"{__name__}:OutsideChain:links=3") == OutsideChain(3)
    assert as_demand_strategies(["chain", Chain()]) == (Chain(), Chain())
    with pytest.raises(OptionError, match="scheduler outside_chain: plans jobs only"):
        from_spec(f"{__name__}:OutsideChain")
    with pytest.raises(SpecError, match=r"no scheduler 'chian'; did you mean chain\?"):
        demand_strategy("chian")
