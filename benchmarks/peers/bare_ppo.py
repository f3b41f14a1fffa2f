"""A minimal PPO on simple_spread, with which `gradweave train` is compared.

    python benchmarks/peers/bare_ppo.py

Independent PPO with shared parameters and two networks of 64 + 64: without masks, recurrence,
several devices or seeds, metrics and checkpoints. Batch, epochs, minibatches and optimizer are
`gradweave.marl`'s defaults for this environment. Prints environment steps per second over about a
minute, without compilation.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxmarl
import optax

ENVS, STEPS, EPOCHS, PARTS, UPDATES, HIDDEN = 64, 128, 4, 4, 16, 64
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, RATE = 0.95, 0.95, 0.2, 0.01, 0.5, 1e-3
env = jaxmarl.make("MPE_simple_spread_v3")
AGENTS, ACTIONS, SEEN = len(env.agents), 5, 18 + len(env.agents)
optimizer = optax.chain(
    optax.clip_by_global_norm(0.5), optax.adam(optax.linear_schedule(RATE, 0.0, 10**6), eps=1e-5)
)


def init_net(key: jax.Array, out: int, scale: float) -> list[tuple[jax.Array, jax.Array]]:
    sizes = [(SEEN, HIDDEN, 2**0.5), (HIDDEN, HIDDEN, 2**0.5), (HIDDEN, out, scale)]
    keys = jax.random.split(key, 3)
    ortho = jax.nn.initializers.orthogonal
    return [(ortho(s)(k, (i, o)), jnp.zeros(o)) for k, (i, o, s) in zip(keys, sizes, strict=True)]


def apply(net: list, x: jax.Array) -> jax.Array:
    rows = x.reshape(-1, SEEN)  # one matrix: XLA copies arrays of three axes before it multiplies
    for w, b in net[:-1]:
        rows = jnp.tanh(rows @ w + b)
    return (rows @ net[-1][0] + net[-1][1]).reshape(*x.shape[:-1], -1)


def batch(obs: dict) -> jax.Array:  # [envs, agents, seen]
    stacked = jnp.stack([obs[agent] for agent in env.agents], axis=1)
    who = jnp.broadcast_to(jnp.eye(AGENTS), (*stacked.shape[:2], AGENTS))
    return jnp.concatenate([stacked, who], axis=-1)


def look(params: tuple, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.nn.log_softmax(apply(params[0], obs)), apply(params[1], obs)[..., 0]


def chosen(log_p: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_p, action[..., None], -1)[..., 0]


def play(carry: tuple, key: jax.Array) -> tuple:
    params, obs, state = carry
    draw, go = jax.random.split(key)
    log_p, value = look(params, obs)
    action = jax.random.categorical(draw, log_p)
    keys = jax.random.split(go, ENVS)
    by_agent = {agent: action[:, i] for i, agent in enumerate(env.agents)}
    seen, state, reward, done, _ = jax.vmap(env.step)(keys, state, by_agent)
    rewards = jnp.stack([reward[agent] for agent in env.agents], axis=1)
    row = (obs, action, chosen(log_p, action), value, rewards, done["__all__"][:, None])
    return (params, batch(seen), state), row


def loss(params: tuple, rows: tuple) -> jax.Array:
    obs, action, old, gae, target = rows
    log_p, value = look(params, obs)
    ratio = jnp.exp(chosen(log_p, action) - old)
    gae = (gae - gae.mean()) / (gae.std() + 1e-8)
    gain = jnp.minimum(ratio * gae, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gae).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    return -gain + VALUE * 0.5 * jnp.square(value - target).mean() - ENTROPY * entropy


def learn(carry: tuple, rows: tuple) -> tuple:
    params, state = carry
    change, state = optimizer.update(jax.grad(loss)(params, rows), state)
    return (optax.apply_updates(params, change), state), None


def update(carry: tuple, key: jax.Array) -> tuple:
    params, opt, obs, state = carry
    playing, learning = jax.random.split(key)
    keys = jax.random.split(playing, STEPS)
    (_, obs, state), (seen, action, log_p, value, reward, done) = jax.lax.scan(
        play, (params, obs, state), keys
    )

    def back(carry: tuple, row: tuple) -> tuple:
        gae, following = carry
        r, v, d = row
        gae = r + GAMMA * following * ~d - v + GAMMA * LAMBDA * ~d * gae
        return (gae, v), gae

    last = look(params, obs)[1]
    gae = jax.lax.scan(back, (jnp.zeros_like(last), last), (reward, value, done), reverse=True)[1]
    rows = jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:]), (seen, action, log_p, gae, gae + value)
    )

    def epoch(carry: tuple, key: jax.Array) -> tuple:
        order = jax.random.permutation(key, STEPS * ENVS)
        parts = jax.tree.map(lambda x: x[order].reshape(PARTS, -1, *x.shape[1:]), rows)
        return jax.lax.scan(learn, carry, parts)

    (params, opt), _ = jax.lax.scan(epoch, (params, opt), jax.random.split(learning, EPOCHS))
    return (params, opt, obs, state), reward.mean()


def start(seed: int = 0) -> tuple:
    actor, critic, begin = jax.random.split(jax.random.key(seed), 3)
    params = init_net(actor, ACTIONS, 0.01), init_net(critic, 1, 1.0)
    obs, state = jax.vmap(env.reset)(jax.random.split(begin, ENVS))
    return params, optimizer.init(params), batch(obs), state


@jax.jit
def train(carry: tuple, key: jax.Array) -> tuple[Any, jax.Array]:
    return jax.lax.scan(update, carry, jax.random.split(key, UPDATES))


def report(start: Callable[[], tuple], train: Callable, calls: int = 6) -> None:
    carry, _ = train(start(), jax.random.key(1))
    jax.block_until_ready(carry)
    rates, rewards = [], []
    for call in range(calls):
        begin = time.perf_counter()
        carry, reward = jax.block_until_ready(train(carry, jax.random.key(2 + call)))
        rates.append(UPDATES * STEPS * ENVS / (time.perf_counter() - begin))
        rewards.append(float(reward[-1]))
    print(json.dumps({"steps_per_s": rates, "mean_reward": rewards}))


if __name__ == "__main__":
    report(start, train, *map(int, sys.argv[1:]))
