"""Each agent's estimate of the mean utility, found by exchanges with its neighbours.

A utility is a running mean, so the mean over agents changes little per step. Agents therefore
continue from their last estimates: each adds the change of its utility, and then averages with its
neighbours k times. The mean of the estimates always equals the mean utility, and each estimate
tends to it.

Source: Jiang and Lu 2019, section 3.4 (average consensus); Zhu and Martínez 2010 (dynamic average
consensus, for a value that changes).
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
"""The axis over which agents exchange messages; devices have a separate axis."""


class Estimates(eqx.Module):
    """The state of the exchanges in an episode."""

    mean: Float[Array, "*B A"]
    """Each agent's estimate."""
    last_sent: Float[Array, "*B A"]
    """Each agent's utility as already included in the estimates."""
    turn: Int[Array, "*B"]
    """Number of exchanges so far."""
    sent_bytes: Float[Array, "*B A"]
    """Bytes that each agent sent in the last step."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeanUtility:
    """The method by which agents find the mean utility."""

    mixing: MixingMatrix | None
    """Averaging weights, or None for the exact mean, which is computed without messages."""
    exchanges: int
    """k, the number of exchanges per step."""

    def start(self, *shape: int) -> Estimates:
        """The estimates before an episode.

        Args:
            shape: the numbers of games and agents.
        """
        nothing = jnp.zeros(shape)
        return Estimates(nothing, nothing, jnp.zeros(shape[:-1], jnp.int32), nothing)

    def after(
        self, before: Estimates, utility: Float[Array, "B A"], start: Bool[Array, " B"]
    ) -> Estimates:
        """The estimates after the exchanges of a step.

        Args:
            before: estimates of the preceding step.
            utility: each agent's current utility.
            start: games in which an episode begins; their utilities, estimates and bytes are 0.
        """
        return emptied(self._after(before, utility), start)

    def _after(self, before: Estimates, utility: Float[Array, "B A"]) -> Estimates:
        """Like `after`, within an episode."""
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
        """One message from each agent to each neighbour; returns averages and bytes sent."""
        mixing = self.mixing
        assert mixing is not None

        def of_one(own: Float[Array, ""]) -> tuple[Array, Array]:
            channel = Channel(
                number=jnp.ones((), own.dtype),
                mixing=mixing,
                turn=turn % mixing.period,
                compressor=Uncompressed(),
                key=jax.random.key(0),  # not used, since nothing is random
                size=1,
                dtype=own.dtype,
                axis_name=AGENTS_AXIS,
                gathers=True,
            )
            return channel.mix(channel.compress(own[None]))[0], channel.sent_bytes

        return jax.vmap(of_one, axis_name=AGENTS_AXIS)(mean)


def emptied(estimates: Any, start: Bool[Array, " B"]) -> Any:
    """Resets the estimates of games in which an episode begins."""

    def of(x: Array) -> Array:
        return jnp.where(start.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x)

    return jax.tree.map(of, estimates)
