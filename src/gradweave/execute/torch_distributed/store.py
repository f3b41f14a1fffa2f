"""A process group's store and timeout, and how to ask the store without hanging with it."""

import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.execute.torch_distributed import threads

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
    """The store by which the group's processes found each other."""
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return distributed_c10d._get_process_group_store(group)  # older PyTorch


def store_holder(group: dist.ProcessGroup) -> int | None:
    """The rank in the group whose process holds the store, where that is a process of the job."""
    if not held_by_rank_0(group_store(group)):
        return None
    ranks = dist.get_process_group_ranks(group)
    return ranks.index(0) if 0 in ranks else None


def held_by_rank_0(store: distributed_c10d.Store) -> bool:
    """Whether a store is in the process of the job's rank 0, as torch.distributed has it."""
    # torchrun's agent holds the store itself, and says so.
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return isinstance(root_store(store), _TCPStore) and not by_agent


class StoreThread:
    """A group's store, asked by one thread over a connection of its own.

    The client of a TCPStore waits without end for an answer, and takes one request at a time. If
    the process that holds the store is stopped, only this thread waits for it; and while the
    process itself waits in PyTorch's client, this thread's goes on.

    Args:
        group: whose store, or the store itself.
        prefix: of all keys.
        tick: called by the thread now and then, with the store; returns after how many seconds it
            wants to be called again. No more where it fails.
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
        self.close = weakref.finalize(self, threads.end, self._requests, [thread])
        """Ends the thread."""

    def ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> "Future[_Answer]":
        """Has the thread call a function with the store; requests are answered in turn.

        Returns:
            Its result; RuntimeError where the store has ended.
        """
        answer: Future[_Answer] = Future()
        self._requests.put((request, answer))
        return answer


_Requests = queue.SimpleQueue[tuple[Callable[[distributed_c10d.Store], Any], Future[Any]] | None]


def _connected_again(store: distributed_c10d.Store) -> distributed_c10d.Store:
    """The same store over another connection, where it is one that has connections."""
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
        except Exception as error:  # for the caller
            answer.set_exception(error)
        del item, request, answer


_LONG_S = 1e6


def _ticked(
    tick: Callable[[distributed_c10d.Store], float], store: distributed_c10d.Store
) -> float:
    try:
        return tick(store)
    except RuntimeError:  # the store has ended: who asks for something learns of it
        return math.inf
