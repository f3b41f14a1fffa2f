"""Episodes of a policy: a round is evaluated once, and its workloads are drawn in sequence."""

import dataclasses
from typing import NamedTuple

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
from gradweave.learning.features import Graph, Round, Tally
from gradweave.learning.networks import (
    HierarchicalPolicy,
    Weights,
    masked_log_softmax,
)
from gradweave.schedulers.learned.policy import HOP_FEATURES, PIECE_FEATURES


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
    log_odds: Float[Array, ""]
    """Logarithm of the odds with which it was drawn."""
    real: Bool[Array, ""]
    """Whether there was a workload to draw."""


class RoundLog(NamedTuple):
    """One round, as the learner needs it."""

    features: Round
    selected: Bool[Array, " Q"]
    tree_log_odds: Float[Array, ""]
    tree_value: Float[Array, ""]
    workload_value: Float[Array, ""]
    tree_reward: Float[Array, ""]
    workload_reward: Float[Array, ""]
    draws: Draw
    """A sample of the round's draws."""
    real: Bool[Array, ""]
    """Whether the episode had not ended before."""


def tree_log_odds(
    scores: Float[Array, " Q"], selected: Bool[Array, " Q"], can: Bool[Array, " Q"]
) -> Float[Array, ""]:
    """Logarithm of the odds of a selection; trees with nothing to send do not count.

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
    """The trees of a round, the logarithm of their odds, and the state's value."""
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
    return selected, tree_log_odds(scores, selected, can), value


def _pick(scores: Array, can: Array, noise: Array, temperature: float) -> tuple[Array, Array]:
    """A choice and the logarithm of its odds."""
    log_odds = masked_log_softmax(scores, can)
    tie = 1e-4 if temperature == 0 else temperature
    chosen = jnp.where(can, scores + tie * noise, -jnp.inf).argmax()
    return chosen, log_odds[chosen]


def hop_scores(weights: Weights, hop_features: Float[Array, "H 12"]) -> Float[Array, " H"]:
    """The score of each hop."""
    return (weights.hop * hop_features).sum(-1)


def piece_scores(
    weights: Weights, taker: Int[Array, ""], piece_features: Float[Array, "Q 7"]
) -> Float[Array, " Q"]:
    """The score of each tree at a taker."""
    return piece_features @ weights.piece[taker] + weights.match[taker]


def draw(
    problem: Problem,
    graph: Graph,
    features: Round,
    weights: Weights,
    state: State,
    tally: Tally,
    key: PRNGKeyArray,
    decode: Decode,
) -> tuple[State, Tally, Draw]:
    """Draws one workload and sends it, if there is any."""
    hops, trees = problem.giver.shape[0], problem.root.shape[0]
    noise = jax.random.gumbel(key, (hops + trees,))
    hop_features, hop_can = features_of.of_hops(problem, graph, features, state, tally)
    scores = hop_scores(weights, hop_features)
    hop, hop_log_odds = _pick(scores, hop_can, noise[:hops], decode.temperature)
    taker = problem.taker[hop]
    piece_features, piece_can = features_of.of_pieces(problem, features, state, hop)
    scores = piece_scores(weights, taker, piece_features)
    piece, piece_log_odds = _pick(scores, piece_can, noise[hops:], decode.temperature)
    real = hop_can.any()
    made = Draw(
        hop_features,
        hop_can,
        hop,
        piece_features,
        piece_can,
        piece,
        hop_log_odds + piece_log_odds,
        real,
    )
    return send(problem, state, hop, piece, real), tally.sent(taker, real), made


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
    graph = Graph.of(problem)

    def round_of(state: State, key: PRNGKeyArray) -> tuple[State, Round, Weights, PRNGKeyArray]:
        first, second = jax.random.split(key)
        features = features_of.of_round(problem, graph, state)
        selected, _, _ = select_trees(policy, features, first, decode)
        weights = policy.workload(policy.workload.encoder(features), problem)
        return select(problem, state, selected), features, weights, second

    def one_draw(carry: tuple) -> tuple:
        step, states, tallies, features, weights, keys = carry
        now = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
        states, tallies, _ = jax.vmap(
            lambda f, w, s, t, k: draw(problem, graph, f, w, s, t, k, decode)
        )(features, weights, states, tallies, now)
        return step + 1, states, tallies, features, weights, keys

    def one_round(carry: tuple[Array, State]) -> tuple[Array, State]:
        index, before = carry
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        states, features, weights, inner = jax.vmap(round_of)(before, now)
        tallies = jax.vmap(Tally.start)(features)
        start = (jnp.zeros((), jnp.int32), states, tallies, features, weights, inner)
        _, states, *_ = jax.lax.while_loop(_some_left, one_draw, start)
        ended = jax.vmap(lambda s: close(problem, s))(states)
        states = jax.vmap(where)(before.done, before, ended)
        return index + 1, states

    def unfinished(carry: tuple[Array, State]) -> Array:
        index, states = carry
        return (index < length) & ~states.done.all()

    start = jax.vmap(lambda _: reset(problem))(keys)
    _, states = jax.lax.while_loop(unfinished, one_round, (jnp.zeros((), jnp.int32), start))
    return Ends(jax.vmap(rounds_of)(states), states.done, states.sent_round, states.sent_hop)


def _some_left(carry: tuple) -> Array:
    """Whether any episode, second in a loop's carry, has a workload left for this round."""
    return jax.vmap(any_available)(carry[1]).any()


def close(problem: Problem, state: State) -> State:
    """Ends a round in which no workload is left, unless `select` did so for want of any."""
    return where(workload_scheduling.is_turn(state), end_round(problem, state), state)


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
    graph = Graph.of(problem)
    batch = keys.shape[0]
    stride = jnp.maximum(-(-busiest // how.draws), 1)

    def open_round(state: State, key: PRNGKeyArray) -> tuple:
        first, second, third = jax.random.split(key, 3)
        features = features_of.of_round(problem, graph, state)
        selected, log_odds, tree_value = select_trees(policy, features, first, how.decode)
        views = policy.workload.encoder(features)
        weights = policy.workload(views, problem)
        after = select(problem, state, selected)
        offset = jax.random.randint(third, (), 0, stride)
        values = (log_odds, tree_value, policy.workload.critic(views))
        return after, features, weights, selected, values, second, offset

    def one_draw(carry: tuple) -> tuple:
        step, states, tallies, logs, features, weights, keys, offsets = carry
        now = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
        states, tallies, made = jax.vmap(
            lambda f, w, s, t, k: draw(problem, graph, f, w, s, t, k, how.decode)
        )(features, weights, states, tallies, now)
        chosen = (step % stride == offsets) & (step // stride < how.draws)
        slot = jnp.where(chosen, jnp.minimum(step // stride, how.draws - 1), how.draws)
        each = jnp.arange(batch)
        logs = jax.tree.map(lambda log, new: log.at[each, slot].set(new, mode="drop"), logs, made)
        return step + 1, states, tallies, logs, features, weights, keys, offsets

    def one_round(states: State, index: Array) -> tuple[State, RoundLog]:
        before = states
        real = ~before.done
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        states, features, weights, selected, values, inner, offsets = jax.vmap(open_round)(
            before, now
        )
        tallies = jax.vmap(Tally.start)(features)
        step = jnp.zeros((), jnp.int32)
        start = (step, states, tallies, empty, features, weights, inner, offsets)
        _, states, _, logs, *_ = jax.lax.while_loop(_some_left, one_draw, start)
        after = jax.vmap(lambda s: close(problem, s))(states)
        after = jax.vmap(where)(before.done, before, after)
        rewards = how.rewards
        log_odds, tree_value, workload_value = values
        tree_reward = jax.vmap(lambda a, b: rewards.flow_tree_selection(problem, a, b))
        workload_reward = jax.vmap(lambda a, b: rewards.workload_scheduling(problem, a, b))
        log = RoundLog(
            features,
            selected,
            log_odds,
            tree_value,
            workload_value,
            tree_reward(before, after) * real,
            workload_reward(before, after) * real,
            logs._replace(real=logs.real & real[:, None]),
            real,
        )
        return after, log

    hops, trees = problem.giver.shape[0], problem.root.shape[0]
    shape = (batch, how.draws)
    empty = Draw(
        jnp.zeros((*shape, hops, HOP_FEATURES)),
        jnp.zeros((*shape, hops), bool),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros((*shape, trees, PIECE_FEATURES)),
        jnp.zeros((*shape, trees), bool),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape),
        jnp.zeros(shape, bool),
    )
    start = jax.vmap(lambda _: reset(problem))(keys)
    states, log = jax.lax.scan(one_round, start, jnp.arange(how.rounds))
    ends = Ends(jax.vmap(rounds_of)(states), states.done, states.sent_round, states.sent_hop)
    return log, ends
