"""Decodes a proposal into transfers with start times, compiled, in a few milliseconds."""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.greedy.tuning import EVEN_ORDER, TUNING
from gradweave.schedulers.ordering.cuts import Cut, in_turn, parts_schedule
from gradweave.schedulers.packing.parts import Parts
from gradweave.schedulers.packing.paths import some_rates
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Schedule
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.greedy.tree_packing_kernel import Grown, Links, Plan, Rates
    from gradweave.schedulers.kernels.precedence import Dependencies
    from gradweave.schedulers.kernels.wires import Wires


EFFORT_S = 0.05
"""Approximate seconds of one core to decode a plan."""


class Proposal(NamedTuple):
    """The decisions of a plan: the flow-tree policy's, and the weights of the ordering rule."""

    shares: NDArray[np.float64]
    """[N] part of the gradient that each server roots; they sum to one."""
    bias: NDArray[np.float64]
    """[L] logarithm of each link's cost relative to other links that are as full."""
    order: NDArray[np.float32]
    """[F] weights of `transfers_kernel.FEATURES` in a transfer's priority."""
    sharpness: float = 10.0
    residual: float = 1.0
    flatter: float = 1e-3
    near: float = 1e-3
    """These four as in `tree_packing_kernel.Plan`."""
    fewer: float = 1.0
    """Share of the trees that there is time for: if latency matters, fewer and larger pieces."""


def even(topology: Topology) -> Proposal:
    """Equal shares, duals from link loads only, and the order by `EVEN_ORDER`.

    Args:
        topology: the network.
    """
    servers = topology.num_servers
    order = np.array(EVEN_ORDER, np.float32)
    return Proposal(np.full(servers, 1 / servers), np.zeros(len(topology.source)), order)


@dataclasses.dataclass(frozen=True, eq=False)
class Wiring:
    """A network and a gradient as arrays for the compiled loops."""

    topology: Topology
    collective: Collective
    gradient_bytes: float
    """Gradient size; infinite if latencies and overheads do not count."""

    @functools.cached_property
    def links(self) -> "Links":
        """The network's link directions."""
        from gradweave.schedulers.greedy.tree_packing_kernel import Links

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
        """The rates that transfers may have."""
        from gradweave.schedulers.greedy.tree_packing_kernel import rates_of

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
        """[V] seconds of latency from each node to the farthest server."""
        topology, nodes = self.topology, self.topology.num_nodes
        apart = np.full((nodes, nodes), np.inf)
        np.minimum.at(apart, (topology.source, topology.target), self.costs[1] + self.costs[2])
        np.fill_diagonal(apart, 0.0)
        for over in range(nodes):
            np.minimum(apart, apart[:, over, None] + apart[over], out=apart)
        return apart[:, topology.servers].max(1)


@dataclasses.dataclass(frozen=True, eq=False)
class Grove:
    """The trees grown for a proposal."""

    wiring: Wiring
    proposal: Proposal
    root: NDArray[np.int64]
    """[P] rank of each tree's root."""
    grown: "Grown"
    trees: "Dependencies"
    wires: "Wires"


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
    """Transfers with the times at which they start."""

    grove: Grove
    cuts: int
    """Number of pieces per tree."""
    start: NDArray[np.float64]
    """[P·M] start of each transfer in seconds."""
    seconds: float
    tried: int
    """How often transfers were tried in the first simulation: if they need several links at a time,
    this is what takes long."""

    def schedule(self) -> Schedule:
        """The transfers as a schedule, in rounds that keep the order of their starts."""
        grove, wiring = self.grove, self.grove.wiring
        trees = len(grove.root)
        pieces = trees * self.cuts
        cut = Cut(
            part=np.tile(np.arange(trees), self.cuts),
            number=np.repeat(np.arange(self.cuts), trees),
            share=np.full(pieces, 1 / pieces),
        )
        return parts_schedule(_parts(grove), wiring.collective, cut, self.start)


def decode(wiring: Wiring, proposal: Proposal, effort_s: float = EFFORT_S) -> Decoded:
    """Grows a proposal's trees and simulates them, in as many pieces as time allows.

    Args:
        wiring: the network and the gradient.
        proposal: the plan.
        effort_s: approximate limit in seconds of one core.
    """
    trees, passes = trees_for(wiring, proposal.fewer, effort_s)
    grove = grow_trees(wiring, proposal, trees, passes)
    return in_pieces(grove, effort_s - 1e-6 * grown_us(wiring, len(grove.root), passes))


def trees_for(wiring: Wiring, fewer: float, effort_s: float) -> tuple[int, int]:
    """The number of trees that there is time for, and how often each is grown.

    With many servers, each roots the same number of trees, grown once each, if there is time for
    that: a server that roots fewer trees than others sends and receives less.

    Args:
        wiring: the network and the gradient.
        fewer: as `Proposal.fewer`.
        effort_s: approximate limit for decoding, in seconds of one core.
    """
    servers = wiring.topology.num_servers
    small = servers <= TUNING.few_servers and path_steps(wiring) <= TUNING.max_path_steps
    # Transfers to simulate for one tree: uncut, then in pieces forwards, backwards and forwards.
    simulated = 4 * len(wiring.stages) * (servers - 1)
    trees = TUNING.trees if small else TUNING.max_trees
    trees = max(1, round(min(trees * fewer, 1e6 * effort_s / (TUNING.transfer_us * simulated))))
    if servers <= TUNING.trained_servers:
        return trees, TUNING.passes
    each_us = grown_us(wiring, 1, 1) + transfer_us(wiring) * simulated
    once = max(TUNING.passes * trees, TUNING.decoded_share * 1e6 * effort_s / each_us)
    rooted = int(min(once, TUNING.rooted * servers * fewer) / servers)
    return (rooted * servers, 1) if rooted else (trees, TUNING.passes)


def in_pieces(grove: Grove, effort_s: float) -> Decoded:
    """Simulates trees in pieces, as fine as time allows.

    The fastest result is taken; among equally fast ones, that with the fewest pieces.

    Args:
        grove: the trees.
        effort_s: approximate limit in seconds of one core; anything that takes longer is skipped,
            except for the uncut trees.
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
    """Approximate microseconds to simulate a transfer."""
    few = wiring.topology.num_servers <= TUNING.trained_servers
    return TUNING.transfer_us if few else TUNING.transfer_us_of_many


def grown_us(wiring: Wiring, trees: int, passes: int) -> float:
    """Approximate microseconds to grow some trees."""
    each = path_steps(wiring) + 4 * wiring.topology.num_servers**2
    return trees * passes * each * TUNING.path_steps_us


def path_steps(wiring: Wiring) -> int:
    """Steps of the path search for one tree: links, from each server, at each rate."""
    return wiring.topology.num_servers * len(wiring.links.bandwidth) * len(wiring.rates.rate)


def grow_trees(wiring: Wiring, proposal: Proposal, count: int, passes: int) -> Grove:
    """Grows trees of equal parts.

    Args:
        wiring: the network.
        proposal: the plan for the trees.
        count: number of trees; for a single stage, rounded up to a multiple of the servers.
        passes: how often each tree is grown.
    """
    from gradweave.schedulers.greedy.tree_packing_kernel import grow

    servers, shares = wiring.topology.num_servers, proposal.shares
    if wiring.collective != "all_reduce":
        shares, count = np.full(servers, 1 / servers), math.ceil(count / servers) * servers
    root = _roots(shares, count)
    plan = plan_of(wiring, proposal, root, passes)
    return lowered(wiring, proposal, root, grow(wiring.links, plan, wiring.rates, wiring.stages))


def plan_of(wiring: Wiring, proposal: Proposal, root: NDArray[np.int64], passes: int) -> "Plan":
    """The kernel's parameters for growing trees with these roots.

    Args:
        wiring: the network.
        proposal: the plan for the trees.
        root: [P] rank of each tree's root.
        passes: how often each tree is grown.
    """
    from gradweave.schedulers.greedy.tree_packing_kernel import Plan

    return Plan(
        root,
        proposal.bias,
        float(proposal.sharpness),
        float(proposal.residual),
        float(proposal.flatter),
        _delay(wiring, len(root)),
        float(proposal.near),
        passes,
        _messages(wiring, len(root)),
    )


def lowered(wiring: Wiring, proposal: Proposal, root: NDArray[np.int64], grown: "Grown") -> Grove:
    """The trees with their transfers.

    Args:
        wiring: the network.
        proposal: the plan for which they were grown.
        root: [P] rank of each tree's root.
        grown: the trees.
    """
    from gradweave.schedulers.greedy.transfers_kernel import transfers_of

    trees, wires = transfers_of(grown, root, wiring.stages, *wiring.costs[:3])
    return Grove(wiring, proposal, root, grown, trees, wires)


def simulate(
    grove: Grove,
    order: NDArray[np.float32],
    cuts: int,
    improvements: int = 0,
) -> Decoded:
    """Simulates the trees' parts, each in a number of pieces that follow each other.

    It then improves the order by forward-backward improvement, see `ListScheduler`.

    Args:
        grove: the trees.
        order: [F] weights of `transfers_kernel.FEATURES`.
        cuts: number of pieces per tree.
        improvements: number of backward and forward simulations; the fastest result is kept.
    """
    from gradweave.schedulers.greedy.transfers_kernel import features_of
    from gradweave.schedulers.ordering.list_scheduling import ListScheduler

    trees, wires = grove.trees, grove.wires
    part = np.tile(np.arange(len(grove.root)), cuts)
    size = np.full(len(part), grove.wiring.costs[3] / len(part))
    features = features_of(trees, wires, part, size)
    scheduler = ListScheduler.of_pieces(trees, wires, part, size)
    place = (features @ order.astype(np.float32)).reshape(-1)
    start, seconds, tried = scheduler.dispatched(place)
    best = Decoded(grove, cuts, start, seconds, tried)
    for _ in range(improvements):
        start, seconds = scheduler.both_ways(start)
        if seconds < best.seconds:
            best = dataclasses.replace(best, start=start, seconds=seconds)
    return best


def _messages(wiring: Wiring, pieces: int) -> NDArray[np.float64]:
    """[R, L] see `tree_packing_kernel.Plan`."""
    bandwidth, _, overhead, size = wiring.costs
    rate = wiring.rates.rate[:, None]
    if len(rate) < 2:  # each transfer is as fast as its link
        rate = wiring.links.bandwidth[None]
    return overhead * rate * bandwidth.max() * pieces / size


def _delay(wiring: Wiring, pieces: int) -> NDArray[np.float64]:
    """[L] see `tree_packing_kernel.Plan`."""
    bandwidth, latency, overhead, size = wiring.costs
    return 1 / wiring.links.bandwidth + (latency + overhead) * bandwidth.max() * pieces / size


def _roots(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """[count] the root of each tree: servers take turns by their shares."""
    # Rounded, so that even shares stay even regardless of the last bits.
    exact = np.round(shares / shares.sum() * count, 9)
    number = np.floor(exact).astype(np.int64)
    number[np.argsort(number - exact, kind="stable")[: count - number.sum()]] += 1
    return in_turn(shares, number).part


def _parts(grove: Grove) -> Parts:
    """The trees in the form from which schedules are written."""
    topology, collective = grove.wiring.topology, grove.wiring.collective
    parts, each = len(grove.root), topology.num_servers - 1
    stages = [each * (collective != one) for one in ("all_gather", "reduce_scatter")]
    op = np.repeat((REDUCE, COPY), stages)
    return Parts(
        topology,
        grove.trees,
        grove.wires,
        np.broadcast_to(op, (parts, len(op))),
        root=grove.root,
        share=np.full(parts, 1 / parts),
        fixed_roots=collective != "all_reduce",
    )
