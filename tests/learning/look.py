"""All that the policies make of a state, compiled once; and policies whose every number counts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gradweave.environment import State
from gradweave.environment.flow_tree_selection import select
from gradweave.environment.problem import Problem
from gradweave.environment.state import available
from gradweave.environment.workload_scheduling import send
from gradweave.learning import features
from gradweave.learning.episodes.features import Round, Scores
from gradweave.learning.features import Graph, Loads, Moment
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.policies.policy import Embeddings
from gradweave.learning.rollout import hop_scores, piece_scores


class Look(NamedTuple):
    """At the start of a round."""

    features: Round
    tree_embeddings: Embeddings
    tree_scores: Array
    """[Q]"""
    tree_value: Array
    workload_embeddings: Embeddings
    scores: Scores
    workload_value: Array


class WorkloadScores(NamedTuple):
    """Before a workload is sent."""

    hops: Array
    """[H]"""
    hops_can: Array
    """[H]"""
    pieces: Array
    """[H, Q] of each tree on each hop."""
    pieces_can: Array
    """[H, Q]"""


@eqx.filter_jit
def look(policy: HierarchicalPolicy, problem: Problem, state: State) -> Look:
    """What the policies see and say at the start of a round."""
    graph = Graph.of(problem)
    seen = features.of_round(problem, graph, state)
    of_trees, of_workloads = (x.encoder(seen, graph) for x in (policy.tree, policy.workload))
    return Look(
        seen,
        of_trees,
        policy.tree(of_trees),
        policy.tree.critic(of_trees),
        of_workloads,
        policy.workload(of_workloads, problem),
        policy.workload.critic(of_workloads),
    )


@eqx.filter_jit
def scores(
    looked: Look, problem: Problem, state: State, hops: Array, trees: Array, count: Array
) -> WorkloadScores:
    """The scores of all workloads after some were sent.

    Args:
        looked: at the start of the round.
        problem: the problem.
        state: when the round's trees are selected.
        hops: of the workloads that are sent first; padded.
        trees: of these.
        count: how many there are.
    """
    graph, seen = Graph.of(problem), looked.features

    def one(place: Array, carry: tuple[State, Loads]) -> tuple[State, Loads]:
        before, loads = carry
        real = place < count
        after = send(problem, before, hops[place], trees[place], real)
        return after, loads.sent(problem.receiver[hops[place]], real)

    state, loads = jax.lax.fori_loop(0, len(hops), one, (state, Loads.start(seen)))
    numbers, can = features.of_hops(problem, graph, seen, Moment.of(problem, state, loads))

    def on_hop(hop: Array) -> tuple[Array, Array]:
        numbers, can = features.of_pieces(problem, graph, seen, state, hop)
        return piece_scores(looked.scores, problem.receiver[hop], numbers), can

    pieces, pieces_can = jax.lax.map(on_hop, jnp.arange(len(problem.sender)))
    return WorkloadScores(hop_scores(looked.scores, numbers), can, pieces, pieces_can)


select_trees = jax.jit(select)
sendable = jax.jit(available)
sent = jax.jit(send)


def some_policy(seed: int = 0, scale: float = 0.5) -> HierarchicalPolicy:
    """A policy none of whose numbers is 0, so that a mistake with any of them shows.

    Args:
        seed: of the numbers.
        scale: of those that start at 0.
    """
    rng = np.random.default_rng(seed)

    def filled(array: Array) -> Array:
        if np.asarray(array).any():
            return array
        return jnp.asarray(scale * rng.normal(size=array.shape), jnp.float32)

    return jax.tree.map(filled, HierarchicalPolicy(jax.random.key(seed)))
