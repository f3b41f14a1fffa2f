"""Which piece to send over a hop: among those allowed, the rarest around the receiver."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.problem import HopTable, Integers


class Rarity(NamedTuple):
    """Weights that define rarity. Other tuples with these fields work too."""

    near: int
    """Weight of the number of hops into the receiver from servers that hold the piece or soon will.
    It avoids that neighbouring servers are all sent the same piece at the same time."""
    everywhere: int
    """Weight of the number of servers that hold it at all."""
    noise: int
    """The random term is less than this; a power of two."""


class Holdings(NamedTuple):
    """Which server holds, receives and lacks which piece, while trees grow."""

    holds: NDArray[np.bool_]
    """[N, P] whether the piece has arrived."""
    wanted: NDArray[np.bool_]
    """[N, P] whether the piece has neither arrived nor is on the way."""
    near: Integers
    """[N, P] hops into the server from servers that hold the piece or soon will."""
    held_by: Integers
    """[P] servers that hold the piece; on a continuous clock also those that soon will."""
    missing: Integers
    """[N] pieces that a server wants."""
    steps: NDArray[np.int16]
    """[N, P] if steps are limited, the number of transfers by which a piece reached a server."""
    most_steps: NDArray[np.int16]
    """[N, P] the limit on them; both arrays are [0, 0] if there is no limit."""


@kernel(inner=True)
def held_by_roots(hops: HopTable, root: Integers, most_steps: NDArray[np.int16]) -> Holdings:
    """The state before the first transfer. Plain loops: NumPy's functions take long to compile.

    Args:
        hops: the network's hops.
        root: [P] server at which each piece starts.
        most_steps: as in `Holdings`.
    """
    servers, pieces = len(hops.first_leaving) - 1, len(root)
    holds, wanted = np.zeros((servers, pieces), np.bool_), np.ones((servers, pieces), np.bool_)
    held_by, missing = np.empty(pieces, np.int64), np.empty(servers, np.int64)
    for server in range(servers):
        missing[server] = pieces
    for piece in range(pieces):
        holds[root[piece], piece], wanted[root[piece], piece] = True, False
        held_by[piece] = 1
        missing[root[piece]] -= 1
    near, steps = np.zeros((servers, pieces), np.int64), np.zeros(most_steps.shape, np.int16)
    for piece in range(pieces):
        promise(hops, near, root[piece], piece, 1)
    return Holdings(holds, wanted, near, held_by, missing, steps, most_steps)


@kernel(inlined=True)
def promise(hops: HopTable, near: Integers, server: Any, piece: Any, more: int) -> None:
    """Counts a server, with each hop that leaves it, among those that can send a piece.

    Args:
        hops: the network's hops.
        near: [N, P] as in `Holdings`; changed.
        server: rank.
        piece: number.
        more: 1 to add the server, −1 to remove it.
    """
    for i in range(hops.first_leaving[server], hops.first_leaving[server + 1]):
        near[hops.target[hops.leaving[i]], piece] += more


@kernel(inlined=True)
def may_send(holdings: Holdings, source: int, target: int, piece: int) -> bool:
    """Whether the source holds the piece, the target wants it, and steps are within the limit."""
    if not (holdings.holds[source, piece] and holdings.wanted[target, piece]):
        return False
    limited = len(holdings.most_steps) > 0
    return not limited or holdings.steps[source, piece] < holdings.most_steps[target, piece]


@kernel(inner=True, allocates=False)
def rarest_piece(
    rarity: Any, holdings: Holdings, source: Any, target: Any, hop: Any, salt: int
) -> Any:
    """The rarest piece to send over a hop, ties broken by a hash; −1 if there is none.

    Most of a search's time is spent here: one pass over the pieces for each hop tried. A hash of
    piece, hop and round breaks ties, which costs less than a random number per piece.

    Args:
        rarity: its weights.
        holdings: which server holds which piece.
        source: server that the hop leaves.
        target: server that it enters.
        hop: its number.
        salt: a random number, the same for all hops of a round or moment.
    """
    best, lowest = -1, np.int64(1) << 62
    # The primes near 2^16 and 2^32 over the golden ratio (Fibonacci hashing), and one of xxHash.
    # They only have to mix well, and were not tuned.
    mix = salt + hop * 40503
    held, wanted, near = holdings.holds[source], holdings.wanted[target], holdings.near[target]
    limited = len(holdings.most_steps) > 0
    for piece in range(len(held)):
        if held[piece] and wanted[piece]:
            if limited and holdings.steps[source, piece] >= holdings.most_steps[target, piece]:
                continue
            mixed = ((piece + 1) * 2654435761 + mix * 2246822519) & 0xFFFFFFFF
            key = (
                rarity.near * near[piece]
                + rarity.everywhere * holdings.held_by[piece]
                + (((mixed ^ (mixed >> 15)) * 2654435761 & 0xFFFFFFFF) >> 12) % rarity.noise
            )
            if key < lowest:
                best, lowest = piece, key
    return best
