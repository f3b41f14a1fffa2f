"""Constants of the strategies for demands: limits and weights."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and weights, chosen by hand on boxes, tori and leaf–spines of up to 64 servers."""

    # The linear program over trees and paths
    tolerance: float = 1e-3
    """Relative gap of the busiest link to the bound at which the search for carriers ends."""
    max_steps: int = 60
    """Most steps of column generation."""
    steps_a_bound: int = 3
    """Steps between updates of the bound at the program's duals, which needs exact sums."""
    carriers_per_step: int = 16
    """Fewest carriers that a step adds if blocks are few."""
    log_price_rise: float = 1.0
    """Logarithm of the price increase of the link that a step's carriers load most."""
    roots_per_step: int = 8
    """Roots whose trees a step adds for a block of several contributors and destinations."""
    latency_weight: float = 1.0
    """Weight of latency along the way, relative to the time of the bytes."""
    flatter: float = 1e-6
    """Extra cost, relative to the mean, that an arc of a tree may have if it brings a server nearer
    to the root."""
    relay_gain: float = 1e-9
    """Relative saving that a relayed path needs."""
    max_stages: int = 6
    """Most stages in one program, if some jobs must end before others."""
    least_share: float = 1e-4
    """Share of a block below which a carrier is dropped."""

    max_disjoint_links: int = 1_000
    """Most link directions for which link-disjoint trees are sought."""
    max_units: int = 64
    """Largest bandwidth, relative to the slowest link's, for which they are sought."""
    max_disjoint_trees: int = 16
    """Most link-disjoint trees."""
    splits: int = 32
    """Ways of splitting off the switches that are tried for them."""
    growths: int = 16
    """Sets of trees grown for each way."""
    draws_of_routes: int = 8
    """Random tie-breaks among equal routes behind switches, to find several of them."""
    tie: float = 1e-6
    """Relative difference of routes' times up to which they count as equal."""
    planning: float = 0.5
    """Share of the time for the linear program; the rest is for pieces."""

    # Pieces and their order
    max_transfers: int = 400_000
    """Most transfers of a schedule: simulation time is proportional to them."""
    first_pieces: float = 8.0
    """Most pieces of a usual carrier at the start of the search for their size."""
    transfers_per_s: float = 10_000.0
    """Most transfers at the start of that search, per second available."""
    transfers_always: int = 10_000
    """Transfers that are always allowed, however little time is left: they take milliseconds."""


TUNING = Tuning()
