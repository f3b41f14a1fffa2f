"""solve(): the best of several strategies, with its bound."""

import sys

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import DEFAULT, Exact, Merged, ParameterServer, Ring, Scheduler, solve
from gradweave.schedulers.solving.rounds import Rounds
from gradweave.schedulers.solving.strategy_search import Candidate
from gradweave.schedules.jobs import Job
from gradweave.schedules.schedule import StatedBound
from gradweave.topology import from_spec
from gradweave.verifier import verify


def test_it_picks_the_fewest_rounds():
    network = from_spec("dcell:n=4,k=1")
    strategies = (ParameterServer(), Merged(), Ring())
    solution = solve(network, schedulers=strategies)
    rounds = {s: s.schedule(network).rounds for s in strategies}
    assert solution.rounds == solution.schedule.rounds == min(rounds.values())
    assert rounds[solution.scheduler] == solution.rounds
    assert [(a.scheduler, a.rounds) for a in solution.attempts] == list(rounds.items())
    assert solution.schedule.scheduler.name == "merged"


def test_among_equals_the_first_wins():
    network = from_spec("star:4")
    first, second = Merged("deepest"), Merged("most_loaded")
    solution = solve(network, schedulers=[ParameterServer(), first, second])
    assert solution.scheduler == ParameterServer()


def test_it_stops_at_the_bound():
    network = from_spec("ring:8")
    solution = solve(
        network, collective="all_gather", schedulers=[Ring(), Merged(), ParameterServer()]
    )
    assert [attempt.scheduler for attempt in solution.attempts] == [Ring(), Merged()]
    assert solution.optimal and solution.gap == 0
    assert solution.rounds == solution.bound.rounds == 4


def test_the_gap_says_how_far_the_bound_is():
    solution = solve(from_spec("bcube:n=3,k=1"), schedulers=[Merged()])
    assert (solution.rounds, solution.bound.rounds) == (12, 8)
    assert solution.gap == 0.5 and not solution.optimal


def test_the_schedule_states_its_bound_and_is_valid():
    solution = solve(from_spec("dcell:n=4,k=1"), collective="reduce_scatter")
    for bound in (solution.bound, solution.schedule.bound):
        assert (bound.rounds, bound.kind) == (10, "cut")
    assert verify(solution.schedule).valid
    assert solution.schedule.collective == "reduce_scatter"


def test_what_found_nothing_says_why():
    solution = solve(from_spec("mesh:3"), schedulers=[Ring(order="hamiltonian"), Merged()])
    failed, succeeded = solution.attempts
    assert failed.rounds is None and "no Hamiltonian cycle" in failed.reason
    assert succeeded.rounds == solution.rounds and succeeded.reason == ""
    assert all(attempt.wall_s >= 0 for attempt in solution.attempts)
    assert solution.wall_s >= sum(attempt.wall_s for attempt in solution.attempts)


def test_where_no_strategy_finds_one_each_gives_its_reason():
    with pytest.raises(NoScheduleError) as caught:
        solve(from_spec("mesh:3"), schedulers=[Ring(order="hamiltonian")])
    assert str(caught.value) == (
        "no schedule for 'mesh:3': ring: there is no Hamiltonian cycle of the 3 servers with "
        "disjoint shortest routes on 'mesh:3'; use order=id"
    )


def test_out_of_time_no_further_strategy_is_begun():
    solution = solve(from_spec("dcell:n=4,k=1"), time_limit=1e-9)
    assert len(solution.attempts) == 1
    assert verify(solution.schedule).valid


def test_it_says_why_it_stopped():
    few = {"collective": "all_gather", "schedulers": [Ring(), Merged()]}
    assert solve("ring:8", **few).stopped == "bound"
    assert solve("mesh:3x3", schedulers=[Ring()]).stopped == "tried"
    assert solve("mesh:3x3", schedulers=[Ring(), Merged()], time_limit=1e-9).stopped == "time"
    size = {"objective": "seconds", "gradient_bytes": 1e6, "schedulers": [Ring(), Merged()]}
    assert solve("mesh:3x3", **size).stopped == "tried"
    assert solve("torus:4x4", **size, time_limit=1e-9).stopped == "time"


def test_one_proof_raises_the_bound_of_the_search_only_where_all_are_bound_by_it():
    """The exact model's proof does not bind strategies that may forward or overlap."""
    network = from_spec("mesh:2x3")
    rounds = Rounds(network, "all_gather", [Exact(), Merged()])
    rounds.find_bound()
    made = Ring().schedule(network, collective="all_gather")
    proved = made.replace(bound=StatedBound(rounds.bound.rounds + 1, "exact", True))
    before, found = rounds.target, Candidate(proved, Exact(), proved.rounds, proved)
    rounds.learn(found)
    assert (rounds.target, rounds.bound.kind) == (before + 1, "exact")
    freer = Rounds(network, "all_gather", [Exact(), Merged(overlap=True)])
    freer.find_bound()
    freer.learn(found)
    assert freer.bound.kind != "exact" and freer.target <= before


def test_out_of_time_without_a_schedule_the_next_is_tried():
    solution = solve(
        from_spec("mesh:3"), schedulers=[Ring(order="hamiltonian"), Ring()], time_limit=1e-9
    )
    assert solution.attempts[0].rounds is None
    assert solution.scheduler == Ring()


@pytest.mark.parametrize("time_limit", [0, -1, float("nan")])
def test_a_limit_of_time_is_above_zero(time_limit):
    with pytest.raises(OptionError, match="solve: time_limit: expected more than 0 seconds"):
        solve(from_spec("ring:3"), time_limit=time_limit)


def test_it_needs_a_strategy():
    with pytest.raises(OptionError, match="solve: expected at least one scheduler, got none"):
        solve(from_spec("ring:3"), schedulers=[])


def test_an_unknown_collective_is_refused():
    with pytest.raises(ValueError, match="collective: expected one of"):
        solve(from_spec("ring:3"), collective="gather")
    with pytest.raises(OptionError, match="collective: expected one of"):
        Ring().schedule(from_spec("ring:3"), collective="gather")


def test_it_tells_what_it_does():
    said: list[str] = []
    solve(from_spec("mesh:3x3"), schedulers=[Ring(), Merged("deepest")], progress=said.append)
    assert said == [
        "finding the lower bound",
        "trying ring",
        "trying merged:rule=deepest; 32 rounds so far, bound 8",
    ]


def test_the_default_is_the_best_of_all_strategies():
    solution = solve(from_spec("jellyfish:reference=J10"))
    assert {attempt.scheduler for attempt in solution.attempts} <= set(DEFAULT)
    assert solution.optimal and solution.rounds == 18


def test_on_few_servers_the_exact_search_closes_what_grown_trees_leave():
    """Grown, learned and merged trees all take six rounds here; four are optimal."""
    links = [(0, 1), (0, 3), (1, 3), (2, 4), (2, 3), (4, 3)]
    network = gw.topology.Topology.from_links("two ways", servers=4, switches=1, links=links)
    solution = solve(network)
    assert solution.optimal and solution.rounds == 4
    assert [one.rounds for one in solution.attempts if one.rounds] == [6, 6, 4]
    assert solution.attempts[-1].scheduler.name == "exact"


def test_overlap_is_measured_by_the_overlapped_bound():
    network = from_spec("mesh:3x3")
    solution = solve(network, schedulers=[Merged(overlap=True)])
    assert solution.bound == gw.bounds.free_trees(network, overlap=True)


def test_a_strategy_that_makes_an_invalid_schedule_is_found_out():
    class Wrong(Ring):
        def make(self, *arguments):
            made = super().make(*arguments)
            return made.replace(round=made.round // 2)

    with pytest.raises(gw.errors.InvalidScheduleError, match="round 0: link"):
        Wrong().schedule(from_spec("ring:4"))


def test_a_strategy_is_abstract_until_it_makes_something():
    with pytest.raises(TypeError):
        Scheduler()


@pytest.mark.parametrize(
    "options",
    [
        {"schedulers": "ring"},
        {"schedulers": "exact"},
        {"schedulers": "ring", "objective": "seconds", "gradient_bytes": 1e3},
        {"schedulers": "ring", "objective": "seconds", "gradient_bytes": 1e9},
        {"schedulers": "merged", "objective": "seconds", "runtime": "gloo"},
        {"schedulers": "direct", "jobs": Job("all_reduce", 10**6, [0, 1, 3])},
        {"schedulers": "chain", "jobs": [Job("all_reduce", 10**n, [0, 1, 3]) for n in (7, 6)]},
    ],
    ids=lambda options: ", ".join(map(str, options.values()))[:40],
)
def test_a_schedule_is_verified_once_after_it_was_last_changed(options, monkeypatch):
    """Cut, overlapping and reordered schedules are changed, and others are not verified again."""
    verified = []

    def counting(schedule, **rules):
        verified.append(schedule)
        return verify(schedule, **rules)

    for name, module in list(sys.modules.items()):
        if name.startswith("gradweave.schedulers.") and hasattr(module, "verify"):
            monkeypatch.setattr(module, "verify", counting)
    found = solve("star:4", **options).schedule
    columns = [getattr(found, name) for name in ("round", "piece", "source", "target", "op")]
    same = [
        all(map(np.array_equal, columns, (one.round, one.piece, one.source, one.target, one.op)))
        for one in verified
    ]
    assert sum(same) == 1
