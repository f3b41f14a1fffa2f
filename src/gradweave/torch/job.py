"""A client of a running job: reads the status of its ranks and their recorded calls."""

import contextlib
import socket
import time
import uuid
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import FileError, OptionError, RunError
from gradweave.execute.recorded import RecordedRank
from gradweave.execute.torch_distributed.status import RankStatus, statuses
from gradweave.execute.torch_distributed.store import value_of
from gradweave.processes.peers import MOST_RANKS, Text, peer_value
from gradweave.torch.recorded import JOB

CONNECT_S = 5.0
"""Timeout for connecting to the store."""
ANSWER_S = 5.0
"""Time that ranks have to send their recordings."""
_POLL_S = 0.1
_Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]


class Job:
    """A job whose ranks record their collectives.

    Args:
        host: host of the job's store, the ranks' MASTER_ADDR.
        port: port of the job's store, the ranks' MASTER_PORT.

    Raises:
        OptionError: no store answers there.
        RunError: the job there records nothing.
    """

    def __init__(self, host: str, port: int) -> None:
        made: Any = dist
        try:
            # PyTorch's C++ logs many lines about an address that it cannot reach.
            socket.create_connection((host, port), CONNECT_S).close()
            self._root: distributed_c10d.Store = made.TCPStore(
                host,
                port,
                is_master=False,
                timeout=timedelta(seconds=CONNECT_S),
                wait_for_workers=False,
            )
            written = value_of(self._root, JOB)
        except (OSError, RuntimeError) as error:
            raise OptionError(
                f"{host}:{port}: no job's store answers there; give the address that its ranks "
                "have as MASTER_ADDR and MASTER_PORT"
            ) from error
        if written is None:
            raise RunError(
                f"{host}:{port}: the job there records nothing; start it with backend gradweave "
                "and GRADWEAVE_WATCH=1 or GRADWEAVE_SLOW_AFTER"
            )
        prefix, self.size = peer_value(written, tuple[Text, _Size], f"{host}:{port}: the job")
        self._store = distributed_c10d.PrefixStore(
            "gradweave monitor", distributed_c10d.PrefixStore(prefix, self._root)
        )

    def ask(self) -> None:
        """Asks all ranks to write their status for the next second or two."""
        with _ended():
            self._store.set("alarm", f"asked {uuid.uuid4().hex}")

    def statuses(self) -> dict[int, RankStatus]:
        """The latest status of each rank."""
        with _ended():
            return statuses(self._store, self.size)

    def kept(self) -> tuple[list[RecordedRank], list[int]]:
        """Recordings of the calls of each rank, and the ranks that have not sent a recording."""
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
            if (written := value_of(self._store, key)) is not None:
                self._store.delete_key(key)
                with contextlib.suppress(FileError):
                    record = RecordedRank.read(written, f"rank {rank}")
                    if (record.rank, record.ranks) == (rank, self.size):
                        found[rank] = record


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    """Reports that the job has ended if its store has."""
    try:
        yield
    except RuntimeError as error:
        raise RunError("the job's store has ended, and so has the job") from error


def heard_lately(before: dict[int, RankStatus], now: dict[int, RankStatus]) -> Collection[int]:
    """Ranks that have written a status between two readings."""
    return {r for r, s in now.items() if r in before and s.heartbeats > before[r].heartbeats}
