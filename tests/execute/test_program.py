"""Programs: what each server does, under the worst scheduler that messages and threads could have.

Every strategy is played here on networks of the conformance table, action by action, by a
machine that delays and reorders whatever it may (`tests.execute.adversary`). The tests of the
backends repeat it with processes where two cores can bear them.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import InvalidScheduleError, OptionError, ScheduleError
from gradweave.execute import Action, Program, play, same_bits
from gradweave.execute.program import check_all_reduce, check_servers, default_ahead
from gradweave.execute.reference import meaningful
from gradweave.execute.tracker import Tracker
from gradweave.schedulers import (
    Binomial,
    HalvingDoubling,
    Merged,
    RecursiveDoubling,
    Ring,
    Scheduler,
)
from gradweave.schedulers.spec import from_spec
from gradweave.schedules import COLLECTIVES, COPY, REDUCE, Schedule, sends
from gradweave.topology import Topology
from tests.conformance.made import made
from tests.conformance.networks import NETWORKS, TABLE_2, network, relabelled
from tests.conformance.strategies import STRATEGIES
from tests.execute.adversary import (
    CaughtError,
    Machine,
    Rigged,
    labels,
    mix,
    programs,
    redundant,
)
from tests.schedules import small_demands
from tests.simulator.random_networks import networks
from tests.verifier.random_schedules import QUICK

RUN = [strategy for strategy in STRATEGIES if "aggregating" not in strategy]
TWELVE = (
    *TABLE_2,
    "torus:4x4",
    "jellyfish:switches=5,degree=3,servers_per_switch=2,seed=1",
    "irregular",
)
LARGE = 10
"""Servers of the largest networks on which half of the strategies are played."""
SMALL = ("ring:8", "hypercube:3", "complete:4", "star:5", "lopsided", "complete:2")


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, row) for name in names for row in RUN if name not in STRATEGIES[row].none_on]


def some_of(all_pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """On each network half of the strategies, in turn; on larger ones, where a play takes a second,
    a quarter."""
    names = list(dict.fromkeys(name for name, _ in all_pairs))
    large = sorted({name for name in names if network(name).num_servers > LARGE})

    def in_turn(name: str, strategy: str) -> bool:
        number = RUN.index(strategy)
        if name in large:
            return (number + large.index(name)) % 4 == 0
        return (number + names.index(name)) % 2 == 0

    return [pair for pair in all_pairs if in_turn(*pair)]


def quick(strategies: tuple[Scheduler, ...]) -> list[Scheduler]:
    return [each for each in strategies if not getattr(each, "aggregating_switches", False)]


random_schedules = st.builds(
    lambda scheduler, topology, collective, seed: scheduler.schedule(
        topology, collective=collective, seed=seed
    ),
    st.sampled_from([*quick(QUICK), RecursiveDoubling(), HalvingDoubling(), Binomial()]),
    networks(max_servers=7),
    st.sampled_from(COLLECTIVES),
    st.integers(0, 9),
)


def by_hand(
    topology: Topology, pieces: int, rows: list[tuple[int, int, int, int, int]], **options: Any
) -> Schedule:
    """From (round, piece, source, target, op); all routes are one link."""
    columns = np.array(rows).T
    return Schedule(
        topology=topology,
        collective="all_reduce",
        root=np.zeros(pieces, np.int32),
        **dict(zip(("round", "piece", "source", "target", "op"), columns, strict=True)),
        route_nodes=columns[2:4].T.reshape(-1),
        route_offsets=np.arange(0, 2 * len(rows) + 1, 2),
    )


def survives(schedule: Schedule, seeds: Iterable[int], elements: int | None = None) -> None:
    """Asserts that the machine ends with the oracle's bits, however it schedules."""
    run, ahead = programs(schedule), max(default_ahead(schedule), 1)
    elements = schedule.pieces if elements is None else elements
    held = labels(schedule.topology.num_servers, elements)
    expected, counts = play(schedule, held, mix), meaningful(schedule, elements)
    for seed in seeds:
        got = Machine(run, held, mix, seed, ahead=ahead).play()
        assert np.array_equal(got[counts], expected[counts])


@pytest.mark.parametrize(("name", "strategy"), some_of(pairs((*TWELVE, *SMALL))))
def test_any_order_of_messages_gives_the_bits_of_the_oracle(name: str, strategy: str):
    """The machine's six tempers (see `Machine`) come in turn: each strategy and each network meets
    all of them.
    """
    schedule = made(name, strategy)
    turn = RUN.index(strategy) + (*TWELVE, *SMALL).index(name)
    times = max(1, min(2, 1000 // schedule.num_transfers))
    survives(schedule, [(turn + 3 * i) % 6 for i in range(times)])


@pytest.mark.parametrize("collective", COLLECTIVES[1:])
@pytest.mark.parametrize("strategy", RUN)
def test_any_order_of_messages_of_one_stage(strategy: str, collective: str):
    for name in ("hypercube:3", "complete:4", "star:5"):
        if name not in STRATEGIES[strategy].none_on:
            survives(made(name, strategy, collective), range(3))


@given(random_schedules, st.integers(0, 11), st.integers(0, 30))
def test_random_networks(schedule: Schedule, seed: int, elements: int):
    survives(schedule, [seed], elements)


def test_servers_that_swap_what_they_have():
    # In one round both send the piece that both add to: what is sent is what stood there before.
    schedule = RecursiveDoubling().schedule(gw.topology.hypercube(2))
    swaps = {
        (int(r), int(p), *sorted((int(a), int(b))))
        for r, p, a, b in zip(
            schedule.round, schedule.piece, schedule.source, schedule.target, strict=True
        )
    }
    assert 2 * len(swaps) == schedule.num_transfers
    survives(schedule, range(20))


def test_servers_that_swap_by_copying():
    # Server 0 has the sum and gets rubbish for it, but has sent it on.
    schedule = by_hand(
        gw.topology.complete(2),
        1,
        [(0, 0, 1, 0, REDUCE), (1, 0, 0, 1, COPY), (1, 0, 1, 0, COPY), (2, 0, 1, 0, COPY)],
    )
    survives(schedule, range(6))


def test_more_transfers_in_a_round_than_servers():
    topology = gw.topology.Topology.from_links(
        "thick", servers=2, switches=0, links=[(0, 1)], capacity=[100]
    )
    up = [(0, piece, 0, 1, REDUCE) for piece in range(10)]
    down = [(0, piece, 1, 0, REDUCE) for piece in range(10)]
    for order in (down, down[::-1]):
        survives(by_hand(topology, 10, up + order), range(6))


def without(program: Program, early: int, late: int) -> Program:
    """A program in which an action does not wait for another."""
    after = [
        [b for b in each if (a, b) != (early, late)] for a, each in enumerate(awaited(program))
    ]
    return dataclasses.replace(
        program,
        after=np.array([b for each in after for b in each], np.int64),
        after_offsets=np.cumsum([0, *map(len, after)]),
    )


def awaited(program: Program) -> list[list[int]]:
    """For each action those that it waits for."""
    return [
        program.after[a:b].tolist() for a, b in itertools.pairwise(program.after_offsets.tolist())
    ]


def caught(run: list[Program], held: np.ndarray, expected: np.ndarray, rigged: Rigged) -> bool:
    for seed in range(3):
        try:
            got = Machine(run, held, mix, seed, rigged).play()
        except CaughtError:
            return True
        if not np.array_equal(got, expected):
            return True
    return False


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("complete:4", "recursive doubling"),
        ("complete:4", "merged"),
        ("star:5", "parameter server"),
        ("star:5", "binomial"),
        ("irregular", "central"),
        ("irregular", "ring"),
        ("lopsided", "grown"),
    ],
)
def test_every_wait_for_data_is_needed(name: str, strategy: str):
    """Left out, it is noticed, unless it follows from others and from the other servers' waits."""
    schedule = made(name, strategy)
    run = programs(schedule)
    held = labels(len(run), schedule.pieces)
    expected = play(schedule, held, mix)
    tried = collections.Counter()
    for server, program in enumerate(run):
        for early, each in enumerate(awaited(program)):
            for late in set(each):
                kinds = program.kind[early], program.kind[late]
                turn = kinds in ((Action.SEND,) * 2, (Action.RECEIVE,) * 2)
                if turn or redundant(run, server, early, late):
                    continue
                less = [*run]
                less[server] = without(program, early, late)
                found = caught(less, held, expected, Rigged(server, early, late))
                assert found, f"action {early} of server {server} need not wait for {late}"
                tried[Action(kinds[0]).name, Action(kinds[1]).name] += 1
    assert tried["REDUCE", "RECEIVE"] and tried["SEND", "REDUCE"]


@pytest.mark.parametrize("strategy", ["central", "parameter server", "merged"])
def test_turns_on_links_are_kept(strategy: str):
    schedule = made("irregular", strategy)
    run = programs(schedule)
    for server, program in enumerate(run):
        less = program
        for early, each in enumerate(awaited(program)):
            for late in each:
                if program.kind[early] == program.kind[late] != Action.REDUCE:
                    less = without(less, early, late)
        run[server] = less
    with pytest.raises(CaughtError, match="messages on a link"):
        for seed in range(10):
            Machine(run, labels(len(run), schedule.pieces), mix, seed).play()


@given(random_schedules)
def test_both_ends_know_a_message_by_the_same_number(schedule: Schedule):
    ends = collections.defaultdict(list)
    for program in programs(schedule):
        assert not (np.diff(program.transfer[program.kind == Action.SEND]) <= 0).any()
        for action in np.flatnonzero(program.kind != Action.REDUCE).tolist():
            sends = program.kind[action] == Action.SEND
            rank, peer = program.rank, int(program.peer[action])
            way = (rank, peer) if sends else (peer, rank)
            number, row = int(program.message[action]), int(program.transfer[action])
            ends[*way, number].append((bool(sends), row))
    for (source, target, _), both in ends.items():
        (_, row), (_, other) = both
        assert sorted(sends for sends, _ in both) == [False, True]
        assert row == other
        servers = schedule.topology.servers
        assert (schedule.source[row], schedule.target[row]) == (servers[source], servers[target])
    assert len(ends) == schedule.num_transfers
    for way in {(source, target) for source, target, _ in ends}:
        numbers = sorted(number for *other, number in ends if tuple(other) == way)
        rows = [ends[*way, number][0][1] for number in numbers]
        assert numbers == list(range(len(numbers)))
        assert rows == sorted(rows)


@given(random_schedules)
def test_waits_point_back_in_the_schedule(schedule: Schedule):
    for program in programs(schedule):
        rounds = schedule.round[program.transfer]
        for action, each in enumerate(awaited(program)):
            for before in each:
                assert before < action
                # Only a reduction waits for its own round, and a copy for what it overwrites.
                same = rounds[before] == rounds[action]
                overwrites = program.kind[before] == Action.SEND and program.place[action] < 0
                assert not same or program.kind[action] == Action.REDUCE or overwrites


def test_a_program_by_hand():
    # Server 0 sends piece 0 away, adds what comes of pieces 2 and 1, and gets the sums.
    program = Program.of(Ring().schedule(gw.topology.ring(3)), rank=0)
    send, receive, reduce = Action.SEND, Action.RECEIVE, Action.REDUCE
    assert program.kind.tolist() == [send, receive, reduce] * 2 + [send, receive] * 2
    assert program.message.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert program.peer.tolist() == [1, 2, 2, 1, 2, 2, 1, 2, 1, 2]
    assert program.place.tolist() == [-1, 0, 0, -1, 1, 1, -1, -1, -1, -1]
    assert (program.server, program.rank, program.places, program.at_once) == (0, 0, 2, 3)
    # The second send waits for what it sends alone, the second receive also for its turn.
    assert awaited(program)[:6] == [[], [], [1], [2], [1], [4]]


def test_node_ids_are_not_ranks():
    topology = gw.topology.Topology.from_links(
        "mixed", servers=3, switches=1, links=[(0, 3), (1, 3), (2, 3)]
    )
    moved, new_id = relabelled(topology, seed=3)
    assert new_id[:3].tolist() != [0, 1, 2]
    schedule = Ring().schedule(moved)
    for rank in range(3):
        program = Program.of(schedule, rank)
        assert program.server == moved.servers[rank]
        assert set(program.peer.tolist()) <= {0, 1, 2} - {rank}
    survives(schedule, range(3))


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_how_far_ahead(ahead: int):
    schedule = made("star:5", "parameter server")
    run = [Program.of(schedule, rank, ahead=ahead) for rank in range(5)]
    assert [program.at_once for program in run] == [2 + ahead + max(ahead, 1)] * 5
    held = labels(5, schedule.pieces)
    expected = play(schedule, held, mix)
    for seed in range(6):
        assert np.array_equal(Machine(run, held, mix, seed, ahead=ahead).play(), expected)


def test_further_ahead_where_the_order_is_lost():
    star, switches = made("star:5", "parameter server"), made("fat_tree:4", "parameter server")
    late = star.replace(topology=gw.topology.slowed(star.topology, {(2, 5): 0.5}).topology)
    assert [default_ahead(one) for one in (star, switches, late)] == [0, 2, 2]
    for schedule, ahead in ((star, 0), (switches, 2), (late, 2)):
        by_default, given = Program.of(schedule, 0), Program.of(schedule, 0, ahead=ahead)
        assert by_default.at_once == given.at_once
    assert Program.of(switches, 0).at_once > Program.of(switches, 0, ahead=1).at_once
    survives(switches, range(2))


def far_apart(spec: str, latency_s: float) -> gw.topology.Topology:
    link = gw.topology.Link(bandwidth_bytes_per_s=1e6, latency_s=latency_s)
    return {"ring": gw.topology.ring, "star": gw.topology.star}[spec](5, link=link)


@pytest.mark.parametrize("piece_bytes", [100, 10_000, 10**9])
@pytest.mark.parametrize("strategy", ["ring", "parameter_server", "grown"])
@pytest.mark.parametrize("spec", ["ring", "star"])
def test_messages_from_afar_are_announced_early(spec: str, strategy: str, piece_bytes: int):
    schedule = from_spec(strategy).schedule(far_apart(spec, 0.02))
    run = [Program.of(schedule, rank, gradient_bytes=5 * piece_bytes) for rank in range(5)]
    held = labels(5, schedule.pieces)
    expected = play(schedule, held, mix)
    for seed in range(6):
        assert np.array_equal(Machine(run, held, mix, seed, ahead=16).play(), expected)


def test_how_many_messages_are_announced_early():
    ring = Ring().schedule(far_apart("ring", 0.02))
    # A round trip of 40 ms and 1 MB/s: 40,000 bytes. Sends wait for no receiver.
    for piece_bytes, early in ((10_000, 5), (20_001, 2), (40_001, 1), (1, 8)):
        program = Program.of(ring, 0, gradient_bytes=5 * piece_bytes)
        assert program.at_once == 1 + (1 + early), piece_bytes  # 8 messages come in all
    # On one link from several servers, only as many as the round trip has room for.
    star = from_spec("parameter_server").schedule(far_apart("star", 0.01))
    waits = Program.of(star, 0, gradient_bytes=5 * 40_001)
    plain = Program.of(star, 0)
    receives = waits.kind == Action.RECEIVE
    assert np.array_equal(plain.kind, waits.kind)
    for action in np.flatnonzero(receives):
        turns = set(np.flatnonzero(receives & (waits.peer != waits.peer[action])).tolist())
        after = [
            p.after[p.after_offsets[action] : p.after_offsets[action + 1]] for p in (plain, waits)
        ]
        assert turns & set(after[0].tolist()) == turns & set(after[1].tolist())


def test_nothing_near_is_announced_early():
    schedule = made("fat_tree:4", "parameter server")
    plain, sized = Program.of(schedule, 0), Program.of(schedule, 0, gradient_bytes=1)
    assert plain.at_once == sized.at_once and plain.places == sized.places
    assert np.array_equal(plain.after, sized.after)


def test_a_single_transfer():
    topology = gw.topology.complete(2)
    schedule = Schedule(
        topology=topology,
        collective="reduce_scatter",
        root=np.array([0]),
        round=np.array([0]),
        piece=np.array([0]),
        source=np.array([1]),
        target=np.array([0]),
        op=np.array([REDUCE]),
        route_nodes=np.array([1, 0]),
        route_offsets=np.array([0, 2]),
    )
    survives(schedule, range(3))
    survives(schedule, range(1), elements=0)
    assert Tracker(Program.of(schedule, 1), [0]).left == 0


def test_a_tracker_starts_anew():
    program = Program.of(Ring().schedule(gw.topology.ring(3)), rank=0)
    tracker = Tracker(program, [1, 1, 1])
    for _ in range(2):
        ready = tracker.restart()
        order = []
        while ready:
            order.append(ready.pop(0))
            ready += tracker.complete(order[-1])
        assert sorted(order) == list(range(len(program.kind)))
        assert tracker.left == 0
    assert tracker.restart() == [0, 1]
    assert tracker.left == len(program.kind)


def test_refusals():
    schedule = Ring().schedule(gw.topology.ring(3))
    for rank in (-1, 3):
        with pytest.raises(OptionError, match=f"rank: expected 0 to 2, got {rank}"):
            Program.of(schedule, rank)
    broken = schedule.replace(op=np.full_like(schedule.op, COPY))
    with pytest.raises(InvalidScheduleError, match="cannot run"):
        Program.of(broken, 0)
    with pytest.raises(ScheduleError, match=r"3 servers of .*there are 4 cooks; start 3"):
        check_servers(schedule, 4, what="cooks")
    check_servers(schedule, 3, what="cooks")
    check_all_reduce(schedule)
    scatter = Ring().schedule(gw.topology.ring(3), collective="reduce_scatter")
    with pytest.raises(ScheduleError, match="all_reduce, got reduce_scatter"):
        check_all_reduce(scatter)


def test_switches_that_add_are_for_simulation_alone():
    schedule = Merged(aggregating_switches=True).schedule(network("star:5"))
    with pytest.raises(InvalidScheduleError, match="switches do not aggregate"):
        Program.of(schedule, 0)


@pytest.mark.parametrize(("name", "strategy"), some_of(pairs((*NETWORKS, "torus:4x4"))))
def test_all_servers_get_the_same_bits(name: str, strategy: str):
    assert same_bits(made(name, strategy))


def everybody_to_everybody(servers: int) -> Schedule:
    rows = [(0, 0, a, b, REDUCE) for a, b in itertools.permutations(range(servers), 2)]
    return by_hand(gw.topology.complete(servers), 1, rows)


def test_servers_that_associate_differently():
    assert same_bits(everybody_to_everybody(2))
    assert same_bits(everybody_to_everybody(3))
    survives(everybody_to_everybody(3), range(10))
    near = RecursiveDoubling(order="near", radix=3)
    schedule = near.schedule(gw.topology.complete(9))
    assert not same_bits(schedule)
    ends = play(schedule, np.random.default_rng(0).standard_normal((9, 99)).astype(np.float32))
    assert not (ends == ends[0]).all()
    survives(schedule, range(10))


def test_one_stage_ends_with_one_holder_or_copies():
    for collective in COLLECTIVES[1:]:
        for strategy in ("ring", "merged", "recursive doubling"):
            assert same_bits(made("hypercube:3", strategy, collective))


def test_a_fast_link_carries_several_slow_transfers_at_once():
    star = gw.topology.star(5)
    slow = np.isin(star.source, (1, 2)) | np.isin(star.target, (1, 2))
    bandwidth = np.where(slow, 0.5, 1.0) * star.bandwidth_bytes_per_s
    uneven = dataclasses.replace(star, bandwidth_bytes_per_s=bandwidth)
    schedule = from_spec("parameter_server").schedule(uneven)
    even, run = (
        [Program.of(each, rank, ahead=0) for rank in range(5)]
        for each in (schedule.replace(topology=star), schedule)
    )
    more = [fast.at_once - plain.at_once for fast, plain in zip(run, even, strict=True)]
    assert more[1] == more[2] == 0  # the slow ones
    assert more[3] == more[4] == 2  # one more to them, and one more from them
    survives(schedule, range(6))


def test_a_server_that_a_demand_does_not_need_does_nothing():
    schedule = small_demands.by_hand(sends([(0, 1, 4)]), [(0, 0, COPY, (0, 1))], [0])
    lengths = [len(Program.of(schedule, rank).kind) for rank in range(4)]
    assert lengths == [1, 1, 0, 0]
