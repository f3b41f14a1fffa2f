"""Runs a schedule on any backend of torch.distributed, round by round."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from gradweave.execute.exchanges import OWN, writes
from gradweave.execute.program import check_runs
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.gloo_messages import Cuts, combine
from gradweave.schedules.schedule import COPY, Schedule


class Rounds:
    """Runs a schedule in batches of messages, one batch per round, each complete before the next.

    NCCL and similar backends match the messages between two processes only by their order, and keep
    them in one stream. So both ends queue the messages of a round in the order of the schedule.

    Args:
        schedule: the schedule.
        group: a process group with as many processes as the schedule has servers.
    """

    def __init__(self, schedule: Schedule, group: dist.ProcessGroup) -> None:
        check_runs(schedule)
        self._group = group
        self.sent_bytes = np.zeros(dist.get_world_size(group), np.int64)
        topology = schedule.topology
        server = topology.servers[dist.get_rank(group)]
        mine = np.flatnonzero((schedule.source == server) | (schedule.target == server))
        splits = np.flatnonzero(np.diff(schedule.round[mine])) + 1
        self._rounds = [
            [
                (
                    int(row),
                    bool(schedule.source[row] == server),
                    int(topology.rank[schedule.source[row]]),
                    int(topology.rank[schedule.target[row]]),
                    int(schedule.piece[row]),
                )
                for row in rows
            ]
            for rows in np.split(mine, splits)
        ]
        self._writes = [
            list(writes(schedule, [row for row, sends, *_ in rows if not sends]))
            for rows in self._rounds
        ]

    def __call__(self, flat: torch.Tensor, cuts: Cuts, reduction: Reduction) -> None:
        """Runs the schedule on a flat tensor.

        Args:
            flat: the tensor, changed in place.
            cuts: start and end of its pieces.
            reduction: how contributions are combined.
        """
        pieces = [flat[begin:end] for begin, end in cuts]
        for transfers, written in zip(self._rounds, self._writes, strict=True):
            batch: list[dist.P2POp] = []
            received: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
            for row, sends, source, target, piece in transfers:
                part = pieces[piece]
                if not part.numel():
                    continue
                if sends:
                    batch.append(self._message(dist.isend, part, target))
                    self.sent_bytes[target] += part.numel() * part.element_size()
                else:
                    # Never received over the piece itself, which this round may also send.
                    received[row] = part, torch.empty_like(part)
                    batch.append(self._message(dist.irecv, received[row][1], source))
            if batch:
                for work in dist.batch_isend_irecv(batch):
                    work.wait()
            part = own = flat[:0]
            for row, op, keeps in written:
                if row != OWN and row not in received:  # an empty piece
                    part = own = flat[:0]
                    continue
                part, value = received[row] if row != OWN else (part, own)
                own = part.clone() if keeps else own
                if op == COPY:
                    part.copy_(value)
                elif part.numel():
                    combine(reduction, part, value)

    def _message(self, way: Callable, part: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(way, part, group=self._group, group_peer=peer)

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """All-gathers a tensor, by rank."""
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(every, mine, group=self._group)
        return every

    def attended(self, call: Callable[[], object]) -> None:
        """Calls a gloo collective."""
        call()

    def guarded(self, call: Callable[[], object]) -> None:
        """Calls one of torch.distributed's collectives."""
        call()
