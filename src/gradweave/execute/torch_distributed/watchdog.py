"""Ends collectives that do not progress, if another mechanism finds out who was lost."""

from datetime import timedelta

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.pending import PendingCollective

_POLL_S = 0.25


class Watchdog:
    """Ends a collective in which no message is completed for a timeout, or on request.

    A process that gives up closes its connections, so that its neighbours give up as well. A
    watchdog takes the place of a `LossDetector`, and names nobody.

    Args:
        timeout: the timeout for a message.
    """

    def __init__(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()
        self._call: PendingCollective | None = None

    def watch(self, call: PendingCollective) -> None:
        """Waits until a collective is over."""
        self._call = call
        while not call.over.wait(_POLL_S):
            if call.still_s() > self._timeout_s:
                call.fail(RunError(f"no message was completed for {self._timeout_s:g} s"))
        self._call = None

    def abort(self) -> None:
        """Ends the collective in progress; any thread may call it."""
        if (call := self._call) is not None:
            call.fail(RunError("the collective was aborted"))

    def explain(self, error: RuntimeError, peer: int | None) -> RunError:
        """The error to raise after an error of gloo's.

        Args:
            error: gloo's error.
            peer: rank of the process that the message was for; None if there were many.
        """
        of = "" if peer is None else f"rank {peer}: "
        return RunError(f"torch.distributed: {of}{error}")

    def linger(self) -> None:
        """Does nothing: a watchdog waits for nobody."""
