"""Constants of `planned`: how much work there is time for."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits, based on times of one core of a server of 2024.

    Limits count work, so that every machine finds the same schedule. Constants that the trained
    weights depend on, such as the features' scales, are in `decisions`.
    """

    max_servers: int = 512
    """Most servers; more would need too much memory. 512 take a few seconds and 0.2 GB."""
    passes: int = 2
    """How often each tree is grown: the second time given the loads of all others, not only of the
    trees before it."""
    trees: int = 192
    """Trees grown on small networks: more trees divide links more evenly, and leave less time for
    their order."""
    few_servers: int = 20
    """Most servers of a small network."""
    max_trees: int = 96
    """Trees grown on larger networks, where each takes longer."""
    trained_servers: int = 48
    """Most servers for which the policy's plans are used as they are: it was trained on at most
    half as many. With more servers, the even plan is used if its links are less full, and all
    servers root the same number of trees: with fewer trees than servers, the servers that root one
    lagged."""
    rooted: int = 4
    """Most trees that each server roots in that case."""
    decoded_share: float = 0.9
    """Share of the effort spent on growing these trees and on two simulations. The rest is spent on
    trying finer pieces."""
    max_path_steps: int = 6_000
    """Most steps of the path search for one tree, see `path_steps`, on a small network."""
    cuts: tuple[int, ...] = (4, 3, 2, 1)
    """Numbers of pieces into which each tree's part may be cut. With more, messages cost more than
    is gained by pieces that follow each other sooner."""
    as_fast: float = 1e-3
    """Relative excess of time up to which the same trees in fewer pieces count as equal."""
    improvements: int = 1
    """How often the order is improved, backwards and forwards."""
    path_steps_us: float = 1 / 150
    transfer_us: float = 0.4
    try_us: float = 0.04
    """Approximate microseconds of these: a step of a path search, with the tree that follows; the
    simulation of a transfer; and a failed try of a transfer. Behind switches the tries grow with
    the power `tries_power` of the number of pieces."""
    tries_power: float = 1.8
    transfer_us_of_many: float = 1.2
    """`transfer_us` above `trained_servers`, where transfers do not stay in cache."""
    search_from: float = 2.0
    """Multiple of the default effort from which plans are drawn."""
    draw_s: float = 0.012
    """Effort for decoding a drawn plan. With 20 ms, fewer plans gave the same result."""
    least_draws: int = 8
    """Fewest draws; with time for fewer, the first plan gets all the time instead."""
    fine: int = 3
    """Number of best plans that are decoded finely at the end."""
    fine_share: float = 0.3
    """Share of the effort for those."""
    simple_plans: tuple[tuple[float, float, float], ...] = (
        (0.0, 0.6, -0.45),
        (-0.7, 0.6, -1.1),
        (0.5, 0.6, -1.1),
        (0.5, 0.0, 0.0),
        (0.0, 1.2, -0.7),
        (0.5, 0.6, -0.45),
        (0.0, 0.6, 0.0),
        (-0.7, 0.0, -1.1),
    )
    """Decisions sharpness, near and fewer of the plans that are tried before random plans. They are
    a greedy choice from 36 plans: each lowers the mean time of the best plan on 18 networks as far
    as possible."""
    started: float = 0.4
    """Largest share of the draws that is spent on the policy's plan and on these."""
    spread: float = 0.3
    """Initial standard deviation of a drawn decision, as in training."""
    least_spread: float = 0.05
    """Smallest such deviation, about 13 steps of a decision (`decisions.STEP`)."""
    longer: float = 1.5
    """Factor by which it grows when a drawn plan is better."""
    max_rates: int = 6
    """Most rates of transfers distinguished behind switches; each needs a path search."""


TUNING = Tuning()
EVEN_ORDER = (1.0, -1.5, 0.0, -1.0, 0.0, 0.0)
"""Weights of `transfers_kernel.FEATURES`: the order of `packed` when the policy was trained. The
policy's weights are added to them, so another choice would need another training."""
