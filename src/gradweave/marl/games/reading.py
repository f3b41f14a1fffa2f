"""How a game's dictionaries are read; unlike the games, this module needs no JAX."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Num, PRNGKeyArray

State = Any
"""A game's state: a struct of arrays that only the game reads."""
Measure = Callable[[Any, State, Any, Any, "Bool[Array, '']"], "Num[Array, '']"]
"""(game, state after, rewards, info, done) -> the contribution of a step to one of the game's own
measures of an episode, for instance 1 if the step wins it."""


class Game(Protocol):
    """The part of JaxMARL's `MultiAgentEnv` that Gradweave uses."""

    @property
    def agents(self) -> Sequence[Any]: ...  # noqa: D102

    def reset(self, key: "PRNGKeyArray") -> tuple[Any, State]: ...  # noqa: D102

    def step_env(  # noqa: D102
        self, key: "PRNGKeyArray", state: State, actions: Any
    ) -> tuple[Any, State, Any, Any, Any]: ...


@dataclasses.dataclass(frozen=True)
class Reading:
    """How one family's dictionaries are read. Each function receives the game first."""

    observations: Callable[[Any, Any], Sequence["Num[Array, '...']"]]
    """(game, observations) -> each agent's observation, of any shape."""
    rewards: Callable[[Any, Any], Sequence["Num[Array, '']"]]
    """(game, rewards) -> each agent's reward."""
    truncated: Callable[[Any, State, Any, "Bool[Array, '']"], "Bool[Array, '']"]
    """(game, state after, info, done) -> whether only a time limit ended the episode."""
    available: Callable[[Any, State], Sequence["Num[Array, '...']"]] | None = None
    """(game, state) -> each agent's mask, or None if all actions are always available."""
    world: Callable[[Any, Any], "Num[Array, '...']"] | None = None
    """(game, observations) -> the state vector, or None if the game has none."""
    shaped: Callable[[Any, Any], Sequence["Num[Array, '']"]] | None = None
    """(game, info) -> each agent's shaped reward, or None if the game has none."""
    utility: Callable[[Any, State], "Num[Array, '...']"] | None = None
    """(game, state) -> each agent's mean reward per step so far in the episode, or None if the game
    does not compute it."""
    measures: Mapping[str, Measure] = dataclasses.field(default_factory=dict)
    """Measures by name: how the game is judged apart from its return, summed over an episode's
    steps."""
    stochastic: Callable[[Any], bool] = lambda game: True
    """(game) -> whether its steps depend on their keys, as resets always do."""
