"""The late-entry bound: networks worked out by hand, exact optima, and certificates recounted."""

import dataclasses
import itertools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import Bound, Distance, LateEntry, free_trees
from gradweave.bounds.rounds import entry_sets
from gradweave.bounds.rounds.entry_sets import parts_apart
from gradweave.schedulers.exact import exact
from gradweave.topology import Topology, from_spec
from tests.bounds.test_bounds_free_trees import crossing, server_distances, with_capacity


def star_of_rings(rings: int, size: int) -> Topology:
    """Rings of servers, the first server of each on one switch."""
    links = [(r * size + i, r * size + (i + 1) % size) for r in range(rings) for i in range(size)]
    links += [(r * size, rings * size) for r in range(rings)]
    return Topology.from_links("star of rings", servers=rings * size, switches=1, links=links)


def two_tori() -> Topology:
    """Two tori 4×4, joined by one link between their first servers."""
    torus = nx.convert_node_labels_to_integers(
        nx.grid_2d_graph(4, 4, periodic=True), ordering="sorted"
    )
    links = [(a + 16 * copy, b + 16 * copy) for copy in (0, 1) for a, b in torus.edges]
    return Topology.from_links("two tori", servers=32, switches=0, links=[*links, (0, 16)])


def behind_a_thin_link() -> Topology:
    """Twelve servers on a switch, a link for one piece, server 12, a link for two, server 13, and
    eight on its switch, which it sends two pieces a round."""
    links = [*((server, 22) for server in range(12)), (11, 12), (12, 13), (13, 23)]
    links += [(leaf, 23) for leaf in range(14, 22)]
    network = Topology.from_links("thin", servers=22, switches=2, links=links)
    thin = {(11, 12): 1, (12, 13): 2, (13, 23): 2}
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    return with_capacity(network, np.array([thin.get((min(e), max(e)), 8) for e in ends]))


def random_network(seed: int) -> Topology:
    """A connected network of 4 to 6 servers whose links may differ in their directions."""
    rng = np.random.default_rng(seed)
    servers, switches = int(rng.integers(4, 7)), int(rng.integers(0, 4))
    nodes = servers + switches
    order = rng.permutation(nodes).tolist()
    pairs = {tuple(sorted((order[k], order[rng.integers(k)]))) for k in range(1, nodes)}
    pairs |= {
        tuple(sorted(rng.choice(nodes, 2, replace=False).tolist()))
        for _ in range(int(rng.integers(0, 4)))
    }
    ends = np.array(sorted(pairs))
    return Topology(
        name=f"random {seed}",
        is_server=rng.permutation(nodes) < servers,
        source=ends.ravel(),
        target=ends[:, ::-1].ravel(),
        bandwidth_bytes_per_s=np.full(ends.size, 1e9),
        latency_s=np.zeros(ends.size),
        capacity=rng.integers(1, int(rng.integers(2, 5)), ends.size),
    )


@pytest.mark.parametrize(
    ("network", "rounds"),
    [
        (from_spec("a100:boxes=4"), 4),
        (from_spec("a100:boxes=8"), 8),
        (star_of_rings(5, 5), 22),
        (two_tori(), 20),
        (gw.topology.leaf_spine(5, 3, 8, Fraction(7, 2)), 3),
    ],
    ids=["4 A100 boxes", "8 A100 boxes", "star of rings", "two tori", "leaf–spine"],
)
def test_what_crosses_a_cut_last_must_still_spread(network, rounds):
    bound = free_trees(network, "all_gather")
    assert (bound.rounds, bound.kind) == (rounds, "late_entry")
    assert recounted(network, bound.certificates[0]) == rounds
    assert free_trees(network).rounds == 2 * rounds


def test_parts_that_thin_links_join_are_sets_to_enter():
    """A path of links for 3, 1, 2 and 3: without those for 1, and without those for 2 as well."""
    path = Topology.from_links("path", servers=5, switches=0, links=[(k, k + 1) for k in range(4)])
    of_link = np.array([3, 1, 2, 3])[np.minimum(path.source, path.target)]
    sets = {tuple(np.flatnonzero(one)) for one in parts_apart(path, of_link)}
    assert sets == {(0, 1), (2, 3, 4), (2,), (3, 4)}


@pytest.mark.parametrize(
    ("servers", "rounds", "cuts"),
    [(3, 2, [{1, 2}, set(), {0, 1}]), (4, 3, [{1, 2, 3}, set(), set(), {0, 1, 2}])],
)
def test_the_flow_into_a_server_is_cut_for_one_round_less(servers, rounds, cuts):
    """In a row, that fails for the ends only, which lack a piece per round over their one link."""
    links = [(k, k + 1) for k in range(servers - 1)]
    row = Topology.from_links("row", servers=servers, switches=0, links=links)
    found = entry_sets._flow_cuts(row, row.capacity, rounds, per_server=1)
    assert [set(np.flatnonzero(inside).tolist()) for inside in found] == cuts


def test_early_rounds_count_where_few_pieces_start_near():
    """Nine pieces reach server 9 over a link for three, but one alone is ready in the first."""
    links = [(0, other) for other in range(1, 10)]
    star = Topology.from_links("star", servers=10, switches=0, links=links)
    to_last = (star.source == 9) | (star.target == 9)
    network = with_capacity(star, np.where(to_last, 3, np.where(star.source == 0, 9, 1)))
    bound = free_trees(network, "all_gather")
    assert bound.certificates == (LateEntry((9,), (), 9, 3, first_rounds=1, early=1),)
    assert recounted(network, bound.certificates[0]) == bound.rounds == 4
    assert free_trees(network, "all_gather", aggregating_switches=True).rounds == 3


def test_each_certificate_is_recounted_and_no_optimum_is_below(monkeypatch):
    """CP-SAT starts from one round here, so that the bound has no part in its proofs."""
    monkeypatch.setattr(exact, "free_trees", lambda *_, **__: WEAKEST)
    raised = 0
    for seed in range(120):
        network = random_network(seed)
        collective = ("all_gather", "reduce_scatter")[seed % 2]
        bound = free_trees(network, collective)
        known = free_trees(network, collective, aggregating_switches=True)
        assert bound.rounds >= known.rounds
        if bound.kind == "late_entry":
            raised += 1
            assert recounted(network, bound.certificates[0]) == bound.rounds > known.rounds
            assert bound.certificates[0].leaving == (collective == "reduce_scatter")
        proof = gw.schedulers.Exact().prove(network, collective)
        assert proof.kind == "optimal"
        assert bound.rounds <= proof.rounds, f"{network.name}: {bound}"
    assert raised >= 8


WEAKEST = Bound(1, "depth", (Distance(0, 1, 1),))


def recounted(network: Topology, certificate: LateEntry) -> int:
    """Checks every number of a certificate against the network; returns the rounds it proves."""
    capacity = network.capacity[network.opposite] if certificate.leaving else network.capacity
    inside, servers = {*certificate.servers, *certificate.switches}, set(network.servers.tolist())
    members, others = set(certificate.servers), servers - set(certificate.servers)
    assert members and members < servers and inside & servers == members
    assert certificate.pieces % len(others) == 0
    each = certificate.pieces // len(others)
    assert certificate.capacity == entering(network, capacity, inside)
    distances = server_distances(network)
    near = sum(min(distances[u][v] for v in members) <= certificate.first_rounds for u in others)
    assert certificate.early == near * each
    if certificate.last_rounds:
        check_late(network, capacity, distances, certificate)
    else:
        assert certificate.late == 0
    left = certificate.pieces - certificate.early - certificate.late
    assert left > 0
    return (
        certificate.first_rounds + certificate.last_rounds + math.ceil(left / certificate.capacity)
    )


def check_late(network, capacity, distances, certificate) -> None:
    """Checks that no more than the late pieces can enter in the last rounds."""
    members, reach = set(certificate.servers), set(certificate.reach)
    servers = set(network.servers.tolist())
    assert reach and reach <= members
    assert certificate.transfers == min(distances[u][v] for u in servers - members for v in reach)
    left = max(certificate.last_rounds - certificate.transfers + 1, 0)
    intake = {v: entering(network, capacity, {v}) for v in servers}
    if certificate.needed == 1:
        (server,) = reach
        assert certificate.late == certificate.deliveries == left * intake[server]
        return
    output = {v: entering(network, capacity, set(range(network.num_nodes)) - {v}) for v in servers}
    assert certificate.needed == len(reach)
    assert certificate.late == certificate.deliveries // certificate.needed
    over = certificate.capacity
    if reach != members:
        switches = network.switches.tolist()
        placings = itertools.chain.from_iterable(
            itertools.combinations(switches, count) for count in range(len(switches) + 1)
        )
        over = min(entering(network, capacity, {*reach, *placed}) for placed in placings)
    deep = {v: min(distances[u][v] for u in servers - reach) for v in reach}
    one_more, delivered = certificate.late + 1, 0
    for k in range(1, left + 1):
        into = sum(min(intake[v], one_more) for v in reach if deep[v] <= k)
        sent = sum(output[v] for v in reach if deep[v] < k)
        busiest = max(output[v] for v in reach)
        delivered += min(into, over + min(sent, delivered * busiest))
    assert delivered < one_more * len(reach)


def entering(network: Topology, capacity: np.ndarray, inside: set[int]) -> int:
    return crossing(network, capacity, set(range(network.num_nodes)) - inside)


def test_routes_through_servers_and_switches_that_copy_have_no_late_entry():
    network = star_of_rings(3, 4)
    assert free_trees(network, "all_gather").rounds == 10
    for freedom in ("forwarding_servers", "aggregating_switches"):
        bound = free_trees(network, "all_gather", **{freedom: True})
        assert (bound.rounds, bound.kind) == (8, "cut")


def test_a_set_within_the_set_may_say_what_enters_late():
    """A piece that enters at server 12 in the last three rounds must reach servers 13 to 21 in the
    last two. At most 2 deliveries are made there in the first, and 2 + 4 in the second, what can
    come from 12 and what 13 can send; it takes nine."""
    network = behind_a_thin_link()
    bound = free_trees(network, "all_gather")
    (certificate,) = bound.certificates
    assert isinstance(certificate, LateEntry)
    assert recounted(network, certificate) == bound.rounds == 12 + 3
    assert certificate.servers == tuple(range(12, 22))
    assert (certificate.reach, certificate.transfers) == (tuple(range(13, 22)), 2)


def test_more_pieces_than_one_enter_late_too():
    network = star_of_rings(3, 4)
    for pieces in (1, 2, 5):
        bound = free_trees(network, "all_gather", pieces_per_server=pieces)
        assert bound.rounds == 8 * pieces + 2
        assert recounted(network, bound.certificates[0]) == bound.rounds


def test_the_text_can_be_read():
    gather, both = (
        free_trees(star_of_rings(5, 5), stages) for stages in ("all_gather", "all_reduce")
    )
    assert str(gather) == (
        "at least 22 rounds (late_entry) for schedules that root a piece at each server, route "
        "through no other server and add at servers alone, since 20 pieces must enter servers 0 "
        "to 4 at 1 per round, none of them in the last 2 rounds (it takes 3 transfers from outside "
        "to server 2)"
    )
    assert str(both.certificates[0]) == (
        "20 pieces must leave servers 0 to 4 at 1 per round, "
        "none of them in the first 2 rounds (it takes 3 transfers from server 2 to outside)"
    )
    (boxes,) = free_trees(from_spec("a100:boxes=4"), "all_gather").certificates
    assert str(boxes) == (
        "24 pieces must enter servers 0 to 7 and switch 32 at 8 per round, at most 1 of them in "
        "the last round (in time for 8 transfers to the servers inside, and each piece needs 8)"
    )
    assert isinstance(boxes, LateEntry)
    early = dataclasses.replace(boxes, last_rounds=0, late=0, first_rounds=2, early=5)
    assert str(early).endswith(
        "8 per round, at most 5 of them in the first 2 rounds (the others are rooted farther away)"
    )


def test_solve_states_it_and_files_keep_it(tmp_path):
    solution = gw.solve(star_of_rings(3, 4), collective="all_gather")
    assert (solution.rounds, solution.bound.rounds, solution.optimal) == (10, 10, True)
    path = tmp_path / "rings.json"
    solution.schedule.save(path)
    stated = gw.load(path).bound
    assert stated is not None and (stated.rounds, stated.kind) == (10, "late_entry")


@pytest.mark.parametrize("kind", ["cut", "depth", "ports", "cut+depth", "exact"])
def test_files_that_state_other_kinds_load(tmp_path, kind):
    path = tmp_path / "ring.json"
    made = gw.schedulers.Grown(restarts=8).schedule(star_of_rings(2, 3), collective="all_gather")
    made.replace(bound=gw.schedules.StatedBound(3, kind)).save(path)
    stated = gw.load(path).bound
    assert stated is not None and (stated.rounds, stated.kind) == (3, kind)
