"""All-to-alls whose parts have the same size at all ranks, which no rank can see by itself."""

import torch
import torch.distributed as dist

from gradweave.torch.calls import AllToAll, SizeClass, all_reduce_options

VOTE_EVERY, VOTE_FOR = 8, 4
"""All-to-alls between votes, and from a vote to its count; see `choice.Choices`."""
VOTES = 8
"""Number of votes without agreement after which no plan is requested."""


class EqualParts:
    """Finds out whether all parts of a group's all-to-alls have the same size.

    A rank with equal parts, or without a list of sizes, cannot tell whether the parts of the other
    ranks are equal. So the ranks vote on the size in every eighth call until all of them report
    the same size. From then on, all all-to-alls are calls of that class; if a plan runs them, each
    call confirms the size first (`AllToAll.by_plan`).

    Args:
        own: the group's backend.
    """

    def __init__(self, own: dist.ProcessGroup) -> None:
        self._own = own
        self._calls = self._votes = 0
        self._vote: tuple[int, torch.Tensor, dist.Work] | None = None
        self._agreed: SizeClass | None = None

    def of(self, call: AllToAll) -> SizeClass | None:
        """The class of the next call, the same at all ranks, or None until they agree on a size."""
        if self._agreed is None:
            self._advance(call)
        if self._agreed is not None:
            call.fits = call.equal and SizeClass.of(call) == self._agreed
        return self._agreed

    def _advance(self, call: AllToAll) -> None:
        if self._vote is None and self._votes < VOTES and self._calls % VOTE_EVERY == 0:
            size = SizeClass.of(call).size if call.equal else 0
            ballot = torch.tensor([size, -size])
            work = self._own.allreduce([ballot], all_reduce_options(dist.ReduceOp.MIN))
            self._vote = self._calls + VOTE_FOR, ballot, work
        if self._vote is not None and self._calls >= self._vote[0]:
            _, ballot, work = self._vote
            work.wait()
            self._vote, self._votes = None, self._votes + 1
            least, most = ballot.tolist()
            if least == -most > 0:
                self._agreed = SizeClass("all_to_all", least)
        self._calls += 1
