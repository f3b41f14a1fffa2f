"""Constants of `solve`: which strategies and variants it tries, to what size and how long."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and thresholds, chosen by hand unless noted."""

    # Order and time
    start_s: float = 0.3
    """Time a strategy may take before it first checks the clock, on networks of some dozens of
    servers: it computes hops and one schedule whatever the limit. Once there is a schedule, no
    strategy is started with less time left: it would overrun the limit by as much."""
    few_servers: int = 8
    """Most servers for which the exact search comes before `learned`: there it takes no longer than
    episodes of `learned`, and may find the optimum where they and grown trees miss it. Otherwise a
    time limit could end the search between the two."""
    quickly_grown_servers: int = 256
    """Most servers for which a few runs of grown trees are faster than finding a symmetry."""
    own_share: float = 0.6
    """Share of the remaining time for a strategy that tries numbers of pieces itself, which would
    otherwise use it all. With a third, 15 sites of 30 servers were 167 % above the bound after 20
    s; now 66 %."""
    other_share: float = 1 / 3
    """The same share for the other strategies if links are unequal: there they are the best far
    less often, and without a limit they took most of the time."""
    reserved: float = 0.05
    """Share of a time limit kept for strategies that end late, the verifier and the bound."""

    # Strategies for seconds
    max_packed_servers: int = 128
    """Most servers for which shares are optimised on unequal links: the linear program's time grows
    with their cube and more."""
    far: float = 0.05
    """Relative gap to the bound above which strategies of last resort are tried: they take seconds.
    GÉANT with equal links was 75 % over the bound without them, 12 % with them."""
    near: float = 0.02
    """Relative gap to the bound at which a schedule by groups ends the search. On two boxes of
    A100s the other strategies took 50 s of processor time to reach 1.7 %, where groups reach 0.4 %
    in two."""
    near_of_many: float = 0.03
    """The same for `many_servers` or more, where others take minutes and usually end farther."""
    many_servers: int = 64
    max_stepped_servers: int = 128
    """Most servers for which schedules with fewer steps in sequence are tried."""
    stepped_restarts: int = 16
    """Runs for each of those schedules."""

    # How finely pieces are cut
    hopeless: float = 4.0
    """Multiple of the best time above which a schedule with at least one piece per server is not
    cut or overlapped: that gains a factor of about two at most. Among 128 servers in racks,
    variants of a `merged` at eight times the best took 40 of 120 s."""
    max_parts: int = 256
    """Most parts that a piece is cut into."""
    min_parts_gain: float = 0.005
    """Relative gain below which no finer parts are tried: each part has a cost outside the
    model."""
    max_transfers: int = 2_000_000
    """Larger schedules are not cut further: simulation time is proportional to transfers."""
    max_piece_transfers: int = 100_000
    """Most transfers of a stage for which several pieces per server are tried."""
    max_overlapped_transfers: int = 100_000
    """Larger schedules are not tried with overlapping stages."""
    max_recut_transfers: int = 10_000_000
    """Most transfers, over all coarser cuts of the best schedule, for which all are tried."""
    max_pieces: int = 16
    """Most pieces per server that are tried."""
    max_piece_counts: int = 3
    """Most piece counts tried because of how well whole pieces fill the bottleneck."""
    min_pieces_gain: float = 1e-3
    """A larger number of pieces is tried if it could gain at least this fraction of the bound."""
    spreading: float = 0.1
    """Cost, relative to the bound, that more messages may add at the bottleneck so that smaller
    pieces spread sooner beyond it."""

    # Improvement of the best schedules
    improving: float = 0.3
    """Share of a time limit kept for it if links differ."""
    slotted: float = 0.4
    """Share of the remaining time that is kept for the bound over slots of time if `is_slotted`."""
    max_improved_transfers: int = 60_000
    """Largest schedule that is improved: each step plays all transfers twice."""
    improvable: float = 1.25
    """Multiple of the best time up to which other strategies' schedules are improved, too."""
    improved_starts: int = 3
    """Number of schedules that are improved for `start_turns` turns before one is chosen."""
    start_turns: int = 2
    start_share: float = 0.25
    """Share of the remaining time for each of these."""
    improved_near: float = 0.01
    """Relative gap to the bound at which the improvement ends."""

    own_worth: float = 0.1
    """How much longer than the best plan a runtime's all-reduce may be predicted to take and still
    be the answer: predictions err by more, and it needs nothing to be installed."""

    # Capacities from bandwidths
    max_capacity: int = 64
    """Largest capacity assigned to a bandwidth."""
    capacity_error: float = 0.05
    """Relative error of a capacity against its bandwidth above which a smaller unit is tried."""


TUNING = Tuning()
