"""The two policies: message passing over servers, links and trees once per round; their weights.

There is one definition for both uses: compiled loops decode by it (`messages`), and JAX trains it
(`gradweave.learning.networks`). They differ in how means over neighbours are computed (sparse lists
and bitsets for decoding, dense matrices for training) and in where the weights are kept.

A round's messages set, for each hop and each server, the weight of each feature; a workload's score
is then a dot product. Thus a round's workloads can be drawn in sequence at the cost of one
evaluation per round, and each draw sees the effect of the draws before it. Nothing depends on the
lengths of the axes or on the order of servers, links or trees.
"""

import functools
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import FileError
from gradweave.learning.episodes.features import (
    GLOBAL_FEATURES,
    HOP_FEATURES,
    LINK_FEATURES,
    PIECE_FEATURES,
    SERVER_FEATURES,
    TREE_FEATURES,
    Round,
    Scores,
)

if TYPE_CHECKING:
    from gradweave.learning.episodes.episode import OngoingEpisode
    from gradweave.learning.policies.messages import StageEdges

WIDTH, LAYERS = 16, 2
"""Embedding width of each server, link and tree, and rounds of message passing."""
SERVER_MESSAGES, LINK_MESSAGES, TREE_MESSAGES = 8, 4, 4
"""Kinds of messages to each: from itself, from its neighbours by kind, and from all of its kind."""

FORMAT, VERSION = "gradweave-policy", "1"
"""Format and version in a file of weights."""
OLD_NAMES = {
    "hop_of_giver": "hop_of_sender",
    "hop_of_taker": "hop_of_receiver",
    "piece_of_taker": "piece_of_receiver",
    "whole": "global_features",
}
"""Former parts of arrays' names, which files (such as the shipped one) still use."""
COMMON = 8.0
"""Scale of the weights that all hops, or all servers, share, so that these are learned before
differences between places. Files state the factor with which they were trained."""

Pair = Any
"""Two means over neighbours, such as over a server's senders and over its receivers."""


class LayerWeights(NamedTuple):
    """Weights of the messages to each server, link and tree."""

    server: Any
    """[8, D, D]"""
    link: Any
    """[4, D, D]"""
    tree: Any
    """[4, D, D]"""
    bias: Any
    """[3, D]"""


class EncoderWeights(NamedTuple):
    """One agent's message passing; D is `WIDTH`."""

    server: Any
    """[6, D]"""
    link: Any
    """[3, D]"""
    tree: Any
    """[5, D]"""
    global_features: Any
    """[5, 3, D]"""
    layers: Sequence[LayerWeights]


class TreeWeights(NamedTuple):
    """Flow-tree selection."""

    encoder: EncoderWeights
    score: Any
    """[D]"""
    bias: Any


class WorkloadWeights(NamedTuple):
    """Workload scheduling: weights of the features, by place."""

    encoder: EncoderWeights
    common: Any
    """`COMMON`."""
    hop: Any
    """[12]"""
    hop_of_sender: Any
    """[D, 12]"""
    hop_of_receiver: Any
    """[D, 12]"""
    hop_of_links: Any
    """[D, 12]"""
    piece: Any
    """[7]"""
    piece_of_receiver: Any
    """[D, 7]"""
    match: Any
    """[D, D]"""


class PolicyWeights(NamedTuple):
    """Both agents; they share nothing."""

    tree: TreeWeights
    workload: WorkloadWeights

    def select(
        self,
        episode: "OngoingEpisode",
        features: Round,
        rng: np.random.Generator,
        temperature: float,
    ) -> NDArray[np.bool_]:
        """[Q] flow-tree selection: the trees of the round."""
        embeddings = embeddings_of(self.tree.encoder, episode, features)
        logits = tree_logits(self.tree, embeddings.tree)
        noise = rng.logistic(size=len(logits)) * temperature
        selected = features.candidates & (logits + noise > 0)
        if not selected.any():  # a round without transfers is useless
            selected[np.where(features.candidates, logits, -np.inf).argmax()] = True
        return selected

    def scores(self, episode: "OngoingEpisode", features: Round) -> Scores:
        """Workload scheduling: the weights of the features of the round's workloads."""
        embeddings = embeddings_of(self.workload.encoder, episode, features)
        edges = _edges(episode)
        return workload_scores(self.workload, embeddings, edges.times, edges.on_hops)


class Embeddings(NamedTuple):
    """The embeddings of each part of a network after message passing."""

    server: Any
    """[N, D]"""
    link: Any
    """[L, D]"""
    tree: Any
    """[Q, D]"""
    pooled: Any = None
    """[3 D + 5] their means and the global features, if a critic needs them: in training."""


class Edges(Protocol):
    """Who hears whom in a round, and the array operations of the definition in one library."""

    xp: Any
    """numpy, or jax.numpy."""
    masks: tuple[Any, Any, Any]
    """[N], [L], [Q] servers, links and trees that are not padding."""
    servers_to_servers: Pair
    """From servers that send to a server, and from those that it sends to."""
    links_to_servers: Pair
    """From links of hops into a server, and out of it."""
    trees_to_servers: Pair
    """From trees that a server holds, and from the others."""
    servers_to_links: Pair
    """From servers that send over a link, and from those that receive over it."""
    servers_to_trees: Pair
    """From servers that hold a tree, and from the others."""

    def relu(self, x: Any) -> Any:
        """The positive part."""
        ...

    def times(self, x: Any, y: Any) -> Any:
        """The product of two matrices."""
        ...

    def change(
        self, own: Any, heard: Sequence[tuple[Pair, Any]], weights: Any, bias: Any, mask: Any
    ) -> Any:
        """[A, D] ``relu(sum of message @ weights + bias)``; 0 for padding.

        The messages, in the order of the weights [M, D, D]: its embedding, the two means of each
        pair over the embeddings paired with it, and the mean of all of its kind.
        """
        ...


def encode(weights: Any, features: Round, edges: Edges) -> Embeddings:
    """Message passing over servers, links and trees.

    Workloads influence it through which servers hold and lack which trees, and through the links'
    demand and contenders.

    Args:
        weights: the weights of an agent, with the fields of `EncoderWeights`.
        features: the features of the round's start.
        edges: who hears whom.
    """
    xp, masks = edges.xp, edges.masks
    bias = xp.einsum("w,wkd->kd", features.global_features, weights.global_features)
    inputs = (
        (features.server, weights.server),
        (features.link, weights.link),
        (features.tree, weights.tree),
    )
    server, link, tree = (
        xp.where(mask[:, None], edges.relu(edges.times(x, y) + bias[kind]), 0.0)
        for kind, ((x, y), mask) in enumerate(zip(inputs, masks, strict=True))
    )
    for layer in weights.layers:
        to_servers = (
            (edges.servers_to_servers, server),
            (edges.links_to_servers, link),
            (edges.trees_to_servers, tree),
        )
        to_links, to_trees = (edges.servers_to_links, server), (edges.servers_to_trees, server)
        changes = (
            edges.change(server, to_servers, layer.server, layer.bias[0], masks[0]),
            edges.change(link, (to_links,), layer.link, layer.bias[1], masks[1]),
            edges.change(tree, (to_trees,), layer.tree, layer.bias[2], masks[2]),
        )
        server, link, tree = server + changes[0], link + changes[1], tree + changes[2]
    return Embeddings(server, link, tree)


def tree_logits(weights: Any, tree: Any) -> Any:
    """[Q] the logit of each tree's selection, from its embedding only."""
    return tree @ weights.score + weights.bias


def workload_scores(
    weights: Any,
    embeddings: Embeddings,
    times: Callable[[Any, Any], Any],
    on_hops: Callable[..., Any],
) -> Scores:
    """The weights of the features of a round's workloads.

    Args:
        weights: the weights of workload scheduling.
        embeddings: the embeddings from its encoder.
        times: the product of two matrices.
        on_hops: [H, 12] the sum of the shared weights, the sender's and the receiver's [N, 12], and
            the mean over the route's links of [L, D] times [D, 12].
    """
    server = embeddings.server
    return Scores(
        hop=on_hops(
            weights.common * weights.hop,
            times(server, weights.hop_of_sender),
            times(server, weights.hop_of_receiver),
            (embeddings.link, weights.hop_of_links),
        ),
        piece=weights.common * weights.piece + times(server, weights.piece_of_receiver),
        match=times(times(server, weights.match), embeddings.tree.T),
    )


def embeddings_of(
    weights: EncoderWeights, episode: "OngoingEpisode", features: Round
) -> Embeddings:
    """Message passing at a round's start in an episode, in compiled loops.

    Args:
        weights: the weights of an agent.
        episode: the episode.
        features: the features of the round's start.
    """
    return encode(weights, features, _edges(episode).begin_round(features))


def _edges(episode: "OngoingEpisode") -> "StageEdges":
    """Who hears whom in the episode's stage, computed once per stage."""
    if episode.edges is None:
        from gradweave.learning.policies.messages import StageEdges

        episode.edges = StageEdges(episode.problem, episode.there, episode.under_way)
    return episode.edges


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each array of weights, by its path."""
    layer = {
        "server": (SERVER_MESSAGES, WIDTH, WIDTH),
        "link": (LINK_MESSAGES, WIDTH, WIDTH),
        "tree": (TREE_MESSAGES, WIDTH, WIDTH),
        "bias": (3, WIDTH),
    }
    encoder = {
        "server": (SERVER_FEATURES, WIDTH),
        "link": (LINK_FEATURES, WIDTH),
        "tree": (TREE_FEATURES, WIDTH),
        "global_features": (GLOBAL_FEATURES, 3, WIDTH),
        **{f"layers.{i}.{name}": layer[name] for i in range(LAYERS) for name in layer},
    }
    return {
        **{
            f"{of}.encoder.{name}": encoder[name] for of in ("tree", "workload") for name in encoder
        },
        "tree.score": (WIDTH,),
        "tree.bias": (),
        "workload.hop": (HOP_FEATURES,),
        "workload.hop_of_sender": (WIDTH, HOP_FEATURES),
        "workload.hop_of_receiver": (WIDTH, HOP_FEATURES),
        "workload.hop_of_links": (WIDTH, HOP_FEATURES),
        "workload.piece": (PIECE_FEATURES,),
        "workload.piece_of_receiver": (WIDTH, PIECE_FEATURES),
        "workload.match": (WIDTH, WIDTH),
    }


def read_weights(path: str | None = None) -> PolicyWeights:
    """Reads weights; without a file, the shipped weights.

    Args:
        path: a file that `gradweave learn` wrote.

    Raises:
        FileError: if the file does not contain trained policies.
    """
    return _shipped() if path is None else _read(Path(path).expanduser())


@functools.cache
def _shipped() -> PolicyWeights:
    folder = importlib.resources.files("gradweave.learning.policies").joinpath("weights")
    with importlib.resources.as_file(folder.joinpath("learned.safetensors")) as path:
        return _read(path)


def _read(path: Path) -> PolicyWeights:
    from gradweave.common import arrays  # safetensors is imported where weights are read

    about = arrays.metadata(path)
    arrays.check_format(path, about, FORMAT, VERSION)
    read = arrays.renamed(arrays.read(path), OLD_NAMES)
    return weights_of(read, _number(path, about.get("common", "")), path)


def _number(path: Path, text: str) -> float:
    """A number in a file's metadata."""
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise FileError(f"{path}: metadata: common: expected a number, got {text!r:.40}")
    return number


def weights_of(
    arrays: Mapping[str, NDArray[Any]], common: float, origin: Path | str
) -> PolicyWeights:
    """Weights from the trained policies' arrays.

    Args:
        arrays: arrays by their paths in the policies, such as ``tree.score``.
        common: `COMMON` when they were trained.
        origin: origin of the arrays, for error messages.

    Raises:
        FileError: if an array is missing or has another shape.
    """
    read = {
        name: _checked(origin, name, arrays.get(name), shape) for name, shape in shapes().items()
    }

    def encoder(of: str) -> EncoderWeights:
        layers = [
            LayerWeights(*(read[f"{of}.layers.{i}.{part}"] for part in LayerWeights._fields))
            for i in range(LAYERS)
        ]
        first = {part: read[f"{of}.{part}"] for part in EncoderWeights._fields[:-1]}
        return EncoderWeights(**first, layers=layers)

    parts = {part: read[f"workload.{part}"] for part in WorkloadWeights._fields[2:]}
    return PolicyWeights(
        TreeWeights(encoder("tree.encoder"), read["tree.score"], read["tree.bias"].item()),
        WorkloadWeights(encoder("workload.encoder"), np.float32(common), **parts),
    )


def _checked(
    origin: Path | str, name: str, array: NDArray[Any] | None, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """An array, checked for type, shape and finite values."""
    got = None if array is None else (array.dtype.name, array.shape)
    if array is None or got != ("float32", shape) or not np.isfinite(array).all():
        raise FileError(f"{origin}: array {name!r}: expected finite float32 {shape}, got {got}")
    return np.ascontiguousarray(array)
