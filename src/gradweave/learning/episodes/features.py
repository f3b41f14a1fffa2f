"""Inputs of the policies: once per round, and again before each workload.

Features are counts and ratios within a neighbourhood, so that they do not depend on a network's
size or on the numbering of its servers. The two sides count differently: JAX with matrices
(`learning.features`), for training; compiled loops with bitsets (`state_kernel`), for decoding. The
features are computed from the counts here only, over arrays of either library, `xp`; the compiled
round inlines these functions with numbers instead of arrays.
"""

from typing import Any, NamedTuple

SERVER_FEATURES, LINK_FEATURES, TREE_FEATURES, GLOBAL_FEATURES = 6, 3, 5, 5
"""Number of features at a round's start: see `Round`."""

HOP_FEATURES = 12
(
    SLACK,
    NO_SLACK,
    LINK_SLACK,
    NO_LINK_SLACK,
    CONTENTION,
    CONTENTION_AT_RECEIVER,
    CONTENTION_AT_SENDER,
    READY,
    TAKEN,
    LOAD,
    LENGTH,
    CHAIN_SLACK,
) = range(HOP_FEATURES)
"""Features of a hop, before each workload: the receiver's slack (transfers that it can take until
the bound, minus those still to come), and whether there is none; the same for the tightest link;
logarithms of the hops that contend for the route's links, the receiver's and the sender's, per free
capacity; logarithm of the hop's ready workloads; the receiver's load in this round, and over the
remaining rounds; the route's length; with fixed trees, the slack of the longest chain of waiting
workloads."""

PIECE_FEATURES = 7
(
    NEAR,
    NEAR_LOGARITHM,
    HELD,
    LACK_OF_RECEIVER,
    LACK_OF_SENDER,
    PIECE_CHAIN_SLACK,
    AWAITED,
) = range(PIECE_FEATURES)
"""Features of a tree on the hop that was drawn. With grown trees: hops by which the receiver could
get the piece, from servers that hold it or soon will, and the logarithm of their number; servers
that hold it or soon will; hops from the receiver, and from the sender, to servers that still lack
it. With fixed trees: the slack of the chain that the workload begins. Then the inverse of the
transfers that its receiver waits for."""

SHARE = 4.0
"""Scale of shares of neighbours, which are between 0 and 1."""
LOWEST, HIGHEST, UNIT = -4.0, 8.0, 4.0
"""Slack, in transfers or rounds, is clipped to [LOWEST, HIGHEST] and divided by UNIT."""
HIGHEST_LOAD = 2.0
"""Upper limit of relative loads."""
PLENTY = 1e6
"""Slack if there is no link."""
LEAST = 1e-3
"""Smallest argument of logarithms."""
ROUNDING = 1e-4
"""Link slack below this counts as 0: its last bits depend on the order of summation."""
TIE = 1e-4
"""Noise that breaks ties if the best action is taken."""


class Counts(NamedTuple):
    """Counts from which a round's features are computed, in arrays of NumPy or JAX."""

    rounds_left: Any
    """Rounds of the stage until its bound, at least 1."""
    bound: Any
    """Lower bound on the stage's rounds."""
    grown: Any
    """Whether trees grow."""
    servers: Any
    """Number of servers."""
    to_come: Any
    """[N] transfers into each server that are still to come."""
    intake: Any
    """[N] transfers that each server can take per round."""
    holds: Any
    """[N] trees of the stage for which each server is ready to send."""
    lacks: Any
    """[N] trees of the stage for which each server waits."""
    wanted: Any
    """[N] trees that each server holds and that one of its receivers waits for."""
    demand: Any
    """[L] transfers to come over each link."""
    contenders: Any
    """[L] workloads that are ready on hops over each link."""
    capacity: Any
    """[L] transfers that each link carries per round."""
    used: Any
    """[L] whether hops of the stage use each link."""
    there: Any
    """[Q] whether each tree is of the stage."""
    by_sender: Any
    """[Q] whether transfers merge into their receivers."""
    unsent: Any
    """[Q] transfers of each tree that are still to come."""
    ready: Any
    """[Q] transfers of each tree that could be made now."""
    total: Any
    """[Q] all transfers of each tree."""
    tallest: Any
    """[Q] rounds of each tree's longest chain of transfers; 0 if trees grow."""
    selected_before: Any
    """[Q] whether each tree was selected in the round before."""


class Scores(NamedTuple):
    """The weights of a round's features."""

    hop: Any
    """[H, 12] weights of each hop's features."""
    piece: Any
    """[N, 7] weights of a tree's features, by the receiver."""
    match: Any
    """[N, Q] added to a tree's score at a receiver."""


class Round(NamedTuple):
    """Values that are fixed within a round. Arrays of NumPy or JAX, padded or not."""

    server: Any
    """[N, 6] load; slack; shares of trees held and lacked; ports; share of held trees in demand."""
    link: Any
    """[L, 3] load; logarithm of ready workloads over capacity; whether hops use it."""
    tree: Any
    """[Q, 5] shares sent, ready and to come; whether it was selected in the round before; rounds of
    its longest chain over the remaining rounds."""
    global_features: Any
    """[5] grown or fixed; shares of the bound's rounds and of transfers left; whether any merge
    into their receivers; the logarithm of the number of servers."""
    holds: Any
    """[N, Q] trees of this stage for which a server is ready to send."""
    lacks: Any
    """[N, Q] trees of this stage for which a server waits."""
    stage: Any
    """The current stage."""
    candidates: Any
    """[Q] whether each tree has a ready workload."""
    rounds_left: Any
    """As in `Counts`."""
    link_slack: Any
    """[H] transfers that the tightest link of a route can spare until the bound."""
    chain: Any
    """[H] rounds of the longest chain that a ready workload of the hop begins."""
    to_come: Any
    """As in `Counts`."""


def of_round(xp: Any, counts: Counts) -> tuple[Any, Any, Any, Any, Any]:
    """`Round.server`, `link`, `tree` and `global_features`; and [L] the links' slack.

    Args:
        xp: numpy, or jax.numpy.
        counts: the counts at the round's start.
    """
    (rounds_left, bound, grown, servers), there = counts[:4], counts.there
    to_come, intake, holds, trees = counts.to_come, counts.intake, counts.holds, there.sum()
    server = [
        load(xp, to_come, intake, rounds_left),
        clipped(xp, rounds_left * intake - to_come),
        holds / xp.maximum(trees, 1),
        counts.lacks / xp.maximum(trees, 1),
        xp.log1p(intake) / 2.0,
        counts.wanted / xp.maximum(holds, 1),
    ]
    demand, capacity, used = counts.demand, counts.capacity, counts.used
    contention = xp.log1p(counts.contenders / xp.maximum(capacity, 1)) / 4.0
    of_load = load(xp, demand, capacity, rounds_left)
    link = [xp.where(used, of_load, 0.0), xp.where(used, contention, 0.0), used]
    slack = xp.where(used, rounds_left * capacity - demand, PLENTY)
    unsent, total = counts.unsent, xp.maximum(counts.total, 1)
    tallest = xp.minimum(counts.tallest / rounds_left, HIGHEST_LOAD)
    remaining = unsent / total
    tree = [1.0 - remaining, counts.ready / total, remaining, counts.selected_before, tallest]
    overall = [
        grown,
        xp.minimum(rounds_left / xp.maximum(bound, 1), 1.0),
        xp.where(there, unsent, 0).sum() / xp.maximum(xp.where(there, counts.total, 0).sum(), 1),
        (counts.by_sender & there).any(),
        xp.log(servers) / 4.0,
    ]
    return (
        xp.stack(server, 1).astype(xp.float32),
        xp.stack(link, 1).astype(xp.float32),
        xp.where(there[:, None], xp.stack(tree, 1), 0.0).astype(xp.float32),
        xp.stack(overall).astype(xp.float32),
        slack,
    )


def receiver_features(
    xp: Any, to_come: Any, taken: Any, intake: Any, rounds_left: Any
) -> tuple[Any, Any, Any, Any]:
    """`SLACK`, `NO_SLACK`, `TAKEN` and `LOAD` of the server that a hop leads to.

    Args:
        xp: numpy, or jax.numpy.
        to_come: transfers into the server that are neither made nor on the way.
        taken: transfers on the way to it in this round.
        intake: transfers that it can take per round.
        rounds_left: rounds until the bound.
    """
    slack = rounds_left * intake - to_come
    taken_share = taken / xp.maximum(intake, 1)
    return clipped(xp, slack), slack <= 0, taken_share, load(xp, to_come, intake, rounds_left)


def route_features(xp: Any, link_slack: Any, length: Any) -> tuple[Any, Any, Any]:
    """`LINK_SLACK`, `NO_LINK_SLACK` and `LENGTH` of a hop's route, fixed within a round.

    Args:
        xp: numpy, or jax.numpy.
        link_slack: transfers that the tightest link of the route can spare.
        length: number of links of the route.
    """
    return clipped(xp, link_slack), link_slack <= ROUNDING, length / 2.0 - 1.0


def load(xp: Any, number: Any, capacity: Any, rounds_left: Any) -> Any:
    """Transfers to come, relative to those that fit in the remaining rounds."""
    return xp.minimum(number / (rounds_left * xp.maximum(capacity, 1)), HIGHEST_LOAD)


def clipped(xp: Any, slack: Any) -> Any:
    """Slack, clipped and scaled as a feature."""
    return xp.minimum(xp.maximum(slack, LOWEST), HIGHEST) / UNIT


def logarithm(xp: Any, number: Any) -> Any:
    """Logarithm of a count or of a ratio of counts, as a feature."""
    return xp.log(xp.maximum(number, LEAST))
