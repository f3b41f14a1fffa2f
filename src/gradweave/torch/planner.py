"""Plans for one group, made or read in the process of its rank 0."""

import atexit
import contextlib
import hashlib
import logging
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from gradweave.atomic import make_folder
from gradweave.errors import FileError, GradweaveError, OptionError, ScheduleError
from gradweave.execute.program import check_all_reduce, check_servers, is_own, same_bits
from gradweave.processes.children import STOP_S, Children, how_ended
from gradweave.schedule.file import load
from gradweave.schedule.schedule import Schedule
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import LINK_COLUMNS, Topology
from gradweave.torch.settings import Settings

SEARCH_S = 60
"""Longest search for a plan."""
_LEAVE_S = STOP_S + 2.0
"""How long a group that ends waits for a search to end."""
_log = logging.getLogger("gradweave")


class Planner:
    """Answers for each size with a plan, one size after the other, in a thread of its own.

    Searches are processes (`gradweave schedule`), so that they do not hold up the training's.

    Args:
        settings: what is asked for.
        servers: processes in the group.

    Raises:
        GradweaveError: the network or the plan cannot be read, or is for another number of servers.
    """

    def __init__(self, settings: Settings, servers: int) -> None:
        self._settings = settings
        self._given: Schedule | None = None
        if settings.plan is not None:
            self._given = load(settings.plan)
            check_all_reduce(self._given)
            check_servers(self._given, servers, what="processes in the group")
            if not same_bits(self._given):
                raise ScheduleError(
                    f"{settings.plan}: servers add in different orders and would end with "
                    "different bits; take another strategy"
                )
            self.topology = self._given.topology
        else:
            self.topology = as_topology(settings.topology or "")
            if self.topology.num_servers != servers:
                raise OptionError(
                    f"GRADWEAVE_TOPOLOGY: {self.topology.name} has {self.topology.num_servers} "
                    f"servers, the group {servers} processes; they must agree"
                )
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, publish: Callable[[int, Schedule | None], None]) -> None:
        """Starts the thread.

        Args:
            publish: called with a size in bytes and its plan; None: the backend's own is as fast.
        """
        self._thread = threading.Thread(
            target=self._work, args=(publish,), name="gradweave-planner", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # a search does not outlive the process

    def want(self, size: int) -> None:
        """Asks for the plan of a size in bytes."""
        self._wanted.put(size)

    def close(self) -> None:
        """Ends the thread, and a search under way."""
        self._ended.set()
        self._wanted.put(None)
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _work(self, publish: Callable[[int, Schedule | None], None]) -> None:
        while (size := self._wanted.get()) is not None and not self._ended.is_set():
            try:
                plan = self._given or self._kept(size) or self._searched(size)
            except GradweaveError as error:
                if not self._ended.is_set():
                    _log.warning("no plan for %d bytes, which stay gloo's own: %s", size, error)
                plan = None
            publish(size, None if plan is None or is_own(plan, "gloo") else plan)

    def _file(self, size: int) -> Path:
        """Where the plan of a size is kept: by network, runtime and size."""
        runtime = self._settings.runtime
        if Path(runtime).suffix == ".toml":
            with contextlib.suppress(OSError):
                runtime = Path(runtime).read_text()
        key = hashlib.blake2b(digest(self.topology).encode() + runtime.encode(), digest_size=12)
        return self._settings.cache / f"all_reduce-{key.hexdigest()}-{size}.json"

    def _kept(self, size: int) -> Schedule | None:
        """A plan that an earlier job has left."""
        path = self._file(size)
        if not path.exists():
            return None
        try:
            plan = load(path)
        except GradweaveError as error:
            _log.warning("%s is made anew: %s", path, error)
            return None
        if digest(plan.topology) == digest(self.topology):
            return plan
        _log.warning("%s is made anew: it is the plan of another network", path)
        return None

    def _searched(self, size: int) -> Schedule:
        """A new plan, which is kept."""
        with tempfile.TemporaryDirectory(prefix="gradweave-") as folder:
            found, said = Path(folder, "plan.json"), Path(folder, "said")
            command = [sys.executable, "-m", "gradweave", "schedule", str(self._settings.topology)]
            command += ["--runtime", self._settings.runtime, "--objective", "seconds", "--json"]
            command += ["--gradient-bytes", str(size), "--time-limit", str(SEARCH_S)]
            with Children([([*command, "--output", str(found)], os.environ)], said) as search:
                while (told := search.receive(0.5)) is None or told[1] is not None:
                    if self._ended.is_set():
                        raise OptionError("the group has ended")
                status = search.status(0)
            if status or not found.exists():
                lines = said.read_text(errors="replace").strip().splitlines()
                raise OptionError(lines[-1] if lines else how_ended(status))
            plan = load(found)
        self._keep(plan, size)
        return plan

    def _keep(self, plan: Schedule, size: int) -> None:
        """Keeps a plan for later jobs."""
        try:
            make_folder(self._settings.cache)
            plan.save(self._file(size))
        except FileError as error:
            _log.warning("GRADWEAVE_CACHE: the plan is not kept: %s", error)


def digest(topology: Topology) -> str:
    """Of nodes and links, whatever their network is called."""
    made = hashlib.blake2b(topology.is_server.tobytes(), digest_size=16)
    for column in LINK_COLUMNS:
        made.update(getattr(topology, column).tobytes())
    return made.hexdigest()
