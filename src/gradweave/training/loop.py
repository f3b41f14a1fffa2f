"""The training loop: updates, periodic checkpoints (also on Ctrl-C), and reports.

It works with any state and algorithm. Processes that train together run it in parallel; only the
first process writes the log and reports.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from gradweave.errors import FileError, NotFiniteError
from gradweave.processes.agreement import Processes
from gradweave.training.pace import Pace

State = TypeVar("State")


@dataclasses.dataclass(frozen=True)
class Progress(Generic[State]):
    """The state of a training."""

    state: State
    updates: int
    """Number of completed updates."""


class Training(Generic[State]):
    """A training in progress, and its checkpoint."""

    def __init__(
        self,
        progress: Progress[State],
        write: Callable[[Progress[State]], None],
        processes: Processes,
    ) -> None:
        """Starts from a state.

        Args:
            progress: the initial state, of which no checkpoint is needed.
            write: writes a checkpoint; called by all processes.
            processes: the processes that train together.
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
        """Runs updates until `end` are completed; the final checkpoint includes the last update.

        Args:
            end: number of updates.
            advance: (progress, number of updates) -> the state after them, and their metrics.
            report: called in the first process with the progress after a call, and its metrics.
            log: context that is open in the first process while updates run.
            pace: speed of the calls, which `advance` records.
            checkpoint_minutes: minutes between checkpoints.
            most_per_call: maximum number of updates per call of `advance`.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C; the checkpoint has been written.
            FileError: the log cannot be written; the checkpoint has been written if possible.
            NotFiniteError: `advance` raised it, in all processes; the checkpoint has the preceding
                state.
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
                # A single assignment, because Ctrl-C may come at any time.
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
        """Whether there are updates since the last checkpoint."""
        return self.progress.updates > self._saved

    def _is_due(self, minutes: float) -> bool:
        """Whether it is time for another checkpoint."""
        return self._has_news and time.monotonic() - self._saved_at > 60 * minutes

    @contextlib.contextmanager
    def _saved_on_interrupt(self) -> Iterator[None]:
        """Writes the checkpoint if Ctrl-C ends the block in all processes.

        It also writes the checkpoint if a state is not finite, which all processes see, and, if
        possible, if a single process cannot write its log.
        """
        try:
            yield
        except (KeyboardInterrupt, NotFiniteError) as error:
            together = self._processes.alone or type(error) is not KeyboardInterrupt
            if together and self._has_news:
                self.save()
                self._processes.agree()
            raise
        except FileError:
            if self._processes.alone and self._has_news:
                with contextlib.suppress(FileError):
                    self.save()
            raise
