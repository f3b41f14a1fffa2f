"""How long steps are made to take: slow workers, pauses and slow spells, the same for a seed.

On a machine with fewer cores than workers computing cannot be slowed down honestly, so a step is
given a duration instead: the worker computes its real gradient and sleeps for what is left of it.
"""

import dataclasses
import math

import numpy as np

from gradweave.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Stragglers:
    """Planned durations of steps.

    A step lasts `step_s`, times the worker's factor, plus a pause if one falls on it. A slow spell
    depends on when the step runs; everything else on worker and clock alone. Durations are the
    least that a step takes: one whose gradient takes longer lasts as long as that.
    """

    step_s: float = 0.0
    """Duration of a step that nothing slows down; 0 plans nothing."""
    slow: tuple[tuple[int, float], ...] = ()
    """Workers that are always slow, and how many times."""
    pause_rate: float = 0.0
    """Probability that a step has a pause."""
    pause_s: float = 0.0
    """Duration of each pause."""
    spell_s: float = 0.0
    """Time is divided into spells of this length; in each one worker, drawn anew, is slow. 0: no
    spells."""
    spell_factor: float = 1.0
    """How many times as long work takes the worker whose spell it is."""
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
        """How long a step is to last.

        Args:
            worker: whose.
            clock: of the step.
            workers: how many there are.
            start_s: when it begins, since the run began.
        """
        duration = self.step_s * dict(self.slow).get(worker, 1.0)
        if self.pause_rate and self.pause_s:
            draw = np.random.default_rng((self.seed, 1, worker, clock)).random()
            duration += self.pause_s * (draw < self.pause_rate)
        if self.spell_s and self.spell_factor > 1:
            return self._through_spells(worker, duration, workers, start_s)
        return duration

    def in_spell(self, spell: int, workers: int) -> int:
        """The worker that is slow in a spell, counted from 0."""
        return int(np.random.default_rng((self.seed, 2, spell)).integers(workers))

    def _through_spells(self, worker: int, work_s: float, workers: int, start_s: float) -> float:
        """Walks from spell to spell until the work is done."""
        spell, now_s = math.floor(start_s / self.spell_s), start_s
        while True:
            pace = self.spell_factor if self.in_spell(spell, workers) == worker else 1.0
            end_s = (spell + 1) * self.spell_s
            if now_s + work_s * pace <= end_s:
                return now_s + work_s * pace - start_s
            work_s -= max(end_s - now_s, 0.0) / pace
            spell, now_s = spell + 1, end_s
