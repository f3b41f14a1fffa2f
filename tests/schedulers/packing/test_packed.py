"""The strategy `packed`, which chooses shares, roots and pieces."""

import dataclasses
import types

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import UNLIMITED
from gradweave.errors import OptionError
from gradweave.execute import play
from gradweave.schedulers import Packed
from gradweave.schedulers.ordering.cuts import cuts_of, parts_schedule, periodic_cut
from gradweave.schedulers.ordering.periodic_schedule import periodic_slots
from gradweave.schedulers.packing import packed
from gradweave.schedulers.packing.packed import _Search
from gradweave.schedulers.packing.parts import Parts, parts_of
from gradweave.schedules import COLLECTIVES
from gradweave.simulator import seconds
from gradweave.topology import Link
from tests.schedulers.packing.test_unequal_packing import NETWORKS, slowed

GIGABYTE = 1e9


@pytest.mark.parametrize("name", NETWORKS)
def test_the_event_model_takes_no_longer_than_the_clock_that_it_was_simulated_on(name: str):
    topology = NETWORKS[name]
    parts = parts_of(topology, "all_reduce", gradient_bytes=GIGABYTE)
    search = _Search(topology, "all_reduce", GIGABYTE, UNLIMITED, waiting=False)
    simulated = [search._simulated(parts, cut, np.inf)[1] for cut in cuts_of(parts, 40)]
    schedule = Packed(gradient_bytes=GIGABYTE, pieces=40).schedule(topology)
    assert seconds(schedule, GIGABYTE, "events") <= min(simulated) * (1 + 1e-4)


@pytest.mark.parametrize(("in_time", "kept"), [(True, "ca"), (False, "b")])
def test_packings_are_compared_while_there_is_time(monkeypatch, in_time, kept):
    """b takes three seconds, c one, a two and another two; without time only b is tried."""
    stop = types.SimpleNamespace(reached=lambda: not in_time)
    search = _Search(gw.topology.ring(4), "all_reduce", GIGABYTE, stop, waiting=False)  # type: ignore[arg-type]
    takes = {"b": 3.0, "c": 1.0, "a": 2.0, "d": 2.0}

    def tried(parts, pieces, worst):
        search._best = search._best or parts
        return takes[parts]

    monkeypatch.setattr(search, "_try", tried)
    monkeypatch.setattr(packed, "TUNING", dataclasses.replace(packed.TUNING, max_packings=2))
    assert "".join(search.best_of([*takes])) == kept  # type: ignore[arg-type]


def test_a_slow_server_does_not_slow_the_others():
    star = slowed(gw.topology.star(16), 3, 0.5)
    schedule = Packed(gradient_bytes=GIGABYTE, pieces=1000).schedule(star)
    least = gw.bounds.least_seconds(star, GIGABYTE).seconds
    # Equal pieces with equal roots take 0.278 s; the bound is 0.160.
    assert least <= seconds(schedule, GIGABYTE, "events") <= 0.165


def longest(parts: Parts, part: int) -> int:
    """Number of consecutive transfers that a piece of a part needs."""
    first, following = parts.trees.first_following[part], parts.trees.following
    graph = nx.DiGraph(
        (transfer, then)
        for transfer in range(len(first) - 1)
        for then in following[first[transfer] : first[transfer + 1]].tolist()
    )
    return nx.dag_longest_path_length(graph) + 1


def test_small_gradients_go_over_short_trees():
    network = dataclasses.replace(NETWORKS["torus"], latency_s=np.full(36, 1e-3))
    deep, flat = (
        max(longest(parts, part) for part in range(len(parts.root)))
        for parts in (
            parts_of(network, "all_reduce"),
            parts_of(network, "all_reduce", gradient_bytes=1e5),
        )
    )
    assert flat < deep


def test_in_turns_all_ports_of_a_switch_are_busy_at_one_time():
    star = gw.topology.star(8, link=Link(bandwidth_bytes_per_s=1e9, overhead_s=0.0, latency_s=0.0))
    parts = parts_of(star, "all_reduce")
    cut = periodic_cut(parts, 10 * len(parts.root))
    assert cut is not None
    schedule = parts_schedule(parts, "all_reduce", cut, periodic_slots(parts, cut))
    least = gw.bounds.least_seconds(star, GIGABYTE).seconds
    # Before the first sums there is nothing to copy: a part of one of the ten periods.
    assert seconds(schedule, GIGABYTE, "events") <= 1.06 * least


def test_transfers_wait_for_the_turn_in_which_their_data_is_there():
    parts = parts_of(NETWORKS["half speed"], "all_reduce")
    cut = periodic_cut(parts, 100)
    assert cut is not None
    turn = periodic_slots(parts, cut).reshape(len(cut.part), -1)
    for piece, part in enumerate(cut.part):
        first = parts.trees.first_following[part]
        for transfer in range(turn.shape[1]):
            then = parts.trees.following[first[transfer] : first[transfer + 1]]
            assert (turn[piece, then] > turn[piece, transfer]).all()


def test_no_period_is_cut_from_fewer_pieces_than_it_has():
    parts = parts_of(NETWORKS["half speed"], "all_reduce")
    assert periodic_cut(parts, 1) is None


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_it_sends_adds_up_to_the_element(collective):
    topology = NETWORKS["one way faster"]
    schedule = Packed(gradient_bytes=1e6).schedule(topology, collective=collective)
    rng = np.random.default_rng(0)
    brought = rng.integers(-1000, 1000, (topology.num_servers, 10_007))
    ends = play(schedule, brought)
    at = schedule.piece_offsets(10_007)
    roots = topology.rank[schedule.root]
    for piece, root in enumerate(roots):
        part = slice(at[piece], at[piece + 1])
        whole = brought[root, part] if collective == "all_gather" else brought[:, part].sum(0)
        receivers = [root] if collective == "reduce_scatter" else range(topology.num_servers)
        assert all((ends[rank, part] == whole).all() for rank in receivers)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_of_a_stage_every_server_roots_an_equal_part(collective):
    schedule = Packed(pieces=50).schedule(NETWORKS["torus"], collective=collective)
    assert schedule.shares is not None
    rooted = np.bincount(schedule.root, schedule.shares)
    assert np.ptp(rooted) == 0


def test_small_gradients_are_cut_into_few_pieces():
    star = NETWORKS["half speed"]
    few, many = (Packed(gradient_bytes=size).schedule(star).pieces for size in (1e3, 1e9))
    assert few < many


def test_its_rounds_are_not_compared_with_others():
    with pytest.raises(OptionError, match="their rounds do not compare"):
        gw.solve("star:5", schedulers=[Packed(), gw.schedulers.Grown()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_bytes": 0.0}, "packed: gradient_bytes: expected more than 0, got 0"),
        ({"gradient_bytes": float("nan")}, "packed: gradient_bytes: expected more than 0, got nan"),
        ({"pieces": 0}, "packed: pieces: expected 1 to"),
    ],
)
def test_options_out_of_range(options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        Packed(**options)
