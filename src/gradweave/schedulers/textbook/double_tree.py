"""Two binary trees, each for half of the gradient."""

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.textbook.places import Order, Places, check_order
from gradweave.schedulers.textbook.steps import Step, schedule_steps
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Schedule
from gradweave.topology.groups import members_of_groups
from gradweave.topology.topology import Integers, Topology


@dataclasses.dataclass(frozen=True)
class DoubleTree(Scheduler):
    """Half of the gradient over one binary tree, half over another, up to its root and back.

    This is NCCL's algorithm ``tree`` between machines, here between all servers. In the first tree,
    the children of a place are the places half as far to its left and right. The second tree is its
    mirror image (for an odd number of servers, the same tree shifted by one place), so that inner
    servers of one tree are leaves of the other. When cut into parts, the halves use both directions
    of all ports; each server then sends 2·M in all, in about 2·log2 N steps.

    A single stage has one root per half and channel.

    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
        and scan", 2009; NCCL 2.4.
    """

    name: ClassVar[str] = "double_tree"
    forwards: ClassVar[bool] = True
    one_root: ClassVar[bool] = True

    order: Order = "id"
    """Which server is at which place: ascending ids, near servers side by side, or node ids."""
    chains: bool = False
    """Whether the trees only connect groups of servers, such as boxes, and a chain inside each
    group leads to its place in the tree, as in NCCL. There are as many channels as a group has
    servers, each with another server at the head of the chain. Without groups (`nested_groups`), it
    has no effect."""

    def __post_init__(self) -> None:
        check_order(self.order, self.name)
        if self.chains and self.order != "id":
            raise OptionError(f"double_tree: chains: expected order=id with it, got {self.order}")

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        chain = members_of_groups(topology) if self.chains else self._servers(topology)[:, None]
        heads = [chain[:, channel] for channel in range(chain.shape[1])]
        orders = [each for head in heads for each in (head, mirrored(head))]
        trees = [_levels(order) for order in orders]
        steps: list[Step] = []
        if collective != "all_gather":
            steps += [*_chain_steps(chain, REDUCE), *_steps(trees, REDUCE)]
        if collective != "reduce_scatter":
            steps += [*_steps(trees, COPY), *_chain_steps(chain, COPY)]
        roots = np.array([order[0] for order in orders])
        return schedule_steps(topology, collective, roots, steps, np.random.default_rng(seed))

    def _servers(self, topology: Topology) -> NDArray[np.int32]:
        """The server at each place."""
        if self.order == "id":
            return topology.servers
        places = Places.of(topology, self.order, self.name)
        if self.order == "near":
            return np.concatenate([places.core, places.folded])
        return np.array(self.order, np.int32)


def parents(count: int) -> list[int]:
    """[N] the parent of each place in the first tree; −1 at the root, place 0.

    >>> parents(8)
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    if count < 1:
        raise OptionError(f"double_tree: expected at least one place, got {count}")
    above = [-1]
    for place in range(1, count):
        # As in NCCL's ncclGetBtree: the lowest set bit moves up by one, or is cleared if there is
        # no such place.
        low = place & -place
        up = (place ^ low) | (low << 1)
        above.append(up if up < count else place ^ low)
    return above


def mirrored(servers: Integers) -> Integers:
    """The servers at the places of the second tree.

    Args:
        servers: [N] the servers at the places of the first tree.
    """
    return np.roll(servers, -1) if len(servers) % 2 else servers[::-1]


def _chain_steps(members: NDArray[np.int32], op: int) -> list[Step]:
    """The steps of each channel's chains, towards their heads or from them."""
    groups, servers = members.shape
    channel = np.repeat(np.arange(servers), groups)
    group = np.tile(np.arange(groups), servers)
    steps = []
    for hop in range(1, servers):
        far, near = (members[group, (channel + at) % servers] for at in (hop, hop - 1))
        source, target = (far, near) if op == REDUCE else (near, far)
        halves = np.stack([2 * channel, 2 * channel + 1], axis=1)
        steps.append(Step.of(source, target, halves, op))
    return steps[::-1] if op == REDUCE else steps


def _levels(servers: Integers) -> list[tuple[NDArray, NDArray]]:
    """Children and parents level by level, farthest from the root first."""
    above = parents(len(servers))
    depth = [0] * len(above)
    for place in range(1, len(above)):
        up = place
        while up > 0:
            up, depth[place] = above[up], depth[place] + 1
    by_depth = np.array(depth)
    places = [np.flatnonzero(by_depth == d) for d in range(max(depth), 0, -1)]
    return [(servers[one], servers[np.array(above)[one]]) for one in places]


def _steps(trees: list[list[tuple[NDArray, NDArray]]], op: int) -> list[Step]:
    """The steps of all trees in parallel, towards the roots or from them."""
    steps = []
    for level in range(max(map(len, trees))):
        at = level if op == REDUCE else -1 - level
        pairs = [tree[at] for tree in trees if level < len(tree)]
        below, upper = (np.concatenate([pair[end] for pair in pairs]) for end in (0, 1))
        piece = np.repeat(np.arange(len(pairs)), [len(pair[0]) for pair in pairs])
        source, target = (below, upper) if op == REDUCE else (upper, below)
        steps.append(Step(source, target, piece.astype(np.int64), op))
    return steps
