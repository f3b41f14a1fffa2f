"""Orders of ranks: exact where all are compared, above their bound, and what libraries do."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError, TopologyError
from gradweave.ranks.bound import any_bound, ring_bound
from gradweave.ranks.libraries import LIBRARIES, own_all_reduces
from gradweave.ranks.pattern import routes_of
from gradweave.ranks.starts import by_nearness, twins
from gradweave.topology.formats.files import read

SIZE = 4e6
DATA = Path(__file__).parents[1] / "topology" / "data"


def random_network(seed: int, servers: int = 6, switches: int = 3) -> gw.Topology:
    """A tree of servers and switches and some more links, all of different bandwidths."""
    rng = np.random.default_rng(seed)
    nodes = servers + switches
    core = range(servers, nodes)
    links = {(node, int(rng.choice(core))) for node in range(servers)}
    links |= {(node, int(rng.integers(servers, node))) for node in core if node > servers}
    for _ in range(int(rng.integers(0, 4))):
        a, b = sorted(rng.choice(nodes, 2, replace=False).tolist())
        links.add((a, b))
    pairs = np.array(sorted({(min(a, b), max(a, b)) for a, b in links if a != b}))
    rates = rng.choice([1, 2.5, 4, 10], len(pairs)) * 125e6
    net = gw.Topology.from_links(
        f"random {seed}",
        servers=servers,
        switches=switches,
        links=pairs,
        bandwidth_bytes_per_s=rates,
    )
    slower = net.bandwidth_bytes_per_s * rng.choice([1, 1, 1, 0.5], len(net.source))
    return dataclasses.replace(net, bandwidth_bytes_per_s=slower)


def played_rings(net: gw.Topology, size: float) -> dict[tuple[int, ...], float]:
    """Every ring, from the first server on, with gloo's played time."""
    (reduce,) = own_all_reduces("gloo", net.num_servers, size, "ideal")
    first, *others = net.servers.tolist()
    return {
        (first, *rest): reduce.seconds(net, (first, *rest))
        for rest in itertools.permutations(others)
    }


def interleaved_racks(racks: int = 2, each: int = 4) -> gw.Topology:
    """Racks behind a thin trunk; consecutive servers are in different racks."""
    servers = racks * each
    links = [(s, servers + s % racks) for s in range(servers)]
    links += [(servers + rack, servers + racks) for rack in range(racks)]
    rates = np.array([1.25e9] * servers + [1.25e9] * racks)
    net = gw.Topology.from_links(
        "racks", servers=servers, switches=racks + 1, links=links, bandwidth_bytes_per_s=rates
    )
    names = [f"node{s:02}" for s in range(servers)] + [f"s{r}" for r in range(racks)] + ["core"]
    return dataclasses.replace(net, labels=tuple(names))


@pytest.mark.parametrize("seed", range(6))
def test_within_two_percent_of_the_best_ring_and_the_bound_below_it(seed: int):
    net = random_network(seed, servers=5)
    exact = min(played_rings(net, SIZE).values())
    found = gw.ranks.optimize(net, "gloo", SIZE, runtime="ideal")
    assert found.bound.seconds <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= found.seconds <= 1.02 * exact
    assert found.compared_all


@pytest.mark.parametrize("seed", range(3))
def test_annealing_finds_what_comparing_all_finds(seed: int, monkeypatch):
    net = random_network(100 + seed, servers=9, switches=4)
    exact = gw.ranks.optimize(net, "gloo", SIZE, runtime="ideal")
    monkeypatch.setattr("gradweave.ranks.search.EXACT_SERVERS", 2)
    annealed = gw.ranks.optimize(net, "gloo", SIZE, runtime="ideal")
    assert exact.compared_all and not annealed.compared_all
    assert annealed.seconds <= 1.02 * exact.seconds


def test_gpus_under_one_pcie_switch_send_over_the_nvswitch():
    """Routes over either have two links. A ring of 1 GB takes 1.5 GB at 240 GB/s in any order."""
    net = read(DATA / "a100_pairs.xml")
    for seconds in played_rings(net, 1e9).values():
        assert seconds == pytest.approx(1.5 / 240, rel=5e-3)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_bound_is_below_every_order(library: str):
    rng = np.random.default_rng(1)
    for seed in range(3):
        net = random_network(seed)
        reduces = own_all_reduces(library, net.num_servers, SIZE)
        for reduce in reduces:
            routes = routes_of(reduce.network(net))
            if reduce.is_ring:
                parts = reduce.algorithm.parts
                bound = ring_bound(net, routes, SIZE, parts=parts, start_s=reduce.start_s)
            else:
                bound = any_bound(reduce.network(net), SIZE, reduce.start_s)
            for _ in range(4):
                ranks = rng.permutation(net.servers).tolist()
                assert bound.seconds <= reduce.seconds(net, ranks) * (1 + 1e-9)


def test_the_best_cut_is_the_best_of_all_sets_of_servers():
    for seed in range(4):
        net = random_network(seed, servers=5)
        routes = routes_of(net)
        bound = ring_bound(net, routes, 1e9)
        carried = 2 * 4 / 5 * 1e9 * (1 + routes.least_padding / 2e8) * routes.slowest
        cuts = []
        for inside in itertools.product([False, True], repeat=5):
            if 0 < sum(inside) < 5:
                within = np.array(inside)
                cuts.append(carried[np.ix_(within, ~within)].min())
        assert bound.kind == "cut" and bound.seconds == pytest.approx(max(cuts))
        inside = np.isin(net.servers, bound.servers)
        across = np.ix_(inside, ~inside) if bound.leaving else np.ix_(~inside, inside)
        assert carried[across].min() == pytest.approx(bound.seconds)
        assert 1 / routes.slowest[across].min() == pytest.approx(bound.bandwidth_bytes_per_s)


def test_racks_come_out_together_and_the_bound_is_met():
    found = gw.ranks.optimize(interleaved_racks(), "gloo", 100e6)
    racks = [server % 2 for server in found.ranks]
    assert sum(a != b for a, b in itertools.pairwise(racks + racks[:1])) == 2
    assert found.by_id_s > 1.8 * found.seconds and found.by_name_s == found.by_id_s
    assert found.gap < 0.01 and "hop" in str(found.bound)
    assert found.names[0] == "node00" and sorted(found.permutation) == list(range(8))


def test_many_servers_are_ordered_in_seconds():
    net = gw.topology.leaf_spine(8, 1, 16, oversubscription=4)
    shuffled = np.concatenate([np.random.default_rng(0).permutation(128), np.arange(128, 137)])
    inverse = np.argsort(shuffled)
    moved = gw.Topology(
        name="shuffled",
        is_server=net.is_server,
        source=inverse[net.source],
        target=inverse[net.target],
        bandwidth_bytes_per_s=net.bandwidth_bytes_per_s,
        latency_s=net.latency_s,
        capacity=net.capacity,
    )
    found = gw.ranks.optimize(moved, "gloo", 25e6, runtime="ideal")
    assert found.gap < 0.01 and found.wall_s < 10 and found.by_id_s > 3 * found.seconds


def test_gloo_sends_to_the_rank_before_and_nccl_to_the_one_after():
    net = gw.topology.ring(5)
    ranks = (0, 2, 4, 1, 3)
    for library, place in (("gloo", 1), ("nccl", -1)):
        made = own_all_reduces(library, 5, SIZE)[0].schedule(net, ranks)
        after = {ranks[p]: ranks[(p + 1) % 5] for p in range(5)}
        pairs = set(zip(made.source.tolist(), made.target.tolist(), strict=True))
        expected = {(b, a) if place > 0 else (a, b) for a, b in after.items()}
        assert pairs == expected


def test_open_mpi_exchanges_by_size_and_partners_are_ranks_beside_each_other():
    small, large = (own_all_reduces("openmpi", 8, size)[0] for size in (4e3, 4e6))
    assert (small.name, large.name) == ("recursive_doubling", "halving_doubling")
    found = gw.ranks.optimize(interleaved_racks(), "openmpi", 100e6)
    racks = [server % 2 for server in found.ranks]
    # Only one of three exchanges crosses the trunk, and it is not the first, the largest.
    assert racks[0::2] == racks[1::2]
    assert found.seconds < found.by_id_s and found.algorithm == "halving_doubling"
    assert found.bound.kind == "any" and found.bound.seconds <= found.seconds


def test_nccl_takes_the_tree_for_little_and_the_ring_for_much():
    net = gw.topology.star(16)
    assert gw.ranks.optimize(net, "nccl", 1e4).algorithm == "double_tree"
    assert gw.ranks.optimize(net, "nccl", 1e8).algorithm == "ring"


def test_what_is_played_is_a_valid_all_reduce():
    net = random_network(3)
    ranks = net.servers[[3, 1, 0, 5, 2, 4]].tolist()
    for library in LIBRARIES:
        for reduce in own_all_reduces(library, 6, SIZE):
            if reduce.name != "double_tree":  # played with several parts on a link at once
                assert gw.verify(reduce.schedule(net, ranks)).valid


def test_a_mesh_has_its_heaviest_axis_on_the_nearest_links():
    net = interleaved_racks(2, 4)
    found = gw.ranks.optimize(
        net, "nccl", mesh={"dp": 2, "tp": 4}, axis_bytes={"tp": 400e6, "dp": 100e6}
    )
    racks = np.array(found.ranks).reshape(2, 4) % 2
    assert (racks == racks[:, :1]).all() and found.algorithm == "mesh"
    assert found.seconds < found.by_id_s / 1.5
    assert found.seconds == pytest.approx(sum(found.axis_s.values()))
    assert found.bound.seconds <= found.seconds
    swapped = gw.ranks.optimize(
        net, "nccl", mesh={"tp": 4, "dp": 2}, axis_bytes={"tp": 400e6, "dp": 100e6}
    )
    assert swapped.seconds == pytest.approx(found.seconds, rel=0.02)


def test_pipelines_pass_on_and_need_no_ring():
    net = interleaved_racks(2, 2)
    found = gw.ranks.optimize(
        net, "nccl", mesh={"pp": 2, "tp": 2}, axis_bytes={"tp": 100e6, "pp": 1e6}, runtime="ideal"
    )
    racks = np.array(found.ranks).reshape(2, 2) % 2
    assert (racks == racks[:, :1]).all() and set(found.axis_s) == {"pp", "tp"}


def test_the_same_for_a_seed_and_as_plain_values():
    net = gw.topology.jellyfish(16, 3, seed=1)
    one, other = (gw.ranks.optimize(net, "openmpi", SIZE, seed=3) for _ in range(2))
    assert one.ranks == other.ranks and sorted(one.ranks) == net.servers.tolist()
    plain = one.as_object()
    assert plain["seconds"] == one.seconds and plain["gap"] == one.gap and plain["names"] is None


def test_nearness_joins_what_is_near_and_twins_are_alike():
    net = interleaved_racks(2, 3)
    assert by_nearness(routes_of(net)).tolist() == [0, 2, 4, 1, 3, 5]
    assert twins(net).tolist() == [-1, -1, 0, 1, 2, 3]
    assert twins(gw.topology.ring(4)).tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"library": "glo"}, "did you mean gloo"),
        ({"gradient_bytes": 0}, "gradient_bytes: expected a finite number above 0"),
        ({"time_limit": -1.0}, "time_limit: expected more than 0 seconds"),
        ({"axis_bytes": {"tp": 1e6}}, "expected a mesh with it"),
        ({"mesh": {"dp": 4}, "axis_bytes": {"dp": 1e6}}, "as many ranks as servers, 8, got 4"),
        ({"mesh": {"dp": 8}}, "what a step moves along at least one axis"),
        ({"mesh": {"dp": 0}, "axis_bytes": {"dp": 1.0}}, "dp: expected a size of at least 1"),
        ({"mesh": {"d p": 8}, "axis_bytes": {"d p": 1.0}}, "expected a name such as dp"),
        ({"mesh": {"dp": 8}, "axis_bytes": {"tp": 1.0}}, "expected axes of the mesh, dp, got"),
        ({"mesh": {"dp": 8}, "axis_bytes": {"dp": -1.0}}, "dp: expected a size of at least 0"),
        ({"mesh": {}, "axis_bytes": {"dp": 1.0}}, "expected 1 to 6 axes, got 0"),
    ],
)
def test_bad_options_are_named(options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        gw.ranks.optimize(gw.topology.ring(8), **options)


def test_too_many_servers_are_refused():
    with pytest.raises(TopologyError, match="at most 1024 servers, got 1025"):
        gw.ranks.optimize(gw.topology.star(1025))
