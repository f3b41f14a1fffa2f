"""Masked proximal policy optimisation over rounds and the draws within them.

An update trains one of the two agents; the parameters of the other do not change. A round's
advantage counts for all its draws: what was sent before a draw is settled, so nothing in the round
is credited twice. Source: Schulman et al. 2017; Huang and Ontañón 2020 for the masks.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gradweave.environment.problem import Problem
from gradweave.learning.episodes.features import Round, Scores
from gradweave.learning.features import Graph, of_hops
from gradweave.learning.networks import HierarchicalPolicy, masked_log_softmax
from gradweave.learning.rollout import (
    Draw,
    RoundLog,
    hop_scores,
    piece_scores,
    tree_log_probability,
)
from gradweave.learning.settings import PPO as PPO
from gradweave.training.advantages import advantages, clipped_objective

Agent = Literal["tree", "workload"]
"""Flow-tree selection, or workload scheduling."""


class Samples(eqx.Module):
    """Rounds with their advantages, [G, rows] of several problems."""

    rounds: RoundLog
    advantage: Float[Array, "G M"]
    target: Float[Array, "G M"]


def advantages_and_targets(
    log: RoundLog, agent: Agent, how: PPO
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Generalised advantage estimates and the critic's targets.

    Args:
        log: [T, B] rounds.
        agent: the agent.
        how: γ and λ.
    """
    reward, value = (
        (log.tree_reward, log.tree_value)
        if agent == "tree"
        else (log.workload_reward, log.workload_value)
    )
    value = value * log.real
    # Each record is one episode; the value after its last round is 0.
    next_value = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    never = jnp.zeros(value.shape, bool)
    advantage = advantages(reward, value, next_value, never, how.discount, how.gae_lambda)
    return advantage, advantage + value


def samples(logs: RoundLog, agent: Agent, how: PPO) -> Samples:
    """The rounds of several problems' records, one row each, with normalised advantages.

    Args:
        logs: [G, T, B] rounds.
        agent: the agent.
        how: γ and λ.
    """
    advantage, target = jax.vmap(lambda log: advantages_and_targets(log, agent, how))(logs)
    real = logs.real.astype(jnp.float32)
    number = jnp.maximum(real.sum((1, 2), keepdims=True), 1.0)
    mean = (advantage * real).sum((1, 2), keepdims=True) / number
    spread = jnp.sqrt((jnp.square(advantage - mean) * real).sum((1, 2), keepdims=True) / number)
    advantage = (advantage - mean) / (spread + 1e-6)
    flat = jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]), logs)
    problems = advantage.shape[0]
    return Samples(flat, advantage.reshape(problems, -1), target.reshape(problems, -1))


def _draw_log_probability(
    weights: Scores, draw: Draw, problem: Problem, graph: Graph, features: Round
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log-probability of a draw, or of all draws that an expert wants, and the entropy."""
    hop_features, hop_can = of_hops(problem, graph, features, draw.moment)
    hop_log = masked_log_softmax(hop_scores(weights, hop_features), hop_can)
    receiver = problem.receiver[draw.hop]
    piece_log = masked_log_softmax(
        piece_scores(weights, receiver, draw.piece_features), draw.piece_can
    )
    spread = (
        -(jnp.exp(hop_log) * jnp.where(hop_can, hop_log, 0.0)).sum()
        - (jnp.exp(piece_log) * jnp.where(draw.piece_can, piece_log, 0.0)).sum()
    )
    if draw.wanted is None:
        return hop_log[draw.hop] + piece_log[draw.piece], spread
    of_hops_wanted, of_pieces_wanted = (
        jax.nn.logsumexp(jnp.where(wanted, log, -1e9))
        for log, wanted in zip((hop_log, piece_log), draw.wanted, strict=True)
    )
    return of_hops_wanted + of_pieces_wanted, spread


def with_agent(policy: HierarchicalPolicy, agent: Agent, trained: Any) -> HierarchicalPolicy:
    """The policies with other parameters for one agent."""
    return eqx.tree_at(lambda policy: getattr(policy, agent), policy, trained)


def gradient(
    policy: HierarchicalPolicy, problems: Problem, rows: Samples, agent: Agent, how: PPO
) -> tuple[Any, dict[str, Float[Array, ""]]]:
    """The loss's gradient for one agent's parameters, over the rows of several problems in turn.

    The rows of a single problem are few enough to stay in a processor's caches.

    Args:
        policy: both policies.
        problems: [G] problems.
        rows: [G, M] rounds.
        agent: the agent that is trained.
        how: weights of the terms.

    Returns:
        The gradient; and the clipped objective, the critic's error, the entropy, and how far the
        ratios of probabilities moved from 1, as means over actions or rounds.
    """
    real = rows.rounds.real.astype(jnp.float32)
    drawn = (rows.rounds.draws.real * real[..., None]).sum()
    rounds = jnp.maximum(real.sum(), 1.0)
    actions = rounds if agent == "tree" else jnp.maximum(drawn, 1.0)

    def loss(trained: Any, problem: Problem, rows: Samples) -> tuple[Array, dict[str, Array]]:
        now = with_agent(policy, agent, trained)
        gain, spread, moved, error = _sums(now, problem, rows, agent, how)
        means = {
            "gain": gain / actions,
            "value_error": error / rounds,
            "entropy": spread / actions,
            "moved": moved / actions,
        }
        critic = how.value_coefficient * means["value_error"]
        return critic - means["gain"] - how.entropy_coefficient * means["entropy"], means

    trained = getattr(policy, agent)

    def of_problem(each: tuple[Problem, Samples]) -> tuple[Any, dict[str, Array]]:
        (_, figures), gradient = jax.value_and_grad(loss, has_aux=True)(trained, *each)
        return gradient, figures

    each = jax.lax.map(of_problem, (problems, rows))
    return jax.tree.map(lambda x: x.sum(0), each)


def _sums(
    policy: HierarchicalPolicy, problem: Problem, rows: Samples, agent: Agent, how: PPO
) -> tuple[Array, Array, Array, Array]:
    """Sums over the rows of a problem: clipped gain, entropy, moves of ratios, critic's error."""
    graph = Graph.of(problem)

    def of_tree(log: RoundLog, advantage: Array) -> tuple[Array, ...]:
        embeddings = policy.tree.encoder(log.features, graph)
        scores = policy.tree(embeddings)
        now = tree_log_probability(scores, log.selected, log.features.candidates)
        ratio = jnp.exp(now - log.tree_log_probability)
        odds = jax.nn.sigmoid(scores)
        each = -odds * jax.nn.log_sigmoid(scores) - (1 - odds) * jax.nn.log_sigmoid(-scores)
        spread = jnp.where(log.features.candidates, each, 0.0).sum()
        gain = clipped_objective(ratio, advantage, how.clip_ratio)
        return gain, spread, jnp.abs(ratio - 1), policy.tree.critic(embeddings)

    def of_workload(log: RoundLog, advantage: Array) -> tuple[Array, ...]:
        embeddings = policy.workload.encoder(log.features, graph)
        weights = policy.workload(embeddings, problem)
        now, spread = jax.vmap(
            lambda draw: _draw_log_probability(weights, draw, problem, graph, log.features)
        )(log.draws)
        real = log.draws.real.astype(jnp.float32)
        ratio = jnp.exp(jnp.where(log.draws.real, now - log.draws.log_probability, 0.0))
        gain = clipped_objective(ratio, advantage, how.clip_ratio)
        if log.draws.wanted is not None:  # imitation: made likelier, regardless of the ratio
            gain = jnp.where(log.draws.real, now, 0.0)
        sums = ((x * real).sum() for x in (gain, spread, jnp.abs(ratio - 1)))
        return *sums, policy.workload.critic(embeddings)

    each = of_tree if agent == "tree" else of_workload
    *sums, value = jax.vmap(each)(rows.rounds, rows.advantage)
    gain, spread, moved, error = (
        (x * rows.rounds.real).sum() for x in (*sums, jnp.square(value - rows.target))
    )
    return gain, spread, moved, error


def minibatch(rows: Samples, key: PRNGKeyArray, size: int) -> Samples:
    """Random rows of each problem, real ones first."""

    def chosen(key: PRNGKeyArray, real: Array) -> Array:
        order = jax.random.uniform(key, real.shape) - real
        return jnp.argsort(order)[:size]

    keys = jax.random.split(key, rows.advantage.shape[0])
    which = jax.vmap(chosen)(keys, rows.rounds.real.astype(jnp.float32))
    return jax.tree.map(lambda x: jax.vmap(lambda a, i: a[i])(x, which), rows)
