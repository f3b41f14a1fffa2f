"""Orders in which a stage computes its micro-batches: GPipe, 1F1B, interleaved."""

import dataclasses
from typing import Literal, get_args

from gradweave.errors import OptionError

Order = Literal["gpipe", "1f1b", "interleaved"]
"""``gpipe``: all forward passes, then all backward passes. ``1f1b``: from the first backward pass
on, backward and forward passes alternate, so that no more activations are kept than there are
stages after it. ``interleaved``: 1F1B with several chunks of the model on each device, which
shortens the bubble but sends more messages."""
ORDERS: tuple[str, ...] = get_args(Order)


@dataclasses.dataclass(frozen=True)
class Pass:
    """One micro-batch through one chunk of one stage."""

    backward: bool
    microbatch: int
    chunk: int = 0


def stage_order(
    order: Order, stage: int, stages: int, microbatches: int, chunks: int = 1
) -> list[Pass]:
    """The passes of a stage, in order.

    Args:
        order: see `Order`.
        stage: from 0.
        stages: S.
        microbatches: M.
        chunks: number of chunks of the model on each device, for ``interleaved``.

    Raises:
        OptionError: for an unknown order, or numbers that the order does not allow.

    Source: Huang et al. 2019 (GPipe); Narayanan et al. 2021, "Efficient large-scale language model
        training on GPU clusters using Megatron-LM" (1F1B, interleaved).

    >>> [f"{'B' if one.backward else 'F'}{one.microbatch}" for one in stage_order("1f1b", 1, 3, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    if order not in ORDERS:
        raise OptionError(f"order: expected one of {', '.join(ORDERS)}, got {order!r:.60}")
    if order != "interleaved" and chunks != 1:
        raise OptionError(f"chunks: expected 1 for {order}, got {chunks}; interleaved takes more")
    if chunks < 1:
        raise OptionError(f"chunks: expected at least 1, got {chunks}")
    if order == "interleaved" and microbatches % stages:
        raise OptionError(
            f"microbatches: interleaved expects a multiple of {stages}, the stages, got "
            f"{microbatches}"
        )
    count = microbatches * chunks
    forward = [_pass(False, place, stages, chunks) for place in range(count)]
    backward = [_pass(True, place, stages, chunks) for place in range(count)]
    if order == "gpipe":
        ahead = count
    elif order == "1f1b":
        ahead = min(count, stages - 1 - stage)
    else:
        ahead = min(count, 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    passes = forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        passes += [one, other]
    return passes + backward[count - ahead :]


def _pass(backward: bool, place: int, stages: int, chunks: int) -> Pass:
    """The pass at a place in the order: S micro-batches go through each chunk in turn."""
    if chunks == 1:
        return Pass(backward, place)
    group, within = divmod(place, stages * chunks)
    chunk, microbatch = divmod(within, stages)
    return Pass(backward, group * stages + microbatch, chunks - 1 - chunk if backward else chunk)
