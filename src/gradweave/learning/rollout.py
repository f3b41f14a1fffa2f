"""Episodes of a policy: a round is evaluated once, and its workloads are drawn in sequence."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gradweave.environment import rounds as rounds_of
from gradweave.environment import workload_scheduling
from gradweave.environment.flow_tree_selection import select
from gradweave.environment.problem import Problem
from gradweave.environment.rewards import Rewards
from gradweave.environment.state import State, any_available, end_round, reset, where
from gradweave.environment.workload_scheduling import send
from gradweave.learning import features as features_of
from gradweave.learning.features import Graph, Loads, Round
from gradweave.learning.networks import (
    HierarchicalPolicy,
    Weights,
    masked_log_softmax,
)
from gradweave.schedulers.learned.feature_table import HOP_FEATURES, PIECE_FEATURES

LAST = -1
"""Axis of the environments in states: their tables are quick to go through so."""


@dataclasses.dataclass(frozen=True)
class Decode:
    """How actions are made of scores."""

    temperature: float = 1.0
    """Of both agents' draws; 0 takes the best, ties broken at random."""
    select: bool = True
    """Whether flow-tree selection acts; if not, every tree is selected (a single policy)."""


class Draw(NamedTuple):
    """One workload of a round, as the learner needs it."""

    hop_features: Float[Array, "H 12"]
    hop_can: Bool[Array, " H"]
    hop: Int[Array, ""]
    piece_features: Float[Array, "Q 7"]
    piece_can: Bool[Array, " Q"]
    piece: Int[Array, ""]
    log_probability: Float[Array, ""]
    real: Bool[Array, ""]
    """Whether there was a workload to draw."""


class RoundLog(NamedTuple):
    """One round, as the learner needs it."""

    features: Round
    selected: Bool[Array, " Q"]
    tree_log_probability: Float[Array, ""]
    tree_value: Float[Array, ""]
    workload_value: Float[Array, ""]
    tree_reward: Float[Array, ""]
    workload_reward: Float[Array, ""]
    draws: Draw
    """A sample of the round's draws."""
    real: Bool[Array, ""]
    """Whether the episode had not ended before."""


def tree_log_probability(
    scores: Float[Array, " Q"], selected: Bool[Array, " Q"], can: Bool[Array, " Q"]
) -> Float[Array, ""]:
    """Log-probability of a selection; trees with nothing to send do not count.

    Args:
        scores: of each tree.
        selected: what was selected.
        can: trees with a workload that is ready.
    """
    each = jax.nn.log_sigmoid(jnp.where(selected, scores, -scores))
    return jnp.where(can, each, 0.0).sum()


def select_trees(
    policy: HierarchicalPolicy, features: Round, key: PRNGKeyArray, decode: Decode
) -> tuple[Bool[Array, " Q"], Float[Array, ""], Float[Array, ""]]:
    """The trees of a round, the log-probability of their selection, and the state's value."""
    views = policy.tree.encoder(features)
    scores = policy.tree(views)
    value = policy.tree.critic(views)
    can = features.candidates
    if not decode.select:
        return can, jnp.zeros(()), value
    noise = jax.random.logistic(key, scores.shape) * decode.temperature
    selected = can & (scores + noise > 0)
    if decode.temperature == 0:  # a round without a transfer helps nobody
        best = jnp.arange(len(scores)) == jnp.where(can, scores, -jnp.inf).argmax()
        selected = jnp.where(selected.any(), selected, can & best)
    return selected, tree_log_probability(scores, selected, can), value


def _pick(scores: Array, can: Array, noise: Array, temperature: float) -> tuple[Array, Array]:
    """A choice and its log-probability."""
    log_probabilities = masked_log_softmax(scores, can)
    tie = 1e-4 if temperature == 0 else temperature
    chosen = jnp.where(can, scores + tie * noise, -jnp.inf).argmax()
    return chosen, log_probabilities[chosen]


def hop_scores(weights: Weights, hop_features: Float[Array, "H 12"]) -> Float[Array, " H"]:
    """The score of each hop."""
    return (weights.hop * hop_features).sum(-1)


def piece_scores(
    weights: Weights, receiver: Int[Array, ""], piece_features: Float[Array, "Q 7"]
) -> Float[Array, " Q"]:
    """The score of each tree at a receiver."""
    return piece_features @ weights.piece[receiver] + weights.match[receiver]


def draw(
    problem: Problem,
    graph: Graph,
    features: Round,
    weights: Weights,
    state: State,
    loads: Loads,
    key: PRNGKeyArray,
    decode: Decode,
) -> tuple[State, Loads, Draw]:
    """Draws one workload and sends it, if there is any."""
    hops, trees = problem.sender.shape[0], problem.root.shape[0]
    noise = jax.random.gumbel(key, (hops + trees,))
    hop_features, hop_can = features_of.of_hops(problem, graph, features, state, loads)
    scores = hop_scores(weights, hop_features)
    hop, hop_log_probability = _pick(scores, hop_can, noise[:hops], decode.temperature)
    receiver = problem.receiver[hop]
    piece_features, piece_can = features_of.of_pieces(problem, features, state, hop)
    scores = piece_scores(weights, receiver, piece_features)
    piece, piece_log_probability = _pick(scores, piece_can, noise[hops:], decode.temperature)
    real = hop_can.any()
    drawn = Draw(
        hop_features,
        hop_can,
        hop,
        piece_features,
        piece_can,
        piece,
        hop_log_probability + piece_log_probability,
        real,
    )
    return send(problem, state, hop, piece, real), loads.sent(receiver, real), drawn


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Lengths of an episode's records; they fix the shapes."""

    rounds: int
    """Rounds recorded at most; later ones do not count."""
    draws: int
    """Draws recorded of each round, evenly spread."""
    rewards: Rewards = dataclasses.field(default_factory=Rewards)
    decode: Decode = dataclasses.field(default_factory=Decode)


class Ends(NamedTuple):
    """How episodes came out."""

    rounds: Int[Array, " B"]
    done: Bool[Array, " B"]
    sent_round: Int[Array, "B N Q"]
    sent_hop: Int[Array, "B N Q"]


def play(
    policy: HierarchicalPolicy,
    problem: Problem,
    keys: PRNGKeyArray,
    length: int,
    decode: Decode,
) -> Ends:
    """Whole episodes side by side, without a record.

    Args:
        policy: both agents.
        problem: one problem for all episodes.
        keys: [B] one for each.
        length: rounds at most.
        decode: how to choose.
    """
    episodes = _Episodes(policy, problem, Graph.of(problem), decode)

    def open_round(state: State, key: PRNGKeyArray) -> tuple[State, _Evaluation, PRNGKeyArray]:
        selecting, drawing = jax.random.split(key)
        return *episodes.open(state, selecting), drawing

    def one_round(carry: tuple[Array, State]) -> tuple[Array, State]:
        index, before = carry
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        states, evaluation, drawing = jax.vmap(open_round, (LAST, 0), (LAST, 0, 0))(before, now)

        def one_draw(carry: tuple[Array, State, Loads]) -> tuple[Array, State, Loads]:
            step, states, loads = carry
            states, loads, _ = episodes.draw(step, states, loads, evaluation, drawing)
            return step + 1, states, loads

        loads = jax.vmap(Loads.start)(evaluation.features)
        start = jnp.zeros((), jnp.int32), states, loads
        _, states, _ = jax.lax.while_loop(_some_left, one_draw, start)
        return index + 1, episodes.close(before, states)

    def unfinished(carry: tuple[Array, State]) -> Array:
        index, states = carry
        return (index < length) & ~states.done.all()

    start = jnp.zeros((), jnp.int32), episodes.start(keys)
    return _ends(jax.lax.while_loop(unfinished, one_round, start)[1])


class _Evaluation(NamedTuple):
    """What the policies make of a round at its start."""

    features: Round
    weights: Weights
    selected: Bool[Array, " Q"]
    tree_log_probability: Float[Array, ""]
    tree_value: Float[Array, ""]
    workload_value: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class _Episodes:
    """Episodes of one problem, side by side."""

    policy: HierarchicalPolicy
    problem: Problem
    graph: Graph
    decode: Decode

    def start(self, keys: PRNGKeyArray) -> State:
        """As many states before the first round as there are keys."""
        return jax.vmap(lambda _: reset(self.problem), 0, LAST)(keys)

    def open(self, state: State, key: PRNGKeyArray) -> tuple[State, _Evaluation]:
        """Evaluates the policies at the start of an episode's round, and selects its trees."""
        features = features_of.of_round(self.problem, self.graph, state)
        chosen = select_trees(self.policy, features, key, self.decode)
        selected, log_probability, tree_value = chosen
        views = self.policy.workload.encoder(features)
        weights = self.policy.workload(views, self.problem)
        after = select(self.problem, state, selected)
        value = self.policy.workload.critic(views)
        return after, _Evaluation(features, weights, selected, log_probability, tree_value, value)

    def draw(
        self,
        step: Int[Array, ""],
        states: State,
        loads: Loads,
        evaluation: _Evaluation,
        keys: PRNGKeyArray,
    ) -> tuple[State, Loads, Draw]:
        """Draws each episode's next workload of the round."""
        now = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
        return jax.vmap(
            lambda f, w, s, t, k: draw(self.problem, self.graph, f, w, s, t, k, self.decode),
            (0, 0, LAST, 0, 0),
            (LAST, 0, 0),
        )(evaluation.features, evaluation.weights, states, loads, now)

    def close(self, before: State, states: State) -> State:
        """Ends the round, of the episodes that had not ended before."""
        return where(before.done, before, close(states))


def _some_left(carry: tuple) -> Array:
    """Whether any episode, second in a loop's carry, has a workload left for this round."""
    return any_available(carry[1]).any()


def _ends(states: State) -> Ends:
    return jax.vmap(
        lambda state: Ends(rounds_of(state), state.done, state.sent_round, state.sent_hop), LAST, 0
    )(states)


def close(state: State) -> State:
    """Ends a round in which no workload is left, unless `select` did so for want of any.

    Args:
        state: of one environment, or of many, the last axis of each array being theirs.
    """
    return end_round(state, workload_scheduling.is_turn(state))


def record(
    policy: HierarchicalPolicy,
    problem: Problem,
    keys: PRNGKeyArray,
    busiest: Int[Array, ""],
    how: Rollout,
) -> tuple[RoundLog, Ends]:
    """Whole episodes side by side, with what the learner needs of them.

    Args:
        policy: both agents.
        problem: one problem for all episodes.
        keys: [B] one for each.
        busiest: transfers that a round can have, at most; what is recorded is spread over them.
        how: the lengths of the record, rewards and choice.

    Returns:
        A log of [T, B] rounds with [T, B, K] draws, and how the episodes came out.
    """
    episodes = _Episodes(policy, problem, Graph.of(problem), how.decode)
    stride = jnp.maximum(-(-busiest // how.draws), 1)
    empty = _no_draws(problem, keys.shape[0], how.draws)

    def open_round(state: State, key: PRNGKeyArray) -> tuple:
        selecting, drawing, sampling = jax.random.split(key, 3)
        offset = jax.random.randint(sampling, (), 0, stride)
        return *episodes.open(state, selecting), drawing, offset

    def a_round(before: State, index: Array) -> tuple[State, RoundLog]:
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        opened = jax.vmap(open_round, (LAST, 0), (LAST, 0, 0, 0))
        states, evaluation, drawing, offsets = opened(before, now)

        def one_draw(carry: tuple[Array, State, Loads, Draw]) -> tuple[Array, State, Loads, Draw]:
            step, states, loads, draws = carry
            states, loads, drawn = episodes.draw(step, states, loads, evaluation, drawing)
            return step + 1, states, loads, _kept(draws, drawn, step, stride, offsets)

        loads = jax.vmap(Loads.start)(evaluation.features)
        start = jnp.zeros((), jnp.int32), states, loads, empty
        _, states, _, draws = jax.lax.while_loop(_some_left, one_draw, start)
        after = episodes.close(before, states)
        return after, _round_log(problem, how.rewards, before, after, evaluation, draws)

    def one_round(before: State, index: Array) -> tuple[State, RoundLog]:
        return _unless(before.done.all(), a_round, before, index)

    states, log = jax.lax.scan(one_round, episodes.start(keys), jnp.arange(how.rounds))
    return log, _ends(states)


def _unless(
    over: Array, a_round: Callable[[State, Array], tuple[State, RoundLog]], *arguments: Any
) -> tuple[State, RoundLog]:
    """A round; where all episodes are over, the same state, and a record of nothing."""
    _, log = jax.eval_shape(a_round, *arguments)

    def nothing(before: State, index: Array) -> tuple[State, RoundLog]:
        return before, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), log)

    return jax.lax.cond(over, nothing, a_round, *arguments)


def _no_draws(problem: Problem, batch: int, draws: int) -> Draw:
    """Room for [B, K] draws."""
    hops, trees = problem.sender.shape[0], problem.root.shape[0]
    shape = (batch, draws)
    return Draw(
        jnp.zeros((*shape, hops, HOP_FEATURES)),
        jnp.zeros((*shape, hops), bool),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros((*shape, trees, PIECE_FEATURES)),
        jnp.zeros((*shape, trees), bool),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape),
        jnp.zeros(shape, bool),
    )


def _kept(draws: Draw, drawn: Draw, step: Array, stride: Array, offsets: Array) -> Draw:
    """The draws [B, K] with those of a step [B], where it is one that is recorded.

    Of every `stride` steps one is, the one at the episode's offset.
    """
    batch, room = draws.hop.shape
    place = step // stride
    recorded = (step % stride == offsets) & (place < room)
    slot = jnp.where(recorded, jnp.minimum(place, room - 1), room)
    each = jnp.arange(batch)
    return jax.tree.map(lambda all, new: all.at[each, slot].set(new, mode="drop"), draws, drawn)


def _round_log(
    problem: Problem,
    rewards: Rewards,
    before: State,
    after: State,
    evaluation: _Evaluation,
    draws: Draw,
) -> RoundLog:
    """The record of a round of each episode."""
    real = ~before.done
    tree_reward = rewards.flow_tree_selection(problem, before, after)
    workload_reward = rewards.workload_scheduling(problem, before, after)
    return RoundLog(
        evaluation.features,
        evaluation.selected,
        evaluation.tree_log_probability,
        evaluation.tree_value,
        evaluation.workload_value,
        tree_reward * real,
        workload_reward * real,
        draws._replace(real=draws.real & real[:, None]),
        real,
    )
