"""The minimum time of tiny demands, computed by hand, with its proof."""

import math

import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import ExactDemand
from gradweave.schedulers.exact.demand import SAME, DemandProof
from gradweave.schedulers.flows.unicast import plan_unicast
from gradweave.schedules import Demand, collective, sends
from gradweave.verifier import verify

EASY = "latency=1us,overhead=1us,bandwidth=1GB/s"
RING = gw.topology.from_spec(f"ring:4,{EASY}")
STAR = gw.topology.from_spec(f"star:3,{EASY}")

KNOWN = {
    # a message of one byte takes 2 µs and 1 ns per hop, and two latencies on the star
    "one message": (RING, sends([(0, 1, 1000)]), 1, 3e-6),
    "relayed": (RING, sends([(0, 2, 1000)], relays=[1]), 1, 6e-6),
    "both ways round": (RING, sends([(0, 2, 10**6)], relays=[1, 3]), 2, 2 * 502e-6),
    "broadcast": (RING, collective("broadcast", range(4), 10**6, root=0), 2, 2 * 502e-6),
    "reduce": (STAR, collective("reduce", range(3), 1000, root=1), 1, 2 * 2e-6 + 2e-6),
    "reduced over a relay": (
        RING,
        collective("reduce", [0, 2], 1000, root=2, relays=[1]),
        1,
        2 * 3e-6,
    ),
    "all_reduce": (STAR, collective("all_reduce", range(3), 1000), 1, 2 * 6e-6),
    "two jobs on a link": (
        RING,
        Demand.together([sends([(0, 1, 10**6)]), sends([(0, 1, 10**6)])]),
        1,
        2 * 1001e-6 + 1e-6,
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_the_least_seconds_are_found_and_proved(case: str):
    topology, demand, pieces, seconds = KNOWN[case]
    strategy = ExactDemand(pieces)
    proof = strategy.prove(topology, demand)
    assert proof.schedule is not None and verify(proof.schedule).valid
    assert proof.decided and proof.time == pytest.approx(seconds, rel=1e-6)
    none = strategy.prove(topology, demand, below=seconds)
    assert none.schedule is None and none.decided and none.least == math.inf


def test_the_fewest_rounds_of_an_all_to_all():
    demand = collective("all_to_all", range(4), 4)
    proof = ExactDemand(unit="rounds").prove(RING, demand)
    plan = plan_unicast(RING, demand, "rounds")
    assert proof.decided and proof.schedule is not None
    assert proof.time == proof.least == proof.schedule.rounds == plan.time == plan.least == 2
    assert ExactDemand(unit="rounds").prove(RING, demand, below=3).time == 2
    assert not ExactDemand(unit="rounds").prove(RING, demand, below=2).schedule


def test_what_is_too_large_is_refused_in_one_line():
    demand = collective("all_to_all", range(16), 16)
    with pytest.raises(NoScheduleError, match="needs up to 57,600 hops") as e:
        ExactDemand().schedule(gw.topology.star(16), demand)
    assert "\n" not in str(e.value)
    with pytest.raises(NoScheduleError, match="exact: no schedule within the effort or time"):
        ExactDemand().schedule(RING, collective("all_to_all", range(4), 4), time_limit=1e-6)


@pytest.mark.parametrize("options", [{"pieces": 0}, {"unit": "hours"}, {"effort": 0.0}])
def test_options_are_checked(options: dict):
    with pytest.raises(OptionError, match=f"exact: {next(iter(options))}: expected"):
        ExactDemand(**options)


@pytest.mark.parametrize(
    "time, least, decided",
    [
        (1.0, 1.0, True),
        (1.0 + SAME / 2, 1.0, True),
        (1.0 + 2 * SAME, 1.0, False),
        (0.5, 1.0, True),
        (1.0, 0.5, False),
        (math.inf, math.inf, True),
        (math.inf, 1.0, False),
    ],
)
def test_a_time_is_the_least_only_if_it_is_what_was_proved(time, least, decided):
    assert DemandProof(None, "seconds", time, least, 0.0).decided is decided
