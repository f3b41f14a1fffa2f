"""Constants of `packed`: every limit and weight of its search."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and weights, chosen by hand on networks of docs/experiments/seconds.md or as noted."""

    # The linear program over trees
    tolerance: float = 5e-4
    """Relative gap of a packing to the bound at which column generation ends."""
    slack: float = 1e-3
    """Relative time given up for more equal shares."""
    max_steps: int = 400
    """Most steps of column generation."""
    roots_per_step: int = 8
    """Roots whose trees a step adds: more roots make fewer steps and larger programs."""
    max_dual: float = 1e3
    """Largest dual of a link, relative to what the whole gradient pays, so that no tree passes the
    link. If bandwidths differ widely, some duals would be far larger, and the others would seem
    free."""
    min_dual: float = 1e-7
    """Smallest dual of a link, relative to the mean, used if its bandwidth is not scarce: among
    paths and trees of equal cost, those with fewer links are taken."""
    max_rates: int = 12
    """Most rates for which the cheapest paths are computed; if links have more rates, a selection.
    Each costs a run of Dijkstra's algorithm from every server."""
    hop_weight: float = 0.1
    """Weight of a hop in all trees against the largest share, relative to the mean share."""
    flatter: tuple[float, ...] = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
    """Extra costs, relative to the mean dual, that an arc may have if it brings a server nearer to
    the root. With latency in the objective they improved ten cities at 256 MB from 46.8 % over the
    bound to 34.6, Abilene from 24.6 to 17.4."""
    max_flatter_steps: int = 8
    """How often flatter trees are sought."""

    # Which packings
    residual_weights: tuple[float, ...] = (1.1, 1.0, 0.75, 1.5, 0.0)
    """Weights of residual bandwidth behind switches. Each is best on some networks (0.75 on Abilene
    with two servers per site: 10 % over the bound, the others at 16 to 48); the first cuts short
    most of the others' simulations."""
    probe_pieces: int = 512
    """Number of pieces with which packings are compared."""
    max_packings: int = 2
    """Number of best packings that are then cut finer and finer: with four, two boxes of A100s took
    160 s of processor time."""
    abandon_factor: float = 1.1
    """Multiple of the best time up to which another packing's coarse pieces are cut finer: coarse
pieces compare packings only roughly."""

    # How many pieces
    max_transfers: int = 200_000
    """Larger schedules are not cut further: simulation time is proportional to transfers."""
    pieces_per_tree: int = 4
    """Pieces per tree up to which the search goes on regardless of gains."""
    pieces_per_server: int = 64
    """Pieces per server if latencies do not count."""
    between: tuple[float, ...] = (2**-0.5, 2**-0.25, 2**0.25, 2**0.5)
    """Multiples of the best power of two of pieces, tried at the end."""
    least_in_period: float = 0.1
    """Minimum share of a part with pieces in each period, relative to the larger parts."""

    # In what order
    equal_periods: int = 4
    """Number of period lengths tried for equal pieces, longest first: those are nearest to the
    shares. Behind a switch with five unequal links, 128 pieces took 10 % more time without them."""
    max_waiting_pieces: int = 1024
    """Most pieces if a server is late: all of them wait for it at the same time."""
    arrival_margin: int = 2
    """Slots of a periodic schedule between the arrival of data and the transfer that needs it."""


TUNING = Tuning()
