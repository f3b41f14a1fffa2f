"""Implicit schedules: the trees of a few pieces, and a group that moves them to all servers."""

import copy
import dataclasses
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import counted
from gradweave.errors import ScheduleError
from gradweave.schedules.columns import constant, frozen, narrowest
from gradweave.schedules.schedule import (
    COLLECTIVES,
    COPY,
    Collective,
    Provenance,
    Schedule,
    StatedBound,
    take_rows,
)
from gradweave.topology.topology import Topology
from gradweave.topology.translations import Translations

MAX_EXPANDED = 1 << 29
"""Most transfers to which a schedule is expanded: an all-reduce of 16,384 servers, which takes 5 to
6 GB."""


@dataclasses.dataclass(frozen=True, eq=False)
class ImplicitSchedule:
    """A schedule that consists of the images of a few pieces' transfers under a group.

    Every element of the group maps the base's transfers to those of other pieces, in the same
    rounds; together they are a collective of one piece per server. Only the base is stored: its
    size grows with the number of servers N, not with N². `gradweave.verify` checks the whole by
    orbits.

    Raises:
        ScheduleError: the base is no all-gather of equal pieces, a route does not lead from its
            source to its target, or the group is for another number of nodes.

    Source: docs/concepts/verifier.md.

    >>> import gradweave as gw
    >>> plan = gw.schedulers.implicit("torus:8x8")
    >>> plan
    ImplicitSchedule(all_reduce on 'torus:8x8': 64 images of 126 transfers in 32 rounds)
    >>> gw.verify(plan).valid, plan.expand().num_transfers
    (True, 8064)
    """

    base: Schedule
    """An all-gather with one piece per orbit of servers, rooted at one server of each orbit."""
    symmetry: Translations
    """The group: automorphisms of the base's network."""
    collective: Collective = "all_reduce"
    """The reduce-scatter is the all-gather reversed, as by `gradweave.schedules.reverse`."""

    def __post_init__(self) -> None:
        base, symmetry = self.base, self.symmetry
        if self.collective not in COLLECTIVES:
            raise ScheduleError(
                f"collective: expected one of {', '.join(COLLECTIVES)}, got {self.collective!r}"
            )
        if base.kind != "all_gather" or base.shares is not None:
            raise ScheduleError(
                f"base: expected an all_gather of equal pieces, got {base.kind}"
                + ", of unequal pieces" * (base.shares is not None)
            )
        ends = (
            base.route_nodes[base.route_offsets[:-1]],
            base.route_nodes[base.route_offsets[1:] - 1],
        )
        wrong = np.flatnonzero((ends[0] != base.source) | (ends[1] != base.target))
        if wrong.size:
            row = int(wrong[0])
            raise ScheduleError(
                f"base: route[{row}] runs from {ends[0][row]} to {ends[1][row]}; expected "
                f"{base.source[row]} to {base.target[row]}"
            )
        if symmetry.num_nodes != base.topology.num_nodes:
            raise ScheduleError(
                f"symmetry: its layers have {counted(symmetry.num_nodes, 'node')}; expected "
                f"{base.topology.num_nodes:,}, as the network has"
            )

    @property
    def topology(self) -> Topology:
        """The network."""
        return self.base.topology

    @cached_property
    def base_collective(self) -> Schedule:
        """The transfers of the base's pieces in the whole collective."""
        return _in_whole(self.base, self.collective)

    @property
    def rounds(self) -> int:
        """Number of rounds: those of the base's collective."""
        return self.base_collective.rounds

    @property
    def pieces(self) -> int:
        """P, the number of pieces of all images."""
        return self.base.pieces * self.symmetry.order

    @property
    def num_transfers(self) -> int:
        """T, the number of transfers of all images."""
        return self.base_collective.num_transfers * self.symmetry.order

    @property
    def scheduler(self) -> Provenance:
        """The scheduler that made the base."""
        return self.base.scheduler

    @property
    def bound(self) -> StatedBound | None:
        """The lower bound on the rounds of the collective that its file states."""
        return self.base.bound

    def of_rank(self, rank: int) -> Schedule:
        """The transfers in which one server takes part: its program, in order of rounds.

        Server r takes part in an image of a base transfer if the element that makes the image maps
        the transfer's source or target to r. There is at most one such element for each, so this
        takes time in proportion to the base, not to all transfers.

        Args:
            rank: the server's rank.

        Returns:
            These transfers, as a schedule with all N pieces; valid only with those of the others.

        Raises:
            ScheduleError: there is no such rank.
        """
        topology, whole, symmetry = self.topology, self.base_collective, self.symmetry
        if not 0 <= rank < topology.num_servers:
            raise ScheduleError(f"rank: expected 0 to {topology.num_servers - 1}, got {rank}")
        server = topology.servers[rank]
        orbit = symmetry.orbit[server]
        rows, shifts = [], []
        for ends in (whole.source, whole.target):
            mine = np.flatnonzero(symmetry.orbit[ends] == orbit)
            rows.append(mine)
            shifts.append(symmetry.shift_between(ends[mine], server))
        order = np.argsort(np.concatenate(rows), kind="stable")
        row, shift = np.concatenate(rows)[order], np.concatenate(shifts)[order]
        nodes, offsets = take_rows(whole.route_nodes, whole.route_offsets, row)
        nodes = symmetry.moved(nodes, np.repeat(shift, np.diff(offsets), axis=0))
        return Schedule(
            topology=topology,
            collective=self.collective,
            root=topology.servers,
            round=whole.round[row],
            piece=topology.rank[symmetry.moved(whole.root[whole.piece[row]], shift)],
            source=nodes[offsets[:-1]],
            target=nodes[offsets[1:] - 1],
            op=whole.op[row],
            route_nodes=nodes,
            route_offsets=offsets,
            scheduler=self.scheduler,
        )

    def expand(self) -> Schedule:
        """The schedule with all transfers written out: N pieces, piece r rooted at server r.

        Raises:
            ScheduleError: it has more than `MAX_EXPANDED` transfers, or not one piece per server.
        """
        if self.pieces != self.topology.num_servers:
            raise ScheduleError(
                f"expand: {self.pieces:,} pieces; expected {self.topology.num_servers:,}, one per "
                "server"
            )
        if self.num_transfers > MAX_EXPANDED:
            raise ScheduleError(
                f"expand: {self.num_transfers:,} transfers; at most {MAX_EXPANDED:,} are written "
                "out. Its base, and each rank's program, need no expansion"
            )
        elements = self.symmetry.elements()[:, None]
        gather = images(
            self.base, self.symmetry.order, lambda nodes: self.symmetry.moved(nodes, elements)
        )
        whole = _in_whole(gather, self.collective)
        return whole.replace(scheduler=self.scheduler, bound=self.bound)

    def replace(self, *, scheduler: Provenance, bound: StatedBound | None) -> "ImplicitSchedule":
        """The same schedule with another provenance and bound."""
        same = copy.copy(self)
        vars(same)["base"] = self.base.replace(scheduler=scheduler, bound=bound)
        vars(same).pop("base_collective", None)
        return same

    def save(self, path: str | Path) -> None:
        """Writes the file of the implicit schedule in JSON, gzipped if the name ends in ``.gz``.

        Raises:
            FileError: the file cannot be written.
            ScheduleError: the network's name does not make it.
        """
        from gradweave.schedules.file import save

        save(self, path)

    def __repr__(self) -> str:
        return (
            f"ImplicitSchedule({self.collective} on {self.topology.name!r}: "
            f"{counted(self.symmetry.order, 'image')} of "
            f"{counted(self.base_collective.num_transfers, 'transfer')} in "
            f"{counted(self.rounds, 'round')})"
        )


def _in_whole(gather: Schedule, collective: Collective) -> Schedule:
    """The transfers of an all-gather's pieces in a collective."""
    from gradweave.schedules.compose import compose, reverse

    if collective == "all_gather":
        return gather
    scatter = reverse(gather)
    return scatter if collective == "reduce_scatter" else compose(scatter, gather)


def images(base: Schedule, order: int, moved: Callable[[NDArray], NDArray]) -> Schedule:
    """The all-gather of all images of some pieces: base transfer by base transfer, then by element.

    Args:
        base: an all-gather of one piece per orbit of servers.
        order: G, the number of elements.
        moved: (nodes [K]) -> [G, K] their images under each element.
    """
    topology, lengths = base.topology, np.diff(base.route_offsets)
    kind = narrowest(topology.num_nodes, base.num_transfers * order)
    nodes = np.empty(int(lengths.sum()) * order, kind)
    for begin, end in zip(base.route_offsets[:-1], base.route_offsets[1:], strict=True):
        nodes[begin * order : end * order] = moved(base.route_nodes[begin:end]).ravel()
    frozen(nodes)
    if len(set(lengths.tolist())) == 1:
        offsets = int(lengths[0])
        first, last = (slice(end, None, offsets) for end in (0, offsets - 1))
    else:
        offsets = np.concatenate([[0], np.cumsum(np.repeat(lengths, order))])
        first, last = offsets[:-1], offsets[1:] - 1
    count = base.num_transfers * order
    rank = topology.rank[moved(base.root)].T.astype(narrowest(topology.num_servers, count))
    rounds = base.round.astype(narrowest(base.rounds, count))
    return Schedule(
        topology=topology,
        collective="all_gather",
        root=topology.servers,
        round=frozen(np.repeat(rounds, order)),
        piece=frozen(rank[base.piece].ravel()),
        source=nodes[first],
        target=nodes[last],
        op=constant(COPY, np.int8, count),
        route_nodes=nodes,
        route_offsets=offsets,
    )
