"""Finds accesses to the same memory of which no one said which comes first, in any run at all."""

import numpy as np


class RaceError(AssertionError):
    """Two accesses, one of them a write, that nothing orders."""


class Races:
    """Vector clocks over threads: what each knows to be complete.

    A thread's accesses are ordered by `tick`; between threads only `join` orders, with what another
    thread's `snapshot` said.
    """

    def __init__(self, threads: int) -> None:
        self._clock = np.zeros((threads, threads), np.int32)
        self._write: dict[int, tuple[int, int]] = {}
        self._reads: dict[int, dict[int, int]] = {}

    def tick(self, thread: int) -> None:
        self._clock[thread, thread] += 1

    def snapshot(self, thread: int) -> np.ndarray:
        return self._clock[thread].copy()

    def join(self, thread: int, snapshot: np.ndarray) -> None:
        np.maximum(self._clock[thread], snapshot, out=self._clock[thread])

    def read(self, thread: int, cell: np.ndarray) -> None:
        key = _key(cell)
        self._after_write(thread, key)
        self._reads.setdefault(key, {})[thread] = int(self._clock[thread, thread])

    def write(self, thread: int, cell: np.ndarray) -> None:
        key = _key(cell)
        self._after_write(thread, key)
        for reader, time in self._reads.pop(key, {}).items():
            if reader != thread and self._clock[thread, reader] < time:
                raise RaceError(f"thread {thread} may write before thread {reader} has read")
        self._write[key] = thread, int(self._clock[thread, thread])

    def _after_write(self, thread: int, key: int) -> None:
        writer, time = self._write.get(key, (thread, 0))
        if writer != thread and self._clock[thread, writer] < time:
            raise RaceError(f"thread {thread} may come before thread {writer} has written")


def _key(cell: np.ndarray) -> int:
    """Where the memory is: input and output may be the same."""
    return cell.__array_interface__["data"][0]
