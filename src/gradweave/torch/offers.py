"""Plans on their way from rank 0 to all ranks of a group."""

import logging
import weakref
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.signature import digest
from gradweave.execute.torch_distributed import Collective
from gradweave.execute.torch_distributed.gloo_messages import Pair, connected
from gradweave.execute.torch_distributed.store import StoreThread, group_timeout
from gradweave.schedule.file import from_bytes, to_bytes
from gradweave.schedule.schedule import Schedule
from gradweave.torch.planner import Planner

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
        self._wanted: list[int] = []
        self._found: dict[int, Collective | None] = {}
        self._refused: set[int] = set()
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

    def want(self, size: int) -> None:
        """Asks for the plan of a size in bytes."""
        self._wanted.append(size)
        if self._planner is not None:
            self._planner.want(size)
        self._store.ask(self._look)

    def state(self, size: int) -> int:
        """1: it is ready here, 0: not yet, -1: it cannot run here."""
        return -1 if size in self._refused else int(size in self._found)

    def collective(self, size: int) -> Collective | None:
        """The plan of a size that is ready; None: the backend's own is to be taken."""
        return self._found[size]

    def close(self) -> None:
        """Ends the threads."""
        if self._planner is not None:
            self._planner.close()
        self._store.close()

    def _publish(self, size: int, plan: Schedule | None) -> None:
        content: Any = _OWN  # the stubs know text alone
        if plan is not None:
            content = digest(plan).to_bytes(8, "little") + to_bytes(plan)
        self._store.ask(lambda store: store.set(f"plan {size}", content))

    def _look(self, store: distributed_c10d.Store) -> None:
        for size in [size for size in self._wanted if store.check([f"plan {size}"])]:
            try:
                self._found[size] = self._read(store.get(f"plan {size}"), store)
            except Exception as error:  # the others hear of it, and all go on with gloo's own
                self._refused.add(size)
                _log.warning("rank %d cannot run the plan of %d bytes: %s", self._rank, size, error)
            self._wanted.remove(size)

    def _read(self, content: bytes, store: distributed_c10d.Store) -> Collective | None:
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
        return Collective(plan, group, channels=([self.channel], None))
