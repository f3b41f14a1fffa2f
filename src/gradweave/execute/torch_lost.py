"""Which process went away: agreed on by those that are left, through the group's store."""

import time

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import LostServerError, RunError
from gradweave.topology.topology import Topology

POLL_S = 0.25
"""How often a process that waits asks whether a server was lost."""
LINGER_S = 5.0
"""How long the process that may hold the store stays, so that the others can ask."""
_BROKEN = ("connection closed", "connection reset", "broken pipe", "connection refused")


class Lost:
    """Learns and tells which process went away.

    gloo tells of a death only those that wait for the dead. When they give up, others, who wait for
    them, would name the wrong server: so the first to see a broken connection writes in the store
    whose it was, and everybody who waits looks there.
    """

    def __init__(self, topology: Topology, group: dist.ProcessGroup) -> None:
        self._topology = topology
        self._size = dist.get_world_size(group)
        self._holds_store = dist.get_rank() == 0
        store = distributed_c10d._get_process_group_store(group)
        self._store = distributed_c10d.PrefixStore("gradweave", store)
        self._noted = False

    def told(self) -> LostServerError | None:
        """The server that was lost, if the store says so by now."""
        try:
            if not self._store.check(["lost"]):
                return None
            return self._note(int(self._store.get("lost")))
        except RuntimeError:
            # Where the store is a process's, it is rank 0's.
            return self._named(0, "the process that holds the store ended")

    def explain(self, error: RuntimeError, peer: int | None) -> RunError:
        """What an error of gloo's means.

        Args:
            error: the error.
            peer: rank of the process that the message was for; None where there were many.
        """
        text = str(error)
        if not any(broken in text.lower() for broken in _BROKEN):
            return self.told() or RunError(f"torch.distributed: {text}")
        if peer is None:
            time.sleep(2 * POLL_S)  # for one who knows to say it
            return self.told() or RunError(f"torch.distributed: a process went away: {text}")
        try:
            winner = self._store.compare_set("lost", "", str(peer))
            return self._note(int(winner))
        except RuntimeError:
            return self._named(0, "the process that holds the store ended")

    def linger(self) -> None:
        """Waits until every process knows, if this one may hold the store."""
        if not self._holds_store:
            return
        until = time.monotonic() + LINGER_S
        try:
            while time.monotonic() < until and self._store.add("knowing", 0) < self._size - 1:
                time.sleep(POLL_S / 5)
        except RuntimeError:
            return

    def _note(self, rank: int) -> LostServerError:
        if not self._noted:
            self._noted = True
            self._store.add("knowing", 1)
        return self._named(rank, "its connection broke")

    def _named(self, rank: int, how: str) -> LostServerError:
        return LostServerError(int(self._topology.servers[rank]), rank, how)
