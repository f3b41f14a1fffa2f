"""Runs demands on torch.distributed: any collectives of any groups in one call of all processes."""

import weakref
from collections.abc import Sequence

import torch

from gradweave.errors import OptionError
from gradweave.execute.layout import Layout
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.backend import Collective, collective_of
from gradweave.execute.torch_distributed.groups import Group
from gradweave.execute.torch_distributed.memory import plain
from gradweave.schedules.given import ScheduleLike, as_schedule

Tensors = torch.Tensor | Sequence[torch.Tensor]
"""One tensor, or several consecutive tensors."""


def exchange(
    send: Tensors,
    receive: Tensors,
    schedule: ScheduleLike,
    group: Group | None = None,
    *,
    reduction: Reduction = "sum",
) -> None:
    """Carries out a demand: any collectives among any groups, such as an all-to-all.

    All processes of the group call it; processes without a part in the demand pass empty tensors.
    The first call with a schedule connects the processes for it.

    Args:
        send: contiguous, with the blocks that this process contributes to, in the demand's order.
            For an all-to-all, these are the blocks for all other processes, by rank. It may be
            several tensors, such as one for each job. It is not changed.
        receive: contiguous and of the same type, for the blocks that this process receives. It may
            be the tensors of `send` if the lengths agree.
        schedule: a schedule of a demand for as many servers as the group has processes; rank r is
            the r-th server in order of id.
        group: the process group; the default group if not given.
        reduction: sum, mean, max or min, for blocks with several contributors.

    Raises:
        ScheduleError: the schedule has no demand, or is for another number of servers.
        OptionError: a tensor has a wrong length or type, or is not contiguous.
        RunError: the processes disagree on schedule, type or reduction.
        LostServerError: a process went away, or was silent for longer than the group's timeout.
    """
    exchange_by(collective_of(as_schedule(schedule), group), send, receive, reduction)


def exchange_by(
    collective: Collective,
    send: Tensors,
    receive: Tensors,
    reduction: Reduction = "sum",
    *,
    block_elements: int | None = None,
) -> None:
    """Does the same as `exchange` by a collective that is kept for many calls.

    Args:
        collective: the collective of a demand.
        send: as for `exchange`.
        receive: as for `exchange`.
        reduction: as for `exchange`.
        block_elements: number of elements in every block, if it differs from the planned size.

    Raises:
        ScheduleError, OptionError, RunError, LostServerError: as for `exchange`.
    """
    given, wanted = _several(send), _several(receive)
    collective.schedule.demanded  # noqa: B018  # refuses a schedule without a demand
    types = {(each.dtype, each.device) for each in (*given, *wanted)}
    if len(types) != 1:
        raise OptionError(
            "send, receive: expected tensors of one type on one device, got "
            + (", ".join(sorted(f"{dtype} on {device}" for dtype, device in types)) or "none")
        )
    ((dtype, device),) = types
    layout = collective.layout(dtype.itemsize, block_elements)
    _check("send", given, layout.count(layout.given))
    _check("receive", wanted, layout.count(layout.wanted))
    workspace = _workspace(collective, layout, dtype, device)
    with torch.no_grad():
        _copy(given, workspace, layout.copies(layout.given), gather=False)
        collective(workspace, reduction=reduction, layout=layout)
        _copy(wanted, workspace, layout.copies(layout.wanted), gather=True)


_kept: weakref.WeakKeyDictionary[Collective, torch.Tensor] = weakref.WeakKeyDictionary()
"""Workspaces for reuse, since writing to fresh memory is slower."""


def _workspace(
    collective: Collective, layout: Layout, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    needed, kept = layout.length * dtype.itemsize, _kept.get(collective)
    if kept is None or kept.numel() < needed or kept.device != device:
        with torch.inference_mode(False):
            kept = torch.empty(needed, dtype=torch.uint8, device=device)
        _kept[collective] = kept
    return kept[:needed].view(dtype)


def _several(tensors: Tensors) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _check(name: str, tensors: list[torch.Tensor], expected: int) -> None:
    """Refuses tensors with a wrong total length, or that are not contiguous."""
    elements = sum(each.numel() for each in tensors)
    if elements != expected or not all(each.is_contiguous() for each in tensors):
        raise OptionError(
            f"{name}: expected {expected:,} contiguous elements, got "
            f"{', '.join(f'{each.numel():,}' for each in tensors) or 'none'}"
            + ("" if elements != expected else ", not contiguous")
        )


def _copy(
    tensors: list[torch.Tensor],
    workspace: torch.Tensor,
    copies: list[tuple[slice, slice]],
    *,
    gather: bool,
) -> None:
    """Copies between a workspace and consecutive tensors.

    Args:
        tensors: the tensors; they are flattened here.
        workspace: the workspace of the server.
        copies: pairs of slices with the same elements, in the workspace and in the tensors.
        gather: whether to copy into the tensors; otherwise from them.
    """
    begin, at = 0, 0
    for flat in (plain(each).view(-1) for each in tensors):
        end = begin + flat.numel()
        while at < len(copies):
            there, here = copies[at]
            first, last = max(here.start, begin), min(here.stop, end)
            if first < last:
                mine = flat[first - begin : last - begin]
                moved = workspace[
                    there.start + first - here.start : there.start + last - here.start
                ]
                (mine if gather else moved).copy_(moved if gather else mine)
            if here.stop > end:
                break
            at += 1
        begin = end
