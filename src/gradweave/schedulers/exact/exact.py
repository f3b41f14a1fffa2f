"""Schedules that are proved to be as short as can be, by constraint programming."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gradweave import clock
from gradweave.bounds import fixed_trees, free_trees
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.compose import compose, reverse
from gradweave.schedule.flow_tree import FlowTrees
from gradweave.schedule.schedule import COLLECTIVES, Collective, Provenance, Schedule, StatedBound
from gradweave.schedulers.exact.model import Effort
from gradweave.schedulers.exact.proof import Proof, Stage
from gradweave.schedulers.exact.search import Search
from gradweave.schedulers.exact.start import fits, gathers, quick
from gradweave.schedulers.exact.trees import TREES, Choice, Trees
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts
from gradweave.stop import Stop
from gradweave.topology.topology import Topology
from gradweave.verify import verify
from gradweave.wording import counted

LARGEST = {
    "pieces_per_server": 64,
    "workers": 256,
    "open_questions": 1_000_000,
    "max_booleans": 10**8,
}
"""Largest values of the options that count something; the smallest is 1."""


@dataclasses.dataclass(frozen=True)
class Exact(Scheduler):
    """The fewest rounds, and the proof that fewer are impossible, by constraint programming.

    Asks CP-SAT whether an all-gather fits T rounds, from the lower bound on up; where a question is
    too hard, halves the distance to the best that is known. A reduce-scatter is an all-gather on
    the opposite directions, reversed; an all-reduce is both, with a barrier. With one worker the
    result depends on the seed alone, unless a time limit cuts the search off.

    The model has all routes with only switches inside. It leaves out overlap of the stages, and
    transfers that pass through servers without being kept there.

    Source: Cai and others 2021 (SCCL) ask the same question of an SMT solver, without switches.
    """

    name: ClassVar[str] = "exact"

    trees: Trees = "free"
    """``free``: any trees; ``shortest``: any shortest-path trees; ``fixed``: the pinned ones, so
    that only the order is open. What is proved holds for these trees."""
    pieces_per_server: int = 1
    """Pieces that each server is the root of."""
    workers: int = 1
    """CP-SAT's workers; with more than one, results vary from run to run."""
    effort: float = 60.0
    """Most deterministic time for one round count; a unit took one to three seconds."""
    open_questions: int | None = None
    """Round counts left unanswered at most before the search ends; as many as there are between the
    bound and the best known if not given, halving the distance each time."""
    max_booleans: int = 400_000
    """Largest question asked; more booleans are refused in one line."""

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
        """What it is like, with these options."""
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
        """Finds a schedule, and says what was proved.

        Args:
            topology: the network.
            collective: a stage, or both.
            rounds: ask only whether so many rounds are enough; None to look for the fewest.
            start_from: schedules of the same pieces, for any collective and from any strategy. The
                search begins at the best that is valid here; one that is not is a hint.
            seed: every random choice depends on it alone.
            time_limit: seconds after which to return what is known.

        Returns:
            What was proved, with the best schedule found, verified; none where none has as few
            rounds as were asked for.

        Raises:
            NoScheduleError: where the question is too large; CP-SAT is not asked then.
            OptionError: for a start that has other nodes or pieces.

        >>> import gradweave as gw
        >>> proof = Exact().prove(gw.topology.mesh((3, 3)), "all_gather")
        >>> proof.kind, proof.rounds, proof.impossible_below
        ('optimal', 4, 4)
        >>> print(Exact().prove(gw.topology.mesh((3, 3)), "all_gather", rounds=3))
        infeasible: no all_gather in 3 rounds; on free trees fewer than 4 are impossible:
        at least 4 rounds (cut), since 8 pieces must ...
        """
        stop = Stop.after(time_limit)
        given = {"rounds": rounds, "start_from": start_from, "seed": seed}
        return self.prove_until(topology, stop, collective, **given)

    def prove_until(
        self,
        topology: Topology,
        stop: Stop,
        collective: Collective = "all_reduce",
        *,
        rounds: int | None = None,
        start_from: Sequence[Schedule] = (),
        seed: int = 0,
    ) -> Proof:
        """As `prove`, in whatever time a caller's search has left.

        Args:
            topology: the network.
            stop: when to return what is known.
            collective: as in `prove`, and so are the others.
            rounds: to ask about.
            start_from: earlier schedules.
            seed: of every random choice.
        """
        if collective not in COLLECTIVES:
            raise OptionError(
                f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
            )
        if rounds is not None and rounds < 1:
            raise OptionError(f"exact: rounds: expected at least 1, got {rounds}")
        begun = clock.now()
        question = _Question(tuple(start_from), seed, stop)
        stages = self._stages(topology, collective, rounds, question)
        below = sum(stage.impossible_below for stage in stages)
        made = _joined(stages, topology, collective)
        if made is not None:
            made = made.replace(
                scheduler=Provenance(self.name, self.options(), seed),
                bound=StatedBound(below, "exact", True) if self.trees == "free" else None,
            )
            verify(made, forwarding_servers=False).raise_if_invalid()
        because = "; then ".join(dict.fromkeys(stage.because for stage in stages))
        wall_s = clock.now() - begun
        return Proof(collective, self.trees, made, below, because, rounds, wall_s)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return self._found(topology, collective, seed, stop)

    def improve(
        self, known: Schedule, topology: Topology, collective: Collective, seed: int, stop: Stop
    ) -> Schedule:
        """The search begins at the schedule that there is."""
        return self._found(topology, collective, seed, stop, (known,))

    def _found(
        self,
        topology: Topology,
        collective: Collective,
        seed: int,
        stop: Stop,
        start_from: Sequence[Schedule] = (),
    ) -> Schedule:
        proof = self.prove_until(topology, stop, collective, start_from=start_from, seed=seed)
        if proof.schedule is None:
            raise NoScheduleError(f"exact: {proof}")
        return proof.schedule

    def _stages(
        self,
        topology: Topology,
        collective: Collective,
        rounds: int | None,
        question: "_Question",
    ) -> list[Stage]:
        """Each stage's all-gather. A reduce-scatter's is for the opposite directions."""
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

    def _stage(self, network: Topology, rounds: int | None, question: "_Question") -> Stage:
        """The all-gather on a network: whether it fits the rounds, or the fewest that it takes."""
        self._check_servers(network)
        choice = Choice.of(network, np.repeat(network.servers, self.pieces_per_server), self.trees)
        least, because = self._bound(choice)
        effort = Effort(question.seed, self.workers, self.effort)
        search = Search(choice, least, because, effort, question.stop, self.max_booleans)
        search.open_questions = self.open_questions
        given = [gather for made in question.start_from for gather in gathers(made, choice)]
        valid = [gather for gather in given if fits(gather, choice)]
        valid.append(quick(choice, question.seed, least))
        search.best = min(valid, key=lambda gather: gather.rounds)
        search.hints = given or valid
        return search.fewest() if rounds is None else search.decide(rounds)

    def _check_servers(self, network: Topology) -> None:
        """Refuses at once what is far too large, before anything grows with it."""
        pieces = network.num_servers * self.pieces_per_server
        least = pieces * (network.num_servers - 1)
        if least > self.max_booleans:
            raise NoScheduleError(
                f"exact: {network.name!r} needs more than {least:,} booleans, more than "
                f"max_booleans={self.max_booleans:,}; raise it, or use another scheduler"
            )

    def _bound(self, choice: Choice) -> tuple[int, str]:
        """Rounds that the trees need at least, and why."""
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
    """What `Exact.prove` was given besides the network."""

    start_from: tuple[Schedule, ...]
    seed: int
    stop: Stop

    def half_time(self) -> "_Question":
        """The same with half of the time that is left."""
        return dataclasses.replace(self, stop=self.stop.part(0.5))


def _joined(stages: Sequence[Stage], topology: Topology, collective: Collective) -> Schedule | None:
    """The collective's schedule from its stages' all-gathers; None where one is missing."""
    found = [stage.gather.replace(topology=topology) for stage in stages if stage.gather]
    if len(found) < len(stages):
        return None
    if collective == "all_gather":
        return found[0]
    scattered = reverse(found[0])
    return scattered if collective == "reduce_scatter" else compose(scattered, found[1])
