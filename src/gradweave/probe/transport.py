"""Messages between the processes of a measurement, over MPI or torch.distributed.

The measurement uses an engine's connections, so it finds the rates that the messages of a training
would find. Control and data use separate connections, so that a server that is silent in the middle
of a transfer can still be reached.
"""

import datetime
import json
import time
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import first_line
from gradweave.errors import OptionError, RunError
from gradweave.processes.peers import MOST_BYTES, peer_value

Channel = Literal["control", "data"]
Bytes = NDArray[np.uint8]
_POLL_S = 20e-6
"""Time between two checks for a message: short compared with a round trip, and a sleep, so that
processes that share a processor can use it."""
_TAGS = {"control": 7, "data": 8}


class PeerError(RunError):
    """A server went away, or was silent for too long."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank}: {how}")
        self.rank = rank
        self.how = how


class Message(Protocol):
    """A message in flight."""

    def wait(self, timeout_s: float) -> None:
        """Returns when the message is complete.

        Raises:
            PeerError: it cannot complete, or not in time.
        """
        ...


class Transport(Protocol):
    """One process of the measurement."""

    rank: int
    size: int
    library: str

    def send(self, data: Bytes, peer: int, channel: Channel) -> Message:
        """Starts to send; the bytes must not change until the message is complete."""
        ...

    def receive(self, into: Bytes, peer: int, channel: Channel) -> Message:
        """Starts to receive as many bytes as were sent."""
        ...


def send_object(transport: Transport, value: Any, peer: int, timeout_s: float) -> None:
    """Sends a JSON object or array on the control channel."""
    content = np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
    head = np.array([len(content)], np.int64).view(np.uint8)
    transport.send(head, peer, "control").wait(timeout_s)
    transport.send(content, peer, "control").wait(timeout_s)


def receive_object(transport: Transport, peer: int, timeout_s: float) -> Any:
    """Receives an object sent by `send_object`."""
    head = np.zeros(8, np.uint8)
    transport.receive(head, peer, "control").wait(timeout_s)
    size = int(head.view(np.int64)[0])
    if not 0 <= size <= MOST_BYTES:
        raise PeerError(peer, f"a message of {size:,} bytes, expected at most {MOST_BYTES:,}")
    content = np.zeros(size, np.uint8)
    transport.receive(content, peer, "control").wait(timeout_s)
    try:
        return peer_value(content.tobytes(), dict | list, "a message")
    except RunError as error:
        raise PeerError(peer, str(error)) from error


class TorchTransport:
    """Messages over gloo.

    Args:
        store: path of the file through which the processes find each other, this process's rank,
            and the number of processes; None under torchrun, which sets the environment.
        timeout_s: timeout for finding each other.
    """

    def __init__(self, store: tuple[str, int, int] | None, timeout_s: float) -> None:
        import torch
        import torch.distributed as dist

        timeout = datetime.timedelta(seconds=timeout_s)
        try:
            if store is None:
                dist.init_process_group("gloo", timeout=timeout)
            else:
                path, rank, size = store
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{path}",
                    rank=rank,
                    world_size=size,
                    timeout=timeout,
                )
        except (RuntimeError, ValueError) as error:
            raise RunError(f"the processes did not find each other: {first_line(error)}") from error
        torch.set_num_threads(1)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.library = f"gloo, PyTorch {torch.__version__}"
        self._groups = {"control": dist.group.WORLD, "data": dist.new_group(backend="gloo")}

    def send(self, data: Bytes, peer: int, channel: Channel) -> Message:
        """Starts to send."""
        import torch

        return _TorchMessage(self._groups[channel], "send", torch.from_numpy(data), peer, channel)

    def receive(self, into: Bytes, peer: int, channel: Channel) -> Message:
        """Starts to receive."""
        import torch

        return _TorchMessage(self._groups[channel], "recv", torch.from_numpy(into), peer, channel)


class _TorchMessage:
    def __init__(self, group: Any, kind: str, tensor: Any, peer: int, channel: Channel) -> None:
        self._peer, self._tensor = peer, tensor
        try:
            self._work = getattr(group, kind)([tensor], peer, _TAGS[channel])
        except RuntimeError as error:
            raise PeerError(peer, _first_line(error)) from error

    def wait(self, timeout_s: float) -> None:
        try:
            self._work.wait(datetime.timedelta(seconds=timeout_s))
        except RuntimeError as error:
            silent = "imed out" in str(error) or "imeout" in str(error)
            how = f"silent for {timeout_s:.3g} s" if silent else "its connection broke"
            raise PeerError(self._peer, how) from error


class MpiTransport:
    """Messages over MPI's world communicator, and over a copy of it for data."""

    def __init__(self) -> None:
        import mpi4py
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise OptionError("this MPI lets only one thread at a time send; measure with torchrun")
        world = MPI.COMM_WORLD
        self.rank, self.size = world.rank, world.size
        name = MPI.Get_library_version().strip("\0").splitlines()[0].split(",")[0]
        self.library = f"{name}, mpi4py {mpi4py.__version__}"
        self._communicators = {"control": world, "data": world.Dup()}

    def send(self, data: Bytes, peer: int, channel: Channel) -> Message:
        """Starts to send."""
        return _MpiMessage(self._communicators[channel], "Isend", data, peer, channel)

    def receive(self, into: Bytes, peer: int, channel: Channel) -> Message:
        """Starts to receive."""
        return _MpiMessage(self._communicators[channel], "Irecv", into, peer, channel)


class _MpiMessage:
    def __init__(self, of: Any, kind: str, data: Bytes, peer: int, channel: Channel) -> None:
        from mpi4py import MPI

        self._error, self._peer, self._data = MPI.Exception, peer, data
        try:
            self._request = getattr(of, kind)([data, MPI.BYTE], peer, _TAGS[channel])
        except MPI.Exception as error:
            raise PeerError(peer, _first_line(error)) from error

    def wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        try:
            while not self._request.Test():
                if time.monotonic() > until:
                    raise PeerError(self._peer, f"silent for {timeout_s:.3g} s")
                time.sleep(_POLL_S)
        except self._error as error:
            raise PeerError(self._peer, _first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["its connection broke"])[0][:200]
