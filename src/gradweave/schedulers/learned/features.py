"""What the policies look at: once a round, and again before each workload.

Counts and ratios of a neighbourhood, so that nothing depends on a network's size or on how its
servers are numbered. What is counted, each side counts in its own way: JAX in matrices
(`learning.features`), for training; compiled loops in bitsets (`state_kernel`), for decoding. What
is made of the counts stands here alone, over arrays of either library, `xp`; the compiled round
inlines these functions, of numbers in place of arrays.
"""

from typing import Any, NamedTuple

WIDTH, LAYERS = 16, 2
"""Numbers that each server, link and tree is described by, and rounds of message passing."""
SERVER_MESSAGES, LINK_MESSAGES, TREE_MESSAGES = 8, 4, 4
"""Kinds of messages to each: its own, of its neighbours by kind, and of all of its kind."""
SERVER_FEATURES, LINK_FEATURES, TREE_FEATURES, GLOBAL_FEATURES = 6, 3, 5, 5
"""Of a round's start: see `Round`."""

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
"""Of a hop, before each workload: the receiver's slack (transfers that it can take until the bound,
less those to come), and whether there is none; the same of the tightest link; logarithms of the
hops that contend for the route's links, the receiver's and the sender's, over the room there; of
the hop's ready workloads; the receiver's load of this round, and of the rounds left; the route's
length; with fixed trees the slack of the longest chain of waiting workloads."""

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
"""Of a tree on the hop that was drawn. With grown trees: hops by which the receiver could get the
piece, from servers that hold it or are about to, and their logarithm; servers that hold it or are
about to; hops from the receiver, and from the sender, to servers that still lack it. With fixed
ones: the slack of the chain that the workload begins. Then one over the transfers that its receiver
waits for."""

SHARE = 4.0
"""What shares of neighbours, from 0 to 1, are multiplied by."""
LOWEST, HIGHEST, UNIT = -4.0, 8.0, 4.0
"""Slack, in transfers or rounds, is clipped to the first two and divided by the third."""
HIGHEST_LOAD = 2.0
"""Loads over what fits are cut off here."""
PLENTY = 1e6
"""Slack where there is no link."""
LEAST = 1e-3
"""Logarithms are of no smaller numbers."""
ROUNDING = 1e-4
"""Slack of links below this counts as 0: the order of a sum of shares decides its last bits."""
TIE = 1e-4
"""Noise between equals where the best is taken."""


class Counts(NamedTuple):
    """What the features of a round's start are made of, in arrays of NumPy or JAX."""

    rounds_left: Any
    """Rounds of the stage until its bound, at least 1."""
    bound: Any
    """Of the stage."""
    grown: Any
    """Whether trees grow."""
    servers: Any
    """How many there are."""
    to_come: Any
    """[N] transfers into each server that are still to come."""
    intake: Any
    """[N] transfers that it can take in a round."""
    holds: Any
    """[N] trees of the stage for which it is ready to send."""
    lacks: Any
    """[N] trees of the stage for which it waits."""
    wanted: Any
    """[N] trees that it holds and that a server waits for to which it can send."""
    demand: Any
    """[L] transfers to come over each link."""
    contenders: Any
    """[L] workloads that are ready on hops over it."""
    capacity: Any
    """[L] transfers that it carries in a round."""
    used: Any
    """[L] whether hops of the stage lead over it."""
    there: Any
    """[Q] trees of the stage."""
    by_sender: Any
    """[Q] whether transfers merge into their receivers."""
    unsent: Any
    """[Q] transfers of each tree that are to come."""
    ready: Any
    """[Q] those that could be made now."""
    total: Any
    """[Q] all of them."""
    tallest: Any
    """[Q] rounds that its longest chain of transfers takes; 0 where trees grow."""
    selected_before: Any
    """[Q] whether it was selected in the round before."""


class Round(NamedTuple):
    """What does not change within a round. Arrays of NumPy or JAX, padded or not."""

    server: Any
    """[N, 6] load; slack; shares of trees held and lacked; ports; share of held trees in demand."""
    link: Any
    """[L, 3] load; workloads ready over capacity, logarithm; whether hops use it."""
    tree: Any
    """[Q, 5] shares sent, ready and to come; whether it was selected in the round before; rounds
    that its longest chain takes over the rounds left."""
    global_features: Any
    """[5] grown or fixed; shares of the bound's rounds and of transfers left; whether any merge
    into their receivers; the logarithm of the servers' number."""
    holds: Any
    """[N, Q] trees of this stage for which a server is ready to send."""
    lacks: Any
    """[N, Q] trees of this stage for which a server waits."""
    stage: Any
    """That is under way."""
    candidates: Any
    """[Q] trees with a workload that is ready."""
    rounds_left: Any
    """As in `Counts`."""
    link_slack: Any
    """[H] transfers that the tightest link of a route can spare until then."""
    chain: Any
    """[H] rounds of the longest chain that a ready workload of the hop begins."""
    to_come: Any
    """As in `Counts`."""


def of_round(xp: Any, counts: Counts) -> tuple[Any, Any, Any, Any, Any]:
    """`Round.server`, `link`, `tree` and `global_features`; and [L] the links' slack.

    Args:
        xp: numpy, or jax.numpy.
        counts: at the round's start.
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
        taken: those on the way in this round.
        intake: transfers that it can take in a round.
        rounds_left: until the bound.
    """
    slack = rounds_left * intake - to_come
    taken_share = taken / xp.maximum(intake, 1)
    return clipped(xp, slack), slack <= 0, taken_share, load(xp, to_come, intake, rounds_left)


def route_features(xp: Any, link_slack: Any, length: Any) -> tuple[Any, Any, Any]:
    """`LINK_SLACK`, `NO_LINK_SLACK` and `LENGTH` of a hop's route, which last a round.

    Args:
        xp: numpy, or jax.numpy.
        link_slack: transfers that its tightest link can spare.
        length: its links.
    """
    return clipped(xp, link_slack), link_slack <= ROUNDING, length / 2.0 - 1.0


def load(xp: Any, number: Any, capacity: Any, rounds_left: Any) -> Any:
    """Transfers to come over those that fit the rounds left."""
    return xp.minimum(number / (rounds_left * xp.maximum(capacity, 1)), HIGHEST_LOAD)


def clipped(xp: Any, slack: Any) -> Any:
    """Slack as a feature."""
    return xp.minimum(xp.maximum(slack, LOWEST), HIGHEST) / UNIT


def logarithm(xp: Any, number: Any) -> Any:
    """Of a count or of a ratio of counts, as a feature."""
    return xp.log(xp.maximum(number, LEAST))
