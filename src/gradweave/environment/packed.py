"""One stage of a problem, laid out for `rollouts`: trees are bits of words, hops stand in a grid.

Everything here is computed on the host, once for a problem; the rollouts' program holds it as
constants. Axes, beside those of `Problem`: W words of 32 trees each; P places of the grid of G
groups by K rows that the hops stand in, the last places empty.
"""

import dataclasses
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.environment.problem import Problem
from gradweave.environment.state import packed
from gradweave.errors import OptionError

MOST = 2**16 - 1
"""Workloads of a stage at most: two numbers up to this are kept in one word."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The problem of one stage: what is sent before or behind the barrier."""

    servers: int
    """N."""
    trees: NDArray[np.int64]
    """[Q] numbers of the stage's trees in the whole problem; here they count from 0."""
    hops: NDArray[np.int64]
    """[H] numbers of the stage's hops in the whole problem; a hop's place is its index."""
    groups: int
    """G: a hop stands in group ``place % G``."""
    rows: int
    """K: hops of a group."""
    sender: NDArray[np.int64]
    """[P] server that each hop sends from."""
    receiver: NDArray[np.int64]
    """[P] server that it sends to."""
    row_server: NDArray[np.int64]
    """[P] server whose rows of [N, Q] arrays the hop's transfers have: see `Problem.by_sender`."""
    allowed: NDArray[np.uint32]
    """[P, W] trees of each hop."""
    links: NDArray[np.int64]
    """[P, R] links of each hop's route: first, last, then those between; L stands for none."""
    capacity: NDArray[np.int64]
    """[L] transfers that each link carries in a round."""
    pending: NDArray[np.uint32]
    """[N·W] transfers to come, by row."""
    by_sender: bool
    """Whether rows are senders': a fixed tree's reduces."""
    grown: bool
    """Whether a transfer can take one of several hops."""
    workloads: int
    """Workloads of the stage."""
    most: int
    """Workloads of the hop with the most."""

    @property
    def words(self) -> int:
        """W."""
        return self.allowed.shape[1]

    @property
    def places(self) -> int:
        """P."""
        return len(self.sender)

    @property
    def route(self) -> int:
        """R."""
        return self.links.shape[1]

    @property
    def no_link(self) -> int:
        """L."""
        return len(self.capacity)

    @cached_property
    def one_each(self) -> bool:
        """Whether each link carries one transfer a round, so that sending blocks its hop."""
        return bool((self.capacity[self.links[self.links < self.no_link]] == 1).all())

    @cached_property
    def compared(self) -> list[tuple[int, int]]:
        """Positions on two routes that may name the same link, of links compared one by one.

        That is cheap where there are few such pairs; the rest is `looked_up`. First and last links
        are mostly servers' own, and found at no other position.
        """
        if not self.one_each:
            return []
        sets = [set(column.tolist()) - {self.no_link} for column in self.links.T]
        positions = range(self.route)
        apart = [r for r in positions if not any(sets[r] & sets[q] for q in positions if q != r)]
        mixed = [r for r in positions if r not in apart]
        pairs = [(r, r) for r in apart]
        return pairs + [(r, q) for r in mixed for q in mixed] if len(mixed) <= 2 else pairs

    @cached_property
    def looked_up(self) -> list[int]:
        """Positions whose links are looked up among those that are full."""
        return [r for r in range(self.route) if r not in {pair[0] for pair in self.compared}]

    @cached_property
    def listed(self) -> NDArray[np.int64]:
        """[F] the links to look up."""
        found = np.unique(self.links[:, self.looked_up])
        return found[found < self.no_link]

    def place_in_list(self, position: int) -> NDArray[np.int64]:
        """[P] where each hop's link at a position stands in the list; F for no link."""
        return np.searchsorted(self.listed, self.links[:, position])

    @cached_property
    def prefixes(self) -> list[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """For reduces on fixed trees: ([N] a child of each server, [N, W] in which trees), all."""
        if not self.by_sender:
            return []
        into: list[list[int]] = [[] for _ in range(self.servers)]
        for place in range(len(self.hops)):
            into[self.receiver[place]].append(place)
        found = []
        for nth in range(max(map(len, into))):
            place = np.array([places[nth] if nth < len(places) else 0 for places in into])
            exists = np.array([nth < len(places) for places in into])
            found.append(
                (self.sender[place], np.where(exists[:, None], self.allowed[place], np.uint32(0)))
            )
        return found


def stages(problem: Problem) -> list[Stage]:
    """The stages of a problem in which a barrier keeps them apart.

    Raises:
        OptionError: where stages overlap, or one has too many workloads.
    """
    host = jax.tree.map(np.asarray, problem)
    numbers = np.unique(host.stage[host.pending.any(0)])
    if len(numbers) > 1 and not host.barrier:
        raise OptionError("rollouts: expected a barrier between the stages; they overlap")
    return [_stage(host, int(number)) for number in numbers]


def _stage(host: Problem, number: int) -> Stage:
    allowed, pending = np.asarray(host.allowed), np.asarray(host.pending)
    trees = np.flatnonzero((np.asarray(host.stage) == number) & pending.any(0))
    hops = np.flatnonzero(allowed[:, trees].any(1))
    here = allowed[np.ix_(hops, trees)]
    if here.sum() > MOST:
        raise OptionError(
            f"rollouts: expected at most {MOST:,} workloads a stage, got {here.sum():,}; "
            "play it with SchedulingEnvironment"
        )
    rows = max(2, round((len(hops) / 3) ** 0.5))  # groups are cheaper to go through than rows
    groups = -(-len(hops) // rows)
    more = groups * rows - len(hops)
    sender, receiver = (
        np.pad(np.asarray(end)[hops], (0, more)) for end in (host.sender, host.receiver)
    )
    by_sender = bool(host.by_sender[trees[0]])
    capacity = np.asarray(host.capacity)[:-1].astype(np.int64)
    links = np.full((groups * rows, host.hop_links.shape[1]), len(capacity))
    for place, route in enumerate(np.asarray(host.hop_links)[hops]):
        first, *others = route[route < len(capacity)]
        ordered = [first, *others[-1:], *others[:-1]]
        links[place, : len(ordered)] = ordered
    return Stage(
        servers=pending.shape[0],
        trees=trees,
        hops=hops,
        groups=groups,
        rows=rows,
        sender=sender,
        receiver=receiver,
        row_server=sender if by_sender else receiver,
        allowed=np.pad(np.asarray(packed(jnp.asarray(here))), ((0, more), (0, 0))),
        links=links,
        capacity=capacity,
        pending=np.asarray(packed(jnp.asarray(pending[:, trees]))).reshape(-1),
        by_sender=by_sender,
        grown=bool(host.grown),
        workloads=int(here.sum()),
        most=int(here.sum(1).max()),
    )
