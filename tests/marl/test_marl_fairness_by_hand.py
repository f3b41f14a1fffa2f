"""What a hierarchy learns from and by: rewards, advantages and losses in NumPy, as FEN has them.

Networks are linear here, so that each number can be worked out from what agents saw.
"""

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import jax.numpy as jnp

from gradweave.marl.fairness.hierarchy import in_blocks
from gradweave.marl.fairness.learner import Samples, Steps
from gradweave.marl.fairness.objectives import contribution, objective
from gradweave.marl.fairness.settings import FEN
from tests.marl.linear_fen import A, E, F, S, T, U, Z, drawn, learner, log_softmax, rows


def played() -> tuple[np.ndarray, np.ndarray, Steps]:
    """Choices [S, E, A], their log-probabilities, and steps, of which the first game's end once."""
    rng = np.random.default_rng(3)
    steps = Steps(
        seen=rng.standard_normal((S, T, E, A, F)),
        action=rng.integers(0, U, (S, T, E, A)),
        log_probability=-rng.random((S, T, E, A)),
        reward=rng.standard_normal((S, T, E, A)),
        first=rng.standard_normal((S, T, E, A)),
        objective=rng.standard_normal((S, T, E, A)),
        seen_after=rng.standard_normal((S, T, E, A, F)),
        done=np.zeros((S, T, E), bool),
        sent_bytes=np.zeros((S, T, E, A)),
        error=np.zeros((S, T, E, A)),
    )
    steps.done[1, T - 1, 0] = True
    chosen = rng.integers(0, Z, (S, E, A))
    return chosen, -rng.random((S, E, A)), steps


def rewards_by_hand(of: dict, chosen: np.ndarray, steps: Steps) -> np.ndarray:
    """The first sub-policy's are told, the others' are log p(chosen) after the step."""
    found = np.zeros((S, T, E, A))
    for s, t, e, a in np.ndindex(S, T, E, A):
        k = chosen[s, e, a]
        log_p = log_softmax(steps.seen_after[s, t, e, a] @ of["controller"] + of["own"][a])
        found[s, t, e, a] = steps.first[s, t, e, a] if k == 0 else 0.7 * max(log_p[k], -5.0)
    return found


def gae(reward, value, after, continues, discount: float) -> np.ndarray:
    """Of one trajectory [T]: A_t = δ_t + γλ A_{t+1}, δ_t = (1 − γ)r_t + γV(after) − V."""
    found, later = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        delta = (1 - discount) * reward[t] + discount * after[t] - value[t]
        later = delta + discount * 0.6 * continues[t] * later
        found[t] = later
    return found


def samples_by_hand(of: dict, earned: np.ndarray, reward: np.ndarray) -> dict[str, np.ndarray]:
    """Of `played`, given what choices [S, E, A] and steps earned."""
    chosen, _, steps = played()
    (advantage, target), number = np.zeros((2, S * E * A, T)), 0
    for s, e, a in np.ndindex(S, E, A):
        critic = of["critics"][chosen[s, e, a]]
        value = steps.seen[s, :, e, a] @ critic + of["worth"][a]
        last = steps.seen_after[s, -1, e, a] @ critic + of["worth"][a]
        advantage[number] = gae(reward[s, :, e, a], value, [*value[1:], last], np.ones(T), 0.9)
        target[number] = advantage[number] + value
        number += 1
    choice = np.zeros((S, E, A))
    value, after = (
        seen @ of["judge"] + of["worth"] for seen in (steps.seen[:, 0], steps.seen_after[:, -1])
    )
    for e, a in np.ndindex(E, A):
        goes_on = ~steps.done.any(1)[:, e]
        choice[:, e, a] = gae(earned[:, e, a], value[:, e, a], after[:, e, a], goes_on, 0.8)
    normal = advantage.copy()
    for k in range(Z):
        own = chosen.reshape(-1) == k
        normal[own] = (advantage[own] - advantage[own].mean()) / advantage[own].std()
    return {
        "advantage": normal,
        "target": target,
        "choice_advantage": ((choice - choice.mean()) / choice.std()).reshape(-1),
        "choice_target": (choice + value).reshape(-1),
    }


@pytest.mark.parametrize("name", ["fair_efficient", "minimum", "inequity_aversion", "average"])
def test_advantages_of_steps_and_of_choices(name: str):
    chosen, log_p, steps = played()
    of = drawn(0)
    found = learner(objective=name)._samples(of, chosen, log_p, steps)  # type: ignore[arg-type]
    last = name != "average"  # an objective of utilities is paid as it stands at the end
    earned = steps.objective[:, -1] if last else steps.objective.mean(1)
    reward = rewards_by_hand(of, chosen, steps)
    floored = (reward == 0.7 * -5.0).sum()
    assert 0 < floored < reward.size / 4
    expected = samples_by_hand(of, earned, reward) | {
        "chosen": chosen.reshape(-1),
        "agent": np.tile(np.arange(A), S * E),
        "seen": rows(steps.seen),
        "action": rows(steps.action),
        "log_probability": rows(steps.log_probability),
        "choice_log_probability": log_p.reshape(-1),
    }
    for field, value in expected.items():
        np.testing.assert_allclose(getattr(found, field), value, atol=2e-5, err_msg=field)


def test_one_policy_alone_gets_the_objective():
    _, _, steps = played()
    found = learner(hierarchy=False)._rewards({}, np.zeros((S, E, A), int), steps)  # type: ignore[arg-type]
    assert found is steps.objective


def by_hand(change: np.ndarray, log_p, value, advantage, target) -> tuple[float, float, float]:
    """Mean clipped objective, half the mean squared error, mean entropy."""
    ratio = np.exp(change)
    clipped = np.clip(ratio, 0.8, 1.2)
    assert 0 < (ratio != clipped).mean() < 1
    gain = np.minimum(ratio * advantage, clipped * advantage).mean()
    entropy = -(np.exp(log_p) * log_p).sum(-1).mean()
    return gain, ((value - target) ** 2).mean() / 2, entropy


@pytest.mark.parametrize("hierarchy", [True, False])
def test_the_loss(hierarchy: bool):
    """Lower where gains and entropies are higher and critics' errors smaller, of both levels."""
    rng, of, n = np.random.default_rng(1), drawn(1), S * E * A
    chosen = rng.integers(0, Z, n)
    agent, action = rng.integers(0, A, n), rng.integers(0, U, (n, T))
    seen = rng.standard_normal((n, T, F))
    advantage, target = rng.standard_normal((2, n, T))
    own, own_target = rng.standard_normal((2, n))
    log_p = log_softmax(np.stack([seen[i] @ of["actors"][chosen[i]] for i in range(n)]))
    value = np.stack([seen[i] @ of["critics"][chosen[i]] + of["worth"][agent[i]] for i in range(n)])
    taken = np.take_along_axis(log_p, action[..., None], -1)[..., 0]
    before = taken + 0.3 * rng.standard_normal((n, T))
    scores = log_softmax(seen[:, 0] @ of["controller"] + of["own"][agent])
    picked = scores[np.arange(n), chosen]
    picked_before = picked + 0.3 * rng.standard_normal(n)
    judged = seen[:, 0] @ of["judge"] + of["worth"][agent]

    gain, error, entropy = by_hand(taken - before, log_p, value, advantage, target)
    expected = {"gain": gain, "value_error": error, "entropy": entropy}
    total = 0.4 * error - gain - 0.03 * entropy
    if hierarchy:
        gain, error, entropy = by_hand(picked - picked_before, scores, judged, own, own_target)
        names = ("choice_gain", "choice_value_error", "choice_entropy")
        expected |= dict(zip(names, (gain, error, entropy), strict=True))
        total += 0.4 * error - gain - 0.05 * entropy
    part = Samples(
        *(jnp.asarray(x) for x in (chosen, agent, seen, action, before, advantage, target)),
        *(jnp.asarray(x) for x in (picked_before, own, own_target)),
    )
    found, said = learner(hierarchy=hierarchy)._loss(of, part)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total, abs=1e-5)
    assert {name: float(x) for name, x in said.items()} == pytest.approx(expected, abs=1e-5)


def test_objectives_of_every_agent():
    """For each agent a number of its own, in every game; here of one step."""
    rng = np.random.default_rng(0)
    utility, reward, told = rng.random((3, 3, 4)).astype(np.float32)
    mean = rng.random((3, 4)).astype(np.float32)
    mean[0, 1] = 0.0

    def of(name: str, **more) -> np.ndarray:
        settings = FEN(objective=name, capacity=0.6, **more)  # type: ignore[arg-type]
        given = (jnp.asarray(each[None]) for each in (reward, utility, mean, told))
        return np.asarray(objective(settings, *given))[0]

    expected = {name: np.zeros((3, 4)) for name in ("fair_efficient", "inequity_aversion", "jain")}
    for game, i in np.ndindex(3, 4):
        u, known = utility[game], mean[game, i]
        apart = abs(u[i] - known) / known if known else 0.0
        expected["fair_efficient"][game, i] = min(1, known / 0.6) / (0.1 + apart)
        envy = sum(max(u[j] - u[i], 0) for j in range(4))
        guilt = sum(max(u[i] - u[j], 0) for j in range(4))
        expected["inequity_aversion"][game, i] = u[i] - 5 / 3 * envy - 0.05 / 3 * guilt
        jain = u.sum() ** 2 / (4 * (u**2).sum())
        expected["jain"][game, i] = reward[game].mean() - 10 * 0.6 * max(0.9 - jain, 0)
    found = {"jain": of("jain", goal=0.9, penalty=10.0)}
    found |= {name: of(name) for name in ("fair_efficient", "inequity_aversion")}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    for name in ("alpha_fair", "average"):
        np.testing.assert_array_equal(of(name), told)
    settings = FEN(objective="alpha_fair", alpha=2.0)
    added = contribution(settings, jnp.asarray(reward), jnp.asarray(utility))
    np.testing.assert_allclose(added, reward / (utility + 0.01) ** 2, rtol=1e-5)
    np.testing.assert_array_equal(of("minimum"), np.tile(utility.min(1, keepdims=True), 4))
    np.testing.assert_array_equal(of("own"), reward)
    told_of_rewards = contribution(FEN(objective="average"), *map(jnp.asarray, (reward, utility)))
    np.testing.assert_array_equal(told_of_rewards, reward)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (37, 5)])
def test_rows_in_blocks_of_one_policy(rows: int, size: int):
    """Each row has a place of its own in a block of its policy; blocks are no more than needed."""
    rng = np.random.default_rng(rows)
    for chosen in (rng.integers(0, 4, rows), np.full(rows, 3), np.sort(rng.integers(0, 2, rows))):
        place, policy = (np.asarray(x) for x in in_blocks(jnp.asarray(chosen), 4, size))
        assert len(set(place.tolist())) == rows and place.min() >= 0
        np.testing.assert_array_equal(policy[place // size], chosen)
        assert len(policy) == rows // size + 4
        used = np.unique(place // size, return_counts=True)[1]
        full = sum(-(-count // size) for count in np.bincount(chosen))
        assert len(used) == full and used.max() <= size
