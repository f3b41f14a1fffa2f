"""The store and the timeout of a process group, and safe access to a store that may hang."""

import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.execute.torch_distributed import threads
from gradweave.processes.owned import owned

_Answer = TypeVar("_Answer")
_TCPStore = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]
_Store = distributed_c10d.Store


def group_timeout(group: dist.ProcessGroup) -> timedelta:
    """How long a group's collectives wait for other processes; PyTorch has no public getter."""
    for device in getattr(group, "_device_types", ()):
        options = getattr(group._get_backend(device), "options", None)
        if isinstance(timeout := getattr(options, "_timeout", None), timedelta):
            return timeout
    return distributed_c10d.default_pg_timeout


def group_store(group: dist.ProcessGroup) -> distributed_c10d.Store:
    """The store through which the group's processes found each other."""
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return distributed_c10d._get_process_group_store(group)  # older PyTorch


def store_holder(group: dist.ProcessGroup) -> int | None:
    """The rank in the group whose process holds the store, if it is a process of the group."""
    if not held_by_rank_0(group_store(group)):
        return None
    ranks = dist.get_process_group_ranks(group)
    return ranks.index(0) if 0 in ranks else None


def held_by_rank_0(store: distributed_c10d.Store) -> bool:
    """Whether rank 0's process holds a store, which is the default of torch.distributed."""
    # With torchrun, its agent holds the store, and sets this variable.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return isinstance(root_store(store), _TCPStore) and not by_agent


def value_of(store: distributed_c10d.Store, key: str) -> bytes | None:
    """The value under a key, or None if there is no value.

    `get` would wait for a missing key, or for a key that is deleted between a check and the read.
    """
    found = store.compare_set(key, _NOTHING, _NOTHING)  # writes nothing new
    return None if found == _NOTHING.encode() else found


_NOTHING = "nothing is written under this key of Gradweave's"


class StoreThread:
    """Access to a group's store by one thread over a separate connection.

    The client of a TCPStore waits indefinitely for an answer, and takes one request at a time. If
    the process that holds the store is stopped, only this thread waits for it; and while the main
    thread waits in PyTorch's client, this thread continues.

    Args:
        group: the group, or its store.
        prefix: prefix of all keys.
        tick: called by the thread regularly with the store; returns the seconds until it must be
            called again. After an error, it is not called any more.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | distributed_c10d.Store,
        prefix: str,
        tick: Callable[[distributed_c10d.Store], float],
    ) -> None:
        # Kept, since the process that holds the store ends it with the last reference.
        self._original = group if isinstance(group, _Store) else group_store(group)
        store = distributed_c10d.PrefixStore(prefix, _connected_again(self._original))
        self._requests: _Requests = queue.SimpleQueue()
        thread = threading.Thread(
            target=_answer,
            args=(store, self._requests, tick),
            name="gradweave-store",
            daemon=True,
        )
        thread.start()
        self.close = weakref.finalize(self, owned(threads.end), self._requests, [thread])
        """Ends the thread."""

    def ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> "Future[_Answer]":
        """Makes the thread call a function with the store; requests are answered in order.

        Returns:
            A future with the result, or with a RuntimeError if the store has ended.
        """
        answer: Future[_Answer] = Future()
        self._requests.put((request, answer))
        return answer


class Inquiry(Generic[_Answer]):
    """A request to the store that is made again and again, and does not hold up its caller.

    Args:
        store: the store's thread.
    """

    def __init__(self, store: StoreThread) -> None:
        self._store = store
        self._answer: Future[_Answer] | None = None
        self.sent_at = time.monotonic()
        """Time of the last request."""

    @property
    def pending(self) -> bool:
        """Whether the last request has not been answered."""
        return self._answer is not None

    def send(self, request: Callable[[distributed_c10d.Store], _Answer]) -> None:
        """Sends a request."""
        self._answer, self.sent_at = self._store.ask(request), time.monotonic()

    def answer(self, within_s: float) -> _Answer | None:
        """The answer, or None if it has not come within that time.

        Raises:
            RuntimeError: the store has ended.
        """
        assert self._answer is not None
        try:
            found = self._answer.result(within_s)
        except TimeoutError:
            return None
        except RuntimeError:
            self._answer = None
            raise
        self._answer = None
        return found


_Requests = queue.SimpleQueue[tuple[Callable[[distributed_c10d.Store], Any], Future[Any]] | None]


def _connected_again(store: distributed_c10d.Store) -> distributed_c10d.Store:
    """The same store over another connection, if it uses connections."""
    clone = getattr(store, "clone", None)  # older PyTorch has none
    return clone() if clone is not None and isinstance(root_store(store), _TCPStore) else store


def root_store(store: distributed_c10d.Store) -> distributed_c10d.Store:
    """The store below the prefixes."""
    while isinstance(store, distributed_c10d.PrefixStore):
        store = store.underlying_store
    return store


def _answer(
    store: distributed_c10d.Store,
    requests: _Requests,
    tick: Callable[[distributed_c10d.Store], float],
) -> None:
    due = time.monotonic()
    while True:
        if time.monotonic() >= due:
            due = time.monotonic() + _ticked(tick, store)
        try:
            left_s = due - time.monotonic()
            item = requests.get(timeout=None if left_s > _LONG_S else max(left_s, 0.0))
        except queue.Empty:
            continue
        if item is None:
            return
        request, answer = item
        try:
            answer.set_result(request(store))
        except Exception as error:  # raised where the future is awaited
            answer.set_exception(error)
        del item, request, answer


_LONG_S = 1e6


def _ticked(
    tick: Callable[[distributed_c10d.Store], float], store: distributed_c10d.Store
) -> float:
    try:
        return tick(store)
    except RuntimeError:  # the store has ended; the next request will report it
        return math.inf
