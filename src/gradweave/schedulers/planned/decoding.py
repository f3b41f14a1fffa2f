"""A proposal for a network, decoded into transfers with times: compiled, a few milliseconds."""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.planned.tuning import EVEN_ORDER, TUNING
from gradweave.schedulers.unequal.cuts import Cut, schedule_of
from gradweave.schedulers.unequal.parts import Parts, ends_and_routes
from gradweave.schedulers.unequal.paths import some_rates
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.wires import Wires
    from gradweave.schedulers.planned.tree_packing_kernel import Grown, Links, Plan, Rates
    from gradweave.schedulers.unequal.event_simulation_kernel import Trees


EFFORT_S = 0.05
"""Seconds of one core, about, in which a plan is decoded."""


class Proposal(NamedTuple):
    """What a plan leaves open: the upper agent's decisions, and the lower one's weights."""

    shares: NDArray[np.float64]
    """[N] part of the gradient that each server roots; they sum to one."""
    bias: NDArray[np.float64]
    """[L] logarithm of what each link costs beside others that are as full."""
    order: NDArray[np.float32]
    """[F] weights of `ordering_kernel.FEATURES` in a transfer's place."""
    sharpness: float = 10.0
    residual: float = 1.0
    flatter: float = 1e-3
    near: float = 1e-3
    """These four as in `tree_packing_kernel.Plan`."""
    fewer: float = 1.0
    """Part of the trees that there is time for: where latency counts, fewer and larger pieces."""


def even(topology: Topology) -> Proposal:
    """Equal shares, duals by what links carry alone, and the order of `packed`.

    Args:
        topology: the network.
    """
    servers = topology.num_servers
    order = np.array(EVEN_ORDER, np.float32)
    return Proposal(np.full(servers, 1 / servers), np.zeros(len(topology.source)), order)


@dataclasses.dataclass(frozen=True, eq=False)
class Wiring:
    """A network and a gradient as the compiled loops take them."""

    topology: Topology
    collective: Collective
    gradient_bytes: float
    """Infinite where latencies and overheads do not count."""

    @functools.cached_property
    def links(self) -> "Links":
        """The network's link directions."""
        from gradweave.schedulers.planned.tree_packing_kernel import Links

        topology = self.topology
        bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        return Links(
            first=topology.first_link.astype(np.int64),
            source=topology.source.astype(np.int64),
            target=topology.target.astype(np.int64),
            bandwidth=bandwidth / bandwidth.max(),
            is_server=topology.is_server,
            servers=topology.servers.astype(np.int64),
        )

    @functools.cached_property
    def rates(self) -> "Rates":
        """How fast transfers may be."""
        from gradweave.schedulers.planned.tree_packing_kernel import rates_of

        rates = np.unique(self.links.bandwidth)
        if not len(self.topology.switches):
            rates = rates[:1]
        return rates_of(self.links, some_rates(rates, TUNING.max_rates))

    @property
    def stages(self) -> NDArray[np.int64]:
        """Stages to grow, as `tree_packing_kernel` numbers them."""
        of = {"reduce_scatter": [0], "all_gather": [1], "all_reduce": [0, 1]}
        return np.array(of[self.collective], np.int64)

    @property
    def costs(self) -> tuple[NDArray, NDArray, NDArray, float]:
        """[L] bandwidth, latency and overhead, and the bytes to send."""
        topology = self.topology
        bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        latency, overhead = (
            x.astype(np.float64) for x in (topology.latency_s, topology.overhead_s)
        )
        if math.isinf(self.gradient_bytes):
            return bandwidth, 0 * latency, 0 * overhead, float(bandwidth.max())
        return bandwidth, latency, overhead, self.gradient_bytes

    @functools.cached_property
    def farthest_s(self) -> NDArray[np.float64]:
        """[V] seconds of latency from each node to the server that is farthest."""
        topology, nodes = self.topology, self.topology.num_nodes
        apart = np.full((nodes, nodes), np.inf)
        np.minimum.at(apart, (topology.source, topology.target), self.costs[1] + self.costs[2])
        np.fill_diagonal(apart, 0.0)
        for over in range(nodes):
            np.minimum(apart, apart[:, over, None] + apart[over], out=apart)
        return apart[:, topology.servers].max(1)


@dataclasses.dataclass(frozen=True, eq=False)
class Grove:
    """Trees that were grown for a proposal."""

    wiring: Wiring
    proposal: Proposal
    root: NDArray[np.int64]
    """[P] rank of each tree's root."""
    grown: "Grown"
    trees: "Trees"
    wires: "Wires"


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
    """Transfers with the times at which they start."""

    grove: Grove
    cuts: int
    """Pieces of each tree."""
    start: NDArray[np.float64]
    """[P·M]"""
    seconds: float
    tried: int
    """How often transfers were tried in the first simulation: where they need several links at
    once, that is what takes long."""

    def schedule(self) -> Schedule:
        """The same in rounds that keep the order of the times."""
        grove, wiring = self.grove, self.grove.wiring
        topology, trees = wiring.topology, len(grove.root)
        pieces = trees * self.cuts
        cut = Cut(
            part=np.tile(np.arange(trees), self.cuts),
            number=np.repeat(np.arange(self.cuts), trees),
            share=np.full(pieces, 1 / pieces),
        )
        return schedule_of(topology, wiring.collective, _parts(grove), cut, self.start)


def decode(wiring: Wiring, proposal: Proposal, effort_s: float = EFFORT_S) -> Decoded:
    """Grows a proposal's trees and simulates them, in pieces as there is time.

    Args:
        wiring: the network and the gradient.
        proposal: the plan.
        effort_s: seconds of one core, about, that this may take.
    """
    trees, passes = trees_for(wiring, proposal.fewer, effort_s)
    grove = grow_trees(wiring, proposal, trees, passes)
    return in_pieces(grove, effort_s - 1e-6 * grown_us(wiring, len(grove.root), passes))


def trees_for(wiring: Wiring, fewer: float, effort_s: float) -> tuple[int, int]:
    """How many trees there is time for, and how often each is grown.

    Among many servers each roots as many, and each tree is grown once, if there is time for that: a
    server that roots less than others sends and receives less.

    Args:
        wiring: the network and the gradient.
        fewer: as `Proposal.fewer`.
        effort_s: seconds of one core, about, that decoding may take.
    """
    servers = wiring.topology.num_servers
    small = servers <= TUNING.few_servers and path_steps(wiring) <= TUNING.max_path_steps
    simulated = 4 * len(wiring.stages) * (servers - 1)  # uncut, and again with the order improved
    trees = TUNING.trees if small else TUNING.max_trees
    trees = max(1, round(min(trees * fewer, 1e6 * effort_s / (TUNING.transfer_us * simulated))))
    if servers <= TUNING.trained_servers:
        return trees, TUNING.passes
    each_us = grown_us(wiring, 1, 1) + transfer_us(wiring) * simulated
    once = max(TUNING.passes * trees, TUNING.decoded_share * 1e6 * effort_s / each_us)
    rooted = int(min(once, TUNING.rooted * servers * fewer) / servers)
    return (rooted * servers, 1) if rooted else (trees, TUNING.passes)


def in_pieces(grove: Grove, effort_s: float) -> Decoded:
    """Simulates trees in pieces, fine and coarse as there is time.

    The fastest is taken; of those that are as fast, the one of the fewest pieces.

    Args:
        grove: the trees.
        effort_s: seconds of one core, about, that this may take; what takes longer is left out, but
            for the trees as they are.
    """
    order, transfers = grove.proposal.order, grove.trees.hop.size
    uncut = simulate(grove, order, 1)

    def work_us(cuts: int) -> float:
        blocked = (uncut.tried - transfers) * cuts**TUNING.tries_power
        return transfer_us(grove.wiring) * transfers * cuts + TUNING.try_us * blocked

    left = 1e6 * effort_s - work_us(1)
    simulations, found = 1 + 2 * TUNING.improvements, [uncut]
    for cuts in TUNING.cuts:
        if simulations * work_us(cuts) <= left:
            found.append(simulate(grove, order, cuts, TUNING.improvements))
            left -= simulations * work_us(cuts)
    enough = min(one.seconds for one in found) * (1 + TUNING.as_fast)
    as_fast = [one for one in found if one.seconds <= enough]
    return min(as_fast, key=lambda one: (one.cuts, one.seconds))


def transfer_us(wiring: Wiring) -> float:
    """Microseconds, about, in which a transfer is simulated."""
    few = wiring.topology.num_servers <= TUNING.trained_servers
    return TUNING.transfer_us if few else TUNING.transfer_us_of_many


def grown_us(wiring: Wiring, trees: int, passes: int) -> float:
    """Microseconds, about, in which so many trees grow."""
    each = path_steps(wiring) + 4 * wiring.topology.num_servers**2
    return trees * passes * each * TUNING.path_steps_us


def path_steps(wiring: Wiring) -> int:
    """Steps of the search for paths for one tree: links, from each server, at each rate."""
    return wiring.topology.num_servers * len(wiring.links.bandwidth) * len(wiring.rates.rate)


def grow_trees(wiring: Wiring, proposal: Proposal, count: int, passes: int) -> Grove:
    """Grows trees of equal parts.

    Args:
        wiring: the network.
        proposal: what they are to be like.
        count: how many; of a stage alone, as many for each server.
        passes: how often each is grown.
    """
    from gradweave.schedulers.planned.tree_packing_kernel import grow

    servers, shares = wiring.topology.num_servers, proposal.shares
    if wiring.collective != "all_reduce":
        shares, count = np.full(servers, 1 / servers), math.ceil(count / servers) * servers
    root = _roots(shares, count)
    plan = plan_of(wiring, proposal, root, passes)
    return lowered(wiring, proposal, root, grow(wiring.links, plan, wiring.rates, wiring.stages))


def plan_of(wiring: Wiring, proposal: Proposal, root: NDArray[np.int64], passes: int) -> "Plan":
    """What trees with these roots are to be like.

    Args:
        wiring: the network.
        proposal: says so.
        root: [P] rank of each tree's root.
        passes: how often each is grown.
    """
    from gradweave.schedulers.planned.tree_packing_kernel import Plan

    return Plan(
        root,
        proposal.bias,
        float(proposal.sharpness),
        float(proposal.residual),
        float(proposal.flatter),
        _delay(wiring, len(root)),
        float(proposal.near),
        passes,
    )


def lowered(wiring: Wiring, proposal: Proposal, root: NDArray[np.int64], grown: "Grown") -> Grove:
    """Trees with their transfers.

    Args:
        wiring: the network.
        proposal: for which they were grown.
        root: [P] rank of each tree's root.
        grown: the trees.
    """
    from gradweave.schedulers.planned.lowering_kernel import lower

    trees, wires = lower(grown, root, wiring.stages, *wiring.costs[:3])
    return Grove(wiring, proposal, root, grown, trees, wires)


def simulate(
    grove: Grove,
    order: NDArray[np.float32],
    cuts: int,
    improvements: int = 0,
) -> Decoded:
    """Sends the trees' parts in so many pieces each, one after the other.

    Then improves the order: simulated backwards, what ended last first, and forwards again, in the
    order of the starts that this comes to (forward–backward improvement). Transfers that others
    wait for long after let pass what is urgent.

    Args:
        grove: the trees.
        order: [F] weights of `ordering_kernel.FEATURES`.
        cuts: pieces of each tree.
        improvements: how often to simulate backwards and forwards again; the fastest is kept.

    Source: Li and Willis, An iterative scheduling technique for resource-constrained project
        scheduling, 1992.
    """
    from gradweave.schedulers.planned.lowering_kernel import reversed_precedence
    from gradweave.schedulers.planned.ordering_kernel import dispatch, features_of

    trees, wires = grove.trees, grove.wires
    part = np.tile(np.arange(len(grove.root)), cuts)
    size = np.full(len(part), grove.wiring.costs[3] / len(part))
    features = features_of(trees, wires, part, size)
    place = (features @ order.astype(np.float32)).reshape(-1)
    start, seconds, tried = dispatch(trees, wires, part, size, np.argsort(place, kind="stable"))
    best = Decoded(grove, cuts, start, seconds, tried)
    if not improvements:
        return best
    hop = trees.hop[part]
    hold_s = (size[:, None] / wires.rate[hop] + wires.overhead[hop]).reshape(-1)
    backwards = reversed_precedence(trees)
    for _ in range(improvements):
        for direction in (backwards, trees):
            ended_last = np.argsort(-(start + hold_s), kind="stable")
            start, seconds, _ = dispatch(direction, wires, part, size, ended_last)
        if seconds < best.seconds:
            best = dataclasses.replace(best, start=start, seconds=seconds)
    return best


def _delay(wiring: Wiring, pieces: int) -> NDArray[np.float64]:
    """[L] as `tree_packing_kernel.Plan`."""
    bandwidth, latency, overhead, size = wiring.costs
    return 1 / wiring.links.bandwidth + (latency + overhead) * bandwidth.max() * pieces / size


def _roots(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """[count] the root of each tree: servers take turns by their shares."""
    # Rounded, so that what comes out even does so whatever the last bits.
    exact = np.round(shares / shares.sum() * count, 9)
    number = np.floor(exact).astype(np.int64)
    number[np.argsort(number - exact, kind="stable")[: count - number.sum()]] += 1
    root = np.repeat(np.arange(len(shares)), number)
    place = np.arange(count) - np.repeat(np.cumsum(number) - number, number)
    return root[np.argsort((place + 0.5) / number[root], kind="stable")].astype(np.int64)


def _parts(grove: Grove) -> Parts:
    """The trees as `unequal` writes schedules of them."""
    topology, wires = grove.wiring.topology, grove.wires
    servers, collective = topology.num_servers, grove.wiring.collective
    return Parts(
        topology=topology,
        root=grove.root,
        share=np.full(len(grove.root), 1 / len(grove.root)),
        fixed_roots=collective != "all_reduce",
        reduces=0 if collective == "all_gather" else servers - 1,
        trees=grove.trees,
        wires=wires,
        **ends_and_routes(topology, wires.links, wires.first),
    )
