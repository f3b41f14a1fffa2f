"""The two policies: message passing over servers, links and trees, once a round.

The round's messages set, for each hop and each server, how much each cheap number of `features`
counts; a workload's score then is a dot product. That is what lets a round's workloads be drawn in
sequence at the price of one evaluation a round, each draw seeing what the draws before it did.

Nothing depends on the lengths of the axes or on the order of servers, links or trees.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gradweave.environment.problem import Problem
from gradweave.learning.features import Round
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

    def __call__(self, features: Round) -> Views:
        """The views at the start of a round."""
        masks = _masks(features)
        bias = jnp.einsum("w,wkd->kd", features.whole, self.whole)
        server = jax.nn.relu(features.server @ self.server + bias[0]) * masks[0]
        link = jax.nn.relu(features.link @ self.link + bias[1]) * masks[1]
        tree = jax.nn.relu(features.tree @ self.tree + bias[2]) * masks[2]
        for layer in self.layers:
            received = _received(features, masks, server, link, tree)
            weights = layer.server, layer.link, layer.tree
            server, link, tree = (
                _updated(*each) * mask
                for *each, mask in zip(
                    (server, link, tree), received, weights, layer.bias, masks, strict=True
                )
            )
        means = [_mean(mask.T, x)[0] for mask, x in zip(masks, (server, link, tree), strict=True)]
        return Views(server, link, tree, jnp.concatenate([*means, features.whole]))


def _received(
    features: Round,
    masks: tuple[Array, Array, Array],
    server: Float[Array, "N D"],
    link: Float[Array, "L D"],
    tree: Float[Array, "Q D"],
) -> tuple[Float[Array, "8 N D"], Float[Array, "4 L D"], Float[Array, "4 Q D"]]:
    """The messages of a layer to servers, links and trees; the first is their own view."""
    holds, lacks = features.holds.astype(jnp.float32), features.lacks.astype(jnp.float32)
    # Stacked one after the other: gradients add up, and are rounded, in this order.
    to_server = jnp.stack(
        [
            server,
            _mean(features.into, server),
            _mean(features.into.T, server),
            _mean(features.links_in, link),
            _mean(features.links_out, link),
            _mean(holds, tree),
            _mean(lacks, tree),
            jnp.broadcast_to(_mean(masks[0].T, server), server.shape),
        ]
    )
    to_link = jnp.stack(
        [
            link,
            _mean(features.links_out.T, server),
            _mean(features.links_in.T, server),
            jnp.broadcast_to(_mean(masks[1].T, link), link.shape),
        ]
    )
    to_tree = jnp.stack(
        [
            tree,
            _mean(holds.T, server),
            _mean(lacks.T, server),
            jnp.broadcast_to(_mean(masks[2].T, tree), tree.shape),
        ]
    )
    return to_server, to_link, to_tree


def _masks(features: Round) -> tuple[Array, Array, Array]:
    servers = features.server[:, 4] > 0  # ports
    links = features.link[:, 2] > 0
    trees = (features.holds | features.lacks).any(0)
    return tuple(mask[:, None].astype(jnp.float32) for mask in (servers, links, trees))  # pyright: ignore[reportReturnType]


def _mean(weights: Float[Array, "A B"], of: Float[Array, "B D"]) -> Float[Array, "A D"]:
    return weights @ of / jnp.maximum(weights.sum(1, keepdims=True), 1.0)


def _updated(
    view: Float[Array, "A D"],
    received: Float[Array, "M A D"],
    weights: Float[Array, "M D D"],
    bias: Float[Array, " D"],
) -> Float[Array, "A D"]:
    return view + jax.nn.relu(jnp.einsum("mad,mde->ae", received, weights) + bias)


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
        links = _mean(crosses.T, views.link)
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
