"""What tunes `packed`: every limit and weight of its search, in one place."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and weights, chosen by hand on the networks of docs/benchmarks.md unless said."""

    # The linear program over trees
    tolerance: float = 5e-4
    """How far a packing may be from the least time, relative to it, when column generation ends."""
    slack: float = 1e-3
    """Time given up for shares that are more alike, relative to the least."""
    max_steps: int = 400
    """Steps of column generation at most."""
    smoothing: float = 0.5
    """Part of the best duals in those at which trees are sought (Wentges 1997): at the program's
    own, which jump from step to step, it takes more steps."""
    roots_per_step: int = 8
    """Roots whose trees a step adds: more make fewer steps and larger programs."""
    max_dual: float = 1e3
    """Dual of a link, relative to what all of the gradient pays, at which no tree passes it. Where
    bandwidths are very unlike, some cost far more; beside them the others would all seem free."""
    min_dual: float = 1e-7
    """Of a link whose bandwidth is not scarce, relative to the mean: of paths and trees that cost
    the same, those of fewer links are taken."""
    max_rates: int = 12
    """Rates for each of which the cheapest paths are sought: where links have more, some of these.
    Each costs a run of Dijkstra's algorithm from every server."""
    hop_weight: float = 0.1
    """What a hop more in all trees may make the largest share smaller, relative to the mean."""
    flatter: tuple[float, ...] = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
    """How much more, relative to the mean dual, an arc may cost that reparents a server nearer to
    the root. With latency in the objective they took ten cities at 256 MB from 46.8 % over the
    bound to 34.6, Abilene from 24.6 to 17.4."""
    max_flatter_steps: int = 8
    """How often flatter trees are sought."""

    # Which packings
    residual_weights: tuple[float, ...] = (1.1, 1.0, 0.75, 1.5, 0.0)
    """Weights of residual bandwidth behind switches. Each is best on some networks (0.75 on Abilene
    with two servers a site: 10 % over the bound, the others at 16 to 48); the first ends most of
    the others' simulations early."""
    probe_pieces: int = 512
    """Pieces in which packings are compared."""
    max_packings: int = 2
    """Packings that are then cut finer and finer, the best ones: with four, two boxes of A100s took
    160 s of processor time."""
    abandon_factor: float = 1.1
    """How many times the best so far another packing's coarser pieces may take to be cut finer."""

    # How many pieces
    max_transfers: int = 200_000
    """Schedules with more are not cut further: simulation takes time in proportion."""
    min_gain: float = 0.002
    """Gain of finer pieces, relative, below which the search soon ends."""
    patience: int = 2
    """Finer cuts in a row without such a gain that end it."""
    pieces_per_tree: int = 4
    """Pieces for each tree up to which the search goes on whatever it gains."""
    pieces_per_server: int = 64
    """Pieces for each server where latencies do not count."""
    between: tuple[float, ...] = (2**-0.5, 2**-0.25, 2**0.25, 2**0.5)
    """Multiples of the best power of two of pieces that are tried at last."""
    least_in_period: float = 0.1
    """Share of a part that has pieces in each period, relative to that of the larger ones."""

    # In what order
    windows: tuple[int, ...] = (8, 16)
    """Pieces of each part under way at one time: more leave more to choose from, and fill later."""
    min_window_parts: int = 24
    """With fewer parts as many pieces are under way as with so many, to fill long latencies."""
    equal_periods: int = 4
    """Lengths of period that pieces of one size are tried in, the longest: those are nearest to the
    shares. Behind a switch of five unequal links 128 pieces took 10 % more time without."""
    max_waiting_pieces: int = 1024
    """Pieces of a gradient for which a server is late: all of them wait for it at one time."""
    order_penalty: float = 1.0
    """How much a place further back in the order of pieces counts, in the urgency of a transfer, 1
    being the load of the busiest link over all pieces."""
    arrival_margin: int = 2
    """Slots of a periodic schedule between the arrival of data and the transfer that needs it."""


TUNING = Tuning()
