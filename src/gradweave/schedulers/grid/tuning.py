"""Constants of `hierarchical`: every limit of its search."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits, chosen by hand."""

    max_orders: int = 6
    """Most orders of the dimensions that are tried: all six of three dimensions."""
    enough: float = 2e-3
    """Relative gap to the lower bound at which a schedule of equal shares in one order is good
    enough; and the gain that other trees must bring."""
    slack: float = 1e-3
    """Relative time given up for more equal shares."""
    least_share: float = 0.02
    """A part smaller than this fraction of the mean is dropped, to save messages."""
    max_chunk_transfers: int = 4_200_000
    """Transfers per chunk above which only some groups have roots, to which the other groups reduce
    over two binary trees. Also the limit for schedules with few roots."""
    groups_with_roots: int = 4
    """Most groups with roots in that case. With more of them there are fewer chunks: on 128 boxes
    of MI250s, 1,024 pieces with roots in 16, 8 and 4 groups took 1.52, 1.40 and 1.31 times the
    bound (8 groups with one binary tree: 1.45); on 1,024 boxes of A100s, 8 and 4 groups took 1.49
    and 1.41. On 32 boxes, 2 groups took longer than 4."""
    few_root_pieces: int = 1024
    """Fewest pieces in that case: each has two transfers per server."""
    few_chunks: int = 8
    """Number of chunks with roots everywhere; if they exceed `max_transfers`, roots in a part of
    the groups are tried too. On 32 boxes of MI250s on rails, four chunks with roots everywhere took
    1.13 times the bound, 4,096 pieces with roots in 16 boxes 1.07."""
    groups_with_more_roots: int = 16
    """Most groups with roots then: with 2,048 pieces 16, 8 and 4 groups took 1.13, 1.17, 1.18."""
    few_roots_worth: float = 0.03
    """Relative gap to the bound from which that is worth it: it takes half a minute."""
    max_transfers: int = 2_200_000
    """Larger schedules are not cut finer. Simulating a transfer takes 0.4 to 0.7 µs of processor
    time; when this was chosen, it took 2 to 4."""
    min_gain: float = 5e-3
    """Relative gain of twice as many chunks below which the search soon ends."""
    slow_lead: int = 8
    """Number of chunks by which transfers over slow links are advanced."""
    chunks: int = 8
    """Number of chunks if latencies do not count."""
    max_chunks: int = 4096
    """Most chunks that are tried."""


TUNING = Tuning()
