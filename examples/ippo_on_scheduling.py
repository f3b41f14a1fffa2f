"""IPPO as JaxMARL's users write it, learning to schedule or, unchanged, to play JaxMARL's games.

    python examples/ippo_on_scheduling.py                         # all-gather on a ring of 6
    python examples/ippo_on_scheduling.py MPE_simple_spread_v3    # any environment of JaxMARL

This is independent PPO with one network for all agents, in the style of JaxMARL's baselines. It
uses the interface `MultiAgentEnv` and knows nothing about scheduling, except in `make`. It needs
the extras ``learn`` and ``train``.
"""

import dataclasses
import sys
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np
import optax
from flax.training.train_state import TrainState


def make(name: str):
    """Creates the environment; the only function that knows Gradweave."""
    if not name.startswith("gradweave"):
        return jaxmarl.make(name)
    import gradweave as gw
    from gradweave.environment import Rewards
    from gradweave.environment.jaxmarl_adapter import JaxMARLScheduling
    from gradweave.environment.problem import Instance

    network = gw.topology.from_spec(name.partition("/")[2])
    return JaxMARLScheduling(Instance(network), rewards=Rewards.ours())


@dataclasses.dataclass(frozen=True)
class Config:
    """The amount of play, and PPO's usual settings."""

    num_envs: int = 32
    num_steps: int = 128
    updates: int = 80
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    hidden: int = 64


class Transition(NamedTuple):
    done: jax.Array
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    obs: jax.Array
    avail: jax.Array


class ActorCritic(nn.Module):
    actions: int
    hidden: int

    @nn.compact
    def __call__(self, obs, avail):
        actor, critic = obs, obs
        for _ in range(2):
            actor = nn.tanh(
                nn.Dense(self.hidden, kernel_init=nn.initializers.orthogonal(2**0.5))(actor)
            )
            critic = nn.tanh(
                nn.Dense(self.hidden, kernel_init=nn.initializers.orthogonal(2**0.5))(critic)
            )
        logits = nn.Dense(self.actions, kernel_init=nn.initializers.orthogonal(0.01))(actor)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(critic)
        return jax.nn.log_softmax(jnp.where(avail, logits, -1e9)), value[..., 0]


class IPPO:
    """Independent PPO on any `MultiAgentEnv` with discrete actions."""

    def __init__(self, env, config: Config):
        self.env, self.config = env, config
        self.actions = max(env.action_space(agent).n for agent in env.agents)
        self.features = max(env.observation_space(agent).shape[0] for agent in env.agents)
        self.network = ActorCritic(self.actions, config.hidden)

    def batchify(self, by_agent: dict, width: int | None = None):
        """Stacks one array per agent into [agents · envs, …], padded to a common width."""

        def fill(x):
            missing = 0 if width is None else width - x.shape[-1]
            return x if width is None else jnp.pad(x, ((0, 0), (0, missing)))

        stacked = jnp.stack([fill(by_agent[agent]) for agent in self.env.agents])
        return stacked.reshape(-1, *stacked.shape[2:])

    def unbatchify(self, x) -> dict:
        split = x.reshape(len(self.env.agents), self.config.num_envs)
        return dict(zip(self.env.agents, split, strict=True))

    def avail(self, state):
        """Action masks, if the environment has them."""
        try:
            masks = jax.vmap(self.env.get_avail_actions)(state)
        except NotImplementedError:
            spaces = {agent: self.env.action_space(agent).n for agent in self.env.agents}
            masks = {
                agent: jnp.ones((self.config.num_envs, n), bool) for agent, n in spaces.items()
            }
        return self.batchify({a: masks[a] for a in self.env.agents}, self.actions)

    def init(self, key) -> TrainState:
        config = self.config
        params = self.network.init(key, jnp.zeros(self.features), jnp.ones(self.actions, bool))
        steps = config.updates * config.epochs * config.minibatches
        schedule = optax.linear_schedule(config.learning_rate, 0.0, steps)
        chain = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule, eps=1e-5))
        return TrainState.create(apply_fn=self.network.apply, params=params, tx=chain)

    def reset(self, key):
        return jax.vmap(self.env.reset)(jax.random.split(key, self.config.num_envs))

    def rollout(self, train: TrainState, obs, state, key):
        """Plays `num_steps`; returns the final observations and states, transitions and `info`."""

        def step(carry, key):
            obs, state = carry
            draw, play = jax.random.split(key)
            seen = self.batchify(obs, self.features)
            avail = self.avail(state)
            logits, value = train.apply_fn(train.params, seen, avail)
            action = jax.random.categorical(draw, logits)
            log_prob = jnp.take_along_axis(logits, action[:, None], axis=-1)[:, 0]
            keys = jax.random.split(play, self.config.num_envs)
            obs, state, reward, done, info = jax.vmap(self.env.step)(
                keys, state, self.unbatchify(action)
            )
            over = jnp.tile(done["__all__"], len(self.env.agents))
            rewards = self.batchify({agent: reward[agent] for agent in self.env.agents})
            made = Transition(over, action, value, rewards, log_prob, seen, avail)
            return (obs, state), (made, info)

        keys = jax.random.split(key, self.config.num_steps)
        (obs, state), (batch, info) = jax.lax.scan(step, (obs, state), keys)
        return obs, state, batch, info

    def advantages(self, train: TrainState, obs, state, batch: Transition):
        config = self.config
        seen, avail = self.batchify(obs, self.features), self.avail(state)
        _, last = train.apply_fn(train.params, seen, avail)

        def step(carry, now: Transition):
            gae, following = carry
            goes_on = 1 - now.done
            delta = now.reward + config.gamma * following * goes_on - now.value
            gae = delta + config.gamma * config.gae_lambda * goes_on * gae
            return (gae, now.value), gae

        _, gae = jax.lax.scan(step, (jnp.zeros_like(last), last), batch, reverse=True)
        return gae, gae + batch.value

    def loss(self, params, batch: Transition, gae, target):
        config = self.config
        logits, value = self.network.apply(params, batch.obs, batch.avail)
        log_prob = jnp.take_along_axis(logits, batch.action[:, None], axis=-1)[:, 0]
        ratio = jnp.exp(log_prob - batch.log_prob)
        gae = (gae - gae.mean()) / (gae.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        actor = -jnp.minimum(ratio * gae, clipped * gae).mean()
        near = batch.value + jnp.clip(value - batch.value, -config.clip, config.clip)
        critic = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
        entropy = -jnp.where(batch.avail, jnp.exp(logits) * logits, 0).sum(-1).mean()
        return actor + config.value * critic - config.entropy * entropy

    def update(self, carry, key):
        """One update of PPO: plays, then trains for a few epochs on the transitions."""
        config = self.config
        train, obs, state = carry
        play, learn = jax.random.split(key)
        obs, state, batch, info = self.rollout(train, obs, state, play)
        gae, target = self.advantages(train, obs, state, batch)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batch, gae, target))

        def minibatch(train, part):
            return train.apply_gradients(grads=jax.grad(self.loss)(train.params, *part)), None

        def epoch(train, key):
            order = jax.random.permutation(key, len(flat[1]))
            parts = jax.tree.map(
                lambda x: x[order].reshape(config.minibatches, -1, *x.shape[1:]), flat
            )
            return jax.lax.scan(minibatch, train, parts)[0], None

        train, _ = jax.lax.scan(epoch, train, jax.random.split(learn, config.epochs))
        return (train, obs, state), (batch.reward, batch.done, info)

    def train(self, key):
        """Trains; returns the history: rewards [updates, steps, agents · envs], dones, `info`."""
        begin, reset, learn = jax.random.split(key, 3)
        carry = self.init(begin), *self.reset(reset)
        keys = jax.random.split(learn, self.config.updates)
        (train, _, _), history = jax.lax.scan(self.update, carry, keys)
        return train, history


def summary(history, agents: int, updates: slice) -> dict[str, float]:
    """Mean return of an agent and mean `info`, over the episodes that ended in some updates."""
    reward, done, info = jax.tree.map(lambda x: np.asarray(x[updates]), history)
    reward, done = (x.reshape(-1, x.shape[-1]) for x in (reward, done))
    ends = done.astype(bool)
    paid = np.cumsum(reward, axis=0)
    returns = [np.diff(paid[ends[:, actor], actor]) for actor in range(reward.shape[1])]
    said = {"return of an agent": float(np.concatenate(returns).mean())}
    envs = reward.shape[1] // agents
    for name, values in info.items():
        values = values.reshape(len(ends), envs, -1)[..., 0]
        said[name] = float(values[ends[:, :envs]].mean())
    return said


def main(name: str = "gradweave/ring:6", config: Config = Config()) -> tuple[dict, dict]:
    env = make(name)
    learner = IPPO(env, config)
    _, history = jax.jit(learner.train)(jax.random.key(0))
    tenth = max(config.updates // 10, 1)
    agents = len(env.agents)
    before = summary(history, agents, slice(None, tenth))
    after = summary(history, agents, slice(-tenth, None))
    for what in before:
        print(f"{name}: {what} {before[what]:.3f} before, {after[what]:.3f} after")
    return before, after


if __name__ == "__main__":
    main(*sys.argv[1:2])
