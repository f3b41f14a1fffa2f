"""What tunes `solve`: which strategies and variants are tried, up to what size, in what time."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and thresholds, chosen by hand unless said."""

    # In which order, and how long
    start_s: float = 0.3
    """What a strategy may take before it looks at the clock, on networks of some dozens of servers:
    its hops, and one schedule whatever the time. None is begun later, once there is a schedule; the
    last one overran time limits by as much."""
    few_servers: int = 8
    """Up to which the exact search takes no longer than episodes of `learned`, and may find the
    optimum where they and grown trees miss it: it comes before them, lest a time limit end the
    search between."""
    quickly_grown_servers: int = 256
    """Up to which a few runs of grown trees take less than the search for a symmetry."""
    own_share: float = 0.6
    """Of the time left, for a strategy that tries numbers of pieces itself: it would take all. With
    a third, 15 sites of 30 servers were 167 % above the bound after 20 s; now 66 %."""
    other_share: float = 1 / 3
    """The same for one that does not, where links are unequal: there it is the best far less often,
    and left alone it took most of the time."""
    reserved: float = 0.05
    """Of a time limit, for strategies that end a little late, the verifier and the bound."""

    # Which strategies, for seconds
    max_packed_servers: int = 128
    """Up to which shares are looked for, where links are unequal: the linear program's time grows
    with their cube and more."""
    far: float = 0.05
    """How far above the least time possible, relative to it, strategies of the last resort are
    tried: they take seconds. GÉANT with equal links was 75 % over the bound without, 12 % with."""
    near: float = 0.02
    """How far above the least time possible, relative to it, a schedule by groups ends the search:
    on two boxes of A100s the others took 50 s of processor time to end at 1.7 %, where it ends at
    0.4 in two."""
    near_of_many: float = 0.03
    """The same of `many_servers` or more, where others take minutes and mostly end farther away."""
    many_servers: int = 64
    max_stepped_servers: int = 128
    """Up to which schedules of fewer transfers in a row are tried."""
    stepped_restarts: int = 16
    """Runs for each of those."""

    # How finely pieces are cut
    hopeless: float = 4.0
    """How many times the best time a schedule with a piece for each server or more may take and
    still be cut and overlapped: those gain a factor of about two at most. Among 128 servers in
    racks, variants of a `merged` at eight times the best took 40 of 120 s."""
    max_parts: int = 256
    """Most parts that a piece is cut into."""
    min_parts_gain: float = 0.005
    """Gain of finer parts, relative, below which no finer ones are tried: each part has a cost
    outside the model."""
    max_transfers: int = 2_000_000
    """Schedules with more are not cut further: simulation takes time in proportion."""
    max_piece_transfers: int = 100_000
    """Of a stage, for which more than one piece per server is tried."""
    max_overlapped_transfers: int = 100_000
    """Schedules with more are not tried with overlapping stages."""
    max_recut_transfers: int = 10_000_000
    """That the coarser cuts of the best schedule may have together to be tried all."""
    max_pieces: int = 16
    """Most pieces per server that are tried."""
    max_piece_counts: int = 3
    """Numbers of pieces that are tried because of how whole pieces fill the bottleneck."""
    min_pieces_gain: float = 1e-3
    """Gain, relative to the least time, for which a larger number of pieces is tried."""
    spreading: float = 0.1
    """What the overhead of more messages at the bottleneck may cost, relative to the least time,
    for pieces that spread sooner beyond it."""

    own_worth: float = 0.1
    """How much longer than the best plan a runtime's own all-reduce may be predicted to take and
    still be the answer: predictions err more, and it needs nothing to be installed."""

    # Capacities from bandwidths
    max_capacity: int = 64
    """Largest capacity that a bandwidth is taken for."""
    capacity_error: float = 0.05
    """How far a capacity may be from its bandwidth, relative to it, before a smaller unit is
    tried."""


TUNING = Tuning()
