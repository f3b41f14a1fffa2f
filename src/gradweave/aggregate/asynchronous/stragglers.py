"""Planned durations of steps: slow workers, pauses and slow spells, reproducible by seed.

On a machine with fewer cores than workers, slow computation cannot be emulated faithfully. So a
step is given a duration instead: the worker computes its gradient and sleeps for the rest of it.
"""

import dataclasses
import math

import numpy as np

from gradweave.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Stragglers:
    """Planned durations of steps.

    A step lasts `step_s` times the worker's factor, plus its pause, if any. A slow spell depends on
    when the step runs; everything else depends only on worker and clock. Durations are lower
    bounds: a step whose gradient takes longer lasts as long as that.
    """

    step_s: float = 0.0
    """Duration of a step without slowdowns; 0 for no planned durations."""
    slow: tuple[tuple[int, float], ...] = ()
    """Workers that are always slow, with their factors."""
    pause_rate: float = 0.0
    """Probability that a step has a pause."""
    pause_s: float = 0.0
    """Duration of each pause."""
    spell_s: float = 0.0
    """Length of a spell, during which one random worker is slow; 0 for no spells."""
    spell_factor: float = 1.0
    """Factor by which the slow worker's computation takes longer during its spell."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("step_s", "pause_s", "spell_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"{name}: expected 0 or more seconds, got {getattr(self, name)}")
        if not 0 <= self.pause_rate <= 1:
            raise OptionError(f"pause_rate: expected 0 to 1, got {self.pause_rate}")
        for name, factor in (
            ("spell_factor", self.spell_factor),
            *((f"slow: worker {worker}", factor) for worker, factor in self.slow),
        ):
            if not 1 <= factor < math.inf:
                raise OptionError(f"{name}: expected a factor of 1 or more, got {factor}")
        slows = bool(self.slow) or self.spell_s > 0
        if slows and self.step_s == 0:
            raise OptionError("step_s: expected more than 0 seconds, since slowness multiplies it")
        if len({worker for worker, _ in self.slow}) < len(self.slow):
            raise OptionError("slow: expected each worker once")

    def duration_s(self, worker: int, clock: int, workers: int, start_s: float) -> float:
        """The duration of a step.

        Args:
            worker: number of the worker.
            clock: clock of the step.
            workers: number of workers.
            start_s: start of the step since the run began.
        """
        duration = self.step_s * dict(self.slow).get(worker, 1.0)
        if self.pause_rate and self.pause_s:
            uniform = np.random.default_rng((self.seed, 1, worker, clock)).random()
            duration += self.pause_s * (uniform < self.pause_rate)
        if self.spell_s and self.spell_factor > 1:
            return self._through_spells(worker, duration, workers, start_s)
        return duration

    def slow_in_spell(self, spell: int, workers: int) -> int:
        """The worker that is slow in a spell; spells are counted from 0."""
        return int(np.random.default_rng((self.seed, 2, spell)).integers(workers))

    def _through_spells(self, worker: int, work_s: float, workers: int, start_s: float) -> float:
        """The duration of work that takes `work_s` without spells, computed spell by spell."""
        spell, now_s = math.floor(start_s / self.spell_s), start_s
        while True:
            pace = self.spell_factor if self.slow_in_spell(spell, workers) == worker else 1.0
            end_s = (spell + 1) * self.spell_s
            if now_s + work_s * pace <= end_s:
                return now_s + work_s * pace - start_s
            work_s -= max(end_s - now_s, 0.0) / pace
            spell, now_s = spell + 1, end_s
