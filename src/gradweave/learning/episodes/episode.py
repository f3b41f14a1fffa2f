"""An episode of the rule, or of trained policies, on any network, round by round."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.environment.instance import NEVER
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.features import Counts, Round, Scores, of_round
from gradweave.learning.episodes.repair import RoundRepair, can_repair
from gradweave.learning.episodes.round_kernel import RoundScores, draw_round
from gradweave.learning.episodes.state_kernel import (
    EpisodeArrays,
    enter_stage,
    hop_counts,
    wanted_beside,
)


class Episode(NamedTuple):
    """The result of an episode."""

    rounds: int
    """Number of rounds; −1 if the episode was abandoned."""
    sent_round: NDArray[np.int64]
    """[N, Q] round of each transfer."""
    sent_hop: NDArray[np.int64]
    """[N, Q] hop of each transfer."""


class Policy(Protocol):
    """Selects trees and scores workloads: `rule.RuleWeights`, or the policies that were trained."""

    def select(
        self,
        episode: "OngoingEpisode",
        features: Round,
        rng: np.random.Generator,
        temperature: float,
    ) -> NDArray[np.bool_]:
        """[Q] flow-tree selection: the trees of the round."""
        ...

    def scores(self, episode: "OngoingEpisode", features: Round) -> Scores:
        """Workload scheduling: the weights of the features of the round's workloads."""
        ...


class OngoingEpisode:
    """An episode in progress."""

    def __init__(self, problem: CompiledInstance, *, repair: bool = False) -> None:
        """Begins an episode.

        Args:
            problem: what to schedule.
            repair: whether rounds are repaired, if the problem allows swaps.
        """
        self.problem = problem
        can = repair and can_repair(problem.instance)
        self.repair = RoundRepair(problem.slots, problem.hops) if can else None
        shape = problem.waiting.shape
        self.round, self.stage_start = 0, 0
        self.waiting, self.pending = problem.waiting.copy(), problem.pending.copy()
        self.sent_round, self.sent_hop = np.full(shape, NEVER), np.full(shape, NEVER)
        self.near, self.lack = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.holders = np.zeros(shape[1], np.int64)
        self.selected_before = np.zeros(shape[1], bool)
        self.left = int(problem.pending.sum())
        self._enter(0)

    def _enter(self, stage: int) -> None:
        problem = self.problem
        self.stage, self.stage_start = stage, self.round
        self.under_way = (problem.stage == stage) | (not problem.barrier)
        carries = problem.carries
        own = carries[:, stage] if problem.barrier else np.logical_or.reduce(carries, axis=1)
        self.there = np.ascontiguousarray(own)
        self.used = np.zeros(len(problem.workloads.capacity), bool)
        self.used[problem.hops.links[self.there[problem.hop_of_link]]] = True
        self.edges: Any = None
        """`learning.policies.messages.StageEdges`, once a trained policy has computed them."""
        self._count()

    def _count(self) -> None:
        """Recounts holders and neighbours; within a stage, rounds keep the counts up to date."""
        enter_stage(
            *(self.problem.hops, self.there, self.under_way, self.pending),
            *(self.near, self.lack, self.holders),
        )

    @property
    def bound(self) -> int:
        """Lower bound on the stage's rounds; with overlap, on all rounds."""
        bound = self.problem.bound
        return int(bound[self.stage] if self.problem.barrier else bound.sum())

    def features(self) -> Round:
        """The features at the start of a round."""
        problem, there, trees = self.problem, self.there, self.under_way
        hops, workloads = problem.hops, problem.workloads
        spent = self.round - (self.stage_start if problem.barrier else 0)
        left, ready, chain, cells, candidates = hop_counts(
            hops, workloads, there, trees, self.waiting, self.pending
        )
        wait, to_send = np.where(trees, self.waiting, 0), self.pending & trees
        holds, lacks = trees & (wait == 0), trees & (wait > 0)
        to_come = wait.sum(1).astype(np.float64)
        if workloads.grown:  # any hop may bring an awaited piece, and there are no chains
            into = np.bincount(hops.target[there], minlength=len(to_come))
            left = (to_come / np.maximum(into, 1))[hops.target] * there
            tallest = np.zeros(len(trees), np.int64)
        else:
            tallest = np.where(to_send, workloads.height, 0).max(0)
        held, lacked, wanted = wanted_beside(hops, there, holds, lacks)
        entry, links = problem.hop_of_link, len(workloads.capacity)
        counts = Counts(
            rounds_left=float(max(self.bound - spent, 1)),
            bound=self.bound,
            grown=workloads.grown,
            servers=len(to_come),
            to_come=to_come,
            intake=workloads.intake,
            holds=held,
            lacks=lacked,
            wanted=wanted,
            demand=np.bincount(hops.links, left[entry], links),
            contenders=np.bincount(hops.links, ready[entry], links),
            capacity=workloads.capacity,
            used=self.used,
            there=trees,
            by_sender=workloads.by_sender,
            unsent=to_send.sum(0),
            ready=cells.sum(0),
            total=problem.total,
            tallest=tallest,
            selected_before=self.selected_before,
        )
        *features, slack = of_round(np, counts)
        return Round(
            *features,
            holds=holds,
            lacks=lacks,
            stage=self.stage,
            candidates=candidates,
            rounds_left=counts.rounds_left,
            link_slack=np.minimum.reduceat(slack[hops.links], hops.first_link[:-1]).astype("f4"),
            chain=chain,
            to_come=to_come,
        )

    def play_round(
        self,
        weights: Policy,
        rng: np.random.Generator,
        temperature: float,
        select: bool,
    ) -> int:
        """Plays one round; returns its number of transfers."""
        features = self.features()
        selected = features.candidates
        if select:
            selected = weights.select(self, features, rng, temperature)
        scores = RoundScores(*weights.scores(self, features), features.link_slack, features.chain)
        progress = EpisodeArrays(
            waiting=self.waiting,
            pending=self.pending,
            arriving=np.zeros_like(self.waiting),
            to_come=features.to_come,
            near=self.near,
            lack=self.lack,
            holders=self.holders,
            sent_round=self.sent_round,
            sent_hop=self.sent_hop,
        )
        at, rounds_left = self.round, features.rounds_left

        def draw(heat: float, seed: int) -> int:
            return draw_round(
                *(self.problem.hops, self.problem.workloads, progress, scores),
                *(self.there, selected & self.under_way, rounds_left, heat, seed, at),
            )

        if self.repair is None:
            sent = draw(float(temperature), int(rng.integers(2**32)))
        else:
            until = self.bound - at
            sent = self.repair.fill(progress, draw, at, until, float(temperature), rng)
        self._arrive(progress.arriving, selected)
        self.left -= sent
        return sent

    def _arrive(self, arriving: NDArray[np.int64], selected: NDArray[np.bool_]) -> None:
        """Ends the round: transfers on the way have arrived."""
        problem = self.problem
        columns = np.flatnonzero(problem.then >= 0)
        roots = problem.root[columns]
        self.waiting[roots, problem.then[columns]] -= arriving[roots, columns]
        self.waiting -= arriving
        self.selected_before = selected
        self.round += 1
        if problem.barrier and problem.carries.shape[1] > 1:
            left = self.pending.any(0)
            if left.any() and problem.stage[left].min() > self.stage:
                self._enter(int(problem.stage[left].min()))

    def backtrack(self, rounds: int) -> None:
        """Takes back the last rounds of an episode with repairs.

        Args:
            rounds: number of rounds; all, if there are fewer.
        """
        problem, repair = self.problem, self.repair
        assert repair is not None
        self.round = max(self.round - rounds, 0)
        gone = self.sent_round >= self.round
        self.sent_round[gone], self.sent_hop[gone] = NEVER, NEVER
        self.pending = problem.pending & (self.sent_round == NEVER)
        self.waiting = self.pending.astype(np.int64)
        self.left = int(self.pending.sum())
        self._count()
        repair.backtracks += 1
        repair.begin_after(self.sent_hop)


def play(
    problem: CompiledInstance,
    weights: Policy,
    *,
    seed: int | tuple[int, ...],
    temperature: float = 1.0,
    select: bool = True,
    repair: bool = False,
    backtracks: bool = True,
    max_rounds: int | None = None,
    stop: Stop = UNLIMITED,
    finish: bool = False,
) -> Episode:
    """Plays one episode.

    Args:
        problem: the problem to schedule.
        weights: the policy.
        seed: the seed of every random choice.
        temperature: temperature of the draws; 0 takes the best actions, ties broken at random.
        select: whether flow-tree selection acts; if not, every tree is selected.
        repair: whether rounds are improved by swaps and, if they fall short, redrawn; see `repair`.
            Only if the problem allows swaps.
        backtracks: whether a repaired episode backtracks if a round falls short.
        max_rounds: number of rounds after which to give up; eight times the bound if not given.
        stop: when to give up.
        finish: whether the episode is then finished, without taking rounds back.
    """
    episode, rng = OngoingEpisode(problem, repair=repair), np.random.default_rng(seed)
    if max_rounds is None:
        max_rounds = 8 * problem.instance.bound + 8
    while episode.left:
        late = bool(stop.reached())
        if episode.round >= max_rounds or (late and not finish):
            return Episode(-1, episode.sent_round, episode.sent_hop)
        back = 0 if episode.repair is None else episode.repair.to_backtrack
        if back and backtracks and not late:
            episode.backtrack(back)
        elif not episode.play_round(weights, rng, temperature, select):
            return Episode(-1, episode.sent_round, episode.sent_hop)
    return Episode(episode.round, episode.sent_round, episode.sent_hop)
