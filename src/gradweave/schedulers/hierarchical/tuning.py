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
    which the others reduce by two binary trees; and of a schedule with few roots."""
    groups_with_roots: int = 4
    """Groups of that part, at most. With more of them chunks are fewer: on 128 boxes of MI250s,
    1,024 pieces of 16, 8 and 4 took 1.52, 1.40 and 1.31 times the bound (of 8 with one binary tree
    1.45); on 1,024 boxes of A100s, of 8 and 4, 1.49 and 1.41. With 2, more than with 4 on 32."""
    few_root_pieces: int = 1024
    """Pieces then, at least: each has two transfers a server."""
    few_chunks: int = 8
    """Chunks of all roots; where so many do not fit into `max_transfers`, roots in a part of the
    groups are tried as well. On 32 boxes of MI250s on rails four chunks of all took 1.13 times the
    bound, 4,096 pieces with roots in 16 boxes 1.07."""
    groups_with_more_roots: int = 16
    """Groups of that part, at most: with 2,048 pieces 16, 8 and 4 groups took 1.13, 1.17, 1.18."""
    few_roots_worth: float = 0.03
    """How far above the least time, relative, that is worth it: it takes half a minute."""
    max_transfers: int = 2_200_000
    """Schedules with more are not cut finer. Each takes 0.4 to 0.7 µs of processor time to play;
    when this was chosen, it took 2 to 4."""
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
