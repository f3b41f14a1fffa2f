"""A network's scheduling problem as padded arrays: one compiled function serves them all."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedulers.instance import NEVER, Instance, Size, Trees

__all__ = ["NEVER", "Instance", "Problem", "Size", "Trees", "stack"]

ENDLESS = 2**20
"""Capacity of the link that stands for no link in routes shorter than the longest."""


class Problem(eqx.Module):
    """What never changes in an episode. Padding is masked: no hop, tree or server of it is used.

    A **tree** is one piece in one stage. A **hop** is a route with only switches inside, along
    which what its *giver* has goes to its *taker*. A **workload** is a hop and a tree. With grown
    trees a reduce-scatter is played as the all-gather that it is when time runs backward, so that
    a hop's giver is then the server that its route enters.
    """

    giver: Int[Array, " H"]
    """Server that has to be ready before the hop can be used."""
    taker: Int[Array, " H"]
    """Server that is one step nearer to ready after it."""
    hop_links: Int[Array, "H R"]
    """Links of each hop's route; filled up with the last link, which stands for none."""
    giver_link: Int[Array, " H"]
    """The link of each hop's route at its giver's end."""
    taker_link: Int[Array, " H"]
    """The link at its taker's end."""
    crosses: Bool[Array, "L H"]
    """Whether a link lies on a hop's route; nothing lies on the last link."""
    capacity: Int[Array, " L"]
    """Transfers that each link direction carries in a round."""
    allowed: Bool[Array, "H Q"]
    """Which workloads exist: with fixed trees those of the trees, else all of the stage."""
    waiting: Int[Array, "N Q"]
    """Transfers into each server that it waits for before it can give, at the start."""
    pending: Bool[Array, "N Q"]
    """Transfers to come at the start, by the server that stands for them: see `at_giver`."""
    at_giver: Bool[Array, " Q"]
    """Whether a tree's transfers are told apart by the server that gives (it gives once: a fixed
    tree of a reduce-scatter) rather than by the one that takes (it takes once)."""
    root: Int[Array, " Q"]
    """Server at which each tree's piece is reduced, or starts from."""
    stage: Int[Array, " Q"]
    """0, or 1 for the all-gather of an all-reduce; that of padding is out of reach."""
    then: Int[Array, " Q"]
    """The all-gather's tree of the same piece, for a reduce-scatter's tree; −1 for none."""
    height: Int[Array, "N Q"]
    """Rounds that the longest chain of transfers takes which each begins; 0 with grown trees."""
    intake: Int[Array, " N"]
    """Transfers that each server can take in a round."""
    bound: Int[Array, "2"]
    """Lower bound on each stage's rounds."""
    limit: Int[Array, ""]
    """Rounds after which an episode is truncated."""
    grown: Bool[Array, ""]
    """Whether trees grow."""
    barrier: Bool[Array, ""]
    """Whether a stage waits for the one before it to end."""

    @staticmethod
    def of(instance: Instance, size: Size | None = None) -> "Problem":
        """An instance's arrays, padded.

        Args:
            instance: the problem on the host.
            size: the axes' lengths; as they are if not given.

        Raises:
            OptionError: where an axis is too short.
        """
        size = size or instance.size
        for axis, wanted in dataclasses.asdict(instance.size).items():
            if getattr(size, axis) < wanted:
                raise OptionError(
                    f"size: {instance.topology.name!r} needs {axis} of {wanted} or more, "
                    f"got {getattr(size, axis)}"
                )
        return _padded(instance.arrays, size)

    @property
    def size(self) -> Size:
        """The lengths of the axes, leading batch axes apart."""
        *_, servers, trees = self.waiting.shape
        *_, hops, route = self.hop_links.shape
        return Size(servers, trees, hops, self.capacity.shape[-1], route)

    @property
    def workloads(self) -> Float[Array, ""]:
        """Transfers of a whole episode."""
        return self.pending.sum((-2, -1)).astype(jnp.float32)

    @property
    def trees(self) -> Float[Array, ""]:
        """Trees that are no padding."""
        return self.pending.any(-2).sum(-1).astype(jnp.float32)


def stack(problems: Sequence[Problem]) -> Problem:
    """Problems of one size as one batch.

    Args:
        problems: at least one.

    Raises:
        OptionError: where their sizes differ.
    """
    sizes = {problem.size for problem in problems}
    if len(sizes) != 1:
        raise OptionError(f"stack: expected problems of one size, got {len(sizes)}: {sizes}")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)


OUT_OF_REACH = 9
"""Stage of the trees that are padding."""


def _padded(arrays: dict[str, NDArray], size: Size) -> Problem:
    """The arrays at their full lengths."""
    none = size.links - 1
    own_links = len(arrays["capacity"])
    table = arrays["hop_links"]
    table = np.where(table == own_links, none, table)
    lengths = {
        "giver": (size.hops,),
        "taker": (size.hops,),
        "giver_link": (size.hops,),
        "taker_link": (size.hops,),
        "allowed": (size.hops, size.trees),
        "waiting": (size.servers, size.trees),
        "pending": (size.servers, size.trees),
        "height": (size.servers, size.trees),
        "intake": (size.servers,),
        "at_giver": (size.trees,),
        "root": (size.trees,),
    }
    padded = {
        name: np.pad(
            arrays[name], [(0, n - m) for n, m in zip(to, arrays[name].shape, strict=True)]
        )
        for name, to in lengths.items()
    }
    hop_links = np.full((size.hops, size.route), none)
    hop_links[: table.shape[0], : table.shape[1]] = table
    crosses = np.zeros((size.links, size.hops), bool)
    crosses[hop_links.T, np.arange(size.hops)] = True
    crosses[none] = False
    capacity = np.zeros(size.links, np.int64)
    capacity[:own_links] = arrays["capacity"]
    capacity[none] = ENDLESS
    more = size.trees - len(arrays["stage"])
    padded |= {
        "hop_links": hop_links,
        "crosses": crosses,
        "capacity": np.minimum(capacity, ENDLESS),
        "stage": np.pad(arrays["stage"], (0, more), constant_values=OUT_OF_REACH),
        "then": np.pad(arrays["then"], (0, more), constant_values=-1),
        **{name: arrays[name] for name in ("bound", "limit", "grown", "barrier")},
    }
    return Problem(
        **{
            name: jnp.asarray(value, bool if value.dtype == bool else jnp.int32)
            for name, value in padded.items()
        }
    )
