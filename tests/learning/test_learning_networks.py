"""Nothing depends on how servers, links, hops and trees are numbered, nor on padding."""

import dataclasses
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import ArrayLike

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

import jax
import jax.numpy as jnp

from gradweave.environment import State
from gradweave.environment import state as states
from gradweave.environment.problem import Problem, Tables
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import OngoingEpisode
from gradweave.learning.episodes.features import Round, Scores
from gradweave.learning.networks import masked_log_softmax
from gradweave.learning.policies.policy import Embeddings, read_weights
from tests.learning.cases import CASES, instance, problem, size, state_at, state_of
from tests.learning.look import look, scores, select_trees, sendable, sent, some_policy

CLOSE = {"rtol": 2e-4, "atol": 2e-5}
ROUNDS, WORKLOADS, MOST = 1, 3, 8
"""Rounds played and workloads sent before the scores are compared; the most of these."""

each = pytest.mark.parametrize("case", CASES)


class Order(NamedTuple):
    """The new number of each server, link, hop and tree, padding and all."""

    server: np.ndarray
    link: np.ndarray
    hop: np.ndarray
    tree: np.ndarray

    def along(self, axes: str, array: ArrayLike) -> np.ndarray:
        """An array whose axes are servers, links, hops or trees, by their letters N, L, H, Q.

        By NumPy, where JAX would compile a program for each shape.
        """
        array = np.asarray(array)
        new = {"N": self.server, "L": self.link, "H": self.hop, "Q": self.tree}
        for axis, letter in enumerate(axes):
            if letter in new:
                array = np.take(array, np.argsort(new[letter]), axis)
        return array


def some_order(seed: int) -> Order:
    """The last link stays what it is: none."""
    rng, whole = np.random.default_rng(seed), size()
    links = np.append(rng.permutation(whole.links - 1), whole.links - 1)
    return Order(
        rng.permutation(whole.servers), links, rng.permutation(whole.hops),
        rng.permutation(whole.trees),
    )  # fmt: skip


AXES = {
    **dict.fromkeys(("sender", "receiver", "sender_link", "receiver_link"), "H"),
    **dict.fromkeys(("waiting", "pending", "height"), "NQ"),
    **dict.fromkeys(("by_sender", "root", "stage", "then"), "Q"),
    **{"hop_links": "HR", "crosses": "LH", "capacity": "L", "allowed": "HQ", "intake": "N"},
    **dict.fromkeys(("bound", "limit", "grown", "barrier"), ""),
}
NUMBERS = {
    "sender": "server",
    "receiver": "server",
    "root": "server",
    "then": "tree",
} | dict.fromkeys(("sender_link", "receiver_link", "hop_links"), "link")
"""Fields whose values are themselves servers, links or trees."""


def renumbered(values: ArrayLike, new: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    return np.where(values >= 0, new.astype(values.dtype)[values], values)


def problem_in(order: Order, its: Problem) -> Problem:
    fields = {name: order.along(axes, getattr(its, name)) for name, axes in AXES.items()}
    for name, of in NUMBERS.items():
        fields[name] = renumbered(fields[name], getattr(order, of))
    return Problem(**fields, tables=Tables.of(SimpleNamespace(**fields)))


def state_in(order: Order, its: Problem, other: Problem, state: State) -> State:
    fields = {name: getattr(state, name) for name in ("pending", "sent_round", "sent_hop")}
    fields["waiting"] = states.waiting(its, state)
    fields = {name: order.along("NQ", values) for name, values in fields.items()}
    fields["sent_hop"] = renumbered(fields["sent_hop"], order.hop)
    fields |= {name: getattr(state, name) for name in ("round", "stage", "stage_start")}
    return state_at(other, fields, order.along("Q", state.selected_before))


def middle(case: str, its: Problem) -> State:
    """The state after some rounds that the shipped policies played."""
    play, rng = OngoingEpisode(CompiledInstance.of(instance(case))), np.random.default_rng(0)
    for _ in range(ROUNDS):
        play.play_round(read_weights(), rng, 1.0, True)
    assert play.left
    return state_of(play, its)


def workloads_of(its: Problem, state: State) -> tuple[np.ndarray, np.ndarray, int]:
    """A few workloads that can be sent one after the other: their hops, their trees, how many."""
    rng = np.random.default_rng(1)
    hops, trees = np.zeros(MOST, np.int32), np.zeros(MOST, np.int32)
    for place in range(WORKLOADS):
        can = np.argwhere(np.asarray(sendable(its, state)))
        if not len(can):
            return hops, trees, place
        hops[place], trees[place] = rng.choice(can)
        state = sent(its, state, hops[place], trees[place])
    return hops, trees, WORKLOADS


OF_ROUND = {
    **{"server": "N.", "link": "L.", "tree": "Q.", "global_features": ""},
    **{"holds": "NQ", "lacks": "NQ"},
    **{"stage": "", "candidates": "Q", "rounds_left": ""},
    **{"link_slack": "H", "chain": "H", "to_come": "N"},
}
OF_EMBEDDINGS = {"server": "N.", "link": "L.", "tree": "Q.", "pooled": ""}
OF_SCORES = {"hop": "H.", "piece": "N.", "match": "NQ"}


def test_every_number_is_compared():
    assert {field.name for field in dataclasses.fields(Problem)} - {"tables"} == AXES.keys()
    for kind, axes in ((Round, OF_ROUND), (Embeddings, OF_EMBEDDINGS), (Scores, OF_SCORES)):
        assert set(kind._fields) == axes.keys()


@pytest.mark.parametrize("seed", range(2))
@each
def test_another_numbering_numbers_the_same_scores_otherwise(case, seed):
    """Padding too is renumbered, and so stands among what is real."""
    policy, order, its = some_policy(), some_order(seed), problem(case)
    state = middle(case, its)
    other = problem_in(order, its)
    other_state = state_in(order, its, other, state)

    one, two = look(policy, its, state), look(policy, other, other_state)

    def compare(axes: str, this: ArrayLike, that: jax.Array, what: str) -> None:
        np.testing.assert_allclose(order.along(axes, this), that, **CLOSE, err_msg=what)

    for part, fields in (
        ("features", OF_ROUND),
        ("tree_embeddings", OF_EMBEDDINGS),
        ("workload_embeddings", OF_EMBEDDINGS),
        ("scores", OF_SCORES),
    ):
        for name, axes in fields.items():
            this, that = (getattr(getattr(looked, part), name) for looked in (one, two))
            compare(axes, this, that, f"{part} {name}")
    compare("Q", one.tree_scores, two.tree_scores, "tree scores")
    compare("", one.tree_value, two.tree_value, "tree value")
    compare("", one.workload_value, two.workload_value, "workload value")

    chosen = one.features.candidates
    start = select_trees(its, state, chosen)
    hops, trees, count = workloads_of(its, start)
    before = scores(one, its, start, hops, trees, count)
    after = scores(
        two,
        other,
        select_trees(other, other_state, order.along("Q", chosen)),
        order.hop[hops],
        order.tree[trees],
        count,
    )
    assert count > 0
    for name, axes in (("hops", "H"), ("hops_can", "H"), ("pieces", "HQ"), ("pieces_can", "HQ")):
        compare(axes, getattr(before, name), getattr(after, name), name)
    assert before.pieces_can.any(1)[before.hops_can].all()


@pytest.mark.parametrize("case", ["grown all_reduce", "fixed reduce_scatter"])
def test_padding_changes_nothing(case):
    policy, its = some_policy(), problem(case)
    own = Problem.of(instance(case))
    state, own_state = middle(case, its), middle(case, own)
    one, two = look(policy, own, own_state), look(policy, its, state)

    def compare(this: jax.Array, that: jax.Array, what: str) -> None:
        there = tuple(slice(0, length) for length in this.shape)
        np.testing.assert_allclose(this, that[there], **CLOSE, err_msg=what)

    for part, fields in (
        ("tree_embeddings", OF_EMBEDDINGS),
        ("workload_embeddings", OF_EMBEDDINGS),
    ):
        for name in fields:
            this, that = (getattr(getattr(looked, part), name) for looked in (one, two))
            if name == "link":  # the last one is none, which lies elsewhere
                this = this[:-1]
            compare(this, that, f"{part} {name}")
    for name in OF_SCORES:
        compare(getattr(one.scores, name), getattr(two.scores, name), name)
    for name in ("tree_scores", "tree_value", "workload_value"):
        compare(getattr(one, name), getattr(two, name), name)

    starts = [
        select_trees(problem, state, looked.features.candidates)
        for problem, state, looked in ((own, own_state, one), (its, state, two))
    ]
    hops, trees, count = workloads_of(own, starts[0])
    before = scores(one, own, starts[0], hops, trees, count)
    after = scores(two, its, starts[1], hops, trees, count)
    for name in before._fields:
        compare(getattr(before, name), getattr(after, name), name)
    real = instance(case).size
    assert not after.hops_can[real.hops :].any()
    assert not after.pieces_can[:, real.trees :].any()


def test_what_cannot_be_chosen_has_no_odds():
    rng = np.random.default_rng(0)
    values, can = rng.normal(size=20).astype(np.float32), rng.random(20) < 0.5
    odds = np.exp(masked_log_softmax(jnp.asarray(values), jnp.asarray(can)))
    assert (odds[~can] == 0).all()
    wanted = np.exp(values[can]) / np.exp(values[can]).sum()
    np.testing.assert_allclose(odds[can], wanted, rtol=1e-5)
