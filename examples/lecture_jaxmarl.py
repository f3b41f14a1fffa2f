"""The lecture's example, and its extension: many environments in one compiled program.

The first part is the slide's code: `make`, `reset`, random actions and `step`. The second part runs
100 steps of 64 environments in one compiled program. It needs the extra ``marl``.

Source: Bandyopadhyay, "Modern Distributed Computing", lecture on distributed multi-agent learning,
2025.
"""

import time

import jax
from jaxmarl import make

ENVIRONMENTS, STEPS = 64, 100

key = jax.random.key(0)
key, key_reset, key_act, key_step = jax.random.split(key, 4)

# Initialise and reset the environment.
env = make("MPE_simple_world_comm_v3")
obs, state = env.reset(key_reset)

# Sample random actions.
key_act = jax.random.split(key_act, env.num_agents)
actions = {agent: env.action_space(agent).sample(key_act[i]) for i, agent in enumerate(env.agents)}

# Perform the step transition.
obs, state, reward, done, infos = env.step(key_step, state, actions)
print("one step:", {agent: round(float(value), 2) for agent, value in reward.items()})


def play(key):
    """Rewards by agent in one environment, with random actions of all agents."""

    def step(state, key):
        key_act, key_step = jax.random.split(key)
        keys = jax.random.split(key_act, env.num_agents)
        actions = {
            agent: env.action_space(agent).sample(keys[i]) for i, agent in enumerate(env.agents)
        }
        _, state, reward, _, _ = env.step(key_step, state, actions)
        return state, reward

    key, key_reset = jax.random.split(key)
    _, state = env.reset(key_reset)
    return jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]


everywhere = jax.jit(jax.vmap(play))
keys = jax.random.split(key, ENVIRONMENTS)
jax.block_until_ready(everywhere(keys))  # compiles
begin = time.perf_counter()
rewards = jax.block_until_ready(everywhere(keys))
seconds = time.perf_counter() - begin
print(f"{ENVIRONMENTS} environments: {ENVIRONMENTS * STEPS / seconds:,.0f} steps per second")
for agent, value in rewards.items():
    print(f"{agent}: {float(value.mean()):.2f} per step on average")
