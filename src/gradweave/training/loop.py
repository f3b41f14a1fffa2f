"""The training loop: updates, a checkpoint every so many minutes and on Ctrl-C, a report.

It carries any state and knows no algorithm. Processes that train together run it side by side; only
the first writes the log and reports.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from gradweave.processes.agreement import AgreedInterrupt, Processes
from gradweave.training.pace import Pace

State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class Progress(Generic[State]):
    """Where a training is."""

    state: State
    updates: int
    """Completed."""


class Training(Generic[State]):
    """A training under way, and its checkpoint."""

    def __init__(
        self,
        progress: Progress[State],
        write: Callable[[Progress[State]], None],
        processes: Processes,
    ) -> None:
        """Starts from a state.

        Args:
            progress: at the start; a checkpoint has it already, or need not.
            write: writes a checkpoint; called by all processes.
            processes: that train together.
        """
        self.progress = progress
        self._write = write
        self._processes = processes
        self._saved, self._saved_at = progress.updates, time.monotonic()

    def run(
        self,
        end: int,
        advance: Callable[[Progress[State], int], tuple[State, Any]],
        report: Callable[[Progress[State], Any], None],
        *,
        log: AbstractContextManager[Any],
        pace: Pace,
        checkpoint_minutes: float,
        most_per_call: int = 1,
    ) -> None:
        """Makes updates until `end` of them are completed; the checkpoint then has the last one.

        Args:
            end: number of updates.
            advance: (progress, updates to make) -> the state after them, and their metrics.
            report: gets the progress after a call and its metrics, in the first process.
            log: open while updates are made, in the first process.
            pace: of the calls, which `advance` records.
            checkpoint_minutes: time between checkpoints.
            most_per_call: updates that a call of `advance` makes at most.

        Raises:
            KeyboardInterrupt: on Ctrl-C; the checkpoint is written.
        """
        processes = self._processes
        with contextlib.ExitStack() as stack:
            processes.by_first(lambda: stack.enter_context(log))
            stack.enter_context(self._saved_on_interrupt())
            while self.progress.updates < end:
                number = min(pace.next_call(most_per_call), end - self.progress.updates)
                turn = processes.turn(number, save=self._is_due(checkpoint_minutes))
                if turn.save:
                    self.save()
                state, metrics = advance(self.progress, turn.updates)
                # In one assignment, for Ctrl-C comes at any time.
                self.progress = Progress(state, self.progress.updates + turn.updates)
                processes.by_first(functools.partial(report, self.progress, metrics))
            if self._has_news:
                self.save()
            processes.turn(0, save=False)  # raises an error or Ctrl-C of the last call

    def save(self) -> None:
        """Writes the checkpoint."""
        progress = self.progress
        self._write(progress)
        self._saved, self._saved_at = progress.updates, time.monotonic()

    @property
    def _has_news(self) -> bool:
        """Whether there are updates that the checkpoint does not have."""
        return self.progress.updates > self._saved

    def _is_due(self, minutes: float) -> bool:
        """Whether the checkpoint has to be written again."""
        return self._has_news and time.monotonic() - self._saved_at > 60 * minutes

    @contextlib.contextmanager
    def _saved_on_interrupt(self) -> Iterator[None]:
        """Writes the checkpoint where Ctrl-C ends the block, if all processes end there."""
        try:
            yield
        except KeyboardInterrupt as error:
            together = self._processes.alone or isinstance(error, AgreedInterrupt)
            if together and self._has_news:
                self.save()
                self._processes.agree()
            raise
