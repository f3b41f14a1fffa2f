"""Delivers plans from rank 0 to all ranks of a group."""

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.common.wording import counted
from gradweave.errors import RunError
from gradweave.execute.program import check_plan
from gradweave.execute.signature import digest
from gradweave.execute.torch_distributed.backend import Collective as Plan
from gradweave.execute.torch_distributed.gloo_messages import Pair, connected
from gradweave.execute.torch_distributed.store import StoreThread, group_timeout, value_of
from gradweave.printable import in_one_line
from gradweave.schedules.file import from_bytes, to_bytes
from gradweave.schedules.schedule import Schedule
from gradweave.torch.calls import SizeClass
from gradweave.torch.changes import Changes
from gradweave.torch.planner import Planner, Weight

MOST_BYTES = (1 << 23) - (1 << 12)
"""Largest plan: PyTorch's TCPStore drops the connection of a client that sets more than 8 MiB."""
_OWN = b"own"
_LOOK_S = 0.2
"""Time between two checks for new plans while this rank wants some."""
_IDLE_S = 1.0
_log = logging.getLogger("gradweave")


class Offers:
    """The plans of a group that this rank has received, each ready to run.

    A thread looks for plans in the group's store, opens the connections for their messages, and
    checks that it has read exactly what rank 0 wrote.

    Args:
        group: the process group.
        planner: finds the plans in rank 0's process; None elsewhere.
        follows: whether plans follow changes of the network.
    """

    def __init__(
        self, group: dist.ProcessGroup, planner: Planner | None, *, follows: bool = False
    ) -> None:
        self._group, self._planner = weakref.ref(group), planner
        self._rank, self._size, self._timeout = group.rank(), group.size(), group_timeout(group)
        self._wanted: dict[SizeClass, None] = {}
        self._published: set[SizeClass] = set()
        self._found: dict[SizeClass, Plan | None] = {}
        self._refused: set[SizeClass] = set()
        self.channel: Pair | None = None
        """The connections of all plans, or None before the first plan arrives."""
        self.changes = Changes(self._rank, self._size, planner) if follows else None
        """This rank's part in following changes of the network, if plans follow them."""
        this = weakref.ref(self)

        def tick(store: distributed_c10d.Store) -> float:
            offers = this()
            if offers is None:
                return _IDLE_S
            due_s = _IDLE_S if offers.changes is None else offers.changes.tick(store)
            if offers._wanted:
                offers._look(store)
                due_s = _LOOK_S
            return due_s

        self._store = StoreThread(group, "gradweave plans", tick)
        if planner is not None:
            planner.start(self._publish)

    def want(self, of: SizeClass, weight: Callable[[], Weight]) -> None:
        """Requests a plan.

        Args:
            of: the calls that the plan is for.
            weight: see `Planner.want`.
        """
        if of in self._found or of in self._refused:
            return
        self._wanted[of] = None
        if self._planner is not None and of not in self._published:
            self._planner.want(of, weight)
        self._store.ask(self._look)

    def unwant(self, of: SizeClass) -> None:
        """Withdraws the request for a plan; the plan may arrive nevertheless."""
        self._wanted.pop(of, None)
        if self._planner is not None:
            self._planner.unwant(of)

    def state(self, of: SizeClass) -> int:
        """1: the plan is ready here; 0: it is not ready yet; -1: it cannot run here."""
        return -1 if of in self._refused else int(of in self._found)

    def plan(self, of: SizeClass) -> Plan | None:
        """The plan if it is ready; None: the backend's own algorithm should run."""
        return self._found[of]

    def close(self) -> None:
        """Ends the threads."""
        if self._planner is not None:
            self._planner.close()
        self._store.close()

    def _publish(self, of: SizeClass, plan: Schedule | None) -> None:
        content: Any = _OWN  # the stubs accept only text
        if plan is not None:
            plan = plan.replace(certificates=())
            content = digest(plan).to_bytes(8, "little") + to_bytes(plan)
        if len(content) > MOST_BYTES:
            size = f"{len(content):,} bytes, but the job's store takes at most {MOST_BYTES:,}"
            _log.warning("no plan for %s, which stays gloo's own: it has %s", _named(of), size)
            content = _OWN
        self._published.add(of)
        self._store.ask(lambda store: store.set(_key(of), content))

    def _look(self, store: distributed_c10d.Store) -> None:
        for of in list(self._wanted):
            if (content := value_of(store, _key(of))) is None:
                continue
            try:
                self._found[of] = self._read(content, store)
            except Exception as error:  # a vote makes all ranks use gloo's own
                self._refused.add(of)
                line = f"rank {self._rank} cannot run the plan for {_named(of)}: {error}"
                _log.warning("%s", in_one_line(line))
            self._wanted.pop(of, None)

    def _read(self, content: bytes, store: distributed_c10d.Store) -> Plan | None:
        group = self._group()
        if content == _OWN or group is None:
            return None
        plan = from_bytes(content[8:], "the plan of rank 0")
        if digest(plan) != int.from_bytes(content[:8], "little"):
            raise RunError("it differs from the plan of rank 0")
        check_plan(plan)
        if self.channel is None:
            up, down = (
                connected(store, f"channel {number}", self._rank, self._size, self._timeout)
                for number in range(2)
            )
            self.channel = up, down
        return Plan(plan, group, channels=([self.channel], None))


def _named(of: SizeClass) -> str:
    return f"{of.collective} of {counted(of.size, 'byte')}"


def _key(of: SizeClass) -> str:
    return f"plan {of.collective} {of.size} {of.root} {of.change}"
