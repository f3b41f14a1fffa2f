"""Plans on their way from rank 0 to all ranks of a group."""

import logging
import weakref
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.signature import digest
from gradweave.execute.torch_distributed import Collective as Plan
from gradweave.execute.torch_distributed.gloo_messages import Pair, connected
from gradweave.execute.torch_distributed.store import StoreThread, group_timeout
from gradweave.schedule.file import from_bytes, to_bytes
from gradweave.schedule.schedule import Schedule
from gradweave.torch.calls import SizeClass
from gradweave.torch.planner import Planner
from gradweave.wording import counted

_OWN = b"own"
_LOOK_S = 0.2
"""How often a rank looks whether there are new plans, where it wants some."""
_IDLE_S = 1.0
_log = logging.getLogger("gradweave")


class Offers:
    """What this rank has of the plans of its group, each ready to run.

    A thread looks for them in the group's store, connects the processes for their messages and
    checks that what it read is what rank 0 wrote.

    Args:
        group: the process group.
        planner: in rank 0's process, who makes the plans.
    """

    def __init__(self, group: dist.ProcessGroup, planner: Planner | None) -> None:
        self._group, self._planner = weakref.ref(group), planner
        self._rank, self._size, self._timeout = group.rank(), group.size(), group_timeout(group)
        self._wanted: list[SizeClass] = []
        self._found: dict[SizeClass, Plan | None] = {}
        self._refused: set[SizeClass] = set()
        self.channel: Pair | None = None
        """The connections of plans, once there is one."""
        this = weakref.ref(self)

        def tick(store: distributed_c10d.Store) -> float:
            offers = this()
            if offers is None or not offers._wanted:
                return _IDLE_S
            offers._look(store)
            return _LOOK_S

        self._store = StoreThread(group, "gradweave plans", tick)
        if planner is not None:
            planner.start(self._publish)

    def want(self, of: SizeClass) -> None:
        """Asks for a plan."""
        self._wanted.append(of)
        if self._planner is not None:
            self._planner.want(of)
        self._store.ask(self._look)

    def state(self, of: SizeClass) -> int:
        """1: it is ready here, 0: not yet, -1: it cannot run here."""
        return -1 if of in self._refused else int(of in self._found)

    def plan(self, of: SizeClass) -> Plan | None:
        """One that is ready; None: the backend's own is to be taken."""
        return self._found[of]

    def close(self) -> None:
        """Ends the threads."""
        if self._planner is not None:
            self._planner.close()
        self._store.close()

    def _publish(self, of: SizeClass, plan: Schedule | None) -> None:
        content: Any = _OWN  # the stubs know text alone
        if plan is not None:
            content = digest(plan).to_bytes(8, "little") + to_bytes(plan)
        self._store.ask(lambda store: store.set(_key(of), content))

    def _look(self, store: distributed_c10d.Store) -> None:
        for of in [of for of in self._wanted if store.check([_key(of)])]:
            try:
                self._found[of] = self._read(store.get(_key(of)), store)
            except Exception as error:  # the others hear of it, and all go on with gloo's own
                self._refused.add(of)
                what = f"{of.collective} of {counted(of.size, 'byte')}"
                _log.warning("rank %d cannot run the plan for %s: %s", self._rank, what, error)
            self._wanted.remove(of)

    def _read(self, content: bytes, store: distributed_c10d.Store) -> Plan | None:
        group = self._group()
        if content == _OWN or group is None:
            return None
        plan = from_bytes(content[8:], "the plan of rank 0")
        if digest(plan) != int.from_bytes(content[:8], "little"):
            raise RunError("it is not what rank 0 made")
        if self.channel is None:
            up, down = (
                connected(store, f"channel {number}", self._rank, self._size, self._timeout)
                for number in range(2)
            )
            self.channel = up, down
        return Plan(plan, group, channels=([self.channel], None))


def _key(of: SizeClass) -> str:
    return f"plan {of.collective} {of.size} {of.root}"
