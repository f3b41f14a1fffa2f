"""A process group's store and timeout, and how to ask the store without hanging with it."""

import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

_Answer = TypeVar("_Answer")


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
    store = group_store(group)
    while isinstance(store, distributed_c10d.PrefixStore):
        store = store.underlying_store
    by_process = isinstance(store, dist.TCPStore)  # pyright: ignore[reportPrivateImportUsage]
    # torchrun's agent holds the store itself, and says so.
    if not by_process or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    ranks = dist.get_process_group_ranks(group)
    return ranks.index(0) if 0 in ranks else None


class StoreThread:
    """A group's store, asked by one thread.

    The client of a TCPStore waits without end for an answer, and takes one request at a time. If
    the process that holds the store is stopped, only this thread waits for it.

    Args:
        group: whose store.
        prefix: of all keys.
    """

    def __init__(self, group: dist.ProcessGroup, prefix: str) -> None:
        self._store = distributed_c10d.PrefixStore(prefix, group_store(group))
        self._requests: _Requests = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._started = False

    def ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> "Future[_Answer]":
        """Has the thread call a function with the store; requests are answered in turn.

        Returns:
            Its result; RuntimeError where the store has ended.
        """
        with self._starting:
            if not self._started:
                self._started = True
                threading.Thread(
                    target=_answer,
                    args=(self._store, self._requests),
                    name="gradweave-store",
                    daemon=True,
                ).start()
                weakref.finalize(self, self._requests.put, None)
        answer: Future[_Answer] = Future()
        self._requests.put((request, answer))
        return answer


_Requests = queue.SimpleQueue[tuple[Callable[[distributed_c10d.Store], Any], Future[Any]] | None]


def _answer(store: distributed_c10d.Store, requests: _Requests) -> None:
    while (item := requests.get()) is not None:
        request, answer = item
        try:
            answer.set_result(request(store))
        except Exception as error:  # for the caller
            answer.set_exception(error)
        del item, request, answer
