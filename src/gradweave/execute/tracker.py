"""Tracks which actions of a program may start as others complete."""

from collections.abc import Iterable

import numpy as np

from gradweave.execute.program import Program


class Tracker:
    """Counts, for one run of a program, how many actions each action still waits for.

    Actions on empty pieces are skipped on both sides of a transfer: they count as complete.

    Args:
        program: the program of the server.
        sizes: [P] number of elements of each piece.
    """

    def __init__(self, program: Program, sizes: Iterable[int]) -> None:
        self.program = program
        actions = len(program.kind)
        lengths = np.diff(program.after_offsets)
        order = np.argsort(program.after, kind="stable")
        waiting = np.repeat(np.arange(actions), lengths)[order]
        bounds = np.searchsorted(program.after[order], np.arange(actions + 1))
        self._next = [waiting[bounds[a] : bounds[a + 1]].tolist() for a in range(actions)]
        self._lengths = lengths
        self._skipped = (np.fromiter(sizes, np.int64)[program.piece] == 0).tolist()
        self.restart()

    def restart(self) -> list[int]:
        """Starts another run; returns the actions that may start immediately."""
        self._waits: list[int] = self._lengths.tolist()
        self.left = len(self._waits)
        """Number of actions that are not complete."""
        return self._settle([a for a, waits in enumerate(self._waits) if waits == 0])

    def complete(self, action: int) -> list[int]:
        """Marks an action as complete; returns the actions that may now start."""
        self.left -= 1
        freed = []
        for following in self._next[action]:
            self._waits[following] -= 1
            if self._waits[following] == 0:
                freed.append(following)
        return self._settle(freed) if freed else freed

    def _settle(self, freed: list[int]) -> list[int]:
        """Completes the actions that are skipped; returns the others."""
        ready = []
        while freed:
            action = freed.pop(0)
            if self._skipped[action]:
                freed += self.complete(action)
            else:
                ready.append(action)
        return ready
