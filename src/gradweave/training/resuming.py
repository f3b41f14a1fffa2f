"""What a training's command says of an earlier part of it, and of the part that Ctrl-C leaves."""

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
    """Notes what a training resumes from, and after Ctrl-C what is kept.

    Args:
        folder: of the training.
        before: updates that are done.
        updates: of the whole training.
        done: the updates of the checkpoint after Ctrl-C; 0 to say nothing.
        command: that resumes the training.
        note: writes a line to standard error.
    """
    if before:
        note(f"resumes from {folder}: {before} of {updates} updates are done")
    try:
        yield
    except KeyboardInterrupt:
        if now := done():
            note(f"{folder} holds {now} of {updates} updates; {command} again to go on")
        raise
