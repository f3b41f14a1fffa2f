"""Groups of servers found by links, and trees composed of their dimensions."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import throughput
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Hierarchical
from gradweave.schedulers.grid import hierarchical, routes_kernel
from gradweave.schedulers.grid.grid import Grid
from gradweave.schedulers.grid.shares import least_time_shares
from gradweave.topology import Link, Topology
from gradweave.topology.groups import nested_groups
from tests.interpreted import interpreted

GB = 1e9


def relabelled(network: Topology, seed: int) -> Topology:
    new = np.random.default_rng(seed).permutation(network.num_nodes)
    is_server = np.empty_like(network.is_server)
    is_server[new] = network.is_server
    columns = {
        field: getattr(network, field)
        for field in ("bandwidth_bytes_per_s", "latency_s", "capacity", "overhead_s")
    }
    return Topology("moved", is_server, new[network.source], new[network.target], **columns)


def pods(count: int, boxes: int, gpus: int) -> Topology:
    """Boxes whose GPU i is on leaf i of their pod, all leaves on one spine."""
    servers = count * boxes * gpus
    gpu = np.arange(servers)
    box, leaf = servers + gpu // gpus, servers + count * boxes + gpu // (boxes * gpus) * gpus
    leaf = leaf + gpu % gpus
    spine = int(leaf.max()) + 1
    leaves = np.unique(leaf)
    links = [
        *zip(gpu, box, strict=True),
        *zip(gpu, leaf, strict=True),
        *((a, spine) for a in leaves),
    ]
    speeds = [100e9] * servers + [10e9] * servers + [10e9 * boxes] * len(leaves)
    return Topology.from_links(
        "pods",
        servers=servers,
        switches=spine + 1 - servers,
        links=links,
        bandwidth_bytes_per_s=np.array(speeds),
        link=Link(overhead_s=0.0),
    )


@pytest.mark.parametrize(
    ("network", "counts"),
    [
        (gw.topology.gpu_boxes("a100", boxes=3), [3]),
        (gw.topology.gpu_boxes("a100", boxes=4, rails=8, nvswitches=2), [4]),
        (gw.topology.leaf_spine(4, 2, 3), [4]),
        (gw.topology.fat_tree(4), [8, 4]),
        (pods(2, 3, 4), [6, 2]),
        (gw.topology.gpu_boxes("mi250"), []),
        (gw.topology.ring(6), []),
    ],
    ids=str,
)
def test_groups(network, counts):
    for one in (network, relabelled(network, 1)):
        assert [level.count for level in nested_groups(one)] == counts


def test_cards_belong_to_their_boxes():
    (level,) = nested_groups(gw.topology.gpu_boxes("a100", boxes=2))
    assert (level.group < 0).sum() == 1  # only the outer switch


def test_like_places_are_on_one_rail():
    network = relabelled(gw.topology.gpu_boxes("a100", boxes=3, rails=8), 4)
    grid = Grid.of(network)
    assert grid.sizes == (8, 3)
    tree = gw.topology.shortest_path_trees(network)
    for line in grid.server:
        route = gw.topology.shortest_route(network, *network.servers[line[:2]].tolist())
        assert len(route) == 5  # card, rail, card: through no box's switch
    assert tree.shape[0] == 24


def test_the_bound_of_groups_is_that_of_the_linear_program():
    network = gw.topology.gpu_boxes("a100", boxes=6)
    best = throughput(network, "all_reduce", overlap=True)
    assert best.bottlenecks[0].kind == "groups"
    assert "6 groups of servers" in str(best)
    least = gw.bounds.least_seconds(network, GB)
    assert least.volumes is not None
    assert best.seconds(GB) == pytest.approx(least.volumes.seconds_per_byte * GB, rel=1e-6)


@pytest.mark.parametrize("boxes", [2, 3, 8])
@pytest.mark.parametrize("spec", ["a100", "a100:bandwidth=450GB/s,nic=50GB/s"])
def test_boxes_are_near_the_bound(boxes, spec):
    joint = "," if ":" in spec else ":"
    network = gw.topology.from_spec(f"{spec}{joint}boxes={boxes}")
    schedule = Hierarchical(gradient_bytes=GB).schedule(network)
    taken = gw.simulator.seconds(schedule, GB, "events")
    assert taken <= 1.015 * throughput(network, "all_reduce", overlap=True).seconds(GB)


def test_one_order_is_not_enough_for_two_boxes():
    network = gw.topology.from_spec("a100:boxes=2,bandwidth=450GB/s,nic=50GB/s")
    taken = [
        gw.simulator.seconds(Hierarchical(GB, orders=n).schedule(network), GB, "events")
        for n in (1, None)
    ]
    assert taken[1] < 0.98 * taken[0]


def test_three_dimensions():
    network = pods(2, 3, 4)
    schedule = Hierarchical(gradient_bytes=GB).schedule(network)
    least = throughput(network, "all_reduce", overlap=True).seconds(GB)
    assert gw.simulator.seconds(schedule, GB, "events") <= 1.05 * least


def test_a_slow_card_roots_less():
    network = gw.topology.gpu_boxes("a100", boxes=4)
    card = int(network.target[network.source == 0].max())
    slow = (network.source == card) | (network.target == card)
    halved = np.where(slow, 0.5, 1.0) * network.bandwidth_bytes_per_s
    network = dataclasses.replace(network, bandwidth_bytes_per_s=halved)
    schedule = Hierarchical(gradient_bytes=GB, chunks=8).schedule(network)
    of_place = np.bincount(schedule.root % 8, schedule.share)
    assert of_place[0] < 0.6 * of_place[1]


def test_very_many_groups_have_few_roots():
    grid = Grid.of(gw.topology.gpu_boxes("a100", boxes=12)).split(5)
    assert grid.sizes == (8, 4, 3)
    assert grid.few_roots
    ranks = np.arange(96)
    assert (grid.server[tuple(grid.place.T)] == ranks).all()


def test_schedules_with_few_roots_are_valid(monkeypatch: pytest.MonkeyPatch):
    few = dataclasses.replace(hierarchical.TUNING, max_chunk_transfers=6200, groups_with_roots=4)
    monkeypatch.setattr(hierarchical, "TUNING", few)
    schedule = Hierarchical(GB, chunks=2).schedule(
        gw.topology.gpu_boxes("a100", boxes=12)
    )  # verified
    assert len(np.unique(schedule.root)) == 8 * 4 * 2


def test_shares_take_the_least_time():
    share, seconds = least_time_shares(np.array([[2.0, 0.0], [0.0, 1.0], [2.0, 1.0]]))
    assert seconds == pytest.approx(2 / 3, rel=2e-3)
    assert share[2] == pytest.approx(0.0, abs=2e-3)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_the_same_seed_gives_the_same_bits(collective):
    network = gw.topology.gpu_boxes("a100", boxes=2)
    one, other = (
        Hierarchical(gradient_bytes=1e7).schedule(network, collective=collective) for _ in range(2)
    )
    assert one.pieces == other.pieces
    for column in ("round", "piece", "source", "target"):
        assert np.array_equal(getattr(one, column), getattr(other, column))


def test_solve_ends_with_it_where_it_is_near_the_bound():
    network = gw.topology.gpu_boxes("a100", boxes=8)
    solution = gw.solve(network, objective="seconds", gradient_bytes=GB)
    assert [one.scheduler.name for one in solution.attempts] == ["hierarchical"]
    assert solution.timing.gap < 0.01


def test_refusals():
    with pytest.raises(NoScheduleError, match="no groups"):
        Hierarchical().schedule(gw.topology.ring(4))
    with pytest.raises(OptionError, match="gradient_bytes"):
        Hierarchical(gradient_bytes=0.0)
    with pytest.raises(OptionError, match="chunks"):
        Hierarchical(chunks=0)


def routes_to_last(pairs: list[tuple[int, int]], rates: list[float], senders: int):
    """Several routes from server 0 to the last node, the other server; links go both ways."""
    ends = np.array([*pairs, *[(b, a) for a, b in pairs]])
    order = np.argsort(ends[:, 0], kind="stable")
    nodes = int(ends.max()) + 1
    with interpreted(routes_kernel):
        links, lengths = routes_kernel.shared_routes(
            np.searchsorted(ends[order, 0], np.arange(nodes + 1)),
            ends[order, 1],
            np.isin(np.arange(nodes), [0, nodes - 1]),
            np.array([*rates, *rates])[order],
            np.zeros(senders, np.int64),
            np.array([0, senders]),
            np.array([nodes - 1]),
        )
    return ends[order][links], lengths.tolist()


def test_routes_are_shared_by_what_links_carry_for_their_bandwidth():
    """Switch 1 has thrice the bandwidth of switch 2; link 0 is the first that leaves server 0.

    After two messages by switch 1 the third is as good either way, 3 / 3 or 1 / 1: the first link
    is taken. For the fourth it is 4 / 3 or 1 / 1.
    """
    links, lengths = routes_to_last([(0, 1), (0, 2), (1, 3), (2, 3)], [3.0, 1.0, 3.0, 1.0], 4)
    assert lengths == [2, 2, 2, 2]
    assert links[::2, 1].tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("switches, found", [(13, 14), (14, 15), (15, 0)])
def test_routes_of_more_than_fifteen_links_are_none(switches, found):
    line = [(k, k + 1) for k in range(switches + 1)]
    links, lengths = routes_to_last(line, [1.0] * len(line), 1)
    assert lengths == [found] and links.tolist() == [list(one) for one in line[:found]]
