"""Coordinates the processes of one JAX program: decisions, errors, interrupts and arrays.

The processes are connected by `jax.distributed`. Each runs the same program on its devices, but
only the first process reads and writes files, looks at the clock and reports. Its decisions, and
its errors, reach the others before the next collective: a process that left the common path earlier
would leave the others waiting there. For a single process, all this costs nothing.
"""

import contextlib
import dataclasses
import json
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import DTypeLike, NDArray

from gradweave.common.pytrees import is_key, on_host
from gradweave.errors import GradweaveError, OptionError, RunError

T = TypeVar("T")
_AXIS = "process"
SMALLEST, LARGEST = 2**12, 2**24
"""Bounds on a message's bytes. Messages have few different lengths, so that few programs are
compiled."""
_LOST = ("gloo", "nccl", "connection", "coordination", "socket", "heartbeat")
"""Words in the errors of collectives that show that another process is gone."""


class EndedElsewhereError(RunError):
    """Another process failed and reports why; this process reports nothing."""


class AgreedInterrupt(KeyboardInterrupt):
    """Ctrl-C at any process, raised in all of them at the same point of the program."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """The next step of all processes."""

    updates: int
    save: bool


class Processes:
    """All processes of `jax.distributed`, seen from one of them."""

    def __init__(self) -> None:
        """Starts JAX, which all processes must do together."""
        first_device: dict[int, Any] = {}
        for device in jax.devices():
            first_device.setdefault(device.process_index, device)
        self.index = jax.process_index()
        self.number = len(first_device)
        self.ended_together = False
        """Whether all processes know that all of them end."""
        mesh = Mesh(np.array([first_device[process] for process in sorted(first_device)]), (_AXIS,))
        self._one_each = NamedSharding(mesh, P(_AXIS))
        everywhere = NamedSharding(mesh, P())
        self._all = jax.jit(lambda rows: rows, out_shardings=everywhere)
        self._sum = jax.jit(lambda rows: rows.sum(0, dtype=rows.dtype), out_shardings=everywhere)
        self._error: Exception | None = None
        self._interrupted = False

    @property
    def alone(self) -> bool:
        """Whether there is only one process."""
        return self.number == 1

    @property
    def first(self) -> bool:
        """Whether this process speaks for all of them."""
        return self.index == 0

    def leave(self) -> None:
        """Disconnects from the other processes; all must do so at the same point of the program."""
        if not self.alone:
            jax.distributed.shutdown()
            self.ended_together = True

    # Common errors and decisions.

    def agree(self, *mine: int) -> NDArray[np.int64]:
        """All-gathers integers, and errors.

        Args:
            mine: the integers of this process; every process passes the same number of them.

        Returns:
            [processes, numbers] in the order of the processes.

        Raises:
            EndedElsewhereError: another process failed.
            Exception: the error of this process, if it is the first that failed.
        """
        if self.alone:
            return np.array([mine], np.int64)
        failed = self._error is not None
        row = np.array([failed, *mine], np.int64)
        gathered = self._all_gathered(row.view(np.uint8)).view(np.int64)
        error, self._error = self._error, None
        for process in np.flatnonzero(gathered[:, 0])[:1]:
            self._end(int(process), error)
        return gathered[:, 1:]

    def by_first(self, work: Callable[[], T]) -> T | None:
        """Calls a function in the first process, and keeps its error for the next `agree`."""
        if self.alone:
            return work()
        if not self.first or self._error is not None:
            return None
        try:
            return work()
        except KeyboardInterrupt:
            self._interrupted = True
        except Exception as error:
            self._error = error
        return None

    def together(self, work: Callable[[], T]) -> T:
        """Calls a function without collectives in every process; if one call fails, all end."""
        if self.alone:
            return work()
        done: list[T] = []
        try:
            done.append(work())
        except Exception as error:
            self._error = error
        self.agree()
        return done[0]

    def number_of_first(self, work: Callable[[], int]) -> int:
        """Broadcasts a number from the first process."""
        mine = self.by_first(work)
        return int(self.agree(mine or 0)[0, 0])

    def bytes_of_first(self, work: Callable[[], bytes]) -> bytes:
        """Broadcasts bytes from the first process."""
        mine = self.by_first(work) or b""
        length = int(self.agree(len(mine))[0, 0])
        return self._spread(np.frombuffer(mine, np.uint8), (length,), np.uint8).tobytes()

    def check_same(self, metadata: Mapping[str, Any]) -> None:
        """Refuses processes that were started for different trainings.

        Args:
            metadata: the training of this process, as JSON.

        Raises:
            OptionError: in the first process, if the trainings differ.
        """
        digests = self.agree(zlib.crc32(json.dumps(metadata, sort_keys=True).encode()))[:, 0]
        for process in np.flatnonzero(digests != digests[0])[:1]:
            reason = f"process {process} was started for a different training from process 0"
            self._end(0, OptionError(f"{reason}; give all processes the same options"))

    # Between updates.

    def turn(self, updates: int, *, save: bool) -> Turn:
        """The next step of all processes, decided by the first process.

        Args:
            updates: number of updates that this process would make.
            save: whether this process would write a checkpoint before them.

        Raises:
            AgreedInterrupt: in all processes, if any was interrupted.
        """
        gathered = self.agree(self._interrupted, updates, save)
        if gathered[:, 0].any():
            self.ended_together = True
            raise AgreedInterrupt
        return Turn(int(gathered[0, 1]), bool(gathered[0, 2]))

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Defers Ctrl-C, and SIGTERM from a launcher, to the next `turn`; not a second Ctrl-C."""
        self._interrupted = False
        if self.alone or threading.current_thread() is not threading.main_thread():
            yield
            return

        seen: list[int] = []

        def note(number: int, _: object) -> None:
            if signal.SIGINT in seen and number == signal.SIGINT:
                raise KeyboardInterrupt
            seen.append(number)
            self._interrupted = True

        before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, signal.SIG_DFL if handler is None else handler)

    @contextlib.contextmanager
    def lost_is_an_error(self) -> Iterator[None]:
        """Turns the errors of collectives whose other process is gone into one clear error.

        Raises:
            RunError: another process was lost.
        """
        try:
            yield
        except GradweaveError:
            raise
        except (RuntimeError, ValueError) as error:  # NumPy turns the former into the latter
            reason = str(error)
            if self.alone or not any(word in reason.lower() for word in _LOST):
                raise
            raise RunError(lost(reason)) from error

    # Arrays.

    def gather(self, tree: Any) -> Any:
        """Gathers arrays from the devices of all processes in the first process's host memory.

        Args:
            tree: a tree of arrays [D, ...] that are divided along D, in the order of the processes.

        Returns:
            The same tree with random keys as their data, or None in other processes. A single
            process gets its tree back unchanged.
        """
        if self.alone:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        arrays = [self._gathered(leaf) for leaf in leaves]
        return jax.tree.unflatten(structure, arrays) if self.first else None

    def place(self, tree: Any, like: Any, sharding: NamedSharding) -> Any:
        """Places arrays in the first process's host memory on the devices of all processes.

        Args:
            tree: the arrays; other processes may pass anything.
            like: their shapes and types.
            sharding: the sharding of the result.
        """
        if self.alone:
            return jax.device_put(tree, sharding)
        shapes, structure = jax.tree.flatten(like)
        arrays = jax.tree.leaves(tree) if self.first else [None] * len(shapes)
        each = zip(arrays, shapes, strict=True)
        return jax.tree.unflatten(
            structure, [self._placed(array, shape, sharding) for array, shape in each]
        )

    def _gathered(self, leaf: jax.Array) -> NDArray | None:
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        mine = np.concatenate([on_host(shard.data) for shard in shards])
        raw = np.ascontiguousarray(mine).reshape(-1).view(np.uint8)
        whole = np.empty((self.number, raw.size), np.uint8) if self.first else None
        for start in range(0, raw.size, LARGEST):
            rows = self._all_gathered(raw[start : start + LARGEST])
            if whole is not None:
                whole[:, start : start + LARGEST] = rows
        if whole is None:
            return None
        return whole.reshape(-1).view(mine.dtype).reshape(-1, *mine.shape[1:])

    def _placed(self, array: Any, like: Any, sharding: NamedSharding) -> jax.Array:
        key = is_key(like)
        shape = jax.eval_shape(jax.random.key_data, like) if key else like
        bare = None if array is None else on_host(array)
        whole = self._spread(bare, shape.shape, shape.dtype)
        put = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
        return jax.random.wrap_key_data(put) if key else put

    def _spread(self, array: NDArray | None, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray:
        """Broadcasts the first process's array."""
        if self.alone:
            assert array is not None
            return array
        result = np.zeros(shape, dtype)
        if self.first and array is not None:
            result[...] = array
        raw = result.reshape(-1).view(np.uint8)
        for start in range(0, raw.size, LARGEST):
            part = raw[start : start + LARGEST]
            part[:] = self._exchanged(self._sum, part)
        return result

    def _all_gathered(self, mine: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[processes, bytes] the bytes of all processes."""
        return np.ascontiguousarray(self._exchanged(self._all, mine))

    def _exchanged(self, run: Callable[[jax.Array], jax.Array], mine: NDArray) -> NDArray:
        """The result of a collective on the bytes of all processes, at most `LARGEST` of them."""
        room = SMALLEST
        while room < mine.size:
            room *= 4
        row = np.zeros((1, room), np.uint8)
        row[0, : mine.size] = mine
        shape = self.number, room
        rows = jax.make_array_from_callback(shape, self._one_each, lambda _: row)
        return np.asarray(run(rows))[..., : mine.size]

    def _end(self, process: int, error: Exception | None) -> None:
        self.ended_together = True
        if process == self.index and error is not None:
            raise error
        raise EndedElsewhereError(f"process {process} failed, and reports why")


def lost(reason: str) -> str:
    """A message for the loss of another process, derived from a library's message."""
    summary = " ".join(reason.split("\n")[0].rsplit("] ", 1)[-1].split())[:200].rstrip(".: ")
    return (
        f"another process of the training was lost ({summary}): start the training again to "
        "continue from its checkpoint"
    )
