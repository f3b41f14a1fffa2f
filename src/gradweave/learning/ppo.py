"""Masked proximal policy optimisation over rounds and the draws within them.

An update trains one of the two agents; the other one's parameters are not touched. A round's
advantage counts for all its draws: what was sent before a draw is settled, so nothing in the round
is credited twice. Source: Schulman et al. 2017; Huang and Ontañón 2020 for the masks.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gradweave.environment.problem import Problem
from gradweave.learning.networks import HierarchicalPolicy, masked_log_softmax
from gradweave.learning.rollout import (
    Draw,
    RoundLog,
    hop_scores,
    piece_scores,
    tree_log_probability,
)
from gradweave.learning.settings import PPO as PPO
from gradweave.training.advantages import advantages

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
        agent: whose.
        how: γ and λ.
    """
    reward, value = (
        (log.tree_reward, log.tree_value)
        if agent == "tree"
        else (log.workload_reward, log.workload_value)
    )
    value = value * log.real
    # Each record is one episode; what follows its last round is worth nothing.
    next_value = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    never = jnp.zeros(value.shape, bool)
    advantage = advantages(reward, value, next_value, never, how.discount, how.gae_lambda)
    return advantage, advantage + value


def samples(logs: RoundLog, agent: Agent, how: PPO) -> Samples:
    """The rounds of several problems' records, one row each, advantages of one scale.

    Args:
        logs: [G, T, B] rounds.
        agent: whose.
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
    weights: eqx.Module, draw: Draw, problem: Problem
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log-probability of a draw, and the entropy of its distribution."""
    hop_log = masked_log_softmax(hop_scores(weights, draw.hop_features), draw.hop_can)  # pyright: ignore[reportArgumentType]
    receiver = problem.receiver[draw.hop]
    piece_log = masked_log_softmax(
        piece_scores(weights, receiver, draw.piece_features),  # pyright: ignore[reportArgumentType]
        draw.piece_can,
    )
    spread = (
        -(jnp.exp(hop_log) * jnp.where(draw.hop_can, hop_log, 0.0)).sum()
        - (jnp.exp(piece_log) * jnp.where(draw.piece_can, piece_log, 0.0)).sum()
    )
    return hop_log[draw.hop] + piece_log[draw.piece], spread


def _clipped_gain(ratio: Array, advantage: Array, clip: float) -> Array:
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def loss(
    policy: HierarchicalPolicy, problems: Problem, rows: Samples, agent: Agent, how: PPO
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """The clipped objective, the critic's error and the entropy, over rows of several problems.

    Args:
        policy: both agents.
        problems: [G] problems.
        rows: [G, M] rounds.
        agent: who is trained.
        how: weights of the terms.
    """

    def of_tree(problem: Problem, log: RoundLog, advantage: Array) -> tuple[Array, ...]:
        views = policy.tree.encoder(log.features)
        scores = policy.tree(views)
        now = tree_log_probability(scores, log.selected, log.features.candidates)
        ratio = jnp.exp(now - log.tree_log_probability)
        odds = jax.nn.sigmoid(scores)
        each = -odds * jax.nn.log_sigmoid(scores) - (1 - odds) * jax.nn.log_sigmoid(-scores)
        spread = jnp.where(log.features.candidates, each, 0.0).sum()
        gain = _clipped_gain(ratio, advantage, how.clip_ratio)
        one = jnp.ones(())
        return policy.tree.critic(views), gain, spread, one, jnp.abs(ratio - 1)

    def of_workload(problem: Problem, log: RoundLog, advantage: Array) -> tuple[Array, ...]:
        views = policy.workload.encoder(log.features)
        weights = policy.workload(views, problem)
        now, spread = jax.vmap(lambda draw: _draw_log_probability(weights, draw, problem))(
            log.draws
        )
        real = log.draws.real.astype(jnp.float32)
        ratio = jnp.exp(jnp.where(log.draws.real, now - log.draws.log_probability, 0.0))
        gain = (_clipped_gain(ratio, advantage, how.clip_ratio) * real).sum()
        value = policy.workload.critic(views)
        return value, gain, (spread * real).sum(), real.sum(), (jnp.abs(ratio - 1) * real).sum()

    each = of_tree if agent == "tree" else of_workload
    per_row = jax.vmap(jax.vmap(each, in_axes=(None, 0, 0)))
    value, gain, spread, number, moved = per_row(problems, rows.rounds, rows.advantage)
    real = rows.rounds.real.astype(jnp.float32)
    actions = jnp.maximum((number * real).sum(), 1.0)
    gain, spread, moved = ((x * real).sum() / actions for x in (gain, spread, moved))
    error = (jnp.square(value - rows.target) * real).sum() / jnp.maximum(real.sum(), 1.0)
    total = -gain + how.value_coefficient * error - how.entropy_coefficient * spread
    return total, {"gain": gain, "value_error": error, "entropy": spread, "moved": moved}


def minibatch(rows: Samples, key: PRNGKeyArray, size: int) -> Samples:
    """Random rows of each problem, real ones first."""

    def chosen(key: PRNGKeyArray, real: Array) -> Array:
        order = jax.random.uniform(key, real.shape) - real
        return jnp.argsort(order)[:size]

    keys = jax.random.split(key, rows.advantage.shape[0])
    which = jax.vmap(chosen)(keys, rows.rounds.real.astype(jnp.float32))
    return jax.tree.map(lambda x: jax.vmap(lambda a, i: a[i])(x, which), rows)
