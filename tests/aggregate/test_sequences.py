"""Networks that change: doubly stochastic in each step, and how much a window of them mixes."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from gradweave import aggregate
from gradweave.aggregate import MixingMatrix
from gradweave.errors import FileError, OptionError

TORUS = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 3, periodic=True))
DRAWN = {
    "matchings": lambda seed: aggregate.changing_matchings(TORUS, 30, seed),
    "clusters": lambda seed: aggregate.changing_clusters(9, 4, 30, seed),
    "failing": lambda seed: aggregate.failing_links(TORUS, 0.4, 30, seed),
    "absent": lambda seed: aggregate.absent_workers(TORUS, 0.2, 0.5, 30, seed),
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_sequences(name):
    one, again, other = DRAWN[name](0), DRAWN[name](0), DRAWN[name](1)
    np.testing.assert_array_equal(one.weights, again.weights)
    assert (one.weights != other.weights).any()
    assert one.period == 30 and one.symmetric and (one.weights >= 0).all()
    np.testing.assert_allclose(one.weights.sum(1), 1)
    assert len(one.plans.exchanges) == 1 and not one.plans.of_step.any()  # too many to compile
    linked = MixingMatrix.metropolis_hastings(TORUS).weights[0] > 0
    if name != "clusters":
        assert not one.weights[:, ~linked].any()
    degree = (one.weights > 0).sum(2) - 1
    if name == "matchings":
        assert degree.max() == 1 and degree.sum(1).min() >= 6
    elif name == "clusters":
        assert set(degree.ravel()) == {1, 2}
    elif name == "failing":
        assert degree.mean() == pytest.approx(4 * 0.6, rel=0.1)
    else:
        assert (degree[0] == 4).all() and (degree == 0).any()


def test_contraction_is_that_of_the_worst_window():
    """Against its definition, on random Z, and attained by one."""
    mixing = aggregate.failing_links(TORUS, 0.5, 12)
    for window in (1, 3):
        found = aggregate.contraction(mixing, window)
        worst, apart = 0.0, np.zeros((9, 9))
        for start in range(12):
            product = np.eye(9)
            for step in range(window):
                product = mixing.weights[(start + step) % 12] @ product
            z = np.linalg.svd(product - 1 / 9)[2][0]
            z = np.stack([z, *np.random.default_rng(start).standard_normal((5, 9))])
            z -= z.mean(1, keepdims=True)
            left = ((z @ product.T) ** 2).sum(1) / (z**2).sum(1)
            worst = max(worst, left.max())
            apart += (product - 1 / 9).T @ (product - 1 / 9) / 12
        assert found.p == pytest.approx(1 - worst, abs=1e-9)
        assert found.expected == pytest.approx(1 - np.linalg.norm(apart, 2))


def test_windows_see_what_single_steps_do_not():
    ring = aggregate.with_local_steps(MixingMatrix.ring(8), 4)
    assert ring.period == 4
    assert aggregate.contraction(ring, 1).p == 0
    expected = 1 - MixingMatrix.ring(8).rho ** 2
    assert aggregate.contraction(ring, 4).p == pytest.approx(expected)
    pairs = MixingMatrix.in_matchings(nx.cycle_graph(8))
    assert aggregate.contraction(pairs, 1).p == 0 < aggregate.contraction(pairs, 2).p
    assert aggregate.best_contraction(pairs).p > 0
    assert aggregate.best_contraction(MixingMatrix.complete(4)).window == 1
    apart = MixingMatrix.of(np.kron(np.eye(2), np.full((2, 2), 0.5)))
    assert aggregate.best_contraction(apart) == aggregate.contraction(apart, 1)
    assert aggregate.contraction(apart, 1).expected == 0
    whole = MixingMatrix.ring(8)
    assert aggregate.with_local_steps(whole, 1) is whole
    twice = aggregate.with_local_steps(pairs, 2).weights
    np.testing.assert_array_equal(twice[::2], np.tile(np.eye(8), (2, 1, 1)))
    np.testing.assert_array_equal(twice[1::2], pairs.weights)


def test_the_best_window_has_the_least_steps_for_what_it_mixes():
    for graph, best in ((nx.complete_graph(4), 1), (nx.path_graph(3), 2), (nx.star_graph(4), 4)):
        mixing = MixingMatrix.in_matchings(graph)
        found = [aggregate.contraction(mixing, 2**k) for k in range(7)]
        least = min(found, key=lambda each: each.window / each.expected)
        assert aggregate.best_contraction(mixing) == least and least.window == best
    long = MixingMatrix.in_matchings(nx.path_graph(16))
    assert aggregate.best_contraction(long).window > 4
    assert aggregate.best_contraction(long, longest=4).window == 4


def test_windows_are_looked_for_until_something_mixes():
    """Two of 40 average, then all hand on: who is farthest away gets there in 78 steps."""
    average, hand_on = np.eye(40), np.roll(np.eye(40), 1, 0)
    average[:2, :2] = 0.5
    found = aggregate.best_contraction(MixingMatrix.of(np.stack([average, hand_on])))
    assert found.window == 128 and found.expected > 0


def test_few_different_steps_have_plans_of_their_own():
    pairs = MixingMatrix.in_matchings(nx.cycle_graph(8))
    often = MixingMatrix.of(np.tile(pairs.weights, (20, 1, 1)))
    assert len(often.plans.exchanges) == 2 == len(set(often.plans.of_step[:2]))
    for step, plan in enumerate(often.plans.of_step[:4]):
        assert often.plans.exchanges[plan] == tuple(each.pairs for each in often.exchanges[step])


def test_a_trace_is_read_or_the_line_is_named(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("step,a,b\n0,0,1\n0,1,2\n2,0,2\n")
    mixing = aggregate.read_trace(path, 3)
    assert mixing.period == 3
    np.testing.assert_array_equal(mixing.weights[1], np.eye(3))
    assert (mixing.weights[0] > 0).sum() == 7 and mixing.weights[2, 0, 2] == 0.5
    for line, message in (("1,0", "line 2: expected step,a,b"), ("1,0,3", "workers from 0 to 2")):
        path.write_text(f"0,0,1\n{line}\n")
        with pytest.raises(FileError, match=message):
            aggregate.read_trace(path, 3)
    path.write_text("33,0,1\n")  # 2^25 entries are 33 matrices of a thousand workers
    with pytest.raises(FileError, match="a step from 0 to 32 and workers from 0 to 999"):
        aggregate.read_trace(path, 1000)
    path.write_text("")
    with pytest.raises(FileError, match="got none"):
        aggregate.read_trace(path, 3)
    with pytest.raises(FileError, match="cannot be read"):
        aggregate.read_trace(tmp_path / "nothing.csv", 3)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(OptionError, match="probability: expected 0 to 1, got 2"):
        aggregate.failing_links(TORUS, 2)
    with pytest.raises(OptionError, match="clusters: expected 1 to 9, got 10"):
        aggregate.changing_clusters(9, 10)
    with pytest.raises(OptionError, match="graphs of one number of workers"):
        aggregate.recorded([nx.path_graph(2), nx.path_graph(3)])


def test_d_psgd_takes_a_long_sequence():
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax", reason="the extra train is not installed")
    mixing = aggregate.failing_links(TORUS, 0.4, 20)
    method = aggregate.d_psgd(optax.sgd(0.0), mixing)
    x = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    state = jax.vmap(method.init)(x)
    update = jax.jit(jax.vmap(method.update, axis_name="server"))
    expected = x
    for step in range(23):
        moves, state = update(np.zeros_like(x), state, x)
        x, expected = x + moves, mixing.weights[step % 20] @ expected
        np.testing.assert_allclose(x, expected, atol=1e-6)
