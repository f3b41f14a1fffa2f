"""The interface of an algorithm to the training loop: a state, an update, and a policy.

`init` and `update` are pure functions of one learner on one device. The loop applies `jax.vmap`
over seeds and `jax.shard_map` over devices; the optimizer's aggregation communicates over the axis
of devices. A state consists of arrays, including random keys, so a checkpoint holds all of it.
"""

import functools
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
    """Results of an update. They are sums, so that those of devices and updates add up exactly."""

    episodes: Int[Array, ""]
    """Number of episodes that ended."""
    returns: Float[Array, " A"]
    """Sum of their returns, by agent."""
    lengths: Int[Array, ""]
    """Sum of their numbers of steps."""
    figures: dict[str, Float[Array, ""]]
    """Other figures by name, as means over the update."""
    measures: dict[str, Float[Array, ""]] = eqx.field(default_factory=dict)
    """Sums of the game's own measures over the episodes that ended."""


class Learner(Protocol[LearnerState]):
    """An algorithm for an environment, ready to be trained."""

    @property
    def games(self) -> int:
        """Number of games per device."""
        ...

    @property
    def steps(self) -> int:
        """Environment steps per update, over all games on one device."""
        ...

    def init(self, shared: PRNGKeyArray, first: Int[Array, ""] | int) -> LearnerState:
        """The state before the first update.

        Args:
            shared: the same key on all devices; determines the parameters.
            first: number of the device's first game among the games of all devices. The key of a
                game is `game_keys` of its number, so games do not depend on the number of devices.
        """
        ...

    def update(self, state: LearnerState) -> tuple[LearnerState, Metrics]:
        """One update: plays and learns."""
        ...

    def parameters(self, state: LearnerState) -> Parameters:
        """The parameters of the policy."""
        ...

    def memory(self, parameters: Parameters, batch: int) -> Memory:
        """The policy's memory before its first observation, for a batch of games."""
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
        """The action of each agent.

        Args:
            parameters: the result of `parameters`.
            memory: the result of `memory` or of the preceding step; reset at `View.start`.
            view: views of [B] games.
            keys: random keys of the [B] games.
            greedy: whether to take the best action instead of sampling.
        """
        ...


class PartedLearner(Learner[LearnerState], Protocol):
    """A learner whose update is `play`, then `learn`; parameters may change in between."""

    def play(
        self, state: LearnerState, progress: UpdatesDone = None
    ) -> tuple[LearnerState, Experience, Metrics]:
        """Plays as many steps as an update learns from.

        Args:
            state: the state before.
            progress: number of completed updates of the training if others learn too; by default
                the state's count.

        Returns:
            The state afterwards, the experience, and its metrics.
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
        """Learns from experience.

        Args:
            state: the state after `play`, possibly with other parameters.
            experience: the experience from `play`.
            progress: as for `play`.
            stale: whether the parameters may differ from those that played, which is then corrected
                for.

        Returns:
            The state afterwards, and its figures.
        """
        ...

    def with_parameters(self, state: LearnerState, parameters: Parameters) -> LearnerState:
        """The state with other parameters."""
        ...


class RunningReturns(eqx.Module):
    """Returns of the episodes in progress."""

    returns: Float[Array, "E A"]
    lengths: Int[Array, " E"]
    measures: dict[str, Float[Array, " E"]] = eqx.field(default_factory=dict)
    """The game's own measures."""

    @staticmethod
    def zero(games: int, agents: int, measures: Iterable[str] = ()) -> "RunningReturns":
        """No steps yet.

        Args:
            games: E, the number of games.
            agents: A, the number of agents.
            measures: names of the game's own measures.
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
        """Adds steps; returns the episodes then in progress, and the metrics of those that ended.

        Args:
            reward: reward of each step.
            done: whether an episode ended with the step.
            measures: the step's contributions to the game's measures; omitted if `zero` got no
                names.
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
    """An optimizer's state with the learning rate of another step; its moments are unchanged.

    Args:
        optimizer: the state.
        step: number of the optimizer step, from 0.
    """

    def moved(part: Any) -> Any:
        if not isinstance(part, optax.ScaleByScheduleState):
            return part
        return part._replace(count=step.astype(jnp.int32))

    return jax.tree.map(
        moved, optimizer, is_leaf=lambda part: isinstance(part, optax.ScaleByScheduleState)
    )


def sent_bytes(optimizer: Any) -> dict[str, Float[Array, ""]]:
    """The bytes sent by the aggregation in an optimizer's state, as a figure; empty without one."""
    found = optax.tree_utils.tree_get_all_with_path(optimizer, "sent_bytes")
    if not found:
        return {}
    return {"sent_bytes": jnp.asarray(found[0][1], jnp.float32)}


def not_finite(state: Any) -> Int[Array, ""]:
    """Number of gradients that a state's aggregation skipped as not finite; 0 without one."""
    found = optax.tree_utils.tree_get_all_with_path(state, "not_finite")
    return sum((count.sum() for _, count in found), jnp.zeros((), jnp.int32))


def norm(tree: Any) -> Float[Array, ""]:
    """Square root of the sum of all squares."""
    return jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)))


def optimizer_step(
    loss: Callable[[Any, Any], tuple[Array, dict[str, Array]]],
    optimizer: optax.GradientTransformation,
    carry: tuple[Any, Any],
    part: Any,
) -> tuple[tuple[Any, Any], dict[str, Array]]:
    """One optimizer step.

    Args:
        loss: a function of parameters and samples, which also returns figures for the log.
        optimizer: the optimizer, including the aggregation over devices.
        carry: parameters and the optimizer's state.
        part: the samples.

    Returns:
        The new parameters and state, and the figures, with the gradient's norm and the bytes sent.
    """
    parameters, state = carry
    (_, figures), gradient = jax.value_and_grad(loss, has_aux=True)(parameters, part)
    change, state = optimizer.update(gradient, state, parameters)
    figures |= {"gradient_norm": norm(gradient)} | sent_bytes(state)
    return (optax.apply_updates(parameters, change), state), figures


def learned(
    loss: Callable[[Any, Any], tuple[Array, dict[str, Array]]],
    optimizer: optax.GradientTransformation,
    carry: tuple[Any, Any],
    minibatches: Callable[[PRNGKeyArray], Any],
    keys: PRNGKeyArray,
) -> tuple[tuple[Any, Any], dict[str, Array]]:
    """Epochs of optimizer steps on random minibatches.

    Args:
        loss: see `optimizer_step`.
        optimizer: see `optimizer_step`.
        carry: parameters and the optimizer's state.
        minibatches: divides the samples at random, given a key: [minibatches, ...].
        keys: a key for each epoch.

    Returns:
        The new parameters and state, and the figures of each step, [epochs, minibatches].
    """
    step = functools.partial(optimizer_step, loss, optimizer)
    return jax.lax.scan(lambda now, key: jax.lax.scan(step, now, minibatches(key)), carry, keys)
