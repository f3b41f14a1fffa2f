"""Training by processes that a launcher started on the network itself, one for each server.

Rank 0 decides, assigns tasks and reports; all processes, including rank 0, carry out tasks. Tasks
and answers go through the store by which the processes found each other.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import OptionError, RunError
from gradweave.execute.running.hosts import server_order
from gradweave.execute.running.server_processes import ANSWER_S
from gradweave.execute.torch_distributed.store import group_store
from gradweave.placement.training.running import Trainers
from gradweave.placement.training.server import TrainingServer
from gradweave.processes.launchers import launcher, rank_given, size_given
from gradweave.processes.peers import peer_value
from gradweave.topology.topology import Topology

_FIND = timedelta(seconds=120)
"""Time limit for processes to find each other."""
_FOREVER = timedelta(days=30)
"""Wait for the next task, before which a search may take as long as it likes."""
_LEAVE = "leave"
_MOST_BYTES = 1 << 23
"""Largest task or answer in bytes, which is the limit of PyTorch's store."""
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_LATENCIES = 5
"""Number of the network's latencies from the start of a step to its messages: the task goes to the
store, is fetched from there, and messages are requested and sent."""


class LaunchedServers:
    """The processes of a launcher; each of them creates an instance, and rank 0 assigns tasks.

    Raises:
        OptionError: mpirun started them, and rank 0's address is unknown.
        RuntimeError: they did not find each other.
    """

    def __init__(self) -> None:
        started_by = launcher() or ""
        missing = [name for name in _MASTER if name not in os.environ]
        if started_by == "mpi" and missing:
            raise OptionError(
                f"expected {' and '.join(_MASTER)}, host and free port of the first process, which "
                "mpirun passes on with -x, or torchrun in its place; there is no "
                + " and no ".join(missing)
            )
        rank, size = rank_given(started_by), size_given(started_by)
        if rank is None or size is None:
            raise OptionError("the launcher does not say how many processes it started")
        self.rank, self.size = rank, size
        dist.init_process_group("gloo", rank=rank, world_size=size, timeout=_FIND)
        world = dist.group.WORLD
        assert world is not None
        self._store = distributed_c10d.PrefixStore("gradweave-train", group_store(world))
        self._server = TrainingServer()
        self._asked, self._asking = 0, False

    def __enter__(self) -> "LaunchedServers":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._asking or (self.rank and error):
            return  # something is broken, and this process ends immediately
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):
                self.ask(lambda _: {"do": _LEAVE})
        dist.destroy_process_group()

    def network(self, topology: Topology) -> Topology:
        """The network with the processes as servers, in the order of ranks; called by rank 0.

        If its servers are named like the processes' hosts, as `gradweave topology measure` names
        them, each process is the server of its host, whatever rank the launcher assigns this
        time.

        Args:
            topology: a network with as many servers as processes.

        Raises:
            OptionError: the processes have different versions of the package.
        """
        answers = self.ask(lambda _: {"do": "introduce"})
        check_same(answers)
        return ordered_by_host(topology, [answer["host"] for answer in answers])

    def trainers(self, topology: Topology) -> Trainers:
        """`Trainers` for these processes and the result of `network`; called by rank 0."""
        return Trainers(topology, self, None, told_after=_LATENCIES)

    def ask(self, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives each process its task; returns their answers by rank.

        Args:
            task: (rank) -> the task.

        Raises:
            RunError: a process did not answer.
        """
        self._asking = True
        self._asked += 1
        texts = [json.dumps(task(rank)) for rank in range(self.size)]
        for rank in range(1, self.size):
            self._store.set(f"task {self._asked} {rank}", texts[rank])
        answers = [self._done(json.loads(texts[0]))]
        until = time.monotonic() + ANSWER_S
        answers += [self._answer(rank, until) for rank in range(1, self.size)]
        self._asking = False
        return answers

    def follow(self) -> None:
        """Carries out the tasks that rank 0 assigns, until it ends."""
        while True:
            self._asked += 1
            key = f"task {self._asked} {self.rank}"
            self._store.wait([key], _FOREVER)
            task = peer_value(self._store.get(key), dict, "a task of rank 0", _MOST_BYTES)
            self._store.set(f"answer {self._asked} {self.rank}", json.dumps(self._done(task)))
            if task["do"] == _LEAVE:
                return
            self._store.delete_key(key)

    def _done(self, task: dict[str, Any]) -> dict[str, Any]:
        """Carries out a task and returns the answer."""
        return {} if task["do"] == _LEAVE else getattr(self._server, task["do"])(task)

    def _answer(self, rank: int, until: float) -> dict[str, Any]:
        key = f"answer {self._asked} {rank}"
        try:
            self._store.wait([key], timedelta(seconds=max(until - time.monotonic(), 1)))
        except RuntimeError as error:
            raise RunError(f"no answer from rank {rank} within {ANSWER_S:g} s") from error
        answer = peer_value(self._store.get(key), dict, f"the answer of rank {rank}", _MOST_BYTES)
        self._store.delete_key(key)
        return answer


def check_size(topology: Topology) -> None:
    """Rejects a launcher that started more or fewer processes than there are servers.

    Raises:
        OptionError: gives both numbers.
    """
    size = size_given(launcher() or "")
    if size is not None and size != topology.num_servers:
        raise OptionError(
            f"expected {topology.num_servers} processes of the launcher, one for each server of "
            f"{topology.name}, got {size}"
        )


def check_same(answers: Sequence[Mapping[str, str]]) -> None:
    """Rejects processes whose installed sources differ: the sources are the text to train on.

    Args:
        answers: the processes' answers to `TrainingServer.introduce`, by rank.

    Raises:
        OptionError: names the first process that differs from rank 0.
    """
    for rank, answer in enumerate(answers):
        if answer["text"] != answers[0]["text"]:
            raise OptionError(
                f"rank {rank} on {answer['host']} has other sources of gradweave, which are the "
                f"text, than rank 0 on {answers[0]['host']}; install the same version on all hosts"
            )


def ordered_by_host(topology: Topology, hosts: Sequence[str]) -> Topology:
    """The network with its servers in the order of their hosts' processes; see `server_order`."""
    order = server_order(topology, hosts)
    if order is None:
        return topology
    return dataclasses.replace(topology.with_server_order(order), name=topology.name)
