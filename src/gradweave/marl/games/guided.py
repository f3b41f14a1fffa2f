"""A game with reward machines for its agents; any game can supply the events."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from gradweave.automata.files import Task
from gradweave.errors import OptionError
from gradweave.marl.games.family import Wrapper, as_told
from gradweave.marl.games.guide import Guide
from gradweave.marl.games.reading import Reading
from gradweave.marl.tabular.tables import moves_of, of_agents
from gradweave.marl.worlds.restarting import RestartingGame


class GuidedState(eqx.Module):
    """The state of the game and of its agents' machines."""

    game: Any
    """State of the game."""
    known: Int[Array, " A"]
    """State of each agent's machine."""


class Guided(Wrapper, RestartingGame):
    """A game whose agents have machines that react to its events.

    An agent observes the game's observation, flattened, followed by the one-hot state of its
    machine. Rewards come from the machines instead of the game. An episode ends when the game ends
    it, when all machines are done, or when one agent knows that its task has failed.
    """

    def __init__(self, game: Any, reading: Reading, guide: Guide) -> None:
        """Makes the game.

        Args:
            game: a game whose ``info["events"]`` has whether each of its [R] events occurred.
            reading: how to read the game's dictionaries.
            guide: the machines.
        """
        super().__init__(game)
        self.agents = list(game.agents)
        self._reading, self.guide = reading, guide

    @property
    def inner(self) -> Any:
        """The game without machines."""
        return self._game

    def reset(self, key: PRNGKeyArray) -> tuple[dict[Any, Array], GuidedState]:
        """Starts an episode: (observations, state)."""
        seen, state = self._game.reset(key)
        after = GuidedState(state, self.guide.machines.start)
        return self._seen(seen, after), after

    def step_env(
        self, key: PRNGKeyArray, state: GuidedState, actions: Mapping[Any, Array]
    ) -> tuple[dict[Any, Array], GuidedState, dict[Any, Array], dict[Any, Array], dict[str, Array]]:
        """A step: (observations, state, rewards, ends, information)."""
        seen, game, own, dones, info = self._game.step_env(key, state.game, actions)
        fired = jnp.asarray(info["events"], bool)
        known, reward = self.guide.heard(state.known, fired)
        after = GuidedState(game, known)
        over, ended = self.guide.over(known), jnp.asarray(dones["__all__"], bool)
        truncated = self._reading.truncated(self._game, game, info, ended)
        done = over | ended
        ends = {agent: done for agent in self.agents} | {"__all__": done}
        rewards = {agent: reward[i] for i, agent in enumerate(self.agents)}
        measures = {
            name: measure(self._game, game, own, info, done)
            for name, measure in self._reading.measures.items()
        }
        info = {"events": fired, "truncated": ended & truncated & ~over, "measures": measures}
        return self._seen(seen, after), after, rewards, ends, info

    def _seen(self, seen: Any, state: GuidedState) -> dict[Any, Array]:
        shown = jax.nn.one_hot(state.known, self.guide.states)
        rows = self._reading.observations(self._game, seen)
        return {
            agent: jnp.concatenate([jnp.asarray(row, jnp.float32).reshape(-1), shown[i]])
            for i, (agent, row) in enumerate(zip(self.agents, rows, strict=True))
        }


def reading_of_guided(reading: Reading) -> Reading:
    """How to read the dictionaries of `Guided`, given how to read those of its game."""

    def observations(game: Any, seen: Any) -> Sequence[Any]:
        return [seen[agent] for agent in game.agents]

    def rewards(game: Any, rewards: Any) -> Sequence[Any]:
        return [rewards[agent] for agent in game.agents]

    available = reading.available
    return Reading(
        observations,
        rewards,
        as_told,
        available=None
        if available is None
        else lambda game, state: available(game.inner, state.game),
        measures={
            name: lambda game, state, rewards, info, done, name=name: info["measures"][name]
            for name in reading.measures
        },
        stochastic=lambda game: reading.stochastic(game.inner),
    )


def fitted(name: str, agents: Sequence[str], events: Sequence[str], task: Task) -> Task:
    """A task checked to fit a game: the game has its events, and as many agents.

    Args:
        name: name of the game for messages.
        agents: agents of the game.
        events: events of the game.
        task: the machine. If it does not name the events of each agent, all agents observe all
            events.

    Raises:
        OptionError: the task does not fit.
    """
    causal = () if task.causal is None else task.causal.events
    for event in (*task.machine.events, *causal):
        if event not in events:
            raise OptionError(
                f"machine {task.machine.name}: needs {event!r}, which never occurs in {name}; "
                f"its events are {', '.join(events)}"
            )
    hears = task.agents or {agent: task.machine.events for agent in agents}
    if len(hears) != len(agents):
        raise OptionError(
            f"machine {task.machine.name}: has {len(hears)} agents, {name} has {len(agents)}"
        )
    return Task(task.machine, hears, task.causal)


def guide_of(
    task: Task, events: Sequence[str], rules: Sequence[tuple[str, Sequence[int]]]
) -> Guide:
    """The machines of a task, for the agents of a game.

    Args:
        task: the result of `fitted`.
        events: events of the game.
        rules: for each entry of ``info["events"]``, in the order in which events occur within a
            step, its event and the numbers of the agents whose action it is.
    """
    agents = range(len(task.agents))
    return Guide(
        moves_of(of_agents(task, events, causal=True), events),
        tuple(events.index(event) for event, _ in rules),
        jnp.array([[agent in doers for agent in agents] for _, doers in rules]),
    )
