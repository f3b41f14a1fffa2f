"""What the policies' numbers are: the order that the weights' files keep, and the constants.

`learning.features` computes them in JAX, for training; `policy` and `state_kernel` compute the
same ones in NumPy and in compiled loops, for decoding. Tests hold the two together.
"""

WIDTH, LAYERS = 16, 2
"""Numbers that each server, link and tree is described by, and rounds of message passing."""
SERVER_MESSAGES, LINK_MESSAGES, TREE_MESSAGES = 8, 4, 4
"""Kinds of what each hears: itself, its neighbours by kind, and the network as a whole."""
SERVER_FEATURES, LINK_FEATURES, TREE_FEATURES, WHOLE_FEATURES = 6, 3, 5, 5
"""Numbers of a round's start: see `learning.features.Round`."""

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
