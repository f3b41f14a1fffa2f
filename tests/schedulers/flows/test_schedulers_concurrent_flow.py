"""Concurrent flows against a plain linear program over links, and their certificates."""

import dataclasses

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import lil_array

import gradweave as gw
from gradweave.bounds import Bound, DemandLengths, SecondsBound
from gradweave.bounds.prices import Unit
from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.flows.concurrent_flow import ConcurrentFlow, concurrent_flow
from gradweave.schedulers.flows.messages import Messages
from gradweave.schedules import collective, sends
from gradweave.topology.topology import Topology


def some_messages(topology: Topology, count: int, seed: int, most: int = 9) -> Messages:
    """Between random servers, for which all others relay."""
    rng = np.random.default_rng(seed)
    pairs = np.array([rng.choice(topology.servers, 2, replace=False) for _ in range(count)])
    rows = zip(*pairs.T.tolist(), rng.integers(1, most, count).tolist(), strict=True)
    return Messages(topology, sends(rows, relays=topology.servers))


def all_to_all(spec: str, amount: int = 1) -> Messages:
    topology = gw.topology.from_spec(spec)
    whole = amount * topology.num_servers
    return Messages(topology, collective("all_to_all", topology.servers, whole))


def random_network(seed: int) -> Topology:
    """Servers and switches, links of 1 to 10 GB/s."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(4, 9))
    links = {(int(rng.integers(v)), v) for v in range(1, nodes)}
    links |= {tuple(sorted(rng.choice(nodes, 2, replace=False).tolist())) for _ in range(nodes)}
    bandwidth = rng.integers(1, 11, len(links)) * 1e9
    return Topology.from_links(
        f"random {seed}",
        servers=nodes - 1,
        switches=1,
        links=sorted(links),
        bandwidth_bytes_per_s=bandwidth,
    )


def optimum(messages: Messages, unit: Unit) -> float:
    """The minimum of the largest load, with one flow per message over links."""
    source, target, nodes = messages.ends
    count, links = len(messages), len(source)
    kept = lil_array((count * nodes, count * links + 1))
    due = np.zeros(count * nodes)
    for k in range(count):
        for link in range(links):
            kept[k * nodes + source[link], k * links + link] += 1
            kept[k * nodes + target[link], k * links + link] -= 1
        due[k * nodes + messages.source[k]] += messages.amount[k]
        due[k * nodes + messages.entered(messages.target[k])] -= messages.amount[k]
    most = messages.capacity(unit).max()
    load = lil_array((links, count * links + 1))
    for link in range(links):
        load[link, link : count * links : links] = 1
        load[link, count * links] = -messages.capacity(unit)[link] / most
    cost = np.zeros(count * links + 1)
    cost[-1] = 1
    return linprog(cost, load.tocsr(), np.zeros(links), kept.tocsr(), due).fun / most


def checked(flow: ConcurrentFlow) -> None:
    """Paths lead from sources to targets, differ, carry everything, and load links as stated."""
    sources, paths, (tail, head, _) = flow.sources, flow.paths, flow.messages.ends
    root = np.repeat(sources.root, np.diff(sources.first))
    carried = np.zeros(len(root))
    load, seen = np.zeros(len(tail)), set()
    for path in range(paths.length[0]):
        links = paths.links[paths.first[path] : paths.first[path + 1]][::-1]
        k = paths.message[path]
        assert np.array_equal(tail[links], [root[k], *head[links][:-1]])
        assert (k, links.tobytes()) not in seen
        seen.add((k, links.tobytes()))
        assert head[links][-1] == sources.target[k]
        assert paths.flow[path] > 0
        carried[k] += paths.flow[path]
        load[links] += paths.flow[path]
    assert carried == pytest.approx(sources.amount)
    if (sources.weight == 1).all():
        assert load / flow.messages.capacity(flow.unit) == pytest.approx(flow.load)


@pytest.mark.parametrize("seed", range(6))
def test_random_messages_take_what_a_linear_program_says(seed: int) -> None:
    topology = random_network(seed)
    messages = some_messages(topology, 8, seed)
    for unit in ("seconds", "rounds"):
        flow, least = concurrent_flow(messages, unit), optimum(messages, unit)
        checked(flow)
        assert flow.bound <= least * (1 + 1e-9)
        assert least <= flow.time * (1 + 1e-9)
        assert flow.gap < 2e-3
        lengths = np.rint(1e6 * flow.length / flow.length.max()).astype(int)
        recounted = DemandLengths(topology, messages.demand, lengths, unit)
        proven = float(recounted.used / recounted.offered)
        assert flow.bound * (1 - 1e-3) <= proven <= least * (1 + 1e-9)


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [
        ("ring:9", 10),
        ("torus:4x4", 8),
        ("torus:4x4x4", 32),
        ("mesh:6x4", 36),  # 12 · 12 pieces over a cut of 4 links
        ("mesh:4x4x4", 64),
        ("hypercube:dimension=6", 32),
        ("complete:n=6", 1),
        ("fat_tree:k=4", 15),
        ("bcube:n=4,k=1", 12),
        ("dcell:n=4,k=1", None),
        ("dragonfly:groups=5,routers_per_group=4,servers_per_router=1,global_links=1", None),
    ],
)
def test_symmetric_networks_count_each_orbit_once(spec: str, rounds: int | None) -> None:
    messages = all_to_all(spec)
    flow, whole = (
        concurrent_flow(messages, "rounds"),
        concurrent_flow(messages, "rounds", symmetric=False),
    )
    checked(flow)
    checked(whole)
    assert flow.gap < 2e-3 > whole.gap
    assert flow.time == pytest.approx(whole.time, rel=2e-3)
    if rounds is not None:
        assert flow.time == pytest.approx(rounds, rel=2e-3)
        assert isinstance(flow.proof, Bound) and flow.proof.rounds == rounds


def test_links_that_carry_next_to_nothing_are_left_out_unless_needed() -> None:
    """A ring whose reverse links carry 1 byte/s; and a path, where they are the only way."""
    ring, path = all_to_all("ring:5", 1000), all_to_all("mesh:1x3", 1000)
    for messages, least in ((ring, 1e-5), (path, 2000.0)):
        network = messages.topology
        back = (network.source - network.target) % network.num_servers == 1
        one_way = dataclasses.replace(network, bandwidth_bytes_per_s=np.where(back, 1.0, 1e9))
        flow = concurrent_flow(dataclasses.replace(messages, topology=one_way), symmetric=False)
        assert flow.time == pytest.approx(least, rel=1e-3)
        assert isinstance(flow.proof, SecondsBound)
        assert flow.proof.seconds >= flow.bound * (1 - 1e-3)


def test_a_stated_bound_is_recounted() -> None:
    flow = concurrent_flow(all_to_all("mesh:4x4"), "rounds")
    assert isinstance(flow.proof, Bound)
    (lengths,) = flow.proof.certificates
    assert isinstance(lengths, DemandLengths)
    rng = np.random.default_rng(0)
    for _ in range(50):
        mutated = lengths.length.copy()
        mutated[rng.integers(len(mutated), size=3)] += rng.integers(1, 4, 3)
        changed = dataclasses.replace(lengths, length=mutated)
        assert changed.time <= flow.time * 1.001


def test_another_plan_goes_on_from_the_last_one() -> None:
    topology = gw.topology.from_spec("mesh:4x4")
    before = concurrent_flow(some_messages(topology, 60, 1, 99))
    after = some_messages(topology, 60, 1, 99)
    after = after.of_amounts(after.amount + 1 + np.arange(60) % 7)
    warm, cold = concurrent_flow(after, known=before), concurrent_flow(after)
    checked(warm)
    assert warm.time == pytest.approx(cold.time, rel=3e-3)
    others = some_messages(topology, 40, 2)
    checked(concurrent_flow(others, known=before))
    with pytest.raises(OptionError, match="known"):
        concurrent_flow(some_messages(gw.topology.ring(4), 3, 0), known=before)


def test_it_ends_when_it_must_and_servers_out_of_reach_are_named() -> None:
    flow = concurrent_flow(all_to_all("mesh:6x4"), stop=Stop.after(0.0))
    checked(flow)
    assert flow.gap > 1e-3
    ring = gw.topology.ring(4)
    with pytest.raises(OptionError, match="from server 0 to server 2 passes servers that are not"):
        concurrent_flow(Messages(ring, sends([(0, 2, 1)])))
