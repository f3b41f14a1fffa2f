"""Messages about resuming a training, and about what Ctrl-C leaves."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def resuming(
    folder: Path,
    before: int,
    updates: int,
    done: Callable[[], int],
    command: str,
    note: Callable[[str], None],
) -> Iterator[None]:
    """Prints what a training resumes from, and what is saved after Ctrl-C.

    Args:
        folder: folder of the training.
        before: number of updates done.
        updates: number of updates in the whole training.
        done: returns the updates in the checkpoint after Ctrl-C; 0 to print nothing.
        command: the command that resumes the training.
        note: writes a line to standard error.
    """
    if before:
        note(f"resumes from {folder}: {before} of {updates} updates are done")
    try:
        yield
    except KeyboardInterrupt:
        if now := done():
            note(f"{folder} holds {now} of {updates} updates; {command} again to continue")
        raise
