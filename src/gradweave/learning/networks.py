"""The two policies: message passing over servers, links and trees, once a round.

The round's messages set, for each hop and each server, how much each cheap number of `features`
counts; a workload's score then is a dot product. That is what lets a round's workloads be drawn in
sequence at the price of one evaluation a round, each draw seeing what the draws before it did.

Nothing depends on the lengths of the axes or on the order of servers, links or trees.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gradweave.environment.problem import Problem
from gradweave.learning.features import Graph, Round
from gradweave.schedulers.learned.feature_table import (
    HOP_FEATURES,
    LAYERS,
    LINK_FEATURES,
    LINK_MESSAGES,
    PIECE_FEATURES,
    SERVER_FEATURES,
    SERVER_MESSAGES,
    TREE_FEATURES,
    TREE_MESSAGES,
    WHOLE_FEATURES,
    WIDTH,
)

COMMON = 8.0
"""What the weights that all hops, or all servers, have in common count for, so that they are
learned before what tells one place from another."""


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
    """Normal weights, scaled so that the sum over the messages keeps its variance."""
    return jax.random.normal(key, shape) / jnp.sqrt(shape[0] * shape[1])


class Views(eqx.Module):
    """The embedding of each part of a network."""

    server: Float[Array, "N D"]
    link: Float[Array, "L D"]
    tree: Float[Array, "Q D"]
    whole: Float[Array, " D3"]
    """Means over servers, links and trees, and the round's own numbers."""


class Encoder(eqx.Module):
    """Message passing over servers, links and trees.

    Workloads speak through who holds and who lacks which tree, and through the links' demand and
    contenders.
    """

    server: Float[Array, "S D"]
    link: Float[Array, "K D"]
    tree: Float[Array, "T D"]
    whole: Float[Array, "W 3 D"]
    layers: tuple[Messages, ...]

    def __init__(self, key: PRNGKeyArray) -> None:
        server, link, tree, whole, *layers = jax.random.split(key, 4 + LAYERS)
        self.server = _scaled(server, (SERVER_FEATURES, WIDTH)) * jnp.sqrt(float(WIDTH)) / 2
        self.link = _scaled(link, (LINK_FEATURES, WIDTH)) * jnp.sqrt(float(WIDTH)) / 2
        self.tree = _scaled(tree, (TREE_FEATURES, WIDTH)) * jnp.sqrt(float(WIDTH)) / 2
        self.whole = jax.random.normal(whole, (WHOLE_FEATURES, 3, WIDTH)) / 2
        self.layers = tuple(Messages(layer) for layer in layers)

    def __call__(self, features: Round, graph: Graph) -> Views:
        """The views at the start of a round."""
        masks = _masks(features)
        bias = jnp.einsum("w,wkd->kd", features.whole, self.whole)
        server = jax.nn.relu(features.server @ self.server + bias[0]) * masks[0]
        link = jax.nn.relu(features.link @ self.link + bias[1]) * masks[1]
        tree = jax.nn.relu(features.tree @ self.tree + bias[2]) * masks[2]
        messages = _Means.of(features, graph, masks)
        for layer in self.layers:
            received = messages.to_all(layer, server, link, tree)
            server, link, tree = (
                (view + jax.nn.relu(message + bias)) * mask
                for view, message, bias, mask in zip(
                    (server, link, tree), received, layer.bias, masks, strict=True
                )
            )
        means = [(of @ x)[0] for of, x in zip(messages.all, (server, link, tree), strict=True)]
        return Views(server, link, tree, jnp.concatenate([*means, features.whole]))


class _Means(NamedTuple):
    """Of whom each server, link and tree hears the mean: rows of weights that sum to 1, or to 0."""

    server_to_server: Float[Array, "N 2N"]
    """To a server, from those that it receives from, and from those that it sends to."""
    link_to_server: Float[Array, "2N L"]
    """To a server, from links into it; then from links out of it."""
    server_to_link: Float[Array, "L 2N"]
    """To a link, from servers that send over it, and from servers that receive over it."""
    tree_to_server: Float[Array, "N 2Q"]
    """To a server, from trees that it holds, and from trees that it lacks."""
    server_to_tree: Float[Array, "Q 2N"]
    """To a tree, from servers that hold it, and from servers that lack it."""
    all: tuple[Float[Array, "1 N"], Float[Array, "1 L"], Float[Array, "1 Q"]]
    """From all servers, all links and all trees."""

    @staticmethod
    def of(features: Round, graph: Graph, masks: tuple[Array, Array, Array]) -> "_Means":
        """Those of a round."""
        into, links_in, links_out = graph.into, graph.links_in, graph.links_out
        holds, lacks = features.holds.astype(jnp.float32), features.lacks.astype(jnp.float32)
        servers, links, trees = (_shares(mask.T) for mask in masks)
        return _Means(
            _beside(into, into.mT)[features.stage],
            _shares(jnp.concatenate([links_in, links_out], 1))[features.stage],
            _beside(links_out.mT, links_in.mT)[features.stage],
            _beside(holds, lacks),
            _beside(holds.T, lacks.T),
            (servers, links, trees),
        )

    def to_all(
        self,
        layer: Messages,
        server: Float[Array, "N D"],
        link: Float[Array, "L D"],
        tree: Float[Array, "Q D"],
    ) -> tuple[Float[Array, "N D"], Float[Array, "L D"], Float[Array, "Q D"]]:
        """A layer's messages to servers, links and trees; the first of each is their own view.

        Means and weights may be taken in either order: here in the one that costs less.
        """
        of_server, of_link, of_tree = layer.server, layer.link, layer.tree
        from_links = self.link_to_server @ link
        all_servers, all_links, all_trees = self.all
        to_server = (
            server @ of_server[0]
            + self.server_to_server @ _both(server, of_server[1:3])
            + from_links[: len(server)] @ of_server[3]
            + from_links[len(server) :] @ of_server[4]
            + self.tree_to_server @ _both(tree, of_server[5:7])
            + all_servers @ server @ of_server[7]
        )
        to_link = (
            link @ of_link[0]
            + self.server_to_link @ _both(server, of_link[1:3])
            + all_links @ link @ of_link[3]
        )
        to_tree = (
            tree @ of_tree[0]
            + self.server_to_tree @ _both(server, of_tree[1:3])
            + all_trees @ tree @ of_tree[3]
        )
        return to_server, to_link, to_tree


def _both(view: Float[Array, "A D"], weights: Float[Array, "2 D D"]) -> Float[Array, "2A D"]:
    """A view by the weights of two messages, one below the other."""
    return jnp.concatenate([view @ weights[0], view @ weights[1]])


def _beside(one: Float[Array, "*S A B"], other: Float[Array, "*S A B"]) -> Float[Array, "*S A 2B"]:
    """Weights of two means, side by side."""
    return jnp.concatenate([_shares(one), _shares(other)], -1)


def _masks(features: Round) -> tuple[Array, Array, Array]:
    servers = features.server[:, 4] > 0  # ports
    links = features.link[:, 2] > 0
    trees = (features.holds | features.lacks).any(0)
    return tuple(mask[:, None].astype(jnp.float32) for mask in (servers, links, trees))  # pyright: ignore[reportReturnType]


def _shares(weights: Float[Array, "*S A B"]) -> Float[Array, "*S A B"]:
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1.0)


class Perceptron(eqx.Module):
    """One hidden layer, then a number."""

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
    """The return still expected, from the means over the network."""

    layers: Perceptron

    def __init__(self, key: PRNGKeyArray) -> None:
        self.layers = Perceptron(3 * WIDTH + WHOLE_FEATURES, 32, key)

    def __call__(self, views: Views) -> Float[Array, ""]:
        """The value."""
        return self.layers(views.whole)


class TreePolicy(eqx.Module):
    """Flow-tree selection: whether each tree is selected, each for itself."""

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

    def __call__(self, views: Views) -> Float[Array, " Q"]:
        """The logit of each tree's selection."""
        return views.tree @ self.score + self.bias


class Weights(eqx.Module):
    """The weights of the features of a round's workloads."""

    hop: Float[Array, "H F"]
    piece: Float[Array, "N G"]
    """By the receiver."""
    match: Float[Array, "N Q"]
    """Added to a tree's score at a receiver."""


class WorkloadPolicy(eqx.Module):
    """Workload scheduling: scores for the hops, and for the trees on the hop that is taken."""

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

    def __call__(self, views: Views, problem: Problem) -> Weights:
        """The weights of a round."""
        crosses = problem.crosses.astype(jnp.float32)
        links = _shares(crosses.T) @ views.link
        hop = (
            COMMON * self.hop
            + (views.server @ self.hop_of_sender)[problem.sender]
            + (views.server @ self.hop_of_receiver)[problem.receiver]
            + links @ self.hop_of_links
        )
        piece = COMMON * self.piece + views.server @ self.piece_of_receiver
        return Weights(hop, piece, views.server @ self.match @ views.tree.T)


class HierarchicalPolicy(eqx.Module):
    """Both agents; they share nothing."""

    tree: TreePolicy
    workload: WorkloadPolicy

    def __init__(self, key: PRNGKeyArray, tree_bias: float = 0.0) -> None:
        tree, workload = jax.random.split(key)
        self.tree = TreePolicy(tree, tree_bias)
        self.workload = WorkloadPolicy(workload)


def masked_log_softmax(scores: Float[Array, " A"], can: Bool[Array, " A"]) -> Float[Array, " A"]:
    """Log-probabilities of what can be chosen; very low elsewhere."""
    return jax.nn.log_softmax(jnp.where(can, scores, -1e9))
