"""A work of PyTorch's that is known to be over only once its caller has waited for it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_FOREVER = timedelta(0)
"""What PyTorch calls no timeout of `wait`: the group's own holds."""


class AwaitedWork(dist.Work):
    """Hands everything on to another work, and tells how the wait for it ended.

    gloo's messages and reduce-scatters are such: they never say that they are completed before.

    Args:
        own: PyTorch's.
        begun: called at the begin of a wait.
        ended: called at its end, with its error or None.
    """

    def __init__(
        self, own: Any, begun: Callable[[], None], ended: Callable[[BaseException | None], None]
    ) -> None:
        super().__init__()
        self._own, self._begun, self._ended = own, begun, ended

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """As PyTorch has it."""
        self._begun()
        try:
            done = self._own.wait(timeout) if timeout > _FOREVER else self._own.wait()
        except RuntimeError as error:
            self._ended(error)
            raise
        self._ended(None)
        return done

    def synchronize(self) -> None:
        """As PyTorch has it."""
        self._own.synchronize()

    def get_future(self) -> torch.futures.Future[Any]:
        """As PyTorch has it."""
        return self._own.get_future()

    def is_completed(self) -> bool:
        """As PyTorch has it."""
        return self._own.is_completed()

    def is_success(self) -> bool:
        """As PyTorch has it."""
        return self._own.is_success()

    def exception(self) -> Any:
        """As PyTorch has it."""
        return self._own.exception()

    def result(self) -> list[torch.Tensor]:
        """As PyTorch has it."""
        return self._own.result()

    def source_rank(self) -> int:
        """As PyTorch has it."""
        return self._own.source_rank()
