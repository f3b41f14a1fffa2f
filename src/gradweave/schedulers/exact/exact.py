"""Provably shortest schedules, by constraint programming."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gradweave.bounds import Bound, Exhausted, fixed_trees, free_trees
from gradweave.common import clock
from gradweave.common.stop import Stop
from gradweave.common.wording import counted
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.exact.model import Effort
from gradweave.schedulers.exact.proof import Proof, StageProof
from gradweave.schedulers.exact.search import RoundsSearch
from gradweave.schedulers.exact.start import fits, gathers, quick
from gradweave.schedulers.exact.trees import TREES, Choice, Trees
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.schedules.compose import compose, reverse
from gradweave.schedules.flow_tree import FlowTrees
from gradweave.schedules.schedule import (
    Collective,
    Provenance,
    Schedule,
    StatedBound,
    check_collective,
)
from gradweave.topology.topology import Topology

LARGEST = {
    "pieces_per_server": 64,
    "workers": 256,
    "open_questions": 1_000_000,
    "max_booleans": 10**8,
}
"""Largest values of the integer options; the smallest is 1."""


@dataclasses.dataclass(frozen=True)
class Exact(Scheduler):
    """The fewest rounds, and the proof that fewer are impossible, by constraint programming.

    It asks CP-SAT whether an all-gather fits T rounds, from the lower bound on up; if a question is
    too hard, it halves the distance to the best known schedule. A reduce-scatter is a reversed
    all-gather on the opposite link directions; an all-reduce is both, with a barrier. With one
    worker the result depends on the seed alone, unless a time limit cuts the search off.

    The model contains all routes with only switches inside. It excludes overlap of the stages, and
    transfers that pass through servers without being stored there.

    Source: Cai and others 2021 (SCCL) ask the same question of an SMT solver, without switches.
    """

    name: ClassVar[str] = "exact"

    trees: Trees = "free"
    """``free``: any trees; ``shortest``: any shortest-path trees; ``fixed``: the pinned trees, so
    that only the order is open. Proofs hold for these trees."""
    pieces_per_server: int = 1
    """Pieces that each server is the root of."""
    workers: int = 1
    """CP-SAT's workers; with more than one, results vary from run to run."""
    effort: float = 60.0
    """Most deterministic time of CP-SAT per round count; a unit took one to three seconds."""
    open_questions: int | None = None
    """Most round counts left unanswered before the search ends. By default as many as halving the
    distance between the bound and the best known leaves."""
    max_booleans: int = 400_000
    """Most booleans of a model; a larger question is refused."""

    def __post_init__(self) -> None:
        if self.trees not in TREES:
            raise OptionError(
                f"exact: trees: expected one of {', '.join(TREES)}, got {self.trees!r}"
            )
        for option, most in LARGEST.items():
            check_counts(self, option, most=most)
        if not 0 < self.effort <= 1e9:
            raise OptionError(f"exact: effort: expected more than 0 units, got {self.effort:g}")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(pieces_per_server=self.pieces_per_server, takes_pieces=True, proves=True)

    def prove(
        self,
        topology: Topology,
        collective: Collective = "all_reduce",
        *,
        rounds: int | None = None,
        start_from: Sequence[Schedule] = (),
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Proof:
        """Finds a schedule and a proof.

        Args:
            topology: the network.
            collective: a stage, or both.
            rounds: ask only whether this many rounds are enough; None to look for the fewest.
            start_from: schedules of the same pieces, for any collective and from any strategy. The
                search begins at the best that is valid here; an invalid schedule is used as a hint.
            seed: the only source of every random choice.
            time_limit: seconds after which to return the best known result.

        Returns:
            The proof, with the best schedule found, verified; without a schedule if none has as few
            rounds as requested.

        Raises:
            NoScheduleError: if the model would be too large; CP-SAT is then not called.
            OptionError: if a start has other nodes or pieces.

        >>> import gradweave as gw
        >>> proof = Exact().prove(gw.topology.mesh((3, 3)), "all_gather")
        >>> proof.kind, proof.rounds, proof.impossible_below
        ('optimal', 4, 4)
        >>> print(Exact().prove(gw.topology.mesh((3, 3)), "all_gather", rounds=3))
        infeasible: no all_gather in 3 rounds; on free trees fewer than 4 are impossible:
        at least 4 rounds (cut) for schedules that root a piece at each server, since 8 pieces ...
        """
        stop = Stop.after(time_limit)
        proof = self._proved(topology, collective, rounds, tuple(start_from), seed, stop)
        if proof.schedule is not None:
            self.check(proof.schedule)
        return proof

    def _proved(
        self,
        topology: Topology,
        collective: Collective,
        rounds: int | None,
        start_from: tuple[Schedule, ...],
        seed: int,
        stop: Stop,
    ) -> Proof:
        """As `prove`, with a schedule that is not verified yet."""
        check_collective(collective)
        if rounds is not None and rounds < 1:
            raise OptionError(f"exact: rounds: expected at least 1, got {rounds}")
        begun = clock.now()
        question = _Question(start_from, seed, stop)
        stages = self._stages(topology, collective, rounds, question)
        below = sum(stage.impossible_below for stage in stages)
        made = _joined(stages, topology, collective)
        if made is not None:
            made = made.replace(
                scheduler=Provenance(self.name, self.options(), seed),
                bound=self._stated(topology, collective, below),
            )
        because = "; then ".join(dict.fromkeys(stage.because for stage in stages))
        wall_s = clock.now() - begun
        return Proof(collective, self.trees, made, below, because, rounds, wall_s)

    def _stated(self, topology: Topology, collective: Collective, below: int) -> StatedBound | None:
        if self.trees != "free":
            return None
        found = Bound(below, "exact", (Exhausted("CP-SAT", collective, below),))
        holds_for = found.on(topology, self.pieces_per_server).holds_for
        return StatedBound(below, "exact", True, holds_for)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return self._found(topology, collective, (), seed, stop)

    def improve(
        self, known: Schedule, topology: Topology, collective: Collective, seed: int, stop: Stop
    ) -> Schedule:
        """Starts the search from the known schedule."""
        return self._found(topology, collective, (known,), seed, stop)

    def _found(
        self,
        topology: Topology,
        collective: Collective,
        start_from: tuple[Schedule, ...],
        seed: int,
        stop: Stop,
    ) -> Schedule:
        proof = self._proved(topology, collective, None, start_from, seed, stop)
        if proof.schedule is None:
            raise NoScheduleError(f"exact: {proof}")
        return proof.schedule

    def _stages(
        self,
        topology: Topology,
        collective: Collective,
        rounds: int | None,
        question: "_Question",
    ) -> list[StageProof]:
        """Each stage as an all-gather; for a reduce-scatter, on the opposite link directions."""
        opposite = topology.capacity[topology.opposite]
        mirrored = dataclasses.replace(topology, capacity=opposite)
        if collective != "all_reduce":
            network = topology if collective == "all_gather" else mirrored
            return [self._stage(network, rounds, question)]
        if np.array_equal(opposite, topology.capacity):
            each = None if rounds is None else rounds // 2
            return [self._stage(topology, each, question)] * 2
        scatter = self._stage(mirrored, None, question.half_time())
        taken = scatter.impossible_below if scatter.gather is None else scatter.gather.rounds
        left = None if rounds is None else rounds - taken
        return [scatter, self._stage(topology, left, question)]

    def _stage(self, network: Topology, rounds: int | None, question: "_Question") -> StageProof:
        """The all-gather on a network: whether it fits `rounds`, or its fewest rounds."""
        self._check_servers(network)
        choice = Choice.of(network, np.repeat(network.servers, self.pieces_per_server), self.trees)
        least, because = self._bound(choice)
        effort = Effort(question.seed, self.workers, self.effort)
        search = RoundsSearch(choice, least, because, effort, question.stop, self.max_booleans)
        search.open_questions = self.open_questions
        given = [gather for made in question.start_from for gather in gathers(made, choice)]
        valid = [gather for gather in given if fits(gather, choice)]
        valid.append(quick(choice, question.seed, least))
        search.best = min(valid, key=lambda gather: gather.rounds)
        search.hints = given or valid
        return search.fewest() if rounds is None else search.decide(rounds)

    def _check_servers(self, network: Topology) -> None:
        """Refuses a model that is far too large, before anything of its size is built."""
        pieces = network.num_servers * self.pieces_per_server
        least = pieces * (network.num_servers - 1)
        if least > self.max_booleans:
            raise NoScheduleError(
                f"exact: {network.name!r} needs more than {least:,} booleans, more than "
                f"max_booleans={self.max_booleans:,}; raise it, or use another scheduler"
            )

    def _bound(self, choice: Choice) -> tuple[int, str]:
        """A lower bound on rounds for the trees, and the reason."""
        if self.trees == "fixed":
            bound = fixed_trees(FlowTrees.shortest_path(choice.topology, choice.root), "all_gather")
        else:
            bound = free_trees(
                choice.topology, "all_gather", pieces_per_server=self.pieces_per_server
            )
        if bound.rounds >= choice.least_rounds:
            return bound.rounds, str(bound)
        needed = counted(choice.least_rounds, "transfer")
        return choice.least_rounds, f"a piece needs {needed} on such trees"


@dataclasses.dataclass(frozen=True)
class _Question:
    """The arguments of `Exact.prove` other than the network."""

    start_from: tuple[Schedule, ...]
    seed: int
    stop: Stop

    def half_time(self) -> "_Question":
        """The same question with half of the remaining time."""
        return dataclasses.replace(self, stop=self.stop.part(0.5))


def _joined(
    stages: Sequence[StageProof], topology: Topology, collective: Collective
) -> Schedule | None:
    """The collective's schedule from its stages' all-gathers, or None if one is missing."""
    found = [stage.gather.replace(topology=topology) for stage in stages if stage.gather]
    if len(found) < len(stages):
        return None
    if collective == "all_gather":
        return found[0]
    scattered = reverse(found[0])
    return scattered if collective == "reduce_scatter" else compose(scattered, found[1])
