"""Compiled loops and JAX agree: in counts, in evaluating the policy, and in episodes."""

import functools
import tempfile
from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.environment import SchedulingEnvironment, State
from gradweave.environment import state as states
from gradweave.environment.flow_tree_selection import select
from gradweave.environment.problem import Instance, Problem
from gradweave.learning import checkpoint, rollout
from gradweave.learning.episodes import episode as without_jax
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import OngoingEpisode
from gradweave.learning.episodes.features import HOP_FEATURES, PIECE_FEATURES, Scores
from gradweave.learning.features import Graph, Loads, of_round
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.policies.policy import (
    PolicyWeights,
    embeddings_of,
    read_weights,
    tree_logits,
)
from gradweave.learning.rollout import Decode, draw
from gradweave.verifier import verify
from tests.conformance.networks import network
from tests.learning.cases import CASES, instance, padded, problem, size, state_of
from tests.learning.look import look, some_policy

each = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Skips most compiler optimisation, for programs that only run for a moment."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


CLOSE = {"rtol": 1e-4, "atol": 1e-5}

NO_NOISE = 1e-300
"""A temperature at which noise changes no score, however close two of them are."""


@functools.cache
def both() -> tuple[HierarchicalPolicy, PolicyWeights]:
    """The same policy with JAX and, after writing and reading it, without."""
    policy = some_policy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        checkpoint.save_policy(path, policy, {})
        return policy, read_weights(str(path))


def agrees(name: str, got: np.ndarray, wanted: jax.Array) -> None:
    """Compares the network's entries, and ignores the padding."""
    there = tuple(slice(0, length) for length in got.shape)
    np.testing.assert_allclose(got, np.asarray(wanted)[there], **CLOSE, err_msg=name)


def agree(got: NamedTuple, wanted: NamedTuple, names: Iterable[str]) -> None:
    for name in names:
        agrees(name, np.asarray(getattr(got, name)), getattr(wanted, name))


@each
def test_every_number_of_a_round_is_the_same(case):
    policy, weights = both()
    compiled, rng = CompiledInstance.of(instance(case)), np.random.default_rng(0)
    play, parts = OngoingEpisode(compiled), ("server", "link", "tree")
    compared = 0
    while play.left:
        features = play.features()
        looked = look(policy, problem(case), state_of(play, problem(case)))
        agree(features, looked.features, features._fields)
        of_trees = embeddings_of(weights.tree.encoder, play, features)
        agree(of_trees, looked.tree_embeddings, parts)
        agree(
            embeddings_of(weights.workload.encoder, play, features),
            looked.workload_embeddings,
            parts,
        )
        agrees("logits", tree_logits(weights.tree, of_trees.tree), looked.tree_scores)
        agree(weights.scores(play, features), looked.scores, Scores._fields)
        play.play_round(weights, rng, 1.0, True)
        compared += 1
    assert compared >= instance(case).bound
    assert play.stage == len(instance(case).stages) - 1 or instance(case).overlap


@eqx.filter_jit
def round_with_jax(problem: Problem, state: State, chosen: jax.Array, weights: Scores) -> State:
    """The round that the best actions on some trees make, each workload scored again."""
    graph = Graph.of(problem)
    features = of_round(problem, graph, state)

    def one(carry: tuple) -> tuple:
        state, loads = carry
        key, decode = jax.random.key(0), Decode(temperature=NO_NOISE)
        return draw(problem, graph, features, weights, state, loads, key, decode)[:2]

    def left(carry: tuple) -> jax.Array:
        return states.any_available(carry[0])

    start = select(problem, state, chosen), Loads.start(features)
    return rollout.close(jax.lax.while_loop(left, one, start)[0])


@pytest.mark.parametrize("seed", range(3))
@each
def test_the_best_actions_are_the_same_round_after_round(case, seed):
    """Without JAX, scores are updated when a workload changes them; with JAX, all are recomputed
    before every workload. A missed update would soon be noticed.

    Feature weights are drawn for each place here, so that no two scores are equal.
    """
    compiled, rng = CompiledInstance.of(instance(case)), np.random.default_rng(seed)
    its = problem(case)
    play = OngoingEpisode(compiled)
    servers, trees = compiled.waiting.shape
    shapes = (
        (len(compiled.hops.source), HOP_FEATURES),
        (servers, PIECE_FEATURES),
        (servers, trees),
    )
    whole = ((size().hops, HOP_FEATURES), (size().servers, PIECE_FEATURES), its.waiting.shape)
    while play.left:
        candidates = play.features().candidates
        chosen = candidates & (rng.random(trees) < 0.7)
        chosen = chosen if chosen.any() else candidates
        drawn = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
        decides: Any = SimpleNamespace(
            select=lambda *_, chosen=chosen: chosen, scores=lambda *_, drawn=drawn: Scores(*drawn)
        )
        before = state_of(play, its)
        filled = (padded(x, jnp.zeros(shape)) for x, shape in zip(drawn, whole, strict=True))
        wanted = round_with_jax(its, before, padded(chosen, its.by_sender), Scores(*filled))
        assert play.play_round(decides, rng, NO_NOISE, True) > 0
        agrees("rounds", play.sent_round, wanted.sent_round)
        agrees("hops", play.sent_hop, wanted.sent_hop)
        agrees("waiting", play.waiting, states.waiting(its, wanted))
        assert play.round == wanted.round
        assert play.stage == wanted.stage or not compiled.barrier


@functools.cache
def _step():
    environment = SchedulingEnvironment()
    return jax.jit(environment.step), jax.jit(environment.workload_mask)


@each
def test_an_episode_is_one_of_the_environments(case):
    """Each round's transfers are possible, and no further transfer would be."""
    tried, its = instance(case), problem(case)
    made = without_jax.play(CompiledInstance.of(tried), both()[1], seed=5)
    step, mask = _step()
    state = states.reset(its)
    for at in range(made.rounds):
        keys, trees = np.nonzero(made.sent_round == at)
        assert len(trees) > 0
        chosen = jnp.zeros(size().trees, bool).at[trees].set(True)
        state = step(its, state, chosen, jnp.asarray(0)).state
        for key, tree in zip(keys, trees, strict=True):
            assert int(state.round) == at and int(state.turn) == states.WORKLOAD_SCHEDULING
            workload = jnp.asarray(int(made.sent_hop[key, tree]) * size().trees + tree)
            assert mask(its, state)[workload]
            state = step(its, state, chosen, workload).state
        assert int(state.round) == at + 1, "more could have been sent"
    assert state.done
    schedule = tried.schedule(made.sent_round, made.sent_hop)
    assert verify(schedule).valid
    assert schedule.rounds == made.rounds >= tried.bound


def test_draws_have_the_same_odds():
    """Rounds of 256 episodes each way; without selection, which never skips a round here."""
    tried = Instance(network("bcube:n=3,k=1"))
    policy, weights = both_shipped()
    keys = jax.random.split(jax.random.key(0), 256)
    play = eqx.filter_jit(rollout.play)
    decode = Decode(temperature=1.0, select=False)
    own = Problem.of(tried)
    trained = np.asarray(play(policy, own, keys, 40, decode).rounds)
    compiled = CompiledInstance.of(tried)
    ours = [
        without_jax.play(compiled, weights, seed=(0, i), select=False).rounds for i in range(256)
    ]
    # An untrained policy differs by far more than what is tolerated.
    untrained = play(HierarchicalPolicy(jax.random.key(0)), own, keys, 40, decode).rounds
    spread = np.hypot(np.std(trained), np.std(ours)) / 16
    assert abs(np.mean(ours) - trained.mean()) < 4 * spread
    assert untrained.mean() - trained.mean() > 8 * spread


@functools.cache
def both_shipped() -> tuple[HierarchicalPolicy, PolicyWeights]:
    shipped = files("gradweave.learning.policies").joinpath("weights/learned.safetensors")
    with as_file(shipped) as path:
        return checkpoint.load_policy(path), read_weights()
