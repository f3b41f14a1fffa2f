"""PPO on simple_spread as in JaxMARL, with which `gradweave train` is compared.

    python -m benchmarks.peers.jaxmarl_ppo

Written after JaxMARL's `baselines/IPPO/ippo_ff_mpe.py`, which its wheel does not contain: the same
computation in the same order, with Flax networks of 64 + 64, returns and lengths of episodes logged
in each game, all agents of all games as rows of one matrix, an epoch's whole batch permuted by row,
clipped values, and metrics of each minibatch. Left out: reporting to Weights & Biases. As there,
agents do not observe their index. Batch, epochs, minibatches and the optimizer's settings are those
of `bare_ppo.py`. Prints environment steps per second over about a minute, without compilation.
"""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxmarl
import optax
from flax import linen
from flax.training.train_state import TrainState

from benchmarks.peers import bare_ppo
from benchmarks.peers.bare_ppo import (
    CLIP,
    ENTROPY,
    ENVS,
    EPOCHS,
    GAMMA,
    LAMBDA,
    PARTS,
    STEPS,
    UPDATES,
    VALUE,
)

env = jaxmarl.make("MPE_simple_spread_v3")
ROWS = env.num_agents * ENVS
SEEN, ACTIONS = 18, 5


class Networks(linen.Module):
    """Logits of the actions, and a value."""

    @linen.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.layers(x, ACTIONS, 0.01), self.layers(x, 1, 1.0)[..., 0]

    def layers(self, x: jax.Array, out: int, scale: float) -> jax.Array:
        orthogonal = linen.initializers.orthogonal
        for _ in range(2):
            x = linen.tanh(linen.Dense(bare_ppo.HIDDEN, kernel_init=orthogonal(2**0.5))(x))
        return linen.Dense(out, kernel_init=orthogonal(scale))(x)


class Step(NamedTuple):
    """[T, ROWS], or any part of it."""

    done: jax.Array
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    log_p: jax.Array
    obs: jax.Array
    info: dict[str, jax.Array]


def rows(by_agent: dict[str, jax.Array]) -> jax.Array:
    return jnp.stack([by_agent[agent] for agent in env.agents]).reshape(ROWS, -1)


def log_p_of(scores: jax.Array, action: jax.Array) -> jax.Array:
    chosen = jax.nn.one_hot(action, ACTIONS)
    return (jax.nn.log_softmax(scores) * chosen).sum(-1)


class Logged(NamedTuple):
    """A game, and returns and lengths of its present and its last episode: [A]."""

    game: Any
    returns: jax.Array
    lengths: jax.Array
    last_returns: jax.Array
    last_lengths: jax.Array


def logged_reset(key: jax.Array) -> tuple[dict, Logged]:
    obs, game = env.reset(key)
    return obs, Logged(game, *(jnp.zeros(env.num_agents) for _ in range(4)))


def logged_step(key: jax.Array, state: Logged, action: dict) -> tuple:
    obs, game, reward, done, _ = env.step(key, state.game, action)
    over = done["__all__"]
    earned = env.num_agents * jnp.stack([reward[agent] for agent in env.agents])
    returns, lengths = state.returns + earned, state.lengths + 1
    last_returns = jnp.where(over, returns, state.last_returns)
    last_lengths = jnp.where(over, lengths, state.last_lengths)
    after = Logged(game, returns * (1 - over), lengths * (1 - over), last_returns, last_lengths)
    ended = jnp.full(env.num_agents, over)
    info = {"returns": last_returns, "lengths": last_lengths, "ended": ended}
    return obs, after, reward, done, info


def play(carry: tuple, _: None) -> tuple[tuple, Step]:
    learner, state, obs, key = carry
    seen = rows(obs)
    key, drawing = jax.random.split(key)
    scores, value = learner.apply_fn(learner.params, seen)
    action = jax.random.categorical(drawing, scores)
    by_agent = dict(zip(env.agents, action.reshape(env.num_agents, ENVS), strict=True))
    key, stepping = jax.random.split(key)
    keys = jax.random.split(stepping, ENVS)
    obs, state, reward, done, info = jax.vmap(logged_step)(keys, state, by_agent)
    info = {name: x.reshape(ROWS) for name, x in info.items()}
    log_p = log_p_of(scores, action)
    step = Step(rows(done)[:, 0], action, value, rows(reward)[:, 0], log_p, seen, info)
    return (learner, state, obs, key), step


def advantages(steps: Step, last: jax.Array) -> jax.Array:
    def back(carry: tuple, step: Step) -> tuple:
        gae, following = carry
        error = step.reward + GAMMA * following * (1 - step.done) - step.value
        gae = error + GAMMA * LAMBDA * (1 - step.done) * gae
        return (gae, step.value), gae

    start = jnp.zeros_like(last), last
    return jax.lax.scan(back, start, steps, reverse=True, unroll=8)[1]


def learn(learner: TrainState, part: tuple) -> tuple[TrainState, dict[str, jax.Array]]:
    steps, gae, target = part

    def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        scores, value = learner.apply_fn(params, steps.obs)
        near = steps.value + jnp.clip(value - steps.value, -CLIP, CLIP)
        errors = jnp.maximum(jnp.square(value - target), jnp.square(near - target))
        error = 0.5 * errors.mean()
        ratio = jnp.exp(log_p_of(scores, steps.action) - steps.log_p)
        advantage = (gae - gae.mean()) / (gae.std() + 1e-8)
        clipped = jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantage
        actor = -jnp.minimum(ratio * advantage, clipped).mean()
        log_p = jax.nn.log_softmax(scores)
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        figures = {"critic": error, "actor": actor, "entropy": entropy, "ratio": ratio}
        return actor + VALUE * error - ENTROPY * entropy, figures

    (total, figures), gradient = jax.value_and_grad(loss, has_aux=True)(learner.params)
    return learner.apply_gradients(grads=gradient), figures | {"total": total}


def update(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
    (learner, state, obs, key), steps = jax.lax.scan(play, carry, None, STEPS)
    gae = advantages(steps, learner.apply_fn(learner.params, rows(obs))[1])
    batch = steps, gae, gae + steps.value

    def epoch(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
        learner, key = carry
        key, ordering = jax.random.split(key)
        order = jax.random.permutation(ordering, STEPS * ROWS)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[order], batch)
        parts = jax.tree.map(lambda x: x.reshape(PARTS, -1, *x.shape[1:]), flat)
        learner, figures = jax.lax.scan(learn, learner, parts)
        return (learner, key), figures

    (learner, key), figures = jax.lax.scan(epoch, (learner, key), None, EPOCHS)
    means = jax.tree.map(jnp.mean, steps.info | figures)
    return (learner, state, obs, key), means | {"reward": steps.reward.mean()}


def start(seed: int = 0) -> tuple:
    drawing, beginning, key = jax.random.split(jax.random.key(seed), 3)
    network = Networks()
    learner = TrainState.create(
        apply_fn=network.apply,
        params=network.init(drawing, jnp.zeros(SEEN)),
        tx=optax.chain(
            optax.clip_by_global_norm(0.5),
            optax.adam(optax.linear_schedule(bare_ppo.RATE, 0.0, 10**6), eps=1e-5),
        ),
    )
    obs, state = jax.vmap(logged_reset)(jax.random.split(beginning, ENVS))
    return learner, state, obs, key


@jax.jit
def train(carry: tuple, key: jax.Array) -> tuple[tuple, jax.Array]:
    learner, state, obs, _ = carry
    carry, figures = jax.lax.scan(update, (learner, state, obs, key), None, UPDATES)
    return carry, figures["reward"]


if __name__ == "__main__":
    bare_ppo.report(start, train, *map(int, sys.argv[1:]))
