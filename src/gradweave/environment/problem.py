"""A network's scheduling problem as padded arrays: one compiled function serves all networks."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt, UInt32
from numpy.typing import NDArray

from gradweave.environment.bits import narrow, packed
from gradweave.environment.instance import Instance, Size
from gradweave.errors import OptionError

ENDLESS = 2**20
"""Capacity of the extra link that pads routes shorter than the longest."""


class Tables(eqx.Module):
    """Tables derived from a problem's other arrays, in the form that steps use."""

    allowed: UInt32[Array, "H W"]
    """`Problem.allowed`, as bits."""
    unsent: UInt32[Array, "N W"]
    """`Problem.pending`, as bits."""
    complete: UInt32[Array, "N W"]
    """Trees in which each server waits for nothing at the start, as bits."""
    by_sender: UInt32[Array, " W"]
    """`Problem.by_sender`, as bits."""
    reached: UInt32[Array, "2 W"]
    """Trees that are open in each stage, as bits."""
    following: Int[Array, "N Q"]
    """`Problem.then` at each tree's root, else −1."""
    alike: UInt[Array, " H"]
    """A number that is equal for hops that can make the same transfers."""
    links: UInt[Array, "H R"]
    """`Problem.hop_links` in a short type, whose largest number means no link."""
    capacity: UInt[Array, " L"]
    """`Problem.capacity` in the type of `State.used`."""
    transfers: Int[Array, "2"]
    """Number of transfers in each stage."""
    trees: Float[Array, ""]
    """Number of trees without padding."""

    @staticmethod
    def of(problem: Any) -> "Tables":
        """The tables of a problem, or of any object with its other arrays."""
        (servers, trees), (hops, links) = problem.waiting.shape, problem.crosses.shape[::-1]
        late = (problem.allowed & (problem.stage == 1)).any(1)
        alike = jnp.where(problem.grown, problem.receiver + servers * late, jnp.arange(hops))
        no_link, count = problem.hop_links == links - 1, narrow(servers * trees)
        at_root = jnp.arange(servers)[:, None] == problem.root
        of_tree = problem.pending.sum(0)
        return Tables(
            allowed=packed(problem.allowed),
            unsent=packed(problem.pending),
            complete=packed(problem.waiting == 0),
            by_sender=packed(problem.by_sender),
            reached=packed(~problem.barrier | (problem.stage <= jnp.arange(2)[:, None])),
            following=jnp.where(at_root, problem.then, -1),
            alike=alike.astype(narrow(max(hops, 2 * servers))),
            links=jnp.where(no_link, jnp.iinfo(narrow(links)).max, problem.hop_links).astype(
                narrow(links)
            ),
            capacity=jnp.minimum(problem.capacity, min(jnp.iinfo(count).max, ENDLESS)).astype(
                count
            ),
            transfers=jnp.stack([(of_tree * (problem.stage == stage)).sum() for stage in (0, 1)]),
            trees=(of_tree > 0).sum().astype(jnp.float32),
        )


class Problem(eqx.Module):
    """The constants of an episode. Padding is masked: no hop, tree or server of it is used.

    A **tree** is one piece in one stage. A **hop** is a route with only switches inside, from its
    *sender* to its *receiver*. A **workload** is a hop and a tree. With grown trees a
    reduce-scatter is played as an all-gather backward in time: a hop's sender is then the server at
    which its route ends.
    """

    sender: Int[Array, " H"]
    """Server that has to be ready before the hop can be used."""
    receiver: Int[Array, " H"]
    """Server that waits for one transfer less after the hop is used."""
    hop_links: Int[Array, "H R"]
    """Links of each hop's route, padded with the last link, which represents no link."""
    sender_link: Int[Array, " H"]
    """The link of each hop's route at its sender."""
    receiver_link: Int[Array, " H"]
    """The link of each hop's route at its receiver."""
    crosses: Bool[Array, "L H"]
    """Whether a link is on a hop's route; the last link, which is padding, is on none."""
    capacity: Int[Array, " L"]
    """Number of transfers that each link direction carries per round."""
    allowed: Bool[Array, "H Q"]
    """Which workloads exist: with fixed trees those of the trees, otherwise all of the stage."""
    waiting: Int[Array, "N Q"]
    """Number of transfers into each server that it initially waits for before it can send."""
    pending: Bool[Array, "N Q"]
    """Transfers not sent at the start; their rows are senders or receivers: see `by_sender`."""
    by_sender: Bool[Array, " Q"]
    """Whether a transfer's row is its sender (which sends once, in a fixed tree of a
    reduce-scatter) instead of its receiver (which receives once)."""
    root: Int[Array, " Q"]
    """Server at which each tree's piece is reduced, or from which it starts."""
    stage: Int[Array, " Q"]
    """0, or 1 for the all-gather of an all-reduce; padding has a stage that is never reached."""
    then: Int[Array, " Q"]
    """For a tree of a reduce-scatter, the all-gather's tree of the same piece; otherwise −1."""
    height: Int[Array, "N Q"]
    """Number of rounds of the longest chain of transfers that starts with each transfer; 0 with
    grown trees."""
    intake: Int[Array, " N"]
    """Number of transfers that each server can receive per round."""
    bound: Int[Array, "2"]
    """Lower bound on the rounds of each stage."""
    limit: Int[Array, ""]
    """Rounds after which an episode is truncated."""
    grown: Bool[Array, ""]
    """Whether trees grow."""
    barrier: Bool[Array, ""]
    """Whether a stage waits for the preceding stage to end."""
    tables: Tables
    """Tables derived from the other arrays."""

    @staticmethod
    def of(instance: Instance, size: Size | None = None) -> "Problem":
        """An instance's arrays, padded.

        Args:
            instance: the problem on the host.
            size: lengths of the axes; by default unpadded.

        Raises:
            OptionError: an axis is too short.
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
        """The lengths of the axes, without leading batch axes."""
        *_, servers, trees = self.waiting.shape
        *_, hops, route = self.hop_links.shape
        return Size(servers, trees, hops, self.capacity.shape[-1], route)

    @property
    def workloads(self) -> Float[Array, ""]:
        """Number of transfers in a whole episode."""
        return self.tables.transfers.sum(-1).astype(jnp.float32)

    @property
    def trees(self) -> Float[Array, ""]:
        """Number of trees without padding."""
        return self.tables.trees


def stack(problems: Sequence[Problem]) -> Problem:
    """Problems of one size as one batch.

    Args:
        problems: at least one.

    Raises:
        OptionError: their sizes differ.
    """
    sizes = {problem.size for problem in problems}
    if len(sizes) != 1:
        raise OptionError(f"stack: expected problems of one size, got {len(sizes)}: {sizes}")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)


OUT_OF_REACH = 9
"""Stage of the trees that are padding."""

_AXES = {"N": "servers", "Q": "trees", "H": "hops", "L": "links", "R": "route"}


def _padded(given: dict[str, NDArray], size: Size) -> Problem:
    """The arrays, padded to the lengths that the annotations of `Problem` name."""
    no_link, unpadded_no_link = size.links - 1, len(given["capacity"])
    padding = {"hop_links": no_link, "stage": OUT_OF_REACH, "then": -1}
    padded = {}
    for name, array in given.items():
        axes = Problem.__annotations__[name].dim_str.split()
        lengths = [getattr(size, _AXES[axis]) if axis in _AXES else int(axis) for axis in axes]
        padded[name] = np.full(lengths, padding.get(name, 0), array.dtype)
        padded[name][tuple(map(slice, array.shape))] = array
    hop_links, capacity = padded["hop_links"], np.minimum(padded["capacity"], ENDLESS)
    hop_links[hop_links == unpadded_no_link] = no_link
    capacity[no_link] = ENDLESS
    crosses = np.zeros((size.links, size.hops), bool)
    crosses[hop_links.T, np.arange(size.hops)] = True
    crosses[no_link] = False
    padded |= {"capacity": capacity, "crosses": crosses}
    arrays = {
        name: jnp.asarray(value, bool if value.dtype == bool else jnp.int32)
        for name, value in padded.items()
    }
    return Problem(**arrays, tables=Tables.of(SimpleNamespace(**arrays)))
