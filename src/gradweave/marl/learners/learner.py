"""What every algorithm is to the training loop: a state, an update, and a policy to play by.

`init` and `update` are pure functions of one learner on one device; the loop makes them many: by
`jax.vmap` over seeds and `jax.shard_map` over devices, whose axis the optimizer's aggregation
speaks over. A state has arrays alone, random keys among them, so that a checkpoint is all of it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from gradweave.marl.games.environment import View

Parameters = Any
Memory = Any
Experience = Any
UpdatesDone = Float[Array, ""] | None
LearnerState = TypeVar("LearnerState")


class Metrics(eqx.Module):
    """What an update came to. Sums, so that those of devices and updates add up exactly."""

    episodes: Int[Array, ""]
    """Episodes that ended."""
    returns: Float[Array, " A"]
    """Sum of their returns, by agent."""
    lengths: Int[Array, ""]
    """Sum of their steps."""
    figures: dict[str, Float[Array, ""]]
    """Others by name, means over the update."""
    measures: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    """Sums of the game's own measures of the episodes that ended."""


class Learner(Protocol[LearnerState]):
    """An algorithm on an environment, ready to be trained."""

    @property
    def games(self) -> int:
        """Games side by side on one device."""
        ...

    @property
    def steps(self) -> int:
        """Steps that an update makes, of all games on one device together."""
        ...

    def init(self, shared: PRNGKeyArray, first: Int[Array, ""] | int) -> LearnerState:
        """The state before the first update.

        Args:
            shared: the same on all devices; the parameters are drawn from it alone.
            first: number of the device's first game among all devices' games. A game's own key is
                `game_keys` of its number, so that all are played the same however many devices
                there are.
        """
        ...

    def update(self, state: LearnerState) -> tuple[LearnerState, Metrics]:
        """Plays and learns once."""
        ...

    def parameters(self, state: LearnerState) -> Parameters:
        """What its policy plays by."""
        ...

    def memory(self, parameters: Parameters, batch: int) -> Memory:
        """What the policy remembers before it has seen anything, of games side by side."""
        ...

    def act(
        self,
        parameters: Parameters,
        memory: Memory,
        view: View,
        keys: PRNGKeyArray,
        *,
        greedy: bool,
    ) -> tuple[Memory, Num[Array, "B A *U"]]:
        """Each agent's action.

        Args:
            parameters: as `parameters` gave them.
            memory: as `memory` or the step before gave it; empty it where `View.start`.
            view: of [B] games.
            keys: [B] one for each game.
            greedy: whether to take the best action rather than to draw one.
        """
        ...


class PartedLearner(Learner[LearnerState], Protocol):
    """A learner whose update is `play`, then `learn`, between which parameters may change."""

    def play(
        self, state: LearnerState, progress: UpdatesDone = None
    ) -> tuple[LearnerState, Experience, Metrics]:
        """Plays as much as an update learns from.

        Args:
            state: before.
            progress: updates of the training that are done, where others learn too; the state's
                own if not given.

        Returns:
            The state after it, what was played, and what it came to.
        """
        ...

    def learn(
        self,
        state: LearnerState,
        experience: Experience,
        progress: UpdatesDone = None,
        *,
        stale: bool = False,
    ) -> tuple[LearnerState, dict[str, Float[Array, ""]]]:
        """Learns from what was played.

        Args:
            state: as `play` left it, or with other parameters.
            experience: that `play` returned.
            progress: as for `play`.
            stale: whether the parameters may be others than those by which it was played, which is
                then corrected.

        Returns:
            The state after it, and its figures.
        """
        ...

    def with_parameters(self, state: LearnerState, parameters: Parameters) -> LearnerState:
        """The state with other parameters."""
        ...


class RunningReturns(eqx.Module):
    """Returns of the episodes under way."""

    returns: Float[Array, "E A"]
    lengths: Int[Array, " E"]
    measures: dict[str, Float[Array, " E"]] = eqx.field(default_factory=dict)
    """The game's own."""

    @staticmethod
    def zero(games: int, agents: int, measures: Iterable[str] = ()) -> "RunningReturns":
        """Nothing yet.

        Args:
            games: E.
            agents: A.
            measures: names of the game's own.
        """
        return RunningReturns(
            jnp.zeros((games, agents)),
            jnp.zeros(games, jnp.int32),
            {name: jnp.zeros(games) for name in measures},
        )

    def add(
        self,
        reward: Float[Array, "T E A"],
        done: Bool[Array, "T E"],
        measures: Mapping[str, Float[Array, "T E"]] | None = None,
    ) -> tuple["RunningReturns", Metrics]:
        """Counts steps: what is going on after them, and what ended in them.

        Args:
            reward: of each step.
            done: whether it ended an episode.
            measures: what it adds to each of the game's own; not given where `zero` had none.
        """

        def step(tally: RunningReturns, now: tuple) -> tuple[RunningReturns, tuple]:
            reward, done, measures = now
            returns, lengths = tally.returns + reward, tally.lengths + 1
            measures = {name: tally.measures[name] + x for name, x in measures.items()}
            ended = (
                done.sum(dtype=jnp.int32),
                jnp.where(done[:, None], returns, 0.0).sum(0),
                jnp.where(done, lengths, 0).sum(dtype=jnp.int32),
                {name: jnp.where(done, x, 0.0).sum() for name, x in measures.items()},
            )
            kept = RunningReturns(
                jnp.where(done[:, None], 0.0, returns),
                jnp.where(done, 0, lengths),
                {name: jnp.where(done, 0.0, x) for name, x in measures.items()},
            )
            return kept, ended

        tally, ended = jax.lax.scan(step, self, (reward, done, dict(measures or {})))
        episodes, returns, lengths, of_game = jax.tree.map(lambda x: x.sum(0), ended)
        return tally, Metrics(episodes, returns, lengths, {}, of_game)


def at_step(optimizer: Any, step: Array) -> Any:
    """An optimizer's state whose learning rate is that of another step; moments stay.

    Args:
        optimizer: the state.
        step: of the optimizer, from 0.
    """

    def moved(part: Any) -> Any:
        if not isinstance(part, optax.ScaleByScheduleState):
            return part
        return part._replace(count=step.astype(jnp.int32))

    return jax.tree.map(
        moved, optimizer, is_leaf=lambda part: isinstance(part, optax.ScaleByScheduleState)
    )


def sent_bytes(optimizer: Any) -> dict[str, Float[Array, ""]]:
    """The bytes that the aggregation in an optimizer's state sent, as a figure; none without."""
    found = optax.tree_utils.tree_get_all_with_path(optimizer, "sent_bytes")
    if not found:
        return {}
    return {"sent_bytes": jnp.asarray(found[0][1], jnp.float32)}


def not_finite(state: Any) -> Int[Array, ""]:
    """Gradients so far that the aggregation in a state left out as not finite; 0 without one."""
    found = optax.tree_utils.tree_get_all_with_path(state, "not_finite")
    return sum((count.sum() for _, count in found), jnp.zeros((), jnp.int32))


def norm(tree: Any) -> Float[Array, ""]:
    """Root of the sum of all squares."""
    return jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)))


def optimizer_step(
    loss: Callable[[Any, Any], tuple[Array, dict[str, Array]]],
    optimizer: optax.GradientTransformation,
    carry: tuple[Any, Any],
    part: Any,
) -> tuple[tuple[Any, Any], dict[str, Array]]:
    """One step of the optimizer.

    Args:
        loss: of parameters and samples, with figures for the log.
        optimizer: with its aggregation over the devices.
        carry: parameters and the optimizer's state.
        part: samples.

    Returns:
        The new parameters and state, and the figures, with the gradient's norm and what was sent.
    """
    parameters, state = carry
    (_, figures), gradient = jax.value_and_grad(loss, has_aux=True)(parameters, part)
    change, state = optimizer.update(gradient, state, parameters)
    figures |= {"gradient_norm": norm(gradient)} | sent_bytes(state)
    return (optax.apply_updates(parameters, change), state), figures
