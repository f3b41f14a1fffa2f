"""The improvement of a schedule's order and sizes: never slower, still valid, and worth it."""

import dataclasses
import itertools

import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers import Packed, Planned, RecursiveDoubling, Ring
from gradweave.schedulers.improving.improve import _without, improved
from gradweave.schedulers.improving.sizes import CriticalChains, resized
from gradweave.schedulers.improving.transfer_graph import TransferGraph
from gradweave.schedulers.solving.seconds import Seconds
from gradweave.schedulers.solving.strategy_search import Candidate
from gradweave.schedules import Job
from gradweave.simulator import seconds
from gradweave.simulator.traffic import piece_bytes
from gradweave.verifier import verify

pytestmark = pytest.mark.quick
SIZE = 25e6


def unequal(spec: str, seed: int = 0) -> gw.Topology:
    """A network with links of 100, 200 and 400 Gbit/s and 1.25 us for each message."""
    network = gw.topology.from_spec(spec)
    rng, links = np.random.default_rng(seed), len(network.source)
    low, high = np.sort([network.source, network.target], axis=0)
    rate = dict.fromkeys(sorted(zip(low.tolist(), high.tolist(), strict=True)), 0.0)
    rate = {pair: float(rng.choice([100, 200, 400])) * 125e6 for pair in rate}
    pairs = zip(low.tolist(), high.tolist(), strict=True)
    return dataclasses.replace(
        network,
        bandwidth_bytes_per_s=np.array([rate[pair] for pair in pairs]),
        latency_s=np.full(links, 2e-6),
        overhead_s=np.full(links, 1.25e-6),
    )


def best_of(schedule: gw.Schedule, size: float | None, turns: int = 2, **given) -> gw.Schedule:
    found = [schedule, *improved(schedule, size, seed=0, stop=UNLIMITED, turns=turns, **given)]
    times = [seconds(one, size, "events", **given) for one in found]
    assert times == sorted(times, reverse=True), "each is faster than all before it"
    return found[-1]


@pytest.mark.parametrize(
    ("spec", "scheduler", "collective"),
    [
        ("hypercube:3", Packed(gradient_bytes=SIZE), "all_reduce"),
        ("bcube:n=3,k=1", Packed(gradient_bytes=SIZE), "all_reduce"),
        ("star:5", Planned(gradient_bytes=SIZE), "all_reduce"),
        ("mesh:2x3", Packed(gradient_bytes=SIZE), "reduce_scatter"),
        ("star:5", Packed(gradient_bytes=SIZE), "all_gather"),
        ("mesh:2x3", Planned(gradient_bytes=SIZE), "all_gather"),
    ],
)
def test_it_is_valid_and_not_slower(spec, scheduler, collective):
    network = unequal(spec)
    schedule = scheduler.schedule(network, collective=collective, seed=0)
    better = best_of(schedule, SIZE)
    verify(better).raise_if_invalid()
    assert seconds(better, SIZE, "events") <= seconds(schedule, SIZE, "events")
    assert better.collective == collective
    if collective != "all_reduce":  # every server still roots an equal part
        rooted = np.bincount(better.root, better.share)[network.servers]
        assert rooted == pytest.approx(1 / network.num_servers, rel=1e-6)


def test_it_gains_a_twentieth_where_messages_cost_and_links_differ():
    network = unequal("complete:8")
    schedule = Packed(gradient_bytes=SIZE).schedule(network, seed=0)
    better = best_of(schedule, SIZE, turns=3)
    assert seconds(better, SIZE, "events") < 0.95 * seconds(schedule, SIZE, "events")
    assert len(np.unique(better.share)) > 10, "pieces differ in size"


def test_pieces_are_left_out_where_messages_cost_most():
    """Two servers, 1 MB at 1 GB/s, 1 ms per message.

    Half of it to each server and back takes 3 ms, all to one and back 4 ms; 16 pieces over 16 ms.
    """
    pair = gw.topology.from_spec("complete:2")
    pair = dataclasses.replace(
        pair,
        bandwidth_bytes_per_s=np.full(2, 1e9),
        latency_s=np.zeros(2),
        overhead_s=np.full(2, 1e-3),
    )
    schedule = Packed(gradient_bytes=1e6, pieces=16).schedule(pair, seed=0)
    assert seconds(schedule, 1e6, "events") > 16e-3
    better = list(improved(schedule, 1e6, seed=0, stop=UNLIMITED, turns=40))[-1]
    verify(better).raise_if_invalid()
    assert 3e-3 * (1 - 1e-9) <= seconds(better, 1e6, "events") <= 4e-3 * (1 + 1e-9)
    assert better.pieces <= 2


def test_bytes_of_pieces_that_are_left_out_stay_in_their_group():
    network = unequal("mesh:2x3")
    jobs = [Job("all_gather", 3_000_000), Job("broadcast", 2_000_000, root=4)]
    schedule = gw.solve(network, jobs=jobs, schedulers="joint", seed=0).schedule
    graph, size = TransferGraph.of(schedule), piece_bytes(schedule, None)
    left_out = np.arange(len(size)) % 2 == 0
    left_out[graph.group == graph.group[0]] = True  # all of a group: it keeps its own
    fewer, larger = _without(graph, size, left_out)
    assert fewer.pieces == len(larger) < len(size)
    assert np.bincount(fewer.group, larger) == pytest.approx(np.bincount(graph.group, size))
    assert (fewer.group == graph.group[0]).sum() == (graph.group == graph.group[0]).sum()


def test_the_seed_determines_it():
    schedule = Packed(gradient_bytes=SIZE).schedule(unequal("hypercube:3"), seed=0)
    one, two = (best_of(schedule, SIZE) for _ in range(2))
    assert one is not schedule
    for column in ("round", "piece", "source", "target", "shares"):
        assert np.array_equal(getattr(one, column), getattr(two, column))


def test_a_schedule_read_back_takes_as_long():
    for spec, scheduler in itertools.product(("mesh:2x3", "star:4"), (Packed(), Ring())):
        network = unequal(spec)
        schedule = scheduler.schedule(network, seed=0)
        graph, size = TransferGraph.of(schedule), piece_bytes(schedule, SIZE)
        order = np.lexsort((schedule.round, schedule.piece))
        again = graph.reordered(schedule.round[order].astype(float), size)
        verify(again).raise_if_invalid()
        assert seconds(again, SIZE, "events") <= seconds(schedule, SIZE, "events") * (1 + 1e-5)
        assert again.share == pytest.approx(schedule.share, abs=1e-6)


def test_jobs_keep_their_bytes():
    network = unequal("mesh:2x3")
    jobs = [Job("all_gather", 3_000_000), Job("broadcast", 2_000_000, root=4)]
    schedule = gw.solve(network, jobs=jobs, schedulers="joint", seed=0).schedule
    better = best_of(schedule, None)
    verify(better).raise_if_invalid()
    assert better.demand is schedule.demand
    for one in (schedule, better):
        assert np.bincount(one.block, one.share) == pytest.approx(
            one.demand.bytes / one.demand.total_bytes, rel=1e-6
        )


def test_relays_get_a_copy_before_they_add_to_it():
    """Servers that share no link: sums are formed at others, which contribute nothing."""
    torus = unequal("torus:4x4")
    job = Job("all_reduce", 25_000_000, [0, 2, 8, 10], relays=torus.servers)
    schedule = gw.solve(torus, jobs=job, schedulers="joint", seed=0).schedule
    better = list(improved(schedule, None, seed=0, stop=UNLIMITED, turns=3))
    assert better
    for one in better:
        verify(one, forwarding_servers=True).raise_if_invalid()


def test_exchanged_sums_are_left_alone():
    schedule = RecursiveDoubling().schedule(unequal("hypercube:3"), seed=0)
    assert not list(improved(schedule, SIZE, seed=0, stop=UNLIMITED, turns=1))


def test_time_is_spent_on_schedules_that_can_improve():
    """Exchanges may be fastest before; nothing would be gained in all the time left."""
    network = unequal("hypercube:3")
    goal = Seconds(network, "all_reduce", SIZE, np.zeros(8))
    for scheduler, can in ((RecursiveDoubling(), False), (Packed(gradient_bytes=SIZE), True)):
        schedule = scheduler.schedule(network, seed=0)
        assert goal.improvable(Candidate(schedule, scheduler, 1.0, schedule)) == can


def test_late_servers_only_get_other_sizes():
    network = unequal("complete:4")
    ready = (0.0, 3e-4, 0.0, 0.0)
    schedule = Packed(gradient_bytes=SIZE, ready_at_s=ready).schedule(network, seed=0)
    better = best_of(schedule, SIZE, ready_at_s=ready)
    verify(better).raise_if_invalid()


def test_it_stops_when_time_is_up():
    schedule = Packed(gradient_bytes=SIZE).schedule(unequal("hypercube:3"), seed=0)
    assert len(list(improved(schedule, SIZE, seed=0, stop=Stop.after(0.0)))) <= 1


def test_sizes_that_minimise_the_longest_chain_are_found():
    """Chains of a + b·x seconds: three pieces share 1 byte so that the longest is shortest."""
    weights = np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    constant = np.array([0.1, 0.2, 0.3])

    def play(size):
        ends = constant + weights @ size
        return CriticalChains(float(ends.max()), weights, ends)

    start = np.array([0.6, 0.2, 0.2])
    size, longest = resized(start, np.zeros(3, np.int64), play, UNLIMITED)
    steps = np.linspace(0, 1, 401)
    every = [(a, b, 1 - a - b) for a in steps for b in steps if a + b <= 1]
    assert longest == pytest.approx(min(play(np.array(one)).seconds for one in every), abs=4e-3)
    assert size.sum() == pytest.approx(1.0)


def test_bytes_of_a_group_stay_in_it():
    def play(size):
        ends = np.array([3.0, 1.0, 1.0]) * size
        return CriticalChains(float(ends.max()), np.diag([3.0, 1.0, 1.0]), ends)

    size, longest = resized(np.array([0.5, 0.25, 0.25]), np.array([0, 0, 1]), play, UNLIMITED)
    assert size[2] == pytest.approx(0.25) and size[:2].sum() == pytest.approx(0.75)
    assert longest == pytest.approx(3 * 0.75 / 4, rel=1e-3)


def test_chains_tell_how_sizes_change_the_time():
    """A little more of some pieces and less of others: the last arrival is as chains predict."""
    from gradweave.schedulers.improving.improve import _Replay

    schedule = Packed(gradient_bytes=SIZE).schedule(unequal("complete:4"), seed=0)
    replay, size = _Replay(schedule, None), piece_bytes(schedule, SIZE)
    chains = replay.chains(size)
    step = 1e-5 * size.mean() * np.random.default_rng(0).normal(size=len(size))
    predicted = (chains.ends + chains.per_byte @ step).max()
    assert replay.chains(size + step).seconds == pytest.approx(predicted, rel=1e-6)


def test_solve_improves_and_says_so():
    solution = gw.solve(
        unequal("hypercube:3"),
        objective="seconds",
        gradient_bytes=SIZE,
        seed=0,
        schedulers="packed",
    )
    plain, better = solution.attempts
    assert better.improved and not plain.improved and better.value < plain.value
    assert solution.schedule.scheduler.options["improved"] is True
    assert solution.schedule.scheduler.name == "packed"


def test_plans_of_jobs_are_improved_too():
    network = unequal("complete:6")
    solution = gw.solve(network, jobs=Job("all_gather", 25_000_000), schedulers="joint", seed=0)
    plain, better = solution.attempts
    assert better.improved and better.value < plain.value
    assert solution.value == better.value
    verify(solution.schedule).raise_if_invalid()


def test_other_objectives_of_jobs_are_left_alone():
    """Only the end of the last job gets sooner; others' ends may get later."""
    network = unequal("mesh:2x3")
    jobs = [Job("broadcast", 10**6, root=0), Job("broadcast", 10**7, root=5)]
    solution = gw.solve(network, jobs=jobs, objective="sum", schedulers="joint", seed=0)
    assert not any(one.improved for one in solution.attempts)
