"""The flow-tree policy: message passing over servers, switches and links that proposes a plan.

There is one definition for NumPy, which decodes by it, and JAX, which trains it
(`benchmarks/plan_training.py`).
"""

import functools
import importlib.resources
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import FileError
from gradweave.schedulers.greedy.decisions import (
    LINK_FEATURES,
    NODE_FEATURES,
    REACH,
    WHOLE,
    WHOLE_FEATURES,
    Decisions,
    Graph,
    graph_of,
    proposal_of,
)
from gradweave.schedulers.greedy.decoding import Proposal, Wiring

FORMAT, VERSION = "gradweave-plan", "3"
WIDTH, LAYERS = 16, 2

Weights = Mapping[str, Any]
"""Arrays by name, with the shapes of `shapes`."""


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each array of weights."""
    layers = {
        name: shape
        for layer in range(LAYERS)
        for name, shape in (
            (f"link.{layer}", (3 * WIDTH, WIDTH)),
            (f"node.{layer}", (3 * WIDTH, WIDTH)),
        )
    }
    return {
        "link": (LINK_FEATURES, WIDTH),
        "node": (NODE_FEATURES, WIDTH),
        **layers,
        "bias": (WIDTH,),
        "share": (WIDTH,),
        "whole": (2 * WIDTH + WHOLE_FEATURES, len(WHOLE)),
    }


def decide(weights: Weights, graph: Graph, of: Any, add: Callable[..., Any]) -> Decisions:
    """Computes the decisions by message passing.

    Args:
        weights: arrays of `shapes`.
        graph: the network.
        of: numpy, or jax.numpy.
        add: (values [L, D], node of each [L], V) -> [V, D] their sums at each node.
    """
    nodes = graph.node.shape[0]
    ones = of.ones((graph.link.shape[0], 1))
    out = of.maximum(add(ones, graph.source, nodes), 1)
    into = of.maximum(add(ones, graph.target, nodes), 1)
    link = of.tanh(graph.link @ weights["link"])
    node = of.tanh(graph.node @ weights["node"])
    for layer in range(LAYERS):
        seen = of.concatenate([link, node[graph.source], node[graph.target]], -1)
        link = link + of.tanh(seen @ weights[f"link.{layer}"])
        around = [add(link, graph.source, nodes) / out, add(link, graph.target, nodes) / into]
        node = node + of.tanh(of.concatenate([node, *around], -1) @ weights[f"node.{layer}"])
    means = [graph.link_share @ link, graph.node_share @ node, graph.whole]
    whole = of.concatenate(means, -1) @ weights["whole"]
    found = link @ weights["bias"], node @ weights["share"], whole
    return Decisions(*(REACH * of.tanh(x / REACH) for x in found))


def propose(wiring: Wiring, weights: Weights) -> Proposal:
    """The policy's plan.

    Args:
        wiring: the network and the gradient.
        weights: from `read_weights`.
    """
    return proposal_of(wiring, decided(wiring, weights))


def decided(wiring: Wiring, weights: Weights) -> Decisions:
    """The policy's decisions, in NumPy.

    Args:
        wiring: the network and the gradient.
        weights: from `read_weights`.
    """
    exact = {name: array.astype(np.float64) for name, array in weights.items()}
    return decide(exact, graph_of(wiring), np, _add)


def _add(values: NDArray, where: NDArray, count: int) -> NDArray:
    sums = np.zeros((count, values.shape[1]), np.float64)
    np.add.at(sums, where, values)
    return sums


def read_weights(path: str | None = None) -> Weights:
    """Reads weights; without a file, the shipped weights.

    Args:
        path: the file.

    Raises:
        FileError: if the file does not contain a trained plan.
    """
    return _shipped() if path is None else _read(Path(path).expanduser())


@functools.cache
def _shipped() -> Weights:
    folder = importlib.resources.files("gradweave.learning.policies").joinpath("weights")
    with importlib.resources.as_file(folder.joinpath("planned.safetensors")) as path:
        return _read(path)


def _read(path: Path) -> Weights:
    from gradweave.common import arrays  # safetensors is imported where weights are read

    arrays.check_format(path, arrays.metadata(path), FORMAT, VERSION)
    weights = arrays.read(path)
    for name, shape in shapes().items():
        array = weights.get(name)
        fits = array is not None and array.dtype == np.float32 and array.shape == shape
        if array is None or not fits or not np.isfinite(array).all():
            raise FileError(f"{path}: array {name!r}: expected finite float32 {shape}")
    return weights
