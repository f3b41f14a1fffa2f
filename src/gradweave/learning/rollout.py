"""Episodes of a policy, which evaluates each round once and draws its workloads in sequence."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gradweave.environment import workload_scheduling
from gradweave.environment.environment import rounds as rounds_of
from gradweave.environment.flow_tree_selection import select
from gradweave.environment.problem import Problem
from gradweave.environment.rewards import Rewards
from gradweave.environment.state import State, any_available, end_round, reset, where
from gradweave.environment.workload_scheduling import send
from gradweave.learning import features as features_of
from gradweave.learning.episodes.features import PIECE_FEATURES, Round, Scores
from gradweave.learning.features import Graph, Loads, Moment
from gradweave.learning.networks import HierarchicalPolicy, masked_log_softmax

LAST = -1
"""Axis of the environments in states, where their tables are fast to traverse."""


@dataclasses.dataclass(frozen=True)
class Decode:
    """How actions are chosen from scores."""

    temperature: float = 1.0
    """Temperature of both agents' sampling; 0 takes the best action, with random ties."""
    select: bool = True
    """Whether flow-tree selection acts; otherwise every tree is selected (a single policy)."""


class Draw(NamedTuple):
    """One workload of a round, with the data that the learner needs."""

    moment: Moment
    """Inputs of the features of hops."""
    hop: Int[Array, ""]
    piece_features: Float[Array, "7 Q"]
    piece_can: Bool[Array, " Q"]
    piece: Int[Array, ""]
    log_probability: Float[Array, ""]
    real: Bool[Array, ""]
    """Whether there was a workload to draw."""
    wanted: tuple[Bool[Array, " H"], Bool[Array, " Q"]] | None = None
    """When an expert is imitated: the hops, and the trees on the chosen hop, that it sends in this
    round and has not sent yet. A round is a set, so any of these is as good as the workload drawn.
    """


class Expert(eqx.Module):
    """Episodes to imitate."""

    sent_round: Int[Array, "E N Q"]
    """Round of each transfer; below 0 if there is no transfer."""
    sent_hop: Int[Array, "E N Q"]
    """Its hop."""

    def following(self, episodes: int) -> "Expert":
        """One expert episode for each of a number of episodes, in turn."""
        return jax.tree.map(lambda x: x[jnp.arange(episodes) % len(x)], self)

    def wanted(self, problem: Problem, state: State) -> Bool[Array, "H Q"]:
        """Workloads of the current round in one expert episode [N, Q], without those sent."""
        server = jnp.where(problem.by_sender, problem.sender[:, None], problem.receiver[:, None])
        cell = server, jnp.arange(problem.by_sender.shape[0])
        now = state.pending & (self.sent_round == state.round)
        return now[cell] & (self.sent_hop[cell] == jnp.arange(problem.sender.shape[0])[:, None])


class RoundLog(NamedTuple):
    """One round, with the data that the learner needs."""

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
    """Whether the episode was still running."""


def tree_log_probability(
    scores: Float[Array, " Q"], selected: Bool[Array, " Q"], can: Bool[Array, " Q"]
) -> Float[Array, ""]:
    """Log-probability of a selection; trees with nothing to send do not count.

    Args:
        scores: score of each tree.
        selected: the selection.
        can: trees with a ready workload.
    """
    each = jax.nn.log_sigmoid(jnp.where(selected, scores, -scores))
    return jnp.where(can, each, 0.0).sum()


def select_trees(
    policy: HierarchicalPolicy, graph: Graph, features: Round, key: PRNGKeyArray, decode: Decode
) -> tuple[Bool[Array, " Q"], Float[Array, ""], Float[Array, ""]]:
    """The trees of a round, the log-probability of their selection, and the state's value."""
    embeddings = policy.tree.encoder(features, graph)
    scores = policy.tree(embeddings)
    value = policy.tree.critic(embeddings)
    can = features.candidates
    if not decode.select:
        return can, jnp.zeros(()), value
    noise = jax.random.logistic(key, scores.shape) * decode.temperature
    selected = can & (scores + noise > 0)
    if decode.temperature == 0:  # a round without a transfer is useless
        best = jnp.arange(len(scores)) == jnp.where(can, scores, -jnp.inf).argmax()
        selected = jnp.where(selected.any(), selected, can & best)
    return selected, tree_log_probability(scores, selected, can), value


def _pick(scores: Array, can: Array, noise: Array, temperature: float) -> tuple[Array, Array]:
    """A choice and its log-probability."""
    log_probabilities = masked_log_softmax(scores, can)
    tie = 1e-4 if temperature == 0 else temperature
    chosen = jnp.where(can, scores + tie * noise, -jnp.inf).argmax()
    return chosen, log_probabilities[chosen]


def hop_scores(weights: Scores, hop_features: Float[Array, "12 H"]) -> Float[Array, " H"]:
    """The score of each hop."""
    return jnp.einsum("hf,fh->h", weights.hop, hop_features)


def piece_scores(
    weights: Scores, receiver: Int[Array, ""], piece_features: Float[Array, "7 Q"]
) -> Float[Array, " Q"]:
    """The score of each tree at a receiver."""
    return weights.piece[receiver] @ piece_features + weights.match[receiver]


def draw(
    problem: Problem,
    graph: Graph,
    features: Round,
    weights: Scores,
    state: State,
    loads: Loads,
    key: PRNGKeyArray,
    decode: Decode,
    expert: Expert | None = None,
) -> tuple[State, Loads, Draw]:
    """Draws one available workload and sends it; imitates the expert if one is given."""
    hops, trees = problem.sender.shape[0], problem.root.shape[0]
    noise = jax.random.gumbel(key, (hops + trees,))
    moment = Moment.of(problem, state, loads)
    hop_features, hop_can = features_of.of_hops(problem, graph, features, moment)
    scores = hop_scores(weights, hop_features)
    wanted = None if expert is None else expert.wanted(problem, state)
    hop_may = hop_can if wanted is None else hop_can & wanted.any(1)
    hop, hop_log_probability = _pick(scores, hop_may, noise[:hops], decode.temperature)
    receiver = problem.receiver[hop]
    piece_features, piece_can = features_of.of_pieces(problem, graph, features, state, hop)
    scores = piece_scores(weights, receiver, piece_features)
    piece_may = piece_can if wanted is None else piece_can & wanted[hop]
    piece, piece_log_probability = _pick(scores, piece_may, noise[hops:], decode.temperature)
    real = hop_may.any()
    drawn = Draw(
        moment,
        hop,
        piece_features,
        piece_can,
        piece,
        hop_log_probability + piece_log_probability,
        real,
        None if wanted is None else (hop_may, piece_may),
    )
    return send(problem, state, hop, piece, real), loads.sent(receiver, real), drawn


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Lengths of an episode's records, which determine array shapes."""

    rounds: int
    """Maximum number of rounds recorded; later rounds do not count."""
    draws: int
    """Number of draws recorded per round, evenly spread."""
    rewards: Rewards = dataclasses.field(default_factory=Rewards)
    decode: Decode = dataclasses.field(default_factory=Decode)


class Ends(NamedTuple):
    """The results of episodes."""

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
    """Plays whole episodes in parallel, without a record.

    Args:
        policy: both policies.
        problem: one problem for all episodes.
        keys: [B] keys, one per episode.
        length: maximum number of rounds.
        decode: how to choose actions.
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
        _, states, _ = jax.lax.while_loop(lambda now: episodes.left(now[1]), one_draw, start)
        return index + 1, episodes.close(before, states)

    def unfinished(carry: tuple[Array, State]) -> Array:
        index, states = carry
        return (index < length) & ~states.done.all()

    start = jnp.zeros((), jnp.int32), episodes.start(keys)
    return _ends(jax.lax.while_loop(unfinished, one_round, start)[1])


class _Evaluation(NamedTuple):
    """The policies' outputs at the start of a round."""

    features: Round
    weights: Scores
    selected: Bool[Array, " Q"]
    tree_log_probability: Float[Array, ""]
    tree_value: Float[Array, ""]
    workload_value: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class _Episodes:
    """Episodes of one problem, played in parallel."""

    policy: HierarchicalPolicy
    problem: Problem
    graph: Graph
    decode: Decode
    expert: Expert | None = None
    """[B] episodes to imitate."""

    def start(self, keys: PRNGKeyArray) -> State:
        """The states before the first round, one per key."""
        return jax.vmap(lambda _: reset(self.problem), 0, LAST)(keys)

    def open(self, state: State, key: PRNGKeyArray) -> tuple[State, _Evaluation]:
        """Evaluates the policies at the start of an episode's round, and selects its trees."""
        features = features_of.of_round(self.problem, self.graph, state)
        chosen = select_trees(self.policy, self.graph, features, key, self.decode)
        selected, log_probability, tree_value = chosen
        embeddings = self.policy.workload.encoder(features, self.graph)
        weights = self.policy.workload(embeddings, self.problem)
        after = select(self.problem, state, selected)
        value = self.policy.workload.critic(embeddings)
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
            lambda f, w, s, t, k, e: draw(self.problem, self.graph, f, w, s, t, k, self.decode, e),
            (0, 0, LAST, 0, 0, 0),
            (LAST, 0, 0),
        )(evaluation.features, evaluation.weights, states, loads, now, self.expert)

    def left(self, states: State) -> Bool[Array, ""]:
        """Whether any episode has a workload left for this round."""
        if self.expert is None:
            return any_available(states).any()

        def some(state: State, expert: Expert) -> Bool[Array, ""]:
            return (state.pending & (expert.sent_round == state.round)).any()

        return jax.vmap(some, (LAST, 0))(states, self.expert).any()

    def close(self, before: State, states: State) -> State:
        """Ends the round of those episodes that were still running."""
        return where(before.done, before, close(states))


def _ends(states: State) -> Ends:
    return jax.vmap(
        lambda state: Ends(rounds_of(state), state.done, state.sent_round, state.sent_hop), LAST, 0
    )(states)


def close(state: State) -> State:
    """Ends a round in which no workload is left, unless `select` has ended it for lack of any.

    Args:
        state: state of one environment, or of many, with the environments as the last axis.
    """
    return end_round(state, workload_scheduling.is_turn(state))


def record(
    policy: HierarchicalPolicy,
    problem: Problem,
    keys: PRNGKeyArray,
    busiest: Int[Array, ""],
    how: Rollout,
    expert: Expert | None = None,
) -> tuple[RoundLog, Ends]:
    """Plays whole episodes in parallel, and records the data that the learner needs.

    Args:
        policy: both policies.
        problem: one problem for all episodes.
        keys: [B] keys, one per episode.
        busiest: maximum number of transfers per round, over which the recorded draws are spread.
        how: the lengths of the record, the rewards and the choice of actions.
        expert: [E] episodes to imitate, if any; the policy chooses the order within a round.

    Returns:
        A log of [T, B] rounds with [T, B, K] draws, and the results of the episodes.
    """
    decode, followed = how.decode, None
    if expert is not None:  # an expert may send any tree
        decode = dataclasses.replace(decode, select=False)
        followed = expert.following(keys.shape[0])
    episodes = _Episodes(policy, problem, Graph.of(problem), decode, followed)
    stride = jnp.maximum(-(-busiest // how.draws), 1)
    empty = _no_draws(problem, keys.shape[0], how.draws, expert is not None)

    def open_round(state: State, key: PRNGKeyArray) -> tuple[State, _Evaluation, PRNGKeyArray]:
        selecting, drawing = jax.random.split(key)
        return *episodes.open(state, selecting), drawing

    def a_round(before: State, index: Array) -> tuple[State, RoundLog]:
        now = jax.vmap(lambda key: jax.random.fold_in(key, index))(keys)
        states, evaluation, drawing = jax.vmap(open_round, (LAST, 0), (LAST, 0, 0))(before, now)
        sampling = jax.random.fold_in(keys[0], how.rounds + index)
        offset = jax.random.randint(sampling, (), 0, stride)

        def one_draw(carry: tuple[Array, State, Loads, Draw]) -> tuple[Array, State, Loads, Draw]:
            step, states, loads, draws = carry
            states, loads, drawn = episodes.draw(step, states, loads, evaluation, drawing)
            return step + 1, states, loads, _kept(draws, drawn, step, stride, offset)

        loads = jax.vmap(Loads.start)(evaluation.features)
        start = jnp.zeros((), jnp.int32), states, loads, empty
        _, states, _, draws = jax.lax.while_loop(lambda now: episodes.left(now[1]), one_draw, start)
        draws = jax.tree.map(lambda x: x[:, : how.draws], draws)
        after = episodes.close(before, states)
        return after, _round_log(problem, how.rewards, before, after, evaluation, draws)

    def one_round(before: State, index: Array) -> tuple[State, RoundLog]:
        return _unless(before.done.all(), a_round, before, index)

    states, log = jax.lax.scan(one_round, episodes.start(keys), jnp.arange(how.rounds))
    return log, _ends(states)


def _unless(
    over: Array, a_round: Callable[[State, Array], tuple[State, RoundLog]], *arguments: Any
) -> tuple[State, RoundLog]:
    """A round; if all episodes are over, the unchanged state and an empty record."""
    _, log = jax.eval_shape(a_round, *arguments)

    def nothing(before: State, index: Array) -> tuple[State, RoundLog]:
        return before, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), log)

    return jax.lax.cond(over, nothing, a_round, *arguments)


def _no_draws(problem: Problem, batch: int, draws: int, wanted: bool) -> Draw:
    """Empty arrays for [B, K] draws, and one more for draws that are not recorded."""
    hops, trees = problem.sender.shape[0], problem.root.shape[0]
    servers, links = problem.intake.shape[0], problem.capacity.shape[0]
    shape = (batch, draws + 1)
    loads = Loads(jnp.zeros((*shape, servers)), jnp.zeros((*shape, servers)))
    return Draw(
        Moment(jnp.zeros((*shape, hops)), jnp.zeros((*shape, links)), loads),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros((*shape, PIECE_FEATURES, trees)),
        jnp.zeros((*shape, trees), bool),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape),
        jnp.zeros(shape, bool),
        (jnp.zeros((*shape, hops), bool), jnp.zeros((*shape, trees), bool)) if wanted else None,
    )


def _kept(draws: Draw, drawn: Draw, step: Array, stride: Array, offset: Array) -> Draw:
    """The draws [B, K + 1] with the draw [B] of one more step.

    One of every `stride` steps is recorded, at the offset of the round. The draws of other steps
    overwrite the last place.
    """
    last = draws.hop.shape[1] - 1
    place = jnp.where(step % stride == offset, jnp.minimum(step // stride, last), last)
    return jax.tree.map(
        lambda all, new: jax.lax.dynamic_update_index_in_dim(all, new, place, 1), draws, drawn
    )


def _round_log(
    problem: Problem,
    rewards: Rewards,
    before: State,
    after: State,
    evaluation: _Evaluation,
    draws: Draw,
) -> RoundLog:
    """The record of one round of each episode."""
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
