"""A schedule on any backend of torch.distributed, round by round."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from gradweave.execute.program import check_runs
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.gloo_messages import Cuts, combine
from gradweave.schedule.schedule import COPY, Schedule


class Rounds:
    """Runs a schedule in batches of messages, one batch per round, each complete before the next.

    NCCL and its like match the messages between two processes by their order alone, and keep them
    in one stream: so both queue those of a round in the order of the schedule.

    Args:
        schedule: the schedule.
        group: a process group of as many processes.
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
                    bool(schedule.source[row] == server),
                    int(topology.rank[schedule.source[row]]),
                    int(topology.rank[schedule.target[row]]),
                    int(schedule.piece[row]),
                    bool(schedule.op[row] == COPY),
                )
                for row in rows
            ]
            for rows in np.split(mine, splits)
        ]

    def __call__(self, flat: torch.Tensor, cuts: Cuts, reduction: Reduction) -> None:
        """Runs the schedule on a flat tensor.

        Args:
            flat: the tensor, changed in place.
            cuts: where its pieces are.
            reduction: how contributions are combined.
        """
        pieces = [flat[begin:end] for begin, end in cuts]
        for transfers in self._rounds:
            batch: list[dist.P2POp] = []
            writes: list[tuple[torch.Tensor, torch.Tensor, bool]] = []
            for sends, source, target, piece, copies in transfers:
                part = pieces[piece]
                if not part.numel():
                    continue
                if sends:
                    batch.append(self._message(dist.isend, part, target))
                    self.sent_bytes[target] += part.numel() * part.element_size()
                else:
                    # Never over the piece itself, which this round may also send.
                    received = torch.empty_like(part)
                    batch.append(self._message(dist.irecv, received, source))
                    writes.append((part, received, copies))
            if batch:
                for work in dist.batch_isend_irecv(batch):
                    work.wait()
            for part, received, copies in writes:
                if copies:
                    part.copy_(received)
                else:
                    combine(reduction, part, received)

    def _message(self, way: Callable, part: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(way, part, group=self._group, group_peer=peer)

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """All-gather, by rank."""
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(every, mine, group=self._group)
        return every

    def guarded(self, call: Callable[[], object]) -> None:
        """Calls one of torch.distributed's collectives."""
        call()
