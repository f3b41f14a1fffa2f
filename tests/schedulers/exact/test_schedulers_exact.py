"""Exact schedules: known optima, impossibility, an exhaustive search, and clear refusals."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Exact, Merged, ParameterServer, Ring, to_spec
from gradweave.schedulers.exact.model import Effort, GatherModel
from gradweave.schedulers.exact.search import RoundsSearch
from gradweave.schedulers.exact.trees import TREES, Choice
from gradweave.schedulers.spec import from_spec
from gradweave.schedules.schedule import COLLECTIVES, COPY
from gradweave.topology import Topology
from gradweave.verifier import verify
from tests.simulator.random_networks import networks

EFFORT = Effort(seed=0, workers=1, deterministic=60.0)

DGX1V = Topology.from_links(
    "hybrid cube mesh",
    servers=8,
    switches=0,
    links=[
        *((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (0, 4), (1, 5)),
        *((4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7), (2, 6), (3, 7)),
    ],
    capacity=[*(1, 1, 2, 2, 1, 2, 2, 2), *(1, 1, 2, 2, 1, 2, 1, 1)],
)
"""NVLinks of a DGX-1V, written out independently of `gradweave.topology.dgx1v`."""


def network(spec: str) -> Topology:
    return DGX1V if spec == "dgx1v" else gw.topology.from_spec(spec)


def by_cp_sat(topology: Topology, trees: str, rounds: int):
    """Only the solver's answer, without bounds and without a start."""
    return GatherModel(Choice.of(topology, topology.servers, trees), rounds).solve(EFFORT)


OPTIMA = [
    ("mesh:3x3", {}, 4),
    ("ring:8", {}, 4),
    ("torus:3x3", {}, 2),
    ("torus:4x4", {}, 4),
    ("hypercube:3", {}, 3),
    ("bcube:n=3,k=1", {}, 4),
    ("bcube:n=4,k=1", {}, 8),
    ("dcell:n=3,k=1", {}, 6),
    ("dcell:n=4,k=1", {}, 10),
    ("jellyfish:reference=J10,seed=0", {}, 9),
    ("dgx1v", {}, 2),
    ("dgx1v", {"pieces_per_server": 2}, 3),
    ("dgx1v", {"pieces_per_server": 6}, 7),
    ("bcube:n=3,k=1", {"trees": "fixed"}, 6),
    ("bcube:n=3,k=1", {"trees": "shortest"}, 4),
    ("bcube:n=4,k=1", {"trees": "fixed"}, 12),
    ("dcell:n=4,k=1", {"trees": "fixed"}, 12),
    ("dcell:n=4,k=1", {"trees": "shortest"}, 12),
    ("jellyfish:reference=J10,seed=0", {"trees": "fixed"}, 9),
    ("jellyfish:reference=J15,seed=0", {"trees": "fixed"}, 16),
]


@pytest.mark.parametrize(("spec", "options", "rounds"), OPTIMA)
def test_known_optima(spec, options, rounds):
    scheduler, topology = Exact(**options), network(spec)
    proof = scheduler.prove(topology, "all_gather")
    assert (proof.kind, proof.rounds, proof.impossible_below) == ("optimal", rounds, rounds)
    assert str(proof).startswith(f"optimal: {rounds} rounds; on {scheduler.trees} trees fewer than")
    assert proof.schedule is not None and verify(proof.schedule, forwarding_servers=False).valid
    expected = np.repeat(topology.servers, scheduler.pieces_per_server)
    assert proof.schedule.root.tolist() == expected.tolist()
    less = scheduler.prove(topology, "all_gather", rounds=rounds - 1)
    assert (less.kind, less.schedule, less.impossible_below) == ("infeasible", None, rounds)


@pytest.mark.parametrize(
    ("spec", "trees", "rounds"),
    [
        ("mesh:3x3", "free", 4),
        ("mesh:4x4", "free", 8),
        ("torus:3x3", "free", 2),
        ("dgx1v", "free", 2),
        ("bcube:n=3,k=1", "free", 4),
        ("bcube:n=3,k=1", "shortest", 4),
        ("bcube:n=3,k=1", "fixed", 6),
    ],
)
def test_the_solver_needs_no_bound_to_see_what_is_impossible(spec, trees, rounds):
    assert by_cp_sat(network(spec), trees, rounds - 1) is False
    rows = by_cp_sat(network(spec), trees, rounds)
    made = gw.Schedule.from_rows(network(spec), rows, collective="all_gather")
    assert verify(made, forwarding_servers=False).valid and made.rounds == rounds


def fewest_rounds(topology: Topology) -> int:
    """By exhaustion, without switches: every way to fill every link, round by round."""
    links = list(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    servers = range(topology.num_servers)

    @functools.cache
    def possible(held: tuple[frozenset[int], ...], rounds: int) -> bool:
        if all(len(pieces) == len(servers) for pieces in held):
            return True
        if not rounds:
            return False
        fillings = []
        for link, (source, target) in enumerate(links):
            new = sorted(held[source] - held[target])
            room = min(int(topology.capacity[link]), len(new))
            fillings.append(list(itertools.combinations(new, room)))
        reached = set()
        for filling in itertools.product(*fillings):
            following = [set(pieces) for pieces in held]
            for (_, target), pieces in zip(links, filling, strict=True):
                following[target] |= set(pieces)
            reached.add(tuple(map(frozenset, following)))
        return any(possible(state, rounds - 1) for state in reached)

    start = tuple(frozenset([server]) for server in servers)
    return next(rounds for rounds in itertools.count(1) if possible(start, rounds))


@settings(max_examples=40)
@given(topology=networks(max_servers=4, max_switches=0, max_capacity=2))
def test_an_exhaustive_search_agrees(topology):
    fewest = fewest_rounds(topology)
    assert Exact().prove(topology, "all_gather").rounds == fewest
    assert by_cp_sat(topology, "free", fewest) and not by_cp_sat(topology, "free", fewest - 1)


@settings(max_examples=40)
@given(topology=networks(), collective=st.sampled_from(COLLECTIVES), trees=st.sampled_from(TREES))
def test_it_is_optimal_on_small_networks(topology, collective, trees):
    proof = Exact(trees=trees).prove(topology, collective)
    assert proof.kind == "optimal" and proof.rounds is not None
    assert proof.collective == proof.schedule.collective == collective
    assert gw.bounds.free_trees(topology, collective).rounds <= proof.rounds
    assert proof.rounds <= Merged().schedule(topology, collective=collective).rounds
    less = proof.rounds - 1
    if less:
        kind = Exact(trees=trees).prove(topology, collective, rounds=less).kind
        assert kind == "infeasible"


@settings(max_examples=20)
@given(topology=networks(), data=st.data())
def test_names_of_nodes_do_not_matter(topology, data):
    place = np.array(data.draw(st.permutations(range(topology.num_nodes))))
    moved = Topology(
        name="moved",
        is_server=topology.is_server[np.argsort(place)],
        source=place[topology.source],
        target=place[topology.target],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s,
        latency_s=topology.latency_s,
        capacity=topology.capacity,
    )
    rounds = {Exact().prove(each, "all_gather").rounds for each in (topology, moved)}
    assert len(rounds) == 1


@given(topology=networks(max_servers=5))
@settings(max_examples=20)
def test_more_choice_is_never_worse(topology):
    free, shortest, fixed = (
        Exact(trees=trees).prove(topology, "all_gather").rounds for trees in TREES
    )
    assert free <= shortest <= fixed
    two = Exact(pieces_per_server=2).prove(topology, "all_gather").rounds
    assert free <= two <= 2 * free


def test_a_switch_copies_nothing_so_a_piece_goes_in_once_for_each_receiver():
    for capacity, rounds in (([2, 2, 2], 1), ([1, 2, 2], 2)):
        topology = Topology.from_links(
            "star", servers=3, switches=1, links=[(0, 3), (1, 3), (2, 3)], capacity=capacity
        )
        proof = Exact().prove(topology, "all_gather")
        assert (proof.kind, proof.rounds, proof.schedule.num_transfers) == ("optimal", rounds, 6)


@pytest.mark.parametrize(("rounds", "kind"), [(7, "infeasible"), (8, "optimal"), (9, "optimal")])
def test_an_all_reduce_is_two_stages(rounds, kind):
    proof = Exact().prove(network("mesh:3x3"), rounds=rounds)
    assert (proof.kind, proof.impossible_below) == (kind, 8)
    assert proof.rounds == (None if kind == "infeasible" else 8)


def test_the_schedule_says_what_was_proved():
    made = Exact().schedule(network("bcube:n=3,k=1"))
    assert made.bound is not None
    assert (made.rounds, made.bound.rounds, made.bound.kind) == (8, 8, "exact")
    assert (made.scheduler.name, made.scheduler.options["trees"]) == ("exact", "free")
    assert Exact(trees="fixed").schedule(network("bcube:n=3,k=1")).bound is None


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("given", COLLECTIVES)
def test_it_starts_from_any_schedule(given, collective):
    topology = network("dcell:n=3,k=1")
    best = Exact().schedule(topology, collective=given)
    proof = Exact().prove(topology, collective, start_from=[best], time_limit=0.0)
    assert (proof.kind, proof.rounds) == ("optimal", 12 if collective == "all_reduce" else 6)


@pytest.mark.parametrize("start", [ParameterServer(), Ring(), Merged(overlap=True)])
def test_a_start_that_helps_little_does_no_harm(start):
    topology = network("bcube:n=3,k=1")
    for trees, rounds in (("free", 4), ("fixed", 6)):
        proof = Exact(trees=trees).prove(
            topology, "all_gather", start_from=[start.schedule(topology)]
        )
        assert (proof.kind, proof.rounds) == ("optimal", rounds)


def test_a_start_on_other_trees_is_no_answer_for_fixed_ones():
    topology = network("bcube:n=3,k=1")
    start = Exact().schedule(topology, collective="all_gather")
    proof = Exact(trees="fixed").prove(topology, "all_gather", rounds=5, start_from=[start])
    assert (proof.kind, proof.schedule) == ("infeasible", None)


def test_a_start_from_before_a_link_was_lost_is_a_hint():
    before = network("mesh:3x3")
    keep = ~np.isin(np.arange(len(before.source)), before.find_links([0, 1], [1, 0]))
    after = Topology(
        name="one link lost",
        is_server=before.is_server,
        source=before.source[keep],
        target=before.target[keep],
        bandwidth_bytes_per_s=before.bandwidth_bytes_per_s[keep],
        latency_s=before.latency_s[keep],
        capacity=before.capacity[keep],
    )
    proof = Exact().prove(after, "all_gather", start_from=[Exact().schedule(before)])
    assert (proof.kind, proof.rounds) == ("optimal", 8)


def test_starts_for_something_else_are_refused():
    small, large = network("mesh:3x3"), network("mesh:4x4")
    made = Merged(tries=1).schedule(small)
    with pytest.raises(OptionError, match="start_from: expected a schedule for 16 nodes, got one"):
        Exact().prove(large, start_from=[made])
    with pytest.raises(OptionError, match="start_from: expected 18 pieces, equally many per s"):
        Exact(pieces_per_server=2).prove(small, start_from=[made])


def test_without_time_it_says_what_is_known():
    topology = network("bcube:n=4,k=1")
    proof = Exact().prove(topology, "all_gather", time_limit=0.0)
    assert (proof.kind, proof.rounds, proof.impossible_below) == ("feasible", 12, 8)
    assert "feasible: 12 rounds; perhaps not the fewest; on free trees fewer than 8" in str(proof)
    asked = Exact().prove(topology, "all_gather", rounds=9, time_limit=0.0)
    assert (asked.kind, asked.schedule) == ("unknown", None)
    assert str(asked).startswith("unknown: gave up on all_gather in 9 rounds; on free trees")
    assert Exact().schedule(topology, time_limit=0.0).rounds == 24


def test_a_little_effort_is_a_limit_that_does_not_depend_on_the_clock():
    proof = Exact(effort=1e-4).prove(network("dcell:n=4,k=1"), "all_gather")
    assert proof.kind == "feasible" and proof.rounds == 12


@pytest.mark.parametrize(("most", "asked"), [(None, 3), (1, 1)])
def test_after_so_many_open_questions_it_ends(monkeypatch, most, asked):
    questions: list[int] = []

    def unanswered(self, rounds: int, share: float) -> None:
        questions.append(rounds)

    monkeypatch.setattr(RoundsSearch, "_ask", unanswered)
    proof = Exact(open_questions=most).prove(network("bcube:n=4,k=1"), "all_gather")
    assert (proof.kind, proof.rounds) == ("feasible", 12)  # at least 8 rounds
    assert len(questions) == asked and questions[0] == 8


@pytest.mark.parametrize("spec", ["bcube:n=1024,k=0", "bcube:n=8,k=1"])
def test_what_is_too_large_is_refused_in_one_line(spec):
    for attempt in (Exact().prove, Exact().schedule):
        with pytest.raises(NoScheduleError) as caught:
            attempt(network(spec), collective="all_gather")
        message = str(caught.value)
        assert message.startswith(f"exact: '{network(spec).name}'") and "\n" not in message
        assert "more than max_booleans=400,000; raise it, or use another" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"trees": "any"}, "exact: trees: expected one of free, shortest, fixed, got 'any'"),
        ({"pieces_per_server": 0}, "exact: pieces_per_server: expected 1 to 64, got 0"),
        ({"workers": 0}, "exact: workers: expected 1 to 256, got 0"),
        ({"effort": 0.0}, "exact: effort: expected more than 0"),
        ({"effort": float("nan")}, "exact: effort: expected more than 0"),
        ({"max_booleans": 0}, "exact: max_booleans: expected 1 to 100,000,000, got 0"),
    ],
)
def test_options_are_checked_at_construction(options, reason):
    with pytest.raises(OptionError, match=reason):
        Exact(**options)


def test_questions_are_checked():
    with pytest.raises(OptionError, match="exact: rounds: expected at least 1, got 0"):
        Exact().prove(network("ring:4"), rounds=0)
    with pytest.raises(OptionError, match="collective: expected one of"):
        Exact().prove(network("ring:4"), "gather")  # type: ignore[arg-type]


def test_it_is_deterministic_for_a_seed():
    topology = network("dcell:n=4,k=1")
    first, again = (Exact().schedule(topology, collective="all_gather", seed=3) for _ in range(2))
    assert first.rounds == 10 and (first.op == COPY).all()
    for field in ("round", "piece", "source", "target", "route_nodes"):
        assert np.array_equal(getattr(first, field), getattr(again, field))


def test_it_can_be_had_by_name():
    scheduler = Exact(trees="shortest", pieces_per_server=2, effort=5.0)
    assert from_spec("exact:trees=shortest,pieces_per_server=2,effort=5") == scheduler
    assert from_spec(to_spec(scheduler)) == scheduler
