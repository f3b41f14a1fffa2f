"""Environments with PettingZoo's parallel interface, which compiled programs call on the host.

A compiled program represents a game by an array: the seed of the episode and the actions so far.
The host keeps environments that have reached that point, and replays the episode from its seed if
it has none, so that a training that was killed resumes with the same games. Each step waits for
Python, one game after the other.
"""

import collections
import contextlib
import dataclasses
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Num, PRNGKeyArray
from numpy.typing import NDArray

from gradweave.common import plugins
from gradweave.common.checks import check_at_least_one
from gradweave.errors import OptionError
from gradweave.marl.worlds.restarting import RestartingGame

MASK, SEEN = "action_mask", "observation"
"""Keys of an observation that includes the available actions; infos may contain the first key."""
KEPT = 3
"""Environments kept per game of a call: for the episode, for the next episode, and one spare."""
_TOLD = 3
"""Number of the last calls in a game's code that are shown with its error."""
_OURS = str(Path(__file__).parents[2])
_catching: list[list[OptionError]] = []
"""Errors that games raised on the host, per active `game_errors` block."""


@contextlib.contextmanager
def game_errors() -> Iterator[None]:
    """Raises the errors of games on the host once the block's programs have ended.

    JAX would log an error in a callback and raise a different error. So after the first error,
    callbacks return arrays of zeros, whose results are discarded.

    Raises:
        OptionError: a game's code failed; a note lists its last calls.
    """
    raised: list[OptionError] = []
    _catching.append(raised)
    try:
        yield
    finally:
        _catching.pop()
    if raised:
        raise raised[0]


class ParallelState(eqx.Module):
    """An episode: everything that determines the environment's state."""

    seed: Int[Array, ""]
    gone: Int[Array, ""]
    """Number of steps so far."""
    actions: Num[Array, "M A *U"]
    """Actions of these steps, followed by zeros."""
    available: Bool[Array, "A U"] | None
    """The available actions, if the environment reports them."""


@dataclasses.dataclass
class _Episode:
    """An environment, the episode that it plays, and its position in the episode."""

    environment: Any
    gone: int
    actions: NDArray[Any]
    last: tuple[NDArray[Any], ...]
    """The results of the last step; see `ParallelGame._result`."""
    over: set[Any]
    """Agents that are done, whether or not the environment still lists them."""


class ParallelGame(RestartingGame):
    """An environment with PettingZoo's parallel interface, presented as JaxMARL's `MultiAgentEnv`.

    An agent that is done before the others observes zeros, gets reward 0, and has only the first
    action. An episode ends when no agent is left, or after `max_steps`.
    """

    def __init__(
        self, make: Callable[[], Any], first: Any, label: str, *, max_steps: int = 1000
    ) -> None:
        """Makes the game.

        Args:
            make: makes an environment; called once per game that is played in parallel.
            first: an environment that it has already made.
            label: name of the game for messages.
            max_steps: maximum number of steps per episode.

        Raises:
            OptionError: learners do not support the kind of a space, or `reset` fails.
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
        _, infos = self._reset(first, 0)
        informed = any(MASK in each for each in infos.values())
        self.masked = informed or any(masked for *_, masked in self._observations)
        self._make, self._spare = make, [first]
        self._episodes: collections.OrderedDict[int, _Episode] = collections.OrderedDict()
        self._lock = threading.Lock()

    def action_space(self, agent: Any) -> Any:
        """The environment's action space: `n` actions, or `low` and `high` of a `shape`."""
        return self._actions[self.agents.index(agent)]

    def reset(self, key: PRNGKeyArray) -> tuple[dict[Any, Array], ParallelState]:
        """Starts an episode: (observations, state)."""
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
        *shown, reward, done, truncated = jax.pure_callback(
            self._advance,
            self._stepped,
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
        """[*U] the shape of an action, the largest over agents."""
        return tuple(np.max([space.shape for space in self._actions], axis=0).astype(int).tolist())

    @property
    def _dtype(self) -> Any:
        return jnp.float32 if self.continuous else jnp.int32

    @property
    def _shown(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes of the agents' observations, and of the masks of all agents if there are any."""
        rows = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, *_ in self._observations]
        most = 0 if self.continuous else max(space.n for space in self._actions)
        masks = [jax.ShapeDtypeStruct((self.num_agents, most), bool)] if self.masked else []
        return (*rows, *masks)

    @property
    def _stepped(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes of a step's results: as shown, rewards, whether the episode ended, and by time."""
        each = jax.ShapeDtypeStruct((self.num_agents,), jnp.float32)
        flag = jax.ShapeDtypeStruct((), bool)
        return *self._shown, each, flag, flag

    def get_avail_actions(self, state: ParallelState) -> dict[Any, Array]:
        """The available actions of each agent; only for games that report them."""
        if state.available is None:
            raise NotImplementedError
        return {
            agent: state.available[i, : self._actions[i].n] for i, agent in enumerate(self.agents)
        }

    def _mask(self, shown: Any) -> Array | None:
        return shown[self.num_agents] if self.masked else None

    def _by_agent(self, shown: Any) -> dict[Any, Array]:
        return dict(zip(self.agents, shown, strict=False))

    # The functions below run on the host, on arrays with any leading axes.

    def _begin(self, seed: Any) -> tuple[NDArray[Any], ...]:
        """Observations at the beginning of episodes."""
        seeds = np.asarray(seed)

        def work() -> list[Any]:
            room = KEPT * max(1, seeds.size) * jax.local_device_count()
            return [self._begun(each, room).last[: len(self._shown)] for each in seeds.flat]

        return self._by_rows(work, self._shown, seeds.shape)

    def _advance(self, seed: Any, gone: Any, actions: Any) -> tuple[NDArray[Any], ...]:
        """Results of a step, for episodes after the given numbers of steps."""
        seeds, gone, actions = np.asarray(seed), np.asarray(gone), np.asarray(actions)
        histories = actions.reshape(seeds.size, *actions.shape[seeds.ndim :])

        def work() -> list[Any]:
            room = KEPT * max(1, seeds.size) * jax.local_device_count()
            return [
                self._at(int(each), history[: int(number) + 1], room)
                for each, number, history in zip(seeds.flat, gone.flat, histories, strict=True)
            ]

        return self._by_rows(work, self._stepped, seeds.shape)

    def _by_rows(
        self, work: Callable[[], list[Any]], shapes: tuple[Any, ...], lead: tuple[int, ...]
    ) -> tuple[NDArray[Any], ...]:
        """The arrays of all games, or placeholders once a game has raised within `game_errors`.

        Placeholders are zeros and ends of episodes, so that the caller finishes soon.
        """
        raised = _catching[-1] if _catching else None
        with self._lock:
            if not raised:
                try:
                    return self._stacked(work(), lead)
                except OptionError as error:
                    _note_own_calls(error)
                    if raised is None:
                        raise
                    raised.append(error)
        return tuple(
            np.full((*lead, *each.shape), each.dtype == bool, each.dtype) for each in shapes
        )

    def _stacked(self, rows: list[Any], lead: tuple[int, ...]) -> tuple[NDArray[Any], ...]:
        return tuple(
            np.stack(part).reshape((*lead, *np.shape(part[0]))) for part in zip(*rows, strict=True)
        )

    def _at(self, seed: int, actions: NDArray[Any], room: int) -> tuple[NDArray[Any], ...]:
        """The results of an episode's last step, replayed from the start if necessary."""
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
        """An environment at the beginning of an episode: the least recently used one."""
        seed = int(seed)
        old = self._episodes.pop(seed, None)
        if old is None and len(self._episodes) >= room:
            old = self._episodes.popitem(last=False)[1]
        if old is not None:
            environment = old.environment
        else:
            environment = self._spare.pop() if self._spare else self._make()
        seen, infos = self._reset(environment, seed)
        width = (self.num_agents, *self._width)
        actions = np.zeros((self.max_steps, *width), np.dtype(self._dtype))
        nothing = dict.fromkeys(self.agents, 0.0)
        left = set(environment.agents)
        last = self._result(seen, infos, nothing, left, truncated=False)
        over = set(self.agents) - left
        episode = self._episodes[seed] = _Episode(environment, 0, actions, last, over)
        return episode

    def _reset(self, environment: Any, seed: int) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """Observations and infos of a new episode."""
        where = "reset(seed)"
        made = plugins.called(self.label, where, lambda: environment.reset(seed=seed))
        if not isinstance(made, tuple) or len(made) != 2:
            raise OptionError(f"{self.label}: {where}: expected (observations, infos)")
        self._check_mappings(where, made, ("observations", "infos"))
        return made

    def _check_mappings(self, where: str, parts: tuple[Any, ...], names: tuple[str, ...]) -> None:
        for part, name in zip(parts, names, strict=True):
            if not isinstance(part, Mapping):
                raise OptionError(
                    f"{self.label}: {where}: {name}: expected a dictionary by agent, got "
                    f"{type(part).__name__}"
                )

    def _step(self, episode: _Episode, taken: NDArray[Any]) -> None:
        """One step of an environment; does nothing if no agent is left.

        An agent is also done if the environment reports it as terminated or truncated: many
        environments leave such an agent in `agents`, and then accept an action from it.
        """
        environment, over = episode.environment, episode.over
        if len(over) < self.num_agents and episode.gone < self.max_steps:
            actions = {
                agent: self._own(agent, taken[self.agents.index(agent)])
                for agent in environment.agents
            }
            where = "step(actions)"
            made = plugins.called(self.label, where, lambda: environment.step(actions))
            if not isinstance(made, tuple) or len(made) != len(_STEP):
                raise OptionError(f"{self.label}: {where}: expected ({', '.join(_STEP)})")
            self._check_mappings(where, made, _STEP)
            seen, rewards, terminations, truncations, infos = made
            ends = {agent for agent in self.agents if agent not in environment.agents}
            ends |= {agent for each in (terminations, truncations) for agent in each if each[agent]}
            ends &= set(self.agents) - over
            late = bool(ends) and all(
                truncations.get(agent) and not terminations.get(agent) for agent in ends
            )
            paid = {agent: rewards.get(agent, 0.0) for agent in self.agents if agent not in over}
            over |= ends
            left = set(self.agents) - over
            episode.last = self._result(seen, infos, paid, left, truncated=late and not left)
        episode.actions[episode.gone] = taken
        episode.gone += 1

    def _own(self, agent: Any, taken: NDArray[Any]) -> Any:
        """An action in the form that the environment takes."""
        space = self.action_space(agent)
        if self.continuous:
            return np.asarray(taken[: space.shape[0]], space.dtype)
        return int(taken) + space.start

    def _result(
        self,
        seen: Mapping[Any, Any],
        infos: Mapping[Any, Any],
        rewards: Mapping[Any, float],
        left: set[Any],
        *,
        truncated: bool,
    ) -> tuple[NDArray[Any], ...]:
        """[…] observations by agent, [A, U] masks if any, [A] rewards, end, and end by time."""
        rows, masks = [], []
        for agent, (shape, start, masked) in zip(self.agents, self._observations, strict=True):
            row = seen.get(agent) if agent in left or agent in rewards else None
            if masked and row is not None:
                row, mask = row[SEEN], row[MASK]
            else:
                mask = infos.get(agent, {}).get(MASK)
            rows.append(_row(row, shape, start))
            masks.append(
                np.zeros(0, bool) if self.continuous else self._available(agent, mask, left)
            )
        most = max(map(len, masks))
        stacked = [np.stack([np.pad(mask, (0, most - len(mask))) for mask in masks])]
        return (
            *rows,
            *(stacked if self.masked else ()),
            np.array([rewards.get(agent, 0.0) for agent in self.agents], np.float32),
            np.array(not left),
            np.array(truncated),
        )

    def _available(self, agent: Any, mask: Any, left: set[Any]) -> NDArray[np.bool_]:
        """[U] an agent's available actions; only the first for an agent that is done."""
        number = self.action_space(agent).n
        if agent not in left:
            return np.arange(number) < 1
        if mask is None:
            return np.ones(number, bool)
        mask = np.asarray(mask, bool)
        if not self.masked:
            raise OptionError(
                f"{self.label}: infos of step have {MASK!r} for {agent!r}, those of reset do "
                "not; include it in both"
            )
        if mask.shape != (number,) or not mask.any():
            raise OptionError(
                f"{self.label}: {MASK} of {agent!r}: expected {number} numbers, one of which at "
                f"least is not 0, got {mask.astype(int).tolist()!s:.60}"
            )
        return mask


_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
"""The results of `step`."""


def _note_own_calls(error: OptionError) -> None:
    """Adds the last calls in a game's code to the error, as a note."""
    if error.__cause__ is not None and not hasattr(error, "__notes__"):
        told = traceback.TracebackException.from_exception(error.__cause__)
        own = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
        told.stack = traceback.StackSummary.from_list(own[-_TOLD:])
        told.__cause__ = told.__context__ = None
        error.add_note("".join(told.format()).rstrip())


def _row(row: Any, shape: tuple[int, ...], start: int) -> NDArray[np.float32]:
    """An observation as floats: zeros for None, and a one-hot vector for a number."""
    if row is None:
        return np.zeros(shape, np.float32)
    array = np.asarray(row, np.float32)
    if array.shape == () and shape:
        return (np.arange(shape[0]) == int(row) - start).astype(np.float32)
    return array


def _action_space(environment: Any, agent: Any, label: str) -> Any:
    """A space with `n` and `start` only, or with `low`, `high` and a `shape` of one axis."""
    space = environment.action_space(agent)
    if _is_number(space):
        return SimpleNamespace(n=int(space.n), start=int(getattr(space, "start", 0)), shape=())
    dtype = np.dtype(getattr(space, "dtype", None) or np.float32)
    if hasattr(space, "low") and len(space.shape) == 1 and dtype.kind == "f":
        shape = tuple(space.shape)
        return SimpleNamespace(low=space.low, high=space.high, shape=shape, dtype=dtype)
    raise OptionError(
        f"{label}: action_space({agent!r}): expected Discrete, or Box of floats of one axis, got "
        f"{space!r:.60}"
    )


def _is_number(space: Any) -> bool:
    """Whether a space is Discrete; spaces of several numbers may have an `n`, but have a shape."""
    return hasattr(space, "n") and np.ndim(space.n) == 0 and not getattr(space, "shape", ())


def _observation_space(
    environment: Any, agent: Any, label: str
) -> tuple[tuple[int, ...], int, bool]:
    """The shape of an observation, its smallest value, and whether it has an action mask."""
    space = environment.observation_space(agent)
    parts = getattr(space, "spaces", None)
    masked = isinstance(parts, Mapping) and {MASK, SEEN} <= set(parts)
    inner = parts[SEEN] if isinstance(parts, Mapping) and masked else space
    if _is_number(inner):
        return (int(inner.n),), int(getattr(inner, "start", 0)), masked
    if hasattr(inner, "low") and inner.shape is not None:
        return tuple(inner.shape), 0, masked
    raise OptionError(
        f"{label}: observation_space({agent!r}): expected Box or Discrete, or Dict of {SEEN!r} "
        f"and {MASK!r}, got {space!r:.60}"
    )
