"""Environments of PettingZoo's parallel interface, played on the host from compiled programs.

To a compiled program a game is an array: the seed of the episode and the actions so far. The host
keeps environments that have come as far, and plays an episode again from its seed where it has
none, so that a training that was killed resumes with the same games. Each step waits for Python,
one game after the other.
"""

import collections
import dataclasses
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray
from numpy.typing import NDArray

from gradweave import plugins
from gradweave.checks import check_at_least_one
from gradweave.errors import OptionError
from gradweave.marl.worlds.restarting import RestartingGame

MASK, SEEN = "action_mask", "observation"
"""Entries of an observation that says which actions are available."""
KEPT = 3
"""Environments kept for each game of a call: it, the next episode's, and one to spare."""


class ParallelState(eqx.Module):
    """An episode: all that an environment's own state depends on."""

    seed: Int[Array, ""]
    gone: Int[Array, ""]
    """Steps so far."""
    actions: Num[Array, "M A *U"]
    """Of these steps, zeros beyond."""
    available: Bool[Array, "A U"] | None
    """Which actions are, where the environment says so."""


@dataclasses.dataclass
class _Episode:
    """An environment, and how far it is in which episode."""

    environment: Any
    gone: int
    actions: NDArray[Any]
    last: tuple[NDArray[Any], ...]
    """What the last step returned; see `ParallelGame._result`."""


class ParallelGame(RestartingGame):
    """An environment of PettingZoo's parallel interface as JaxMARL's `MultiAgentEnv` is.

    An agent that is done before others observes zeros, gets 0, and has the first action alone. An
    episode ends once no agent is left, or after `max_steps`.
    """

    def __init__(
        self, make: Callable[[], Any], first: Any, label: str, *, max_steps: int = 1000
    ) -> None:
        """Makes the game.

        Args:
            make: makes an environment; called once for each game that is played side by side.
            first: what it made already.
            label: for messages.
            max_steps: of an episode.

        Raises:
            OptionError: a space is of a kind that learners do not know.
        """
        self.label, self.max_steps = label, max_steps
        check_at_least_one(self, "max_steps")
        self.agents = list(first.possible_agents)
        self.num_agents = len(self.agents)
        self._actions = [_action_space(first, agent, label) for agent in self.agents]
        self.continuous = hasattr(self._actions[0], "low")
        if len({hasattr(space, "low") for space in self._actions}) > 1:
            raise OptionError(f"{label}: some agents' actions are continuous, others' not")
        self._observations = [_observation_space(first, agent, label) for agent in self.agents]
        self.masked = any(masked for _, masked in self._observations)
        self._make, self._spare = make, [first]
        self._episodes: collections.OrderedDict[int, _Episode] = collections.OrderedDict()
        self._lock = threading.Lock()

    def action_space(self, agent: Any) -> Any:
        """The environment's own: `n` actions, or `low` and `high` of a `shape`."""
        return self._actions[self.agents.index(agent)]

    def reset(self, key: PRNGKeyArray) -> tuple[dict[Any, Array], ParallelState]:
        """A new episode: (observations, state)."""
        seed = (jax.random.bits(key, (), jnp.uint32) >> 1).astype(jnp.int32)
        shown = jax.pure_callback(self._begin, self._shown, seed, vmap_method="broadcast_all")
        width = (self.num_agents, *self._width)
        actions = jnp.zeros((self.max_steps, *width), self._dtype)
        state = ParallelState(seed, jnp.zeros((), jnp.int32), actions, self._mask(shown))
        return self._by_agent(shown), state

    def step_env(
        self, key: PRNGKeyArray, state: ParallelState, actions: Mapping[Any, Array]
    ) -> tuple[dict[Any, Array], ParallelState, dict[Any, Array], dict[Any, Array], dict]:
        """A step: (observations, state, rewards, ends, information)."""
        room = jnp.zeros(self._width, self._dtype)
        taken = jnp.stack(
            [
                room.at[tuple(map(slice, space.shape))].set(actions[agent])
                for agent, space in zip(self.agents, self._actions, strict=True)
            ]
        )
        history = state.actions.at[state.gone].set(taken, mode="drop")
        each = jax.ShapeDtypeStruct((self.num_agents,), jnp.float32)
        flag = jax.ShapeDtypeStruct((), bool)
        *shown, reward, done, truncated = jax.pure_callback(
            self._advance,
            (*self._shown, each, flag, flag),
            *(state.seed, state.gone, history),
            vmap_method="broadcast_all",
        )
        after = ParallelState(state.seed, state.gone + 1, history, self._mask(shown))
        late = after.gone >= self.max_steps
        ends = {agent: done | late for agent in self.agents} | {"__all__": done | late}
        rewards = {agent: reward[i] for i, agent in enumerate(self.agents)}
        info = {"truncated": jnp.where(done, truncated, late)}
        return self._by_agent(shown), after, rewards, ends, info

    @property
    def _width(self) -> tuple[int, ...]:
        """[*U] of one agent's action, the longest."""
        return tuple(np.max([space.shape for space in self._actions], axis=0).astype(int).tolist())

    @property
    def _dtype(self) -> Any:
        return jnp.float32 if self.continuous else jnp.int32

    @property
    def _shown(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Each agent's observation, and all agents' masks where there are any."""
        rows = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in self._observations]
        most = 0 if self.continuous else max(space.n for space in self._actions)
        masks = [jax.ShapeDtypeStruct((self.num_agents, most), bool)] if self.masked else []
        return (*rows, *masks)

    def get_avail_actions(self, state: ParallelState) -> dict[Any, Array]:
        """Which actions each agent has; not for games that do not say."""
        if state.available is None:
            raise NotImplementedError
        return {
            agent: state.available[i, : self._actions[i].n] for i, agent in enumerate(self.agents)
        }

    def _mask(self, shown: Any) -> Array | None:
        return shown[self.num_agents] if self.masked else None

    def _by_agent(self, shown: Any) -> dict[Any, Array]:
        return dict(zip(self.agents, shown, strict=False))

    # What follows runs on the host, in numbers of any leading axes.

    def _begin(self, seed: Any) -> tuple[NDArray[Any], ...]:
        """Observations at the beginnings of episodes."""
        seeds = np.asarray(seed)
        with self._lock:
            room = KEPT * max(1, seeds.size) * jax.local_device_count()
            rows = [self._begun(each, room).last[: len(self._shown)] for each in seeds.flat]
        return self._stacked(rows, seeds.shape)

    def _advance(self, seed: Any, gone: Any, actions: Any) -> tuple[NDArray[Any], ...]:
        """What steps return, of episodes that are so far."""
        seeds, gone, actions = np.asarray(seed), np.asarray(gone), np.asarray(actions)
        histories = actions.reshape(seeds.size, *actions.shape[seeds.ndim :])
        with self._lock:
            room = KEPT * max(1, seeds.size) * jax.local_device_count()
            rows = [
                self._at(int(each), history[: int(number) + 1], room)
                for each, number, history in zip(seeds.flat, gone.flat, histories, strict=True)
            ]
        return self._stacked(rows, seeds.shape)

    def _stacked(self, rows: list[Any], lead: tuple[int, ...]) -> tuple[NDArray[Any], ...]:
        return tuple(
            np.stack(part).reshape((*lead, *np.shape(part[0]))) for part in zip(*rows, strict=True)
        )

    def _at(self, seed: int, actions: NDArray[Any], room: int) -> tuple[NDArray[Any], ...]:
        """What an episode's last step returned; played from where an environment is, or anew."""
        episode = self._episodes.get(seed)
        if (
            episode is None
            or episode.gone > len(actions)
            or not np.array_equal(episode.actions[: episode.gone], actions[: episode.gone])
        ):
            episode = self._begun(seed, room)
        self._episodes.move_to_end(seed)
        for taken in actions[episode.gone :]:
            self._step(episode, taken)
        return episode.last

    def _begun(self, seed: int, room: int) -> _Episode:
        """An environment at the beginning of an episode: the one that was used least lately."""
        seed = int(seed)
        old = self._episodes.pop(seed, None)
        if old is None and len(self._episodes) >= room:
            old = self._episodes.popitem(last=False)[1]
        if old is not None:
            environment = old.environment
        else:
            environment = self._spare.pop() if self._spare else self._make()
        seen = plugins.called(self.label, "reset(seed)", lambda: environment.reset(seed=seed))
        if not isinstance(seen, tuple) or len(seen) != 2:
            raise OptionError(f"{self.label}: reset(seed): expected (observations, infos)")
        width = (self.num_agents, *self._width)
        actions = np.zeros((self.max_steps, *width), np.dtype(self._dtype))
        nothing = dict.fromkeys(self.agents, 0.0)
        last = self._result(seen[0], nothing, environment.agents, truncated=False)
        episode = self._episodes[seed] = _Episode(environment, 0, actions, last)
        return episode

    def _step(self, episode: _Episode, taken: NDArray[Any]) -> None:
        """One step of an environment; nothing happens any more once no agent is left."""
        environment = episode.environment
        if environment.agents and episode.gone < self.max_steps:
            actions = {
                agent: self._own(agent, taken[self.agents.index(agent)])
                for agent in environment.agents
            }
            made = plugins.called(self.label, "step(actions)", lambda: environment.step(actions))
            if not isinstance(made, tuple) or len(made) != 5:
                raise OptionError(
                    f"{self.label}: step(actions): expected (observations, rewards, terminations, "
                    "truncations, infos)"
                )
            seen, rewards, _, truncations, _ = made
            late = bool(truncations) and all(truncations.values())
            episode.last = self._result(seen, rewards, environment.agents, truncated=late)
        episode.actions[episode.gone] = taken
        episode.gone += 1

    def _own(self, agent: Any, taken: NDArray[Any]) -> Any:
        """An action as the environment takes it."""
        space = self.action_space(agent)
        if self.continuous:
            return np.asarray(taken[: space.shape[0]], np.float32)
        return int(taken) + space.start

    def _result(
        self, seen: Mapping[Any, Any], rewards: Mapping[Any, float], left: Any, *, truncated: bool
    ) -> tuple[NDArray[Any], ...]:
        """[…] each agent's observation, [A, U] masks if any, [A] rewards, end, whether by time."""
        rows, masks = [], []
        for agent, space, (shape, masked) in zip(
            self.agents, self._actions, self._observations, strict=True
        ):
            row = seen.get(agent)
            mask = np.arange(0 if self.continuous else space.n) < (1 if row is None else space.n)
            if masked and row is not None:
                row, mask = row[SEEN], np.asarray(row[MASK], bool)
            rows.append(_row(row, shape))
            masks.append(mask)
        most = max(map(len, masks))
        stacked = [np.stack([np.pad(mask, (0, most - len(mask))) for mask in masks])]
        return (
            *rows,
            *(stacked if self.masked else ()),
            np.array([rewards.get(agent, 0.0) for agent in self.agents], np.float32),
            np.array(not left),
            np.array(truncated),
        )


def _row(row: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An observation of floats: zeros of none, and a number of few as a one-hot vector."""
    if row is None:
        return np.zeros(shape, np.float32)
    array = np.asarray(row, np.float32)
    if array.shape == () and shape:
        return (np.arange(shape[0]) == int(row)).astype(np.float32)
    return array


def _action_space(environment: Any, agent: Any, label: str) -> Any:
    """`n`, `start` and no `shape`; or `low`, `high` and a `shape` of one axis."""
    space = environment.action_space(agent)
    if hasattr(space, "n") and np.ndim(space.n) == 0:
        return SimpleNamespace(n=int(space.n), start=int(getattr(space, "start", 0)), shape=())
    if hasattr(space, "low") and len(space.shape) == 1:
        return SimpleNamespace(low=space.low, high=space.high, shape=tuple(space.shape))
    raise OptionError(
        f"{label}: action_space({agent!r}): expected Discrete, or Box of one axis, got "
        f"{space!r:.60}"
    )


def _observation_space(environment: Any, agent: Any, label: str) -> tuple[tuple[int, ...], bool]:
    """The shape of an observation, and whether a mask of actions comes with it."""
    space = environment.observation_space(agent)
    parts = getattr(space, "spaces", None)
    masked = isinstance(parts, Mapping) and {MASK, SEEN} <= set(parts)
    inner = parts[SEEN] if isinstance(parts, Mapping) and masked else space
    if hasattr(inner, "n") and np.ndim(inner.n) == 0:
        return (int(inner.n),), masked
    if hasattr(inner, "low") and inner.shape is not None:
        return tuple(inner.shape), masked
    raise OptionError(
        f"{label}: observation_space({agent!r}): expected Box or Discrete, or Dict of {SEEN!r} "
        f"and {MASK!r}, got {space!r:.60}"
    )
