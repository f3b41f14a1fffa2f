"""The two policies in JAX: their weights, trained here, and message passing with matrices.

`learning.policies.policy`, which decoding also uses, defines what they compute.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gradweave.environment.problem import Problem
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
from gradweave.learning.features import Graph
from gradweave.learning.policies import policy
from gradweave.learning.policies.policy import (
    COMMON,
    LAYERS,
    LINK_MESSAGES,
    SERVER_MESSAGES,
    TREE_MESSAGES,
    WIDTH,
    Embeddings,
)


class Messages(eqx.Module):
    """One layer: the weights of the messages to each server, link and tree."""

    server: Float[Array, "8 D D"]
    link: Float[Array, "4 D D"]
    tree: Float[Array, "4 D D"]
    bias: Float[Array, "3 D"]

    def __init__(self, key: PRNGKeyArray) -> None:
        server, link, tree = jax.random.split(key, 3)
        self.server = _scaled(server, (SERVER_MESSAGES, WIDTH, WIDTH))
        self.link = _scaled(link, (LINK_MESSAGES, WIDTH, WIDTH))
        self.tree = _scaled(tree, (TREE_MESSAGES, WIDTH, WIDTH))
        self.bias = jnp.zeros((3, WIDTH))


def _scaled(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Normal weights, scaled so that sums over messages keep their variance."""
    return jax.random.normal(key, shape) / jnp.sqrt(shape[0] * shape[1])


class Encoder(eqx.Module):
    """Message passing over servers, links and trees: `policy.encode`."""

    server: Float[Array, "S D"]
    link: Float[Array, "K D"]
    tree: Float[Array, "T D"]
    global_features: Float[Array, "G 3 D"]
    layers: tuple[Messages, ...]

    def __init__(self, key: PRNGKeyArray) -> None:
        server, link, tree, overall, *layers = jax.random.split(key, 4 + LAYERS)
        self.server = _scaled(server, (SERVER_FEATURES, WIDTH)) * jnp.sqrt(float(WIDTH)) / 2
        self.link = _scaled(link, (LINK_FEATURES, WIDTH)) * jnp.sqrt(float(WIDTH)) / 2
        self.tree = _scaled(tree, (TREE_FEATURES, WIDTH)) * jnp.sqrt(float(WIDTH)) / 2
        self.global_features = jax.random.normal(overall, (GLOBAL_FEATURES, 3, WIDTH)) / 2
        self.layers = tuple(Messages(layer) for layer in layers)

    def __call__(self, features: Round, graph: Graph) -> Embeddings:
        """The embeddings at the start of a round, with their means."""
        edges = _MatrixEdges.of(features, graph)
        made = policy.encode(self, features, edges)
        means = [_mean(x, mask)[0] for x, mask in zip(made[:3], edges.masks, strict=True)]
        return made._replace(pooled=jnp.concatenate([*means, features.global_features]))


class _Weighted(NamedTuple):
    """Two means over few rows, taken after multiplying the rows by the weights."""

    shares: Float[Array, "A 2B"]
    """Side by side, rows of shares that sum to 1, or to 0."""

    def added(self, total: Array, x: Float[Array, "B D"], weights: Float[Array, "2 D D"]) -> Array:
        """The sum of messages including these two means."""
        return total + self.shares @ jnp.concatenate([x @ weights[0], x @ weights[1]])


class _Averaged(NamedTuple):
    """Two means over many rows, multiplied by the weights afterwards."""

    shares: Float[Array, "2A B"]
    """One below the other."""

    def added(self, total: Array, x: Float[Array, "B D"], weights: Float[Array, "2 D D"]) -> Array:
        """The sum of messages including these two means."""
        means = self.shares @ x
        return total + means[: len(total)] @ weights[0] + means[len(total) :] @ weights[1]


@dataclasses.dataclass
class _MatrixEdges:
    """`policy.Edges` of a round as matrices: fast in batches, and differentiable."""

    masks: tuple[Array, Array, Array]
    servers_to_servers: _Weighted
    links_to_servers: _Averaged
    trees_to_servers: _Weighted
    servers_to_links: _Weighted
    servers_to_trees: _Weighted

    xp = jnp

    @staticmethod
    def of(features: Round, graph: Graph) -> "_MatrixEdges":
        """The edges of a round."""
        into, links_in, links_out = graph.into, graph.links_in, graph.links_out
        holds, lacks = features.holds.astype(jnp.float32), features.lacks.astype(jnp.float32)
        stage = features.stage
        return _MatrixEdges(
            masks=(
                features.server[:, 4] > 0,  # ports
                features.link[:, 2] > 0,
                (features.holds | features.lacks).any(0),
            ),
            servers_to_servers=_Weighted(_beside(into, into.mT)[stage]),
            links_to_servers=_Averaged(_shares(jnp.concatenate([links_in, links_out], 1))[stage]),
            trees_to_servers=_Weighted(_beside(holds, lacks)),
            servers_to_links=_Weighted(_beside(links_out.mT, links_in.mT)[stage]),
            servers_to_trees=_Weighted(_beside(holds.T, lacks.T)),
        )

    @staticmethod
    def relu(x: Array) -> Array:
        """The positive part."""
        return jax.nn.relu(x)

    @staticmethod
    def times(x: Array, y: Array) -> Array:
        """The product of two matrices."""
        return x @ y

    def change(
        self, own: Array, heard: Sequence, weights: Array, bias: Array, mask: Array
    ) -> Array:
        """The change of embeddings in a layer: see `policy.Edges`."""
        total = own @ weights[0]
        for place, (pair, x) in enumerate(heard):
            total = pair.added(total, x, weights[1 + 2 * place : 3 + 2 * place])
        total += _mean(own, mask) @ weights[-1]
        return jnp.where(mask[:, None], self.relu(total + bias), 0.0)


def _mean(x: Float[Array, "A D"], mask: Bool[Array, " A"]) -> Float[Array, "1 D"]:
    """The mean over the rows that are not padding."""
    return _shares(mask[None].astype(jnp.float32)) @ x


def _beside(one: Float[Array, "*S A B"], other: Float[Array, "*S A B"]) -> Float[Array, "*S A 2B"]:
    """Weights of two means, next to each other."""
    return jnp.concatenate([_shares(one), _shares(other)], -1)


def _shares(weights: Float[Array, "*S A B"]) -> Float[Array, "*S A B"]:
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1.0)


class Perceptron(eqx.Module):
    """A network with one hidden layer that returns a number."""

    layers: tuple[eqx.nn.Linear, eqx.nn.Linear]

    def __init__(self, inputs: int, width: int, key: PRNGKeyArray) -> None:
        hidden, out = jax.random.split(key)
        self.layers = (
            eqx.nn.Linear(inputs, width, key=hidden),
            eqx.nn.Linear(width, "scalar", key=out),
        )

    def __call__(self, x: Float[Array, " I"]) -> Float[Array, ""]:
        """The number."""
        hidden, out = self.layers
        return out(jnp.tanh(hidden(x)))


class Critic(eqx.Module):
    """Estimates the remaining return, from the means over the network."""

    layers: Perceptron

    def __init__(self, key: PRNGKeyArray) -> None:
        self.layers = Perceptron(3 * WIDTH + GLOBAL_FEATURES, 32, key)

    def __call__(self, embeddings: Embeddings) -> Float[Array, ""]:
        """The value."""
        return self.layers(embeddings.pooled)


class TreePolicy(eqx.Module):
    """Flow-tree selection: whether to select each tree, independently of the others."""

    encoder: Encoder
    score: Float[Array, " D"]
    bias: Float[Array, ""]
    critic: Critic

    def __init__(self, key: PRNGKeyArray, bias: float = 0.0) -> None:
        encoder, critic = jax.random.split(key)
        self.encoder = Encoder(encoder)
        self.score = jnp.zeros(WIDTH)
        self.bias = jnp.asarray(bias, jnp.float32)
        self.critic = Critic(critic)

    def __call__(self, embeddings: Embeddings) -> Float[Array, " Q"]:
        """The logit of each tree's selection."""
        return policy.tree_logits(self, embeddings.tree)


class WorkloadPolicy(eqx.Module):
    """Workload scheduling: scores of the hops, and of the trees on the chosen hop."""

    common: ClassVar[float] = COMMON
    encoder: Encoder
    hop: Float[Array, " F"]
    hop_of_sender: Float[Array, "D F"]
    hop_of_receiver: Float[Array, "D F"]
    hop_of_links: Float[Array, "D F"]
    piece: Float[Array, " G"]
    piece_of_receiver: Float[Array, "D G"]
    match: Float[Array, "D D"]
    critic: Critic

    def __init__(self, key: PRNGKeyArray) -> None:
        encoder, critic = jax.random.split(key)
        self.encoder = Encoder(encoder)
        self.hop = jnp.zeros(HOP_FEATURES)
        self.hop_of_sender = jnp.zeros((WIDTH, HOP_FEATURES))
        self.hop_of_receiver = jnp.zeros((WIDTH, HOP_FEATURES))
        self.hop_of_links = jnp.zeros((WIDTH, HOP_FEATURES))
        self.piece = jnp.zeros(PIECE_FEATURES)
        self.piece_of_receiver = jnp.zeros((WIDTH, PIECE_FEATURES))
        self.match = jnp.zeros((WIDTH, WIDTH))
        self.critic = Critic(critic)

    def __call__(self, embeddings: Embeddings, problem: Problem) -> Scores:
        """The weights of the features of a round's workloads."""

        def on_hops(own: Array, of_sender: Array, of_receiver: Array, of_links: tuple) -> Array:
            link, weights = of_links
            links = _shares(problem.crosses.astype(jnp.float32).T) @ link
            by_ends = own + of_sender[problem.sender] + of_receiver[problem.receiver]
            return by_ends + links @ weights

        return policy.workload_scores(self, embeddings, _MatrixEdges.times, on_hops)


class HierarchicalPolicy(eqx.Module):
    """Both policies; they share nothing."""

    tree: TreePolicy
    workload: WorkloadPolicy

    def __init__(self, key: PRNGKeyArray, tree_bias: float = 0.0) -> None:
        tree, workload = jax.random.split(key)
        self.tree = TreePolicy(tree, tree_bias)
        self.workload = WorkloadPolicy(workload)


def masked_log_softmax(scores: Float[Array, " A"], can: Bool[Array, " A"]) -> Float[Array, " A"]:
    """Log-probabilities of the available choices; very low for all others."""
    return jax.nn.log_softmax(jnp.where(can, scores, -1e9))
