"""CMA-ES: a search over a few real numbers that asks for nothing but which of them do better.

Source: N. Hansen, The CMA Evolution Strategy: A Tutorial, arXiv:1604.00772, figure 6 and table 1,
weights of the better half alone.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


class EvolutionStrategy:
    """A normal distribution that moves towards what did well, and takes on its shape."""

    def __init__(self, size: int, population: int, step: float, rng: np.random.Generator) -> None:
        """Begins at zero.

        Args:
            size: numbers that are looked for, n.
            population: draws of a generation, at least 4.
            step: standard deviation of the first ones, σ.
            rng: of every random choice.
        """
        self.rng, self.population, self.step = rng, population, step
        self.mean = np.zeros(size)
        better = population // 2
        weights = np.log((population + 1) / 2) - np.log(np.arange(1, better + 1))
        self._weights = weights / weights.sum()
        n, self._mass = size, float(1 / np.square(self._weights).sum())
        self._step_rate = (self._mass + 2) / (n + self._mass + 5)
        more = max(0.0, float(np.sqrt((self._mass - 1) / (n + 1))) - 1)
        self._damping = 1 + 2 * more + self._step_rate
        self._path_rate = (4 + self._mass / n) / (n + 4 + 2 * self._mass / n)
        self._rank_one = 2 / ((n + 1.3) ** 2 + self._mass)
        rank_many = 2 * (self._mass - 2 + 1 / self._mass) / ((n + 2) ** 2 + self._mass)
        self._rank_many = min(1 - self._rank_one, rank_many)
        self._expected = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self._covariance, self._generation = np.eye(n), 0
        self._path, self._step_path = np.zeros(n), np.zeros(n)

    def draw(self) -> Numbers:
        """[population, n] the next generation, of which `learn` is to be told."""
        values, self._axes = np.linalg.eigh(self._covariance)
        self._lengths = np.sqrt(np.maximum(values, 1e-20))
        normal = self.rng.standard_normal((self.population, len(self.mean)))
        self._drawn = normal * self._lengths @ self._axes.T
        return self.mean + self.step * self._drawn

    def learn(self, losses: Numbers) -> None:
        """Moves the distribution.

        Args:
            losses: [population] of what was drawn last; the less, the better.
        """
        best = self._drawn[np.argsort(losses, kind="stable")[: len(self._weights)]]
        move = self._weights @ best
        self.mean = self.mean + self.step * move
        self._generation += 1
        rate, white = self._step_rate, self._axes @ ((self._axes.T @ move) / self._lengths)
        self._step_path *= 1 - rate
        self._step_path += np.sqrt(rate * (2 - rate) * self._mass) * white
        length = float(np.linalg.norm(self._step_path))
        settled = length / np.sqrt(1 - (1 - rate) ** (2 * self._generation))
        calm = bool(settled < (1.4 + 2 / (len(self.mean) + 1)) * self._expected)
        rate = self._path_rate
        self._path *= 1 - rate
        self._path += calm * np.sqrt(rate * (2 - rate) * self._mass) * move
        kept = 1 - self._rank_one - self._rank_many
        kept += (not calm) * self._rank_one * rate * (2 - rate)
        self._covariance = (
            kept * self._covariance
            + self._rank_one * np.outer(self._path, self._path)
            + self._rank_many * (best.T * self._weights) @ best
        )
        self.step *= float(np.exp(self._step_rate / self._damping * (length / self._expected - 1)))
