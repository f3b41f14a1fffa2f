"""What tunes `planned`: how much work there is time for, in one place."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits, by times of one core of a server of 2024.

    What is counted is work, so that every machine comes to the same schedule.
    What the trained weights rest on, such as the features' scales, is in `policy`.
    """

    max_servers: int = 512
    """Trees of more would take too much memory. So many take a few seconds and .2 GB."""
    passes: int = 2
    """How often each tree is grown."""
    trees: int = 192
    """Grown on small networks."""
    few_servers: int = 20
    """Most servers of a small network."""
    max_trees: int = 96
    """Grown on larger networks, where each takes longer."""
    trained_servers: int = 48
    """Up to which plans of the policy are taken as they are: it was trained on half as many at
    most. Among more, the even plan is taken where its links are less full, and servers root as many
    trees each: with fewer trees than servers, those that root one were behind."""
    rooted: int = 4
    """Trees that each server roots there, at most."""
    decoded_share: float = 0.9
    """Of an effort, for these and for two simulations of them; the rest is for finer pieces."""
    max_path_steps: int = 6_000
    """Most steps of the path search for one tree, see `path_steps`, on a small network."""
    cuts: tuple[int, ...] = (4, 3, 2, 1)
    """Into how many pieces each tree's part may be cut. More messages than that, and what each
    costs is more than is gained by pieces that follow each other sooner."""
    as_fast: float = 1e-3
    """By how much more time, relative to it, the same trees in fewer pieces count as equal."""
    improvements: int = 1
    """How often the order is improved, backwards and forwards."""
    path_steps_us: float = 1 / 150
    transfer_us: float = 0.4
    try_us: float = 0.04
    """About what these take, in microseconds: of a path search, with the tree that follows; of a
    transfer that is simulated; and of one that is tried in vain. Behind switches the tries rise
    with `tries_power` of the pieces."""
    tries_power: float = 1.8
    transfer_us_of_many: float = 1.2
    """The second of these above `trained_servers`, whose transfers do not stay in cache."""
    search_from: float = 2.0
    """Efforts, over the default one, from which plans are drawn."""
    draw_s: float = 0.012
    """Effort in which a drawn plan is decoded. With 20 ms fewer plans came to as much."""
    least_draws: int = 8
    """With time for fewer no plans are drawn, and the first is decoded in all of it."""
    fine: int = 3
    """Best plans that are decoded finely at last."""
    fine_share: float = 0.3
    """Of the effort, for those."""
    spread: float = 0.3
    """Standard deviation of a drawn decision at first, as in training."""
    least_spread: float = 0.05
    longer: float = 1.5
    """By which factor it grows when a drawn plan is better."""
    max_rates: int = 6
    """Rates of transfers that are told apart behind switches: a search for paths each."""


TUNING = Tuning()
EVEN_ORDER = (1.0, -1.5, 0.0, -1.0, 0.0, 0.0)
"""Weights of `ordering_kernel.FEATURES` as `packed` has them: what the policy's are added to, so
that another choice would need another training."""
