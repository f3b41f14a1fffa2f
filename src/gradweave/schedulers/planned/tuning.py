"""What tunes `planned`: how much work there is time for, in one place."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits, chosen by hand so that the 120 cases of docs/concepts/learning.md take about 50 ms.

    What the trained weights rest on, such as the features' scales, is in `policy`.
    """

    max_servers: int = 512
    """Trees of more would take too much memory. So many take a second and .2 GB."""
    passes: int = 2
    """How often each tree is grown."""
    pieces: int = 192
    """That the gradient is cut into, where there is time for so many."""
    few_servers: int = 16
    """Servers up to which there may be as many trees as pieces."""
    max_trees: int = 96
    """With more servers than that, since each tree then takes longer to grow."""
    max_transfers: int = 9_000
    """Simulated at a time: about 10 ms."""
    max_path_steps: int = 6_000
    """Steps of the path search for one tree, see `path_steps`, up to which there may be as many
    trees as pieces."""
    improvements: int = 1
    """How often the order is improved, backwards and forwards."""
    max_work: int = 42_000
    """Microseconds, about, up to which there is time for that."""
    max_rates: int = 6
    """Rates of transfers that are told apart behind switches: a search for paths each."""


TUNING = Tuning()
EVEN_ORDER = (1.0, -1.5, 0.0, -1.0, 0.0, 0.0)
"""Weights of `ordering_kernel.FEATURES` as `packed` has them: what the policy's are added to, so
that another choice would need another training."""
