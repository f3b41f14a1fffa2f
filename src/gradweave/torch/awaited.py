"""Wraps a PyTorch work that reports completion only after its caller has waited for it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradweave.torch.wrapper import untraced

_FOREVER = timedelta(0)
"""PyTorch's value for a `wait` without a timeout: the timeout of the group applies."""


class AwaitedWork(dist.Work):
    """Forwards everything to another work, and reports how the wait for it ended.

    gloo's messages and reduce-scatters need this: they report completion only after a wait.

    Args:
        own: PyTorch's work.
        begun: called when a wait begins.
        ended: called when it ends, with its error or None.
    """

    def __init__(
        self, own: Any, begun: Callable[[], None], ended: Callable[[BaseException | None], None]
    ) -> None:
        super().__init__()
        self._own, self._begun, self._ended = own, begun, ended

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """See `torch.distributed.Work`."""
        self._begun()
        try:
            done = self._own.wait(timeout) if timeout > _FOREVER else self._own.wait()
        except RuntimeError as error:
            self._ended(error)
            raise
        self._ended(None)
        return done

    def synchronize(self) -> None:
        """See `torch.distributed.Work`."""
        self._own.synchronize()

    def get_future(self) -> torch.futures.Future[Any]:
        """See `torch.distributed.Work`."""
        return self._own.get_future()

    def is_completed(self) -> bool:
        """See `torch.distributed.Work`."""
        return self._own.is_completed()

    def is_success(self) -> bool:
        """See `torch.distributed.Work`."""
        return self._own.is_success()

    def exception(self) -> Any:
        """See `torch.distributed.Work`."""
        return self._own.exception()

    def result(self) -> list[torch.Tensor]:
        """See `torch.distributed.Work`."""
        return self._own.result()

    def source_rank(self) -> int:
        """See `torch.distributed.Work`."""
        return self._own.source_rank()


untraced(AwaitedWork)
