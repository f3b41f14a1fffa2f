"""What tunes `hierarchical`: every limit of its search, in one place."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits, chosen by hand."""

    max_orders: int = 6
    """Orders of the dimensions that are tried: all of three."""
    enough: float = 2e-3
    """How far above the least time that any trees take, relative, a schedule of equal shares in one
    order may be for no others to be sought; and by how much others must be faster."""
    slack: float = 1e-3
    """Time given up for shares that are more alike, relative to the least."""
    least_share: float = 0.02
    """Of the mean share, below which a part is left out: its pieces would cost messages."""
    max_chunk_transfers: int = 4_200_000
    """Transfers of a chunk beyond which not all servers are roots, but a part of the groups over
    which the others reduce by a binary tree."""
    groups_with_roots: int = 8
    """Groups of that part, at most. With more of them chunks are fewer, and trees wait for each
    other: on 128 boxes of MI250s, 1,024 pieces of 64, 16 and 8 took 1.76, 1.61 and 1.45 times the
    bound. With fewer, those inside the binary tree receive more."""
    few_root_pieces: int = 1024
    """Pieces then: each has two transfers a server."""
    max_transfers: int = 2_200_000
    """Schedules with more are not cut finer. Each takes 2 to 4 µs of processor time."""
    min_gain: float = 5e-3
    """Gain of twice as many chunks, relative, below which the search soon ends."""
    patience: int = 2
    """Doublings in a row without such a gain that end it."""
    slow_lead: int = 8
    """Chunks by which transfers over slow links are more urgent."""
    chunks: int = 8
    """Where latencies do not count."""
    max_chunks: int = 4096
    """Most that are tried."""


TUNING = Tuning()
