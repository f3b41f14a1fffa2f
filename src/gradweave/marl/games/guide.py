"""Reward machines for a game's agents: how events move them, and counterfactual experience."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gradweave.marl.tabular.tables import Moves
from gradweave.marl.tabular.transitions import moving


class Guide(eqx.Module):
    """Each agent's machine; its state is the last part of the agent's observation."""

    machines: Moves
    """[A] machines."""
    order: tuple[int, ...] = eqx.field(static=True)
    """[R] the events of the game's rules, in the order in which they occur within a step."""
    concerned: Bool[Array, "R A"]
    """Whether each rule is about an action of the agent itself."""

    @property
    def states(self) -> int:
        """U, the length of the one-hot state at the end of an observation."""
        return self.machines.next.shape[1]

    def heard(
        self, known: Int[Array, " A"], fired: Bool[Array, " R"], *, alone: bool = False
    ) -> tuple[Int[Array, " A"], Float[Array, " A"]]:
        """Each machine's state after a step's events, and the machine's reward for them.

        Args:
            known: state of each machine before.
            fired: whether each rule's event occurred.
            alone: whether agents need not wait for each other, as in imagined experience.
        """
        machines, index = self.machines, jnp.arange(known.shape[0])
        worth = jnp.zeros(known.shape)
        for rule, event in enumerate(self.order):
            hears = machines.hears[:, event]
            ready = hears if alone else moving(machines, known, event)
            # Moves that exist only in causal knowledge are known to an agent only from its own
            # actions.
            moved = fired[rule] & (ready | (self.concerned[rule] & ~hears))
            moved &= ~machines.ended[index, known]
            worth += jnp.where(moved, machines.reward[index, known, event], 0.0)
            known = jnp.where(moved, machines.next[index, known, event], known)
        return known, worth

    def ended(self, known: Int[Array, "*B A"]) -> Bool[Array, "*B A"]:
        """Whether each agent's part is done or has failed."""
        return self.machines.ended[jnp.arange(known.shape[-1]), known]

    def over(self, known: Int[Array, "*B A"]) -> Bool[Array, "*B"]:
        """Whether all parts are done, or any part has failed."""
        failed = self.machines.failed[jnp.arange(known.shape[-1]), known]
        return self.ended(known).all(-1) | failed.any(-1)

    def read(self, observation: Float[Array, "*B A O"]) -> Int[Array, "*B A"]:
        """The states of the machines, decoded from an observation."""
        return observation[..., -self.states :].argmax(-1)

    def written(
        self, observation: Float[Array, "*B A O"], known: Int[Array, "*B A"]
    ) -> Float[Array, "*B A O"]:
        """The observation with other states of the machines."""
        shown = jax.nn.one_hot(known, self.states, dtype=observation.dtype)
        return jnp.concatenate([observation[..., : -self.states], shown], -1)

    def imagined(
        self,
        observation: Float[Array, "B T+1 A O"],
        events: Bool[Array, "B T R"],
        start: Bool[Array, "B T+1"],
        key: PRNGKeyArray,
    ) -> tuple[Array, Float[Array, "B T A"], Int[Array, "B T A"]]:
        """The same steps, as if the machines had been in other states before them.

        Args:
            observation: observations of the steps and after the last step.
            events: whether each rule's event occurred in each step.
            start: whether an episode begins at each observation.
            key: random key of the states, which are drawn among those that have not ended.

        Returns:
            Observations, rewards, and the machines' states after each step, before a new episode.
        """
        batch, agents = observation.shape[0], observation.shape[2]
        odds = jnp.where(self.machines.ended, -jnp.inf, 0.0)
        first = jax.random.categorical(key, odds, shape=(batch, agents))

        def step(known: Array, now: tuple[Array, Array]) -> tuple[Array, tuple[Array, ...]]:
            fired, again = now
            after, worth = jax.vmap(lambda k, f: self.heard(k, f, alone=True))(known, fired)
            new = jnp.where(again[:, None], self.machines.start, after)
            return new, (known, worth, after)

        steps = jnp.moveaxis(events, 1, 0), jnp.moveaxis(start[:, 1:], 1, 0)
        last, (known, worth, after) = jax.lax.scan(step, first, steps)
        known = jnp.moveaxis(jnp.concatenate([known, last[None]]), 0, 1)
        return (
            self.written(observation, known),
            jnp.moveaxis(worth, 0, 1),
            jnp.moveaxis(after, 0, 1),
        )
