"""Intervals of 95% by bootstrap, for experiments that say how sure a mean is."""

from typing import Any

import numpy as np

RESAMPLES = 10_000


def mean_between(values: Any, rng: np.random.Generator) -> list[float]:
    """The least and the greatest of the middle 95% of means of resampled values."""
    return middle(rng.choice(values, (RESAMPLES, len(values))).mean(1))


def middle(means: Any) -> list[float]:
    """The least and the greatest of the middle 95% of a bootstrap's means."""
    return np.quantile(means, [0.025, 0.975]).tolist()
