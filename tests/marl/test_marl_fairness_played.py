"""When agents of a hierarchy choose, and what a roll-out records, against a replay in loops."""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import jax
import jax.numpy as jnp

from gradweave.aggregate import MixingMatrix
from gradweave.marl.fairness.learner import FENLearner, FENState
from gradweave.marl.fairness.measures import fairness
from gradweave.marl.games.environment import Outcome, View
from gradweave.marl.learners.learner import RunningReturns
from gradweave.marl.learners.randomness import draw_each, rollout_keys
from tests.marl.linear_fen import (
    SETTINGS,
    A,
    E,
    F,
    S,
    T,
    U,
    drawn,
    known_of,
    learner,
    log_softmax,
    rows,
)


@pytest.mark.parametrize("greedy", [True, False])
def test_agents_choose_every_so_many_steps_of_an_episode(greedy: bool):
    """The second game begins anew in its third step, where a choice would have gone on."""
    one, of, rng = learner(), drawn(2), np.random.default_rng(5)
    memory = one.memory(of, E)  # type: ignore[arg-type]
    assert not any(leaf.any() for leaf in jax.tree.leaves(memory))
    starts = [(True, True), (False, False), (False, True), *[(False, False)] * 4]
    clock, chosen = np.zeros(E, int), np.zeros((E, A), int)
    for number, start in enumerate(starts):
        seen, utility = rng.standard_normal((E, A, F - 2)), rng.random((E, A))
        view = View(seen, np.ones((E, A, U), bool), np.zeros((E, 1)), np.array(start), utility)
        keys = jax.random.split(jax.random.key(number), E)
        memory, action = one.act(of, memory, view, keys, greedy=greedy)  # type: ignore[arg-type]
        uniform = np.stack([jax.random.uniform(key, (2, A)) for key in keys])

        def picked(log_p: np.ndarray, e: int, a: int, level: int, uniform=uniform) -> int:
            if greedy:
                return int(log_p.argmax())
            return int((np.exp(log_p).cumsum() <= uniform[e, level, a]).sum())

        for e, a in np.ndindex(E, A):
            clock[e] = 0 if start[e] else clock[e]
            mean = 0.0 if start[e] else utility[e].mean()
            known = np.append(seen[e, a], known_of(utility[e, a], mean))
            if clock[e] % T == 0:
                log_p = log_softmax(known @ of["controller"] + of["own"][a])
                chosen[e, a] = picked(log_p, e, a, 0)
            log_p = log_softmax(known @ of["actors"][chosen[e, a]])
            assert action[e, a] == picked(log_p, e, a, 1)
        clock += 1
        assert memory.chosen.tolist() == chosen.tolist()
        assert memory.clock.tolist() == clock.tolist()


class Clocks:
    """Games that count their steps: what is seen and earned follows from the count alone."""

    num_agents = A
    lasts = 2 * T

    def view(self, games: jax.Array, start: jax.Array) -> View:
        number = (games[:, None] + 0.3 * jnp.arange(A))[..., None] * jnp.arange(1, F - 1)
        utility = jnp.where(start[:, None], 0.0, 0.5 + 0.4 * jnp.cos(number[..., 0]))
        nothing = jnp.zeros((E, 1))
        return View(jnp.sin(number), jnp.ones((E, A, U), bool), nothing, start, utility)

    def steps(self, keys, games, action):
        after = games + 1
        done = (after % self.lasts) == 0
        reward = (action == (games % U)[:, None]) * (1.0 + jnp.arange(A))
        last = self.view(after, jnp.zeros(E, bool))
        outcome = Outcome(reward, 0 * reward, done, done, last)
        return after, self.view(after + jnp.where(done, 0.5, 0.0), done), outcome


@pytest.mark.parametrize(
    ("name", "first"),
    [("fair_efficient", "own"), ("alpha_fair", "own"), ("fair_efficient", "alpha_fair")],
)
def test_a_roll_out_is_what_was_played(name: str, first: str, monkeypatch):
    """Choices and actions by the networks and the draws, told means, episodes and figures."""
    mixing = MixingMatrix.of([[0.75, 0.25], [0.25, 0.75]])
    clocks, of = Clocks(), drawn(4)
    one = learner(clocks, mixing, objective=name, first_objective=first)
    games = jnp.array([0, 3])  # the second game's episode ends within a choice
    view, nothing = clocks.view(games, jnp.array([True, False])), jnp.zeros((E, A))
    keys = jax.random.split(jax.random.key(9), E)
    told, ended = (
        one.hierarchy.consensus.start(E, A),
        jax.tree.map(jnp.zeros_like, fairness(nothing)),
    )
    tally = RunningReturns.zero(E, A)
    state = FENState(of, (), games, view, told, told, tally, ended, keys, jax.random.key(0))  # type: ignore[arg-type]
    plain = FENLearner._samples
    monkeypatch.setattr(FENLearner, "_samples", lambda *given: (plain(*given), given[-1].first))
    after, (samples, efficient), metrics = jax.jit(one._rollout)(state)

    _, (choosing, sampling, _) = rollout_keys(keys, S * T, 3)
    picks, draws = (
        np.asarray(draw_each(each, lambda key: jax.random.uniform(key, (A,))))
        for each in (choosing, sampling)
    )

    def picked(log_p: np.ndarray, uniform: float) -> int:
        return int((np.exp(log_p).cumsum() <= uniform).sum())

    estimate, known, share, added = np.zeros((4, E, A))
    chosen, seen_of, earned = np.zeros((S, E, A), int), np.zeros((S, T, E, A, F)), []
    errors, worth = [], []
    taken, returns = np.zeros((S, T, E, A), int), np.zeros((E, A))
    finished, last_utility, episodes = np.zeros(A), np.zeros((E, A)), 0
    observed, shown = np.asarray(view.observation), np.asarray(view.utility)
    games = np.array([0, 3])
    for s, t in np.ndindex(S, T):
        for e, a in np.ndindex(E, A):
            seen = np.append(observed[e, a], known_of(shown[e, a], estimate[e, a]))
            seen_of[s, t, e, a] = seen
            if t == 0:
                log_p = log_softmax(seen @ of["controller"] + of["own"][a])
                chosen[s, e, a] = picked(log_p, picks[s * T, e, a])
            log_p = log_softmax(seen @ of["actors"][chosen[s, e, a]])
            taken[s, t, e, a] = picked(log_p, draws[s * T + t, e, a])
        reward = (taken[s, t] == (games % U)[:, None]) * np.array([1.0, 2.0])
        returns += reward
        games = games + 1
        number = games[:, None] + 0.3 * np.arange(A)
        utility = 0.5 + 0.4 * np.cos(number)
        estimate = (estimate + utility - known) @ mixing.weights[0].T
        known = utility.copy()
        errors.append(abs(estimate / utility.mean(1, keepdims=True) - 1))
        apart = abs(utility - estimate) / estimate
        before, added = added, reward / (utility + 0.01)
        share = (share + added - before) @ mixing.weights[0].T
        fair = np.minimum(1, estimate / SETTINGS.capacity) / (0.1 + apart)
        earned.append(reward if first == "own" else share.copy())
        worth.append({"fair_efficient": fair, "alpha_fair": share.copy()}[name])
        for e in np.flatnonzero(games % clocks.lasts == 0):
            finished, episodes = finished + returns[e], episodes + 1
            returns[e], estimate[e], known[e], last_utility[e] = 0, 0, 0, utility[e]
            share[e], added[e] = 0, 0
        number = number + np.where(games % clocks.lasts == 0, 0.5, 0.0)[:, None]
        shown = np.where(games[:, None] % clocks.lasts == 0, 0.0, utility)
        observed = np.sin(number[..., None] * np.arange(1, F - 1))

    np.testing.assert_allclose(samples.seen, rows(seen_of), atol=1e-5)
    np.testing.assert_array_equal(samples.chosen, chosen.reshape(-1))
    np.testing.assert_array_equal(samples.action, rows(taken))
    np.testing.assert_allclose(efficient, np.reshape(earned, (S, T, E, A)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after.estimates.mean, estimate, atol=1e-5)
    assert after.games.tolist() == games.tolist() == [12, 15]
    assert int(metrics.episodes) == episodes == 2
    np.testing.assert_allclose(metrics.returns, finished, atol=1e-5)
    said = {name: float(value) for name, value in metrics.figures.items()}
    assert said["gossip_bytes"] == (8 if "alpha_fair" in (name, first) else 4)
    assert said["first_policy"] == pytest.approx((chosen == 0).mean())
    assert said["gossip_error"] == pytest.approx(np.mean(errors), abs=1e-5) != 0
    assert said["objective"] == pytest.approx(np.mean(worth), rel=1e-4)
    variation = last_utility.std(1, ddof=1) / last_utility.mean(1)
    assert said["variation"] == pytest.approx(variation.mean(), abs=1e-5)
    assert said["utilisation"] == pytest.approx(last_utility.sum(1).mean(), abs=1e-5)
