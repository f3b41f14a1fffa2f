"""A running job, seen by its store: where its ranks stand, and what they keep of their calls."""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import OptionError, RunError
from gradweave.execute.recorded import RecordedRank
from gradweave.torch.monitor import stands
from gradweave.torch.recorded import JOB
from gradweave.torch.stands import RankStand

CONNECT_S = 5.0
"""How long to wait for the store."""
ANSWER_S = 5.0
"""How long ranks have to write what they keep."""
_POLL_S = 0.1


class Job:
    """A job whose ranks record their collectives.

    Args:
        host: where its store is, as the ranks' MASTER_ADDR says.
        port: likewise, MASTER_PORT.

    Raises:
        OptionError: there is no store.
        RunError: no rank records anything in it.
    """

    def __init__(self, host: str, port: int) -> None:
        made: Any = dist
        try:
            # PyTorch tells at length, and in C++, what it cannot reach.
            socket.create_connection((host, port), CONNECT_S).close()
            self._root: distributed_c10d.Store = made.TCPStore(
                host,
                port,
                is_master=False,
                timeout=timedelta(seconds=CONNECT_S),
                wait_for_workers=False,
            )
            there = self._root.check([JOB])
        except (OSError, RuntimeError) as error:
            raise OptionError(
                f"{host}:{port}: no job's store answers there; give the address that its ranks "
                "have as MASTER_ADDR and MASTER_PORT"
            ) from error
        if not there:
            raise RunError(
                f"{host}:{port}: the job there records nothing; start it by the backend gradweave "
                "with GRADWEAVE_WATCH=1 or GRADWEAVE_SLOW_AFTER"
            )
        prefix, self.size = json.loads(self._root.get(JOB))
        self._store = distributed_c10d.PrefixStore(
            "gradweave monitor", distributed_c10d.PrefixStore(prefix, self._root)
        )

    def ask(self) -> None:
        """Has all ranks write where they stand, which they do for a second or two from now on."""
        with _ended():
            self._store.set("alarm", f"asked {uuid.uuid4().hex}")

    def stands(self) -> dict[int, RankStand]:
        """Where they stand, as they have written it last."""
        with _ended():
            return stands(self._store, self.size)

    def kept(self) -> tuple[list[RecordedRank], list[int]]:
        """What ranks keep of their calls, and those that have not answered."""
        asked = uuid.uuid4().hex
        found: dict[int, RecordedRank] = {}
        with _ended():
            self._store.set("trace", asked)
            self.ask()
            until = time.monotonic() + ANSWER_S
            while len(found) < self.size and time.monotonic() < until:
                time.sleep(_POLL_S)
                self._collect(asked, found)
        silent = [rank for rank in range(self.size) if rank not in found]
        return [found[rank] for rank in sorted(found)], silent

    def _collect(self, asked: str, found: dict[int, RecordedRank]) -> None:
        for rank in set(range(self.size)) - set(found):
            key = f"trace {asked} {rank}"
            if self._store.check([key]):
                found[rank] = RecordedRank.read(self._store.get(key), f"rank {rank}")
                self._store.delete_key(key)


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    """Says that the job has ended where its store has."""
    try:
        yield
    except RuntimeError as error:
        raise RunError("the job's store has ended, and with it the job") from error


def heard_lately(before: dict[int, RankStand], now: dict[int, RankStand]) -> Collection[int]:
    """Ranks that have written where they stand between two readings."""
    return {r for r, s in now.items() if r in before and s.heartbeats > before[r].heartbeats}
