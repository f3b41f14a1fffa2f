"""Runs a trial in one process under torch.distributed, on gloo."""

import datetime
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from gradweave.execute.running.trial import Trial
from gradweave.execute.torch_distributed.backend import OPERATIONS, Collective
from gradweave.schedules.schedule import Schedule


class TorchRunner:
    """`gradweave.torch.Collective` next to ``dist.all_reduce``.

    See `timing.Runner`.

    Args:
        schedule: the schedule, for as many servers as there are processes.
        trial: the trial to run.
        store: path of the file through which the processes find each other, and this process's
            rank; None under torchrun, which sets the environment.
        timeout_s: timeout of gloo.
    """

    def __init__(
        self, schedule: Schedule, trial: Trial, store: tuple[str, int] | None, timeout_s: float
    ) -> None:
        self._trial = trial
        timeout = datetime.timedelta(seconds=timeout_s)
        if store is None:
            dist.init_process_group("gloo", timeout=timeout)
        else:
            size, (path, rank) = schedule.topology.num_servers, store
            torch.set_num_threads(1)  # as many processes as there are servers share the cores
            dist.init_process_group(
                "gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timeout
            )
        self.library = f"gloo, PyTorch {torch.__version__}"
        self.ranks = [dist.get_rank()]
        self._collective = Collective(schedule)
        self._operation = OPERATIONS[trial.reduction]
        self.has_native = schedule.collective == "all_reduce"
        self._placed = self._tensor = torch.empty(0)

    def use(self, schedule: Schedule) -> None:
        """Prepares another collective on the same process group."""
        self._collective = Collective(schedule)

    def place(self, contributions: Sequence[NDArray]) -> None:
        """Makes a tensor of this server's contribution."""
        self._placed = _tensor(contributions[0])
        self._tensor = self._placed.clone()

    def restore(self) -> None:
        """Copies the contribution into the tensor."""
        self._tensor.copy_(self._placed)

    def run(self) -> None:
        """Runs the collective."""
        self._collective(self._tensor, reduction=self._trial.reduction)

    def run_native(self) -> None:
        """Runs ``dist.all_reduce``."""
        self._collective.guarded(lambda: dist.all_reduce(self._tensor, self._operation))
        if self._trial.reduction == "mean":
            self._tensor /= dist.get_world_size()

    def results(self) -> Sequence[NDArray]:
        """The content of the tensor."""
        if self._tensor.dtype == torch.bfloat16:
            return [self._tensor.view(torch.int16).numpy().view(self._trial.numpy_dtype)]
        return [self._tensor.numpy()]

    def sent_bytes(self) -> NDArray[np.int64]:
        """Bytes counted by the collective."""
        sent = np.zeros(dist.get_world_size(), np.int64)
        sent[dist.get_rank()] = self._collective.sent_bytes.sum()
        return sent

    def barrier(self) -> None:
        """The barrier of the process group."""
        self._collective.guarded(dist.barrier)

    def gathered(self, numbers: NDArray) -> NDArray:
        """The all-gather of the process group."""
        mine = torch.from_numpy(np.ascontiguousarray(numbers))
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        self._collective.guarded(lambda: dist.all_gather(every, mine))
        return torch.stack(every).numpy()


def _tensor(numbers: NDArray) -> torch.Tensor:
    """A tensor that shares the memory; PyTorch does not know NumPy's bfloat16."""
    if numbers.dtype.kind == "V":
        return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(numbers)
