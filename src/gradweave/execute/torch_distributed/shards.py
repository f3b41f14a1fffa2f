"""All-gathers and reduce-scatters of shards: rank r has the r-th of N equal parts."""

import functools
import weakref
from fractions import Fraction

import numpy as np
import torch

from gradweave.errors import OptionError, ScheduleError
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.backend import Collective, Group
from gradweave.execute.torch_distributed.memory import plain, read
from gradweave.schedules.schedule import Schedule
from gradweave.schedules.shares import apportion


def sharded(schedule: Schedule) -> Schedule:
    """The schedule with its pieces in the order of their roots' ranks.

    In this order, each server roots one contiguous part of a tensor: rank r roots the r-th part.
    The transfers and the bits of every sum remain the same.

    Args:
        schedule: a reduce-scatter or an all-gather in which each of N servers roots 1/N.

    Raises:
        ScheduleError: it is an all-reduce, or a server roots a different share.

    >>> import gradweave as gw
    >>> net = gw.topology.ring(3)
    >>> stage = gw.schedulers.Ring().schedule(net, collective="reduce_scatter")
    >>> sharded(stage).root.tolist()
    [0, 1, 2]
    """
    if schedule.collective == "all_reduce":
        raise ScheduleError(
            "expected a schedule of collective reduce_scatter or all_gather, got all_reduce; make "
            "one of each (--collective), or reverse the one into the other"
        )
    topology = schedule.topology
    rank, servers, total = topology.rank[schedule.root], topology.num_servers, _rooted(schedule)
    wrong = np.flatnonzero(total * servers != total.sum())
    if wrong.size:
        first = int(wrong[0])
        name = topology.node_name(int(topology.servers[first]))
        share = Fraction(int(total[first]), int(total.sum()))
        raise ScheduleError(
            f"{name} is the root of {share} of the gradient, but shards are 1/{servers} each; use "
            "a schedule for rounds, or a strategy that divides evenly, such as merged or grown"
        )
    order = np.argsort(rank, kind="stable")
    if (order == np.arange(schedule.pieces)).all():
        return schedule
    place = np.empty_like(order)
    place[order] = np.arange(schedule.pieces)
    return schedule.replace(
        root=schedule.root[order],
        piece=place[schedule.piece],
        shares=None if schedule.shares is None else schedule.shares[order],
    )


def all_gather_into(collective: Collective, output: torch.Tensor, input: torch.Tensor) -> None:
    """Fills a tensor with the parts of all processes, in rank order.

    Args:
        collective: an all-gather of a `sharded` schedule.
        output: contiguous, of any type, with N times the elements of the input.
        input: this process's part; if it is a view of that part of the output, nothing is copied.

    Raises:
        OptionError: the tensors do not fit together.
        RunError, LostServerError: see `Collective`.
    """
    mine = _part(collective, "all_gather", output, input, "output", "input")
    if mine.data_ptr() != input.data_ptr():
        mine.copy_(read(input))
    # As bytes, since nothing is added: so types without addition can be gathered as well.
    whole = plain(output).view(-1).view(torch.uint8)
    collective(whole, at=_offsets(collective.schedule, mine.nbytes))


def reduce_scatter_into(
    collective: Collective,
    output: torch.Tensor,
    input: torch.Tensor,
    reduction: Reduction = "sum",
    *,
    keep_input: bool = True,
) -> None:
    """Reduces the tensors of all processes; each process gets the part of its rank.

    Args:
        collective: a reduce-scatter of a `sharded` schedule.
        output: this process's part.
        input: contiguous, with N times the elements of the output.
        reduction: sum, mean, max or min.
        keep_input: whether to preserve the input, which is then copied into memory that is kept as
            long as the group; if not, it holds undefined values afterwards.

    Raises:
        OptionError: the tensors do not fit together, or their type has no such reduction.
        RunError, LostServerError: see `Collective`.
    """
    mine = _part(collective, "reduce_scatter", input, output, "input", "output")
    whole = plain(input).view(-1)
    if keep_input:
        whole = _copy(whole, collective.group)
        mine = _part(collective, "reduce_scatter", whole, output, "input", "output")
    offsets = _offsets(collective.schedule, mine.numel())
    collective(whole, reduction=reduction, at=offsets)
    plain(output).copy_(mine.view(output.shape))


_kept: weakref.WeakKeyDictionary[Group, torch.Tensor] = weakref.WeakKeyDictionary()
"""Memory for copies, by group: fresh memory takes almost three times as long to write."""


def _copy(flat: torch.Tensor, group: Group) -> torch.Tensor:
    """A copy of a flat tensor, valid until the next copy for the group."""
    kept = _kept.get(group)
    if kept is None or kept.numel() < flat.nbytes or kept.device != flat.device:
        with torch.inference_mode(False):
            kept = torch.empty(flat.nbytes, dtype=torch.uint8, device=flat.device)
        _kept[group] = kept
    return kept[: flat.nbytes].view(flat.dtype).copy_(flat)


def _rooted(schedule: Schedule) -> np.ndarray:
    """[N] sum of the weights of the pieces that each server roots, by rank."""
    topology = schedule.topology
    total = np.zeros(topology.num_servers, np.int64)
    np.add.at(total, topology.rank[schedule.root], schedule.weights)
    return total


def _part(
    collective: Collective,
    expected: str,
    whole: torch.Tensor,
    part: torch.Tensor,
    whole_name: str,
    part_name: str,
) -> torch.Tensor:
    """This process's part of the whole tensor, flat."""
    schedule, length, servers = collective.schedule, part.numel(), collective.size
    if schedule.collective != expected:
        raise OptionError(f"collective: expected {expected}, got {schedule.collective}")
    if whole.numel() != servers * length or whole.dtype != part.dtype:
        raise OptionError(
            f"{whole_name}: expected {servers * length} elements of {part.dtype}, {servers} times "
            f"those of the {part_name}, got {whole.numel()} of {whole.dtype}"
        )
    if not whole.is_contiguous():
        raise OptionError(f"{whole_name}: expected a contiguous tensor")
    return plain(whole).view(-1)[collective.rank * length : (collective.rank + 1) * length]


@functools.lru_cache(maxsize=256)
def _offsets(schedule: Schedule, length: int) -> tuple[int, ...]:
    """[P+1] start of each piece if each server roots that many elements.

    `Schedule.piece_offsets` divides the whole tensor instead, so the first roots may get more.
    """
    rank = schedule.topology.rank[schedule.root]
    cuts = np.searchsorted(rank, np.arange(1, schedule.topology.num_servers))
    sizes = [apportion(length, weights) for weights in np.split(schedule.weights, cuts)]
    return (0, *np.cumsum(np.concatenate(sizes)).tolist())
