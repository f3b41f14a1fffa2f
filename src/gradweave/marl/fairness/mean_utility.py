"""Each agent's own estimate of the mean utility, by exchanges with its neighbours.

A utility is a running mean, so the mean of all moves little in a step. Agents therefore go on from
their last estimates: each adds to its own by how much its utility has changed, and then averages
with its neighbours', k times. The mean of the estimates stays that of the utilities, and each of
them tends to it.

Source: Jiang and Lu 2019, section 3.4 (average consensus); Zhu and Martínez 2010 (of a value that
changes).
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gradweave.aggregate.compressors import Uncompressed
from gradweave.aggregate.messages import Channel
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.execute.axis import AXIS

AGENTS_AXIS = f"{AXIS}_agents"
"""The axis over which agents exchange; devices have one of their own."""


class Estimates(eqx.Module):
    """What agents remember of the exchanges in an episode."""

    mean: Float[Array, "*B A"]
    """Each agent's estimate."""
    last_sent: Float[Array, "*B A"]
    """Each agent's utility as it counts in the estimates."""
    turn: Int[Array, "*B"]
    """Exchanges so far."""
    sent_bytes: Float[Array, "*B A"]
    """By each agent in the last step."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeanUtility:
    """How agents find the mean utility."""

    mixing: MixingMatrix | None
    """By which weights they average; None for the exact mean, which nobody sends anything for."""
    exchanges: int
    """k: in a step."""

    def start(self, *shape: int) -> Estimates:
        """Before an episode.

        Args:
            shape: games side by side, and agents.
        """
        nothing = jnp.zeros(shape)
        return Estimates(nothing, nothing, jnp.zeros(shape[:-1], jnp.int32), nothing)

    def after(
        self, before: Estimates, utility: Float[Array, "B A"], start: Bool[Array, " B"]
    ) -> Estimates:
        """The estimates after a step's exchanges.

        Args:
            before: those of the step before.
            utility: each agent's own now.
            start: where an episode begins: nothing is earned yet, and nothing sent.
        """
        return emptied(self._after(before, utility), start)

    def _after(self, before: Estimates, utility: Float[Array, "B A"]) -> Estimates:
        """The same within an episode."""
        sent = jnp.zeros_like(utility)
        if self.mixing is None:
            mean = jnp.broadcast_to(utility.mean(-1, keepdims=True), utility.shape)
            return Estimates(mean, utility, before.turn, sent)
        mean, turn = before.mean + utility - before.last_sent, before.turn
        for _ in range(self.exchanges):
            mean, more = jax.vmap(self._exchange)(mean, turn)
            sent, turn = sent + more, turn + 1
        return Estimates(mean, utility, turn, sent)

    def _exchange(
        self, mean: Float[Array, " A"], turn: Int[Array, ""]
    ) -> tuple[Float[Array, " A"], Float[Array, " A"]]:
        """One message of each agent to each neighbour: their averages, and the bytes sent."""
        mixing = self.mixing
        assert mixing is not None

        def of_one(own: Float[Array, ""]) -> tuple[Array, Array]:
            channel = Channel(
                number=jnp.ones((), own.dtype),
                mixing=mixing,
                turn=turn % mixing.period,
                compressor=Uncompressed(),
                key=jax.random.key(0),  # nothing is drawn
                size=1,
                dtype=own.dtype,
                axis_name=AGENTS_AXIS,
                gathers=True,
            )
            return channel.mix(channel.compress(own[None]))[0], channel.sent_bytes

        return jax.vmap(of_one, axis_name=AGENTS_AXIS)(mean)


def emptied(estimates: Any, start: Bool[Array, " B"]) -> Any:
    """Nothing known where an episode begins."""

    def of(x: Array) -> Array:
        return jnp.where(start.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)

    return jax.tree.map(of, estimates)
