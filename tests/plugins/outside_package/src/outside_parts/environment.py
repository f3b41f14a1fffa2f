"""A game: agents in a corridor, who all get 1 once they stand at its end together."""

from types import SimpleNamespace

from gradweave.marl import Family, Reading

LENGTH = 4


class Corridor:
    """Each step an agent goes ahead or back; the state is where they stand, and the time."""

    def __init__(self, agents: int = 2, max_steps: int = 30) -> None:
        self.agents = [f"agent_{i}" for i in range(agents)]
        self.max_steps = max_steps

    def action_space(self, agent):
        return SimpleNamespace(n=2)

    def reset(self, key):
        import jax.numpy as jnp

        state = (jnp.zeros(len(self.agents), jnp.int32), jnp.zeros((), jnp.int32))
        return self._seen(state), state

    def step_env(self, key, state, actions):
        import jax.numpy as jnp

        at, time = state
        moves = jnp.stack([2 * actions[agent] - 1 for agent in self.agents]).astype(jnp.int32)
        state = (jnp.clip(at + moves, 0, LENGTH), time + 1)
        won = (state[0] == LENGTH).all()
        late = state[1] >= self.max_steps
        rewards = {agent: won.astype(jnp.float32) for agent in self.agents}
        return self._seen(state), state, rewards, {"__all__": won | late}, {"late": late & ~won}

    def _seen(self, state):
        import jax.nn

        return {
            agent: jax.nn.one_hot(state[0][i], LENGTH + 1) for i, agent in enumerate(self.agents)
        }


def each(game, by_agent):
    return [by_agent[agent] for agent in game.agents]


CORRIDOR = Family(
    ids=("corridor",),
    reading=Reading(each, each, truncated=lambda game, state, info, done: info["late"]),
    meaning="the team's reward of an episode: 1 where all stand at the end together",
    options=("agents", "max_steps"),
    make=lambda id, options: Corridor(**options),
)
