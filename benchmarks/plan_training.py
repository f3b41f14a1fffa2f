"""Trains the flow-tree policy of `planned`, by the durations of its plans in the compiled decoder.

Decisions are sampled around the policy's. Those that took less time than others on the same network
become more likely (REINFORCE, Williams 1992, with the network's other samples as the baseline).
"""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from gradweave.common import arrays
from gradweave.learning.policies.plan import FORMAT, VERSION, decide, shapes
from gradweave.processes.agreement import Processes
from gradweave.schedulers.greedy.decisions import (
    Decisions,
    Graph,
    graph_of,
    noise,
    plain,
    proposal_of,
)
from gradweave.schedulers.greedy.decoding import EFFORT_S, Wiring, decode
from gradweave.training.checkpoint import CHECKPOINT, Format
from gradweave.training.held import one_at_a_time
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

WEIGHTS = "weights.safetensors"
CHECKPOINT_FORMAT = Format("gradweave-plan-training")


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """How the flow-tree policy is trained."""

    updates: int = 200
    rough_updates: int = 120
    """Number of initial updates in which samples are decoded with less effort than in the
    scheduler. This suffices to learn, except where finer pieces change the best decision."""
    networks: int = 8
    """Number of networks per update."""
    pairs: int = 5
    """Number of pairs of sampled decisions per network: each sample and its mirror image."""
    spread: float = 0.3
    """Standard deviation of a sampled decision."""
    learning_rate: float = 6e-3
    """Initial learning rate; it falls to a tenth by the last update."""
    keep: float = 0.01
    """Weight of the penalty that draws decisions back to 0, the even plan."""
    rough_s: float = 0.02
    effort_s: float = EFFORT_S
    """Seconds for decoding a sample, in the initial updates and later: see
    `planned.decoding.decode`."""
    constants: bool = False
    """Whether only the decisions for the whole network are trained, as constants for all networks:
    the baseline for message passing."""
    seed: int = 0


class PlanState(NamedTuple):
    """Everything that an update depends on."""

    weights: dict[str, jax.Array]
    optimizer: Any


@one_at_a_time
def train_plan(
    config: PlanConfig,
    wirings: Sequence[Wiring],
    folder: Path,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, NDArray]:
    """Trains, resuming from the folder's checkpoint if there is one.

    Args:
        config: the configuration.
        wirings: the networks and gradients to train on.
        folder: folder of the checkpoint, the log and the weights.
        report: called with each update's figures.

    Returns:
        The weights, which are also written to the folder.
    """
    rate = config.learning_rate
    optimizer = optax.adam(optax.linear_schedule(rate, rate / 10, config.updates))
    graphs = [graph_of(wiring) for wiring in wirings]
    weights = _first_weights(config.seed)
    first = PlanState(weights, optimizer.init(weights))
    path, done = folder / CHECKPOINT, 0
    if path.exists():
        done = int(CHECKPOINT_FORMAT.about(path)["updates"])
        first = jax.tree.map(jnp.asarray, CHECKPOINT_FORMAT.load(path, first))

    def save(now: Progress[PlanState]) -> None:
        CHECKPOINT_FORMAT.save(path, now.state, {"updates": now.updates})

    training = Training(Progress(first, done), save, Processes())
    log = Log(folder, done, done)
    update = _Update(config, wirings, graphs, optimizer)

    def record(now: Progress[PlanState], figures: dict[str, Any]) -> None:
        log.write([{"update": now.updates, **figures}])
        log.plot("gain", figures["gain"], now.updates)
        report({"update": now.updates, **figures})

    training.run(config.updates, update, record, log=log, pace=Pace(), checkpoint_minutes=1.0)
    trained = {name: np.asarray(x) for name, x in training.progress.state.weights.items()}
    about = json.dumps(dataclasses.asdict(config), sort_keys=True)
    text = {"format": FORMAT, "version": VERSION, "training": about}
    arrays.save(folder / WEIGHTS, trained, text)
    return trained


def _first_weights(seed: int) -> dict[str, jax.Array]:
    """Random weights of messages, with zero decisions."""
    weights, key = {}, jax.random.key(seed)
    for name, shape in shapes().items():
        key, own = jax.random.split(key)
        scale = 0.0 if name in ("bias", "share", "whole") else shape[0] ** -0.5
        weights[name] = scale * jax.random.normal(own, shape)
    return weights


def _padded(graphs: list[Graph]) -> Graph:
    """All graphs in arrays of one size; padding edges start and end at an extra node."""
    links = max(len(graph.link) for graph in graphs)
    nodes = max(len(graph.node) for graph in graphs) + 1

    def fill(array: NDArray, length: int, value: int = 0) -> NDArray:
        widths = [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)]
        return np.pad(array, widths, constant_values=value)

    padded = [
        Graph(
            fill(graph.link, links),
            fill(graph.node, nodes),
            graph.whole,
            fill(graph.source, links, nodes - 1),
            fill(graph.target, links, nodes - 1),
            fill(graph.link_share, links),
            fill(graph.node_share, nodes),
        )
        for graph in graphs
    ]
    return jax.tree.map(lambda *x: np.stack(x), *padded)


def _add(values: jax.Array, where: jax.Array, count: int) -> jax.Array:
    return jnp.zeros((count, values.shape[1])).at[where].add(values)


def seconds_of(wiring: Wiring, decisions: Decisions, effort_s: float) -> float:
    """Duration of the schedule that some decisions lead to.

    Args:
        wiring: the network and the gradient.
        decisions: decisions of the plan.
        effort_s: see `gradweave.schedulers.greedy.decoding.decode`.
    """
    return decode(wiring, proposal_of(wiring, decisions), effort_s).seconds


class _Update:
    """One update of the policy."""

    def __init__(
        self, config: PlanConfig, wirings: Sequence[Wiring], graphs: list[Graph], optimizer: Any
    ) -> None:
        self._config, self._wirings = config, wirings
        self._graphs, self._batch = graphs, _padded(graphs)
        self._decide = jax.jit(
            jax.vmap(lambda weights, graph: decide(weights, graph, jnp, _add), (None, 0))
        )
        self._optimizer = optimizer
        self._step = jax.jit(self._improve)

    def __call__(self, now: Progress[PlanState], _: int) -> tuple[PlanState, dict[str, Any]]:
        config, begun = self._config, time.monotonic()
        rng = np.random.default_rng([config.seed, now.updates])
        which = rng.choice(len(self._wirings), config.networks, replace=False)
        graphs = jax.tree.map(lambda x: x[which], self._batch)
        means = jax.tree.map(np.asarray, self._decide(now.state.weights, graphs))
        better, gains = [], []
        for place, chosen in enumerate(which.tolist()):
            mean = Decisions(*(x[place] for x in means))
            rough = now.updates < config.rough_updates
            effort_s = config.rough_s if rough else config.effort_s
            direction, gain = self._explore(chosen, mean, effort_s, rng)
            better.append(direction)
            gains.append(gain)
        directions = jax.tree.map(lambda *x: np.stack(x), *better)
        state = self._step(now.state, graphs, directions)
        size = float(np.mean([np.abs(x).mean() for x in means]))
        seconds = round(time.monotonic() - begun, 3)
        return state, {"gain": float(np.mean(gains)), "decisions": size, "seconds": seconds}

    def _explore(
        self, number: int, mean: Decisions, effort_s: float, rng: np.random.Generator
    ) -> tuple[Decisions, float]:
        """The direction in which a network's decisions improve, and the gain of its samples.

        The gain is the logarithm of the even plan's seconds minus the mean logarithm of the
        samples'.
        """
        config, wiring, graph = self._config, self._wirings[number], self._graphs[number]
        nodes, links = wiring.topology.num_nodes, len(wiring.links.bandwidth)
        own = Decisions(mean.bias[:links], mean.share[:nodes], mean.whole)
        draws, taken = [], []
        for _ in range(config.pairs):
            drawn_noise = noise(graph, rng)
            if config.constants:
                drawn_noise = drawn_noise._replace(bias=0 * own.bias, share=0 * own.share)
            for sign in (1.0, -1.0):
                drawn = [
                    a + sign * config.spread * b for a, b in zip(own, drawn_noise, strict=True)
                ]
                taken.append(np.log(seconds_of(wiring, Decisions(*drawn), effort_s)))
                draws.append(Decisions(*(sign * b for b in drawn_noise)))
        advantage = np.mean(taken) - np.array(taken)
        advantage /= max(float(advantage.std()), 1e-3)
        sums = [
            sum(a * x for a, x in zip(advantage, each, strict=True)) / len(advantage)
            for each in zip(*draws, strict=True)
        ]
        directions = Decisions(
            np.pad(sums[0], (0, len(mean.bias) - links)),
            np.pad(sums[1], (0, len(mean.share) - nodes)),
            sums[2],
        )
        even_s = seconds_of(wiring, plain(wiring), effort_s)
        return directions, float(np.log(even_s) - np.mean(taken))

    def _improve(self, state: PlanState, graphs: Graph, directions: Decisions) -> PlanState:
        """One step of the weights."""

        def loss(weights: dict[str, jax.Array]) -> Any:
            decided = jax.vmap(lambda graph: decide(weights, graph, jnp, _add))(graphs)
            gain = [(x * y).sum() for x, y in zip(decided, directions, strict=True)]
            real = [graphs.link_share > 0, graphs.node_share > 0, 1.0]
            size = [(x**2 * y).sum() for x, y in zip(decided, real, strict=True)]
            return (self._config.keep * sum(size) - sum(gain)) / len(graphs.link)

        gradients = jax.grad(loss)(state.weights)
        if self._config.constants:  # the weights of the constant feature
            alone = jnp.zeros_like(gradients["whole"]).at[-1].set(gradients["whole"][-1])
            gradients = {name: jnp.zeros_like(x) for name, x in gradients.items()}
            gradients |= {"whole": alone}
        changes, optimizer = self._optimizer.update(gradients, state.optimizer, state.weights)
        weights: Any = optax.apply_updates(state.weights, changes)
        return PlanState(weights, optimizer)
