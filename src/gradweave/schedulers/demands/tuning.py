"""What tunes strategies for demands: limits and weights, in one place."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and weights, chosen by hand on boxes, tori and leaf–spines of up to 64 servers."""

    # The linear program over trees and paths
    tolerance: float = 1e-3
    """How far the busiest link may be from the bound, relative to it, when no more are sought."""
    max_steps: int = 60
    """Steps of column generation at most."""
    smoothing: float = 0.5
    """Part of the best duals in those at which carriers are sought (Wentges 1997)."""
    steps_a_bound: int = 3
    """Steps after which the bound at the program's duals is found anew: it takes exact sums."""
    carriers_per_step: int = 16
    """Carriers that a step adds at least, where blocks are few."""
    dearer: float = 1.0
    """Logarithm of how much dearer the link gets that a step's carriers load most."""
    roots_per_step: int = 8
    """Roots whose trees a step adds for a block of several contributors and destinations."""
    latency_weight: float = 1.0
    """Of latency on the way beside the time of the bytes."""
    flatter: float = 1e-6
    """How much more an arc of a tree may cost that brings a server nearer to the root, relative to
    the mean."""
    relay_gain: float = 1e-9
    """How much cheaper a path must be that another server relays."""
    least_gain: float = 1e-12
    """By which a carrier must be cheaper than what its block pays."""
    max_stages: int = 6
    """Times in one program, by which jobs that end before others are to have ended."""
    least_share: float = 1e-4
    """Of a block, below which a carrier is left out."""

    max_disjoint_links: int = 1_000
    """Link directions up to which trees without a common link are sought."""
    max_units: int = 64
    """Bandwidth of a link, relative to the slowest one's, up to which they are."""
    max_disjoint_trees: int = 16
    """And how many trees at most."""
    splits: int = 32
    """Ways to split off the switches that are tried for them."""
    growths: int = 16
    """Sets of trees that are grown in each."""
    known_searches: int = 64
    """Of blocks whose trees were sought last, that are remembered."""
    draws_of_routes: int = 8
    """Times that equal routes behind switches are told apart at random, to know several."""
    tie: float = 1e-6
    """Difference of routes' times, relative, up to which they are equal."""
    planning: float = 0.5
    """Share of the time for the program; the rest is for pieces."""

    # Pieces and their order
    max_transfers: int = 400_000
    """Of a schedule: simulation takes time in proportion."""
    first_pieces: float = 8.0
    """Of a usual carrier, with which the search for their size begins, at most."""
    transfers_per_s: float = 10_000.0
    """With which it begins at most, for each second that it has."""
    transfers_always: int = 10_000
    """Of pieces that are tried however little time is left: it takes milliseconds."""
    min_gain: float = 0.002
    """Gain of finer pieces, relative, below which the search ends."""
    patience: int = 2
    """Finer cuts in a row without such a gain that end it."""
    windows: tuple[int, ...] = (4, 16)
    """Pieces of each carrier under way at one time."""


TUNING = Tuning()
