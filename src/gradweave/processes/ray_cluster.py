"""A Ray cluster: one that this process uses already, one at an address, or this machine."""

import contextlib
import json
import os
import secrets
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gradweave.common.lazy import missing
from gradweave.errors import RunError
from gradweave.processes import ray_keeper, ray_loopback
from gradweave.processes.children import Children
from gradweave.processes.ending import heard_again
from gradweave.processes.owned import owned

POLL_S = 0.25
"""Time after which a wait for Ray checks that Ray is alive."""
NEWS_S = 0.5
"""How much later than its consequences the end of Ray may become known."""
STARTS = 3
"""Attempts to start Ray, or to connect to a cluster."""
_START_AGAIN = "start again"
_LOGS = "/tmp/ray/session_latest/logs"
"""Folder of a cluster's logs, unless the cluster was started with another folder."""


class Cluster:
    """A connected Ray that is watched, so that no wait for it outlasts it."""

    def __init__(self, ray: Any, beside: Children, logs: str) -> None:
        """Begins to watch.

        Args:
            ray: the module, connected.
            beside: the keeper.
            logs: folder of the logs of Ray's processes.
        """
        self.ray = ray
        self._beside, self._logs = beside, logs
        self._resume = _START_AGAIN
        self._how = ""
        self._lost, self._closed = threading.Event(), False
        self._calls: list[Callable[[RunError], None]] = []
        threading.Thread(target=self._listen, name="gradweave-ray", daemon=True).start()

    @property
    def lost(self) -> bool:
        """Whether Ray has ended."""
        return self._lost.is_set()

    def check(self) -> None:
        """Raises `RunError` if Ray has ended."""
        if self.lost:
            raise self._error()

    def get(self, asked: Sequence[Any], timeout_s: float = float("inf")) -> list[Any]:
        """The values of references.

        Args:
            asked: the references.
            timeout_s: how long to wait for all of them.

        Raises:
            RunError: Ray has ended.
            RayError: the error of one of them; `GetTimeoutError` if not all are ready in time.
        """
        if len(self.wait(asked, timeout_s, len(asked))) < len(asked):
            raise self.ray.exceptions.GetTimeoutError(f"no answer within {timeout_s:g} s")
        return self.ray.get(list(asked))

    def wait(self, asked: Sequence[Any], timeout_s: float, count: int = 1) -> list[Any]:
        """The references that are ready.

        Args:
            asked: the references.
            timeout_s: how long to wait.
            count: how many to wait for.

        Raises:
            RunError: Ray has ended.
        """
        until = time.monotonic() + timeout_s
        while True:
            self.check()
            left_s = min(max(until - time.monotonic(), 0.0), POLL_S)
            done, _ = self.ray.wait(list(asked), num_returns=count, timeout=left_s)
            if len(done) >= count or time.monotonic() >= until:
                return done

    def affinities(self) -> list[Any]:
        """Scheduling strategies, each of which starts actors on one machine, this machine first.

        Without them, Ray picks a random machine for actors that request no CPUs, whatever strategy
        is requested, even a soft affinity (ray-project/ray#25360).
        """
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            NodeAffinitySchedulingStrategy,
        )

        here = self.ray.get_runtime_context().get_node_id()
        there = [machine["NodeID"] for machine in self.ray.nodes() if machine["Alive"]]
        there.sort(key=lambda machine: (machine != here, machine))
        return [NodeAffinitySchedulingStrategy(machine, soft=False) for machine in there]

    def resume(self, how: str) -> None:
        """Sets the end of the message for when Ray ends: what was kept, and how to resume."""
        self._resume = how
        self._beside.send(0, {"resume": how})

    def when_lost(self, call: Callable[[RunError], None]) -> None:
        """Registers a function that another thread calls with the error when Ray ends."""
        self._calls.append(call)

    def logs(self) -> str:
        """The folder of Ray's logs, which is kept from now on."""
        self._beside.send(0, {"folder": None})
        return self._logs

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Replaces an error caused by the end of Ray with an error that names this cause."""
        try:
            yield
        except Exception:
            if self._lost.wait(NEWS_S):
                raise self._error() from None
            raise

    def close(self) -> None:
        """Stops watching."""
        self._closed = True

    def _error(self) -> RunError:
        return RunError(f"{self._how}; {self._resume}")

    def _listen(self) -> None:
        while (heard := self._beside.receive(POLL_S)) is None:
            if self._closed:
                return
        if self._closed:
            return
        message = heard[1]
        self._how = "the process that watches Ray ended" if message is None else message["lost"]
        self._lost.set()
        for call in self._calls:
            call(self._error())


_connected: list[Cluster] = []
"""The cluster in use by this process, if any."""


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[Cluster]:
    """A connected Ray.

    If Ray's raylet or GCS ends, everything that waits for Ray ends with one line, within seconds. A
    Ray that is started here listens on the loopback address, requires a token, and leaves nothing
    behind.

    Args:
        address: address of a running cluster, which must have Gradweave installed. If not given,
            the cluster is the one that this process is connected to, or that of RAY_ADDRESS, or
            else this machine, whose Ray processes end afterwards.

    Raises:
        MissingExtraError: Ray is not installed.
        RunError: Ray cannot start or find the cluster, or ends too early.
    """
    with heard_again(), _cluster(address) as ray_cluster:
        yield ray_cluster


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[Cluster]:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing("a cluster", "ray") from error
    if _connected:
        with _connected[-1].explained():
            yield _connected[-1]
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        opened = _others(ray)
    elif address is not None:
        opened = _joined(ray, address)
    else:
        opened = _started(ray)
    with opened as ray_cluster:
        _connected.append(ray_cluster)
        try:
            with ray_cluster.explained():
                yield ray_cluster
        finally:
            _connected.remove(ray_cluster)


@contextlib.contextmanager
def _started(ray: Any) -> Iterator[Cluster]:
    """Ray on this machine, started and ended by this process."""
    # A short path, since the paths of sockets are limited.
    top = Path(tempfile.mkdtemp(prefix="gradweave-ray-", dir=os.environ.get("RAY_TMPDIR", "/tmp")))
    mark, stop = secrets.token_hex(8), owned(ray_loopback.stop)
    with _beside(mark=(ray_loopback.MARK, mark), folder=str(top)) as beside:
        try:
            with _starting("on this machine"):
                _with_retries(ray, lambda: ray_loopback.start(ray, top, mark))
                children = {child.name(): child.pid for child in _psutil().Process().children()}
                parts = {"raylet": children["raylet"], "GCS": children["gcs_server"]}
            beside.send(0, {"parts": parts})
            ray_loopback.mute(ray)
            with _watched(ray, beside, str(top / "ray" / "session_latest" / "logs")) as ray_cluster:
                yield ray_cluster
        finally:
            stop(ray)


@contextlib.contextmanager
def _joined(ray: Any, address: str) -> Iterator[Cluster]:
    """The cluster at an address."""
    shutdown = owned(ray.shutdown)
    with _starting(f"at {address}"):
        _with_retries(ray, lambda: ray_loopback.connect(ray, address))
    try:
        with _others(ray) as ray_cluster:
            ray_loopback.mute(ray)
            yield ray_cluster
    finally:
        shutdown()


@contextlib.contextmanager
def _others(ray: Any) -> Iterator[Cluster]:
    """The Ray that this process is connected to, which others have started."""
    node = ray._private.worker.global_worker.node
    watched: dict[str, Any] = {}
    if node is not None:  # Ray's client has no part of Ray in this process
        raylet = _listener(node.raylet_socket_name)
        watched["parts"] = {} if raylet is None else {"raylet": raylet}
        watched["address"] = node.gcs_address
    with _beside(**watched) as beside, _watched(ray, beside, _LOGS) as ray_cluster:
        yield ray_cluster


def _with_retries(ray: Any, start: Callable[[], None]) -> None:
    """Starts or connects, in up to `STARTS` attempts: a busy machine may be too slow at first."""
    for left in reversed(range(STARTS)):
        try:
            return start()
        except RunError:
            raise
        except Exception:
            ray.shutdown()
            if not left:
                raise


@contextlib.contextmanager
def _starting(where: str) -> Iterator[None]:
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        raise RunError(f"Ray does not start {where}: {error}") from error


@contextlib.contextmanager
def _beside(**watched: Any) -> Iterator[Children]:
    """Starts the keeper process."""
    watched["psutil"] = str(Path(_psutil().__file__).parents[1])
    command = [sys.executable, "-I", "-S", ray_keeper.__file__, json.dumps(watched)]
    with Children([(command, os.environ)], log=None) as beside:
        try:
            yield beside
        finally:
            beside.send(0, {"end": True})


@contextlib.contextmanager
def _watched(ray: Any, beside: Children, logs: str) -> Iterator[Cluster]:
    ray_cluster = Cluster(ray, beside, logs)
    try:
        yield ray_cluster
    finally:
        ray_cluster.close()


def _psutil() -> Any:
    """The package psutil inside Ray; it must not be imported before Ray."""
    import psutil

    return psutil


def _listener(path: str) -> int | None:
    """The process on this machine that listens at a socket, or None if it cannot be found."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            return None
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
    return struct.unpack("3i", credentials)[0] or None
