"""The free-tree bound: SPEC's optima, brute force over all server sets, and certificates that hold
up when they are recomputed."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import Bound, ClosingCut, Cut, Distance, LateEntry, Ports, free_trees
from gradweave.bounds.bound import named
from gradweave.bounds.rounds.free_trees import _every_piece_leaves
from gradweave.errors import GradweaveError
from gradweave.report.comparison import TABLE_2
from gradweave.schedulers.solving.solution import bound_for
from gradweave.schedules.schedule import COLLECTIVES, Collective
from gradweave.topology import Topology, from_spec
from tests.simulator.random_networks import networks

OPTIMUM = {
    "B3": 8,
    "B4": 16,
    "B5": 24,
    "D4": 10,
    "D5": 15,
    "D6": 21,
    "J10": 18,
    "J15": 28,
    "J20": 38,
}
STAGES = ("reduce_scatter", "all_gather")
COLLECTIVES_BY_BOUND: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_reduce")


@pytest.mark.parametrize("case", TABLE_2, ids=lambda case: case.label)
def test_the_bound_is_the_optimum_on_the_nine_networks(case):
    for seed in range(case.instances):
        bound = free_trees(case.network(seed), case.stages)
        assert (bound.rounds, bound.kind) == (OPTIMUM[case.label], "cut")


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [
        ("ring:8", 4),
        ("mesh:3x3", 4),
        ("torus:3x3", 2),
        ("hypercube:3", 3),
        ("star:6", 5),
        ("complete:6", 1),
        ("mesh:5", 4),
    ],
)
@pytest.mark.parametrize("stage", STAGES)
def test_the_bound_of_one_stage_on_known_networks(spec, rounds, stage):
    assert free_trees(from_spec(spec), stage).rounds == rounds


def test_depth_decides_where_links_are_plenty():
    bound = free_trees(from_spec("mesh:4,capacity=100"), "all_gather")
    assert (bound.rounds, bound.kind) == (3, "depth")
    assert bound.certificates == (Distance(0, 3, 3),)


@given(network=networks(max_servers=7))
@settings(max_examples=150)
def test_the_cut_bound_equals_brute_force_over_all_server_sets(network):
    depth = farthest_servers(network)
    leave = most_rounds_to_leave(network, network.capacity)
    enter = most_rounds_to_leave(network, network.capacity[network.opposite])
    expected = (max(leave, depth), max(enter, depth), max(leave, depth) + max(enter, depth))
    for collective, least in zip(COLLECTIVES_BY_BOUND, expected, strict=True):
        # Where switches aggregate, late entry bounds nothing, and all else is the same.
        assert free_trees(network, collective, aggregating_switches=True).rounds == least
        assert free_trees(network, collective).rounds >= least


def most_rounds_to_leave(network: Topology, capacity: np.ndarray) -> int:
    """⌈max over server sets S of |S| / capacity leaving S⌉: switches go where it is smallest."""
    most = 0
    servers, switches = network.servers.tolist(), network.switches.tolist()
    for size in range(1, len(servers)):
        for chosen in itertools.combinations(servers, size):
            leaving = min(
                crossing(network, capacity, {*chosen, *placed})
                for count in range(len(switches) + 1)
                for placed in itertools.combinations(switches, count)
            )
            most = max(most, math.ceil(size / leaving))
    return most


def crossing(network: Topology, capacity: np.ndarray, inside: set[int]) -> int:
    ends = zip(network.source.tolist(), network.target.tolist(), capacity.tolist(), strict=True)
    return sum(room for a, b, room in ends if a in inside and b not in inside)


def server_distances(network: Topology) -> dict[int, dict[int, float]]:
    """Transfers between servers, by networkx: to enter a switch is free, to enter a server is
    not."""
    graph = nx.DiGraph()
    for a, b in zip(network.source.tolist(), network.target.tolist(), strict=True):
        graph.add_edge(a, b, weight=int(network.is_server[b]))
    return dict(nx.all_pairs_dijkstra_path_length(graph))


def farthest_servers(network: Topology) -> int:
    distances, servers = server_distances(network), network.servers.tolist()
    return int(max(distances[a][b] for a in servers for b in servers))


@given(network=networks(), collective=st.sampled_from(COLLECTIVES), overlap=st.booleans())
def test_certificates_alone_prove_the_bound(network, collective, overlap):
    bound = free_trees(network, collective, overlap=overlap)
    both = collective == "all_reduce"
    overlapped = both and overlap
    assert len(bound.certificates) == (2 if both and not overlap else 1)
    assert sum(rounds_proved(network, c, overlapped) for c in bound.certificates) == bound.rounds


def rounds_proved(network: Topology, certificate: object, overlapped: bool) -> int:
    """Checks a certificate against the network, and returns the rounds that it proves."""
    if isinstance(certificate, Distance):
        distances = server_distances(network)
        assert distances[certificate.source][certificate.target] == certificate.transfers
        return certificate.transfers
    if isinstance(certificate, Ports):
        count = network.num_servers
        out = network.capacity[network.is_server[network.source]].sum()
        into = network.capacity[network.is_server[network.target]].sum()
        assert certificate.transfers == 2 * count * (count - 1)
        assert certificate.capacity == min(out, into)
        return math.ceil(certificate.transfers / certificate.capacity)
    if isinstance(certificate, LateEntry | ClosingCut):
        return certificate.rounds  # recounted in the tests of each
    assert isinstance(certificate, Cut)
    inside = {*certificate.servers, *certificate.switches}
    assert certificate.servers and set(certificate.servers) < set(network.servers.tolist())
    assert set(certificate.switches) <= set(network.switches.tolist())
    boundary = inside if certificate.leaving else set(range(network.num_nodes)) - inside
    assert crossing(network, network.capacity, boundary) == certificate.capacity
    size, others = len(certificate.servers), network.num_servers - len(certificate.servers)
    # A set sends its own pieces in an all-gather, the others' partial sums in a reduce-scatter;
    # with overlap, each piece leaves in one of the two.
    assert certificate.pieces in ({network.num_servers} if overlapped else {size, others})
    return math.ceil(certificate.pieces / certificate.capacity)


@given(network=networks())
def test_a_cut_of_a_stage_counts_the_pieces_of_that_stage(network):
    for stage, leaves_with in (("all_gather", "own"), ("reduce_scatter", "others'")):
        (certificate,) = free_trees(network, stage).certificates
        if isinstance(certificate, Cut):
            size = len(certificate.servers)
            own = certificate.leaving == (leaves_with == "own")
            assert certificate.pieces == (size if own else network.num_servers - size)


@given(network=networks())
def test_reduce_scatter_is_bounded_as_all_gather_on_the_reversed_capacities(network):
    reversed_network = with_capacity(network, network.capacity[network.opposite])
    scatter = free_trees(network, "reduce_scatter").rounds
    assert scatter == free_trees(reversed_network, "all_gather").rounds


def with_capacity(network: Topology, capacity: np.ndarray) -> Topology:
    return Topology(
        name=network.name,
        is_server=network.is_server,
        source=network.source,
        target=network.target,
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s,
        latency_s=network.latency_s,
        capacity=capacity,
    )


def test_directions_of_a_link_may_differ():
    """Server 0 takes three pieces a round and gives one: it gathers fast and scatters slowly."""
    star = from_spec("star:4")
    inward = star.source == 4
    network = with_capacity(star, np.where(inward & (star.target == 0), 3, 1))
    assert free_trees(network, "all_gather").rounds == 3  # the other servers gather as slowly
    pair = from_spec("mesh:2")
    slow_back = with_capacity(pair, np.where(pair.source == 0, 5, 1))
    assert free_trees(slow_back, "all_reduce").rounds == 2
    chain = from_spec("mesh:4")
    network = with_capacity(chain, np.where(chain.source < chain.target, 1, 3))
    assert free_trees(network, "all_gather").rounds == 3  # 0 … 2 send three pieces to 3
    assert free_trees(network, "reduce_scatter").certificates[0].pieces == 3


@given(network=networks())
def test_the_overlapped_bound_is_the_largest_of_ports_cut_and_depth(network):
    count, servers = network.num_servers, network.servers.tolist()
    out = int(network.capacity[network.is_server[network.source]].sum())
    into = int(network.capacity[network.is_server[network.target]].sum())
    narrowest = min(
        crossing(network, network.capacity, {*chosen, *placed})
        for size in range(1, count)
        for chosen in itertools.combinations(servers, size)
        for placing in range(len(network.switches) + 1)
        for placed in itertools.combinations(network.switches.tolist(), placing)
    )
    cut = max(math.ceil(count / narrowest), farthest_servers(network))
    ports = math.ceil(2 * count * (count - 1) / min(out, into))
    assert free_trees(network, overlap=True).rounds == max(ports, cut)
    # Switches that add and multiply spare the servers transfers: the ports bound nothing.
    assert free_trees(network, overlap=True, aggregating_switches=True).rounds == cut


@pytest.mark.parametrize("case", TABLE_2[:6], ids=lambda case: case.label)
def test_overlap_cannot_be_bounded_higher_than_the_barrier(case):
    network = case.network(0)
    assert free_trees(network, overlap=True).rounds <= free_trees(network).rounds


@given(
    network=networks(max_servers=5, symmetric=True),
    collective=st.sampled_from(COLLECTIVES),
    scheduler=st.sampled_from(
        [
            gw.schedulers.Merged(tries=2),
            gw.schedulers.Merged(tries=2, overlap=True),
            gw.schedulers.ParameterServer(),
            gw.schedulers.CentralParameterServer(),
            gw.schedulers.Ring(),
        ]
    ),
)
def test_no_scheduler_beats_the_bound(network, collective, scheduler):
    made = scheduler.schedule(network, collective=collective)
    assert made.rounds >= bound_for(network, collective, [scheduler]).rounds


def test_depth_bounds_nothing_where_routes_pass_through_servers():
    """On a line with links to spare the parameter servers' flows reach any root in one round."""
    network = from_spec("mesh:4,capacity=100")
    made = gw.schedulers.ParameterServer().schedule(network)
    assert free_trees(network).rounds == 6 > made.rounds == 2
    assert free_trees(network, forwarding_servers=True).rounds == 2
    solution = gw.solve(network, schedulers=[gw.schedulers.ParameterServer()])
    assert (solution.rounds, solution.bound.rounds) == (2, 2)


def test_the_text_can_be_read():
    assert str(free_trees(from_spec("mesh:4,capacity=100"), "all_gather")) == (
        "at least 3 rounds (depth) for schedules that root a piece at each server and route "
        "through no other server, since a piece needs 3 transfers from server 0 to server 3"
    )
    assert str(free_trees(from_spec("star:2"), "all_gather")) == (
        "at least 1 round (cut) for schedules that root a piece at each server, since "
        "1 piece must enter server 0 at 1 per round"
    )
    assert str(free_trees(from_spec("torus:3x3"), overlap=True)) == (
        "at least 4 rounds (ports) for schedules that root a piece at each server, since "
        "there are 144 transfers in all, and the servers' ports "
        "take 36 per round"
    )
    assert str(Cut(tuple(range(20)), (30,), 20, 4)) == (
        "20 pieces must leave servers 0 to 19 and switch 30 at 4 per round"
    )
    assert str(free_trees(from_spec("star:4"))) == (
        "at least 6 rounds (cut) for schedules that root a piece at each server, sum each piece at "
        "one server and finish every sum before the first copy, since "
        "3 pieces must leave server 0 at 1 per round, and the reverse in the other stage"
    )


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "server s0"),
        (2, "servers s0 and s2"),
        (12, "servers s0, s2, s4, s6, s8, s10, s12, s14, s16, s18, s20 and s22"),
        (14, "servers s0, s2, s4, s6, s8, s10, s12, s14, s16, s18, s20, s22 and 2 more"),
    ],
)
def test_twelve_nodes_are_named_and_the_others_counted(count, words):
    ids = tuple(range(0, 2 * count, 2))
    assert named("server", ids, lambda node: f"s{node}") == words


def test_ids_in_a_row_are_named_by_their_ends():
    assert named("server", (3, 4, 5)) == "servers 3 to 5"
    assert named("server", (3, 4)) == "servers 3 and 4"
    assert named("switch", (3, 4, 6)) == "switches 3, 4 and 6"


def test_of_equal_cuts_the_first_is_the_certificate():
    assert _every_piece_leaves(from_spec("ring:6"), 1).certificates == (Cut((0,), (), 6, 2),)


def test_two_stages_of_different_kinds_say_both():
    first, second = Bound(3, "cut", (Cut((0,), (), 3, 1),)), Bound(2, "depth", (Distance(0, 1, 2),))
    both = first.then(second)
    assert (both.rounds, both.kind, len(both.certificates)) == (5, "cut+depth", 2)
    assert str(both) == (
        "at least 5 rounds (cut+depth), since 3 pieces must leave server 0 at 1 per round, then a "
        "piece needs 2 transfers from server 0 to server 1"
    )
    assert "leave server gpu0 at" in both.described(lambda node: f"gpu{node}")
    assert "from server gpu0 to server gpu1" in both.described(lambda node: f"gpu{node}")
    assert first.then(first).kind == "cut"


def test_an_unknown_collective_is_refused():
    with pytest.raises((ValueError, GradweaveError), match="collective: expected one of"):
        free_trees(from_spec("ring:4"), "broadcast")
