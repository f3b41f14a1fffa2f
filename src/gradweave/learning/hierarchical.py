"""Algorithm 1: the two agents are trained in turn, each while the other is frozen.

Source: section 4.3 of the paper. Its listing swaps the names of the two policies in steps 5 to 11;
this code follows the text of the section.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray

from gradweave.aggregate.aggregation import Aggregation
from gradweave.environment.problem import Problem
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.ppo import PPO, Agent, gradient, minibatch, samples, with_agent
from gradweave.learning.rollout import Ends, Expert, Rollout, RoundLog, record

AGENTS: tuple[Agent, Agent] = ("tree", "workload")


class Learner(eqx.Module):
    """The state that training passes from one update to the next."""

    policy: HierarchicalPolicy
    tree_optimizer: Any
    workload_optimizer: Any


class Batch(eqx.Module):
    """Problems of one size that are played in parallel."""

    problems: Problem
    """[G] problems."""
    busiest: Array
    """[G] maximum number of transfers per round."""
    expert: Expert | None = None
    """[G, E] episodes for workload scheduling to imitate; by default it learns from its own
    episodes."""


AXIS = "device"
"""Name of the devices' axis."""


@dataclasses.dataclass(frozen=True)
class Trainer:
    """One update of one agent: collects episodes with both agents, then trains one of them."""

    tree: PPO
    workload: PPO
    rollout: Rollout
    episodes: int
    """Number of episodes per problem and update, over all devices."""
    decay: int
    """Number of updates over which the learning rate falls to a tenth."""
    aggregation: Aggregation
    """How devices average gradients; an exact aggregation, over `AXIS`."""

    def ppo(self, agent: Agent) -> PPO:
        """An agent's learning settings."""
        return self.tree if agent == "tree" else self.workload

    def optimizer(self, agent: Agent) -> optax.GradientTransformation:
        """An agent's optimiser."""
        how = self.ppo(agent)
        steps = self.decay * how.epochs * how.minibatches
        rate = optax.linear_schedule(how.learning_rate, how.learning_rate / 10, steps)
        return optax.chain(
            optax.clip_by_global_norm(how.max_gradient_norm), optax.adam(rate, eps=1e-5)
        )

    def start(self, policy: HierarchicalPolicy) -> Learner:
        """The learner before its first update."""
        tree, workload = (self.optimizer(agent).init(getattr(policy, agent)) for agent in AGENTS)
        return Learner(policy, tree, workload)

    def collect(
        self, policy: HierarchicalPolicy, batch: Batch, key: PRNGKeyArray, episodes: int
    ) -> tuple[RoundLog, Ends]:
        """Plays episodes of every problem.

        Problems are played one after the other, each with its episodes in parallel, so that no
        episode waits for another network's rounds.
        """
        keys = jax.random.split(key, (len(batch.busiest), episodes))
        return jax.lax.map(
            lambda each: record(policy, each[0], each[1], each[2], self.rollout, each[3]),
            (batch.problems, keys, batch.busiest, batch.expert),
        )

    def update(
        self,
        learner: Learner,
        batch: Batch,
        key: PRNGKeyArray,
        *,
        agent: Agent,
        devices: int = 1,
        axis: str | None = None,
    ) -> tuple[Learner, dict[str, Array]]:
        """Collects episodes and trains once.

        Args:
            learner: the learner before.
            batch: the problems to play.
            key: key of every random choice; differs by device.
            agent: the agent that learns; the other is frozen.
            devices: number of devices among which the episodes are divided.
            axis: name of the devices' axis, inside `shard_map`.
        """
        how = self.ppo(agent)
        playing, learning = jax.random.split(key)
        logs, ends = self.collect(learner.policy, batch, playing, self.episodes // devices)
        rows = samples(logs, agent, how)
        size = rows.advantage.shape[1] // (2 * how.minibatches)
        optimizer = self.optimizer(agent)
        average = None if axis is None else self.aggregation(optax.identity())

        def step(carry: tuple, key: PRNGKeyArray) -> tuple:
            policy, state = carry
            chosen = minibatch(rows, key, max(size, 1))
            change, figures = gradient(policy, batch.problems, chosen, agent, how)
            if average is not None:
                change, _ = average.update(change, average.init(change))
                figures = jax.lax.pmean(figures, axis)
            change, state = optimizer.update(change, state)
            trained = optax.apply_updates(getattr(policy, agent), change)
            return (with_agent(policy, agent, trained), state), figures

        carry = learner.policy, getattr(learner, f"{agent}_optimizer")
        keys = jax.random.split(learning, how.epochs * how.minibatches)
        (policy, state), figures = jax.lax.scan(step, carry, keys)
        figures = {name: values.mean() for name, values in figures.items()}
        figures |= _results(batch, logs, ends)
        if axis is not None:
            figures = jax.lax.pmean(figures, axis)
            figures["decisions"] *= devices
        after = dataclasses.replace(learner, policy=policy, **{f"{agent}_optimizer": state})
        return after, figures


def _results(batch: Batch, logs: RoundLog, ends: Ends) -> dict[str, Array]:
    """[G] results of the episodes, problem by problem."""
    bound = batch.problems.bound.sum(1).astype(jnp.float32)
    return {
        "rounds": ends.rounds.mean(1, dtype=jnp.float32),
        "over_bound": ends.rounds.mean(1, dtype=jnp.float32) / bound - 1.0,
        "at_bound": (ends.done & (ends.rounds == bound[:, None])).mean(1, dtype=jnp.float32),
        "finished": ends.done.mean(1, dtype=jnp.float32),
        "selected": _share_selected(logs),
        "decisions": (ends.sent_round >= 0).sum((1, 2, 3)).astype(jnp.float32),
    }


def _share_selected(logs: RoundLog) -> Float[Array, " G"]:
    could = logs.features.candidates.sum((1, 2, 3))
    did = (logs.selected & logs.features.candidates).sum((1, 2, 3))
    return did / jnp.maximum(could, 1)


class CompiledUpdate:
    """`Trainer.update` of one agent, compiled, over devices and over seeds.

    Learners and keys have a leading axis of seeds. The episodes of each problem are divided among
    the devices, and the trainer's aggregation averages the gradients over them.
    """

    def __init__(self, trainer: Trainer, agent: Agent, devices: Sequence[Any]) -> None:
        """Compiles nothing yet.

        Args:
            trainer: the trainer.
            agent: the agent that learns.
            devices: at least one.
        """
        mesh = Mesh(list(devices), (AXIS,))
        replicated, split = PartitionSpec(), PartitionSpec(AXIS)
        self._replicated, self._split = (NamedSharding(mesh, spec) for spec in (replicated, split))

        def on_device(learners: Learner, batch: Batch, keys: PRNGKeyArray) -> tuple:
            def one_seed(learner: Learner, key: PRNGKeyArray) -> tuple:
                return trainer.update(
                    learner, batch, key, agent=agent, devices=len(devices), axis=AXIS
                )

            if len(keys[0]) > 1:
                return jax.vmap(one_seed)(learners, keys[0])
            # Without `vmap`, branches and loops of a single seed end when that seed's episodes do.
            alone = one_seed(jax.tree.map(lambda x: x[0], learners), keys[0, 0])
            return jax.tree.map(lambda x: x[None], alone)

        self.program = jax.jit(
            jax.shard_map(
                on_device,
                mesh=mesh,
                in_specs=(replicated, replicated, split),
                out_specs=(replicated, replicated),
                check_vma=False,
            )
        )

    def __call__(
        self, learners: Learner, batch: Batch, keys: PRNGKeyArray
    ) -> tuple[Learner, dict[str, Array]]:
        """Args: [S] learners, a batch, [devices, S] keys."""
        # If the arguments of the first call were placed differently from those of later calls, both
        # would be compiled.
        learners, batch = jax.device_put((learners, batch), self._replicated)
        return self.program(learners, batch, jax.device_put(keys, self._split))
