"""Decisions that change the even plan: their meaning, the features they depend on, and draws.

A trained policy decides by message passing over these features (`learning.policies.plan`); draws
around its decisions move along them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.greedy.decoding import Proposal, Wiring, even, grow_trees
from gradweave.schedulers.greedy.tuning import TUNING

# The shipped weights depend on the shapes and scales below: other values need a new training.
LINK_FEATURES, NODE_FEATURES, WHOLE_FEATURES = 7, 6, 6
WHOLE = (
    "order",
    "tail",
    "head",
    "load",
    "second stage",
    "leaf",
    "sharpness",
    "residual",
    "flatter",
    "near",
    "fewer",
)
"""Decisions for the whole network: the weights of the ordering rule, as in
`transfers_kernel.FEATURES`, then how trees grow, and how many."""
FLATTER = 0.02
"""Value of `tree_packing_kernel.Plan.flatter` at the decision 0."""
FARTHEST = 10.0
"""Scale of the latency to the farthest server, relative to the gradient's time."""
REACH = 2.0
"""Largest decision, up or down."""
STEP = 2.0**-8
"""Decisions are multiples of this step: libraries and processors add in different orders, so that
the last bits differ, but a plan must be the same everywhere."""
SKETCH = 32
"""Number of trees of the even plan that show the policy which links are full."""


class Graph(NamedTuple):
    """The features of a network and a gradient."""

    link: Any
    """[L, 7] logarithms of a link's bandwidth over the largest, over the mean of the links that
    leave its source, and over the mean of the links that enter its target; its latency relative to
    the gradient's time; whether its source and its target are servers; its load in a few trees of
    the even plan, relative to the fullest link."""
    node: Any
    """[V, 6] whether it is a server; logarithms of its outgoing bandwidth over the mean, of its
    number of links, and of its latency to the farthest server relative to the gradient's time; how
    full the fullest of its links is; 1."""
    whole: Any
    """[6] logarithms of the number of servers, and of the spread of bandwidths; the share of
    switches; the mean over nodes of their latency feature; how full links are on average; 1."""
    source: Any
    """[L] node that each link leaves."""
    target: Any
    """[L] node that each link enters."""
    link_share: Any
    """[L] 1 / L; 0 for links that pad a batch."""
    node_share: Any
    """[V] 1 / V; 0 for nodes that pad a batch."""


class Decisions(NamedTuple):
    """Means of the decisions; 0 is the even plan."""

    bias: Any
    """[L] bias of each link's dual."""
    share: Any
    """[V] logarithm of the share that each server roots, up to a constant; undefined for
    switches."""
    whole: Any
    """[11] the decisions of `WHOLE`."""


def graph_of(wiring: Wiring) -> Graph:
    """The features of a network and a gradient.

    Args:
        wiring: the network and the gradient.
    """
    topology, links = wiring.topology, wiring.links
    nodes, count = topology.num_nodes, len(links.bandwidth)
    leaves = np.bincount(links.source, links.bandwidth, nodes)
    enters = np.bincount(links.target, links.bandwidth, nodes)
    degree = np.bincount(links.source, minlength=nodes).clip(1)
    _, latency, overhead, size = wiring.costs
    least_s = size / (float(topology.bandwidth_bytes_per_s.max()) * links.bandwidth.mean())
    server = topology.is_server
    load = grow_trees(wiring, even(topology), SKETCH, 1).grown.load
    full = load / load.max()
    fullest = np.zeros(nodes)
    np.maximum.at(fullest, links.source, full)
    np.maximum.at(fullest, links.target, full)
    # Scales and offsets bring features to about unit size; the shipped weights depend on them.
    link = [
        np.log(links.bandwidth),
        np.log(links.bandwidth * degree[links.source] / leaves[links.source]),
        np.log(links.bandwidth * degree[links.target] / enters[links.target]),
        np.minimum(10 * (latency + overhead) / least_s, 3.0),
        server[links.source],
        server[links.target],
        full,
    ]
    far = np.log1p(FARTHEST * wiring.farthest_s / least_s)
    wide = np.log(leaves.clip(1e-9) / leaves.mean())
    node = [server, wide, np.log(degree), far, fullest, np.ones(nodes)]
    whole = [
        np.log(topology.num_servers) - 2.5,
        np.log(links.bandwidth).std(),
        1 - topology.num_servers / nodes,
        far.mean(),
        full.mean(),
        1.0,
    ]
    return Graph(
        np.column_stack(link),
        np.column_stack(node),
        np.array(whole),
        links.source,
        links.target,
        np.full(count, 1 / count),
        np.full(nodes, 1 / nodes),
    )


def noise(graph: Graph, rng: np.random.Generator) -> Decisions:
    """Random decisions of about unit size, similar for similar links and servers.

    With independent noise per link, a few hundred draws could not find a signal.

    Args:
        graph: the network.
        rng: the random generator.
    """
    link, node = (x / np.sqrt((x**2).mean(0) + 1e-6) for x in (graph.link, graph.node))
    return Decisions(
        link @ rng.normal(size=link.shape[1]) / np.sqrt(link.shape[1]),
        node @ rng.normal(size=node.shape[1]) / np.sqrt(node.shape[1]),
        rng.normal(size=len(WHOLE)),
    )


def proposal_of(wiring: Wiring, decisions: Decisions) -> Proposal:
    """The proposal for given decisions.

    Args:
        wiring: the network and the gradient.
        decisions: a policy's, or drawn around them.
    """
    from gradweave.schedulers.kernels.exponential import exponentials

    begin, (bias, share, whole) = even(wiring.topology), (rounded(x) for x in decisions)
    shares = exponentials(share[wiring.topology.servers])
    sharpness, residual = exponentials(whole[6:8])
    flatter, near = exponentials(2 * whole[8:10])
    return Proposal(
        shares=shares / shares.sum(),
        bias=bias,
        order=begin.order + whole[:6].astype(np.float32),
        sharpness=begin.sharpness * sharpness,
        residual=begin.residual * residual,
        flatter=FLATTER * flatter,
        near=begin.near * near,
        fewer=min(1.0, float(exponentials(whole[10:])[0])),
    )


def less_full(wiring: Wiring, plans: Sequence[Decisions]) -> Decisions:
    """The plan whose first few trees load the fullest link least.

    Args:
        wiring: the network and the gradient.
        plans: the plans to choose from; the first among equals wins.
    """

    def full(decisions: Decisions) -> float:
        return float(grow_trees(wiring, proposal_of(wiring, decisions), SKETCH, 1).grown.load.max())

    return min(plans, key=full)


def plain(wiring: Wiring) -> Decisions:
    """Decisions of 0: the even plan.

    Args:
        wiring: the network and the gradient.
    """
    links, nodes = len(wiring.links.bandwidth), wiring.topology.num_nodes
    return Decisions(np.zeros(links), np.zeros(nodes), np.zeros(len(WHOLE)))


def simple_plans(wiring: Wiring) -> list[Decisions]:
    """Even plans of more or fewer, flatter or deeper trees, from which a search may begin.

    Args:
        wiring: the network and the gradient.
    """
    even_plan, plans = plain(wiring), []
    places = [WHOLE.index(name) for name in ("sharpness", "near", "fewer")]
    for plan in TUNING.simple_plans:
        whole = even_plan.whole.copy()
        whole[places] = plan
        plans.append(even_plan._replace(whole=whole))
    return plans


def rounded(decision: Any) -> NDArray[np.float64]:
    """A decision as applied: a multiple of `STEP`, between −`REACH` and `REACH`."""
    whole = np.round(np.asarray(decision, np.float64) / STEP)
    return STEP * np.clip(whole, -REACH / STEP, REACH / STEP)
