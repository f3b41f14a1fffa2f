"""What a hierarchy learns from and by: rewards, advantages and losses in NumPy, as FEN has them.

Networks are linear here, so that each number can be worked out from what agents saw.
"""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import jax
import jax.numpy as jnp
import optax

from gradweave.marl.fairness.learner import FENLearner, Samples, Steps
from gradweave.marl.fairness.mean_utility import MeanUtility
from gradweave.marl.fairness.objectives import objective
from gradweave.marl.fairness.settings import FEN
from gradweave.marl.games.environment import View

S, T, E, A, F, Z, U = 3, 4, 2, 2, 3, 3, 4
"""Choices, steps of each, games, agents, numbers seen, sub-policies, actions."""
SETTINGS = FEN(
    environments=E,
    rollout=S * T,
    choice_steps=T,
    minibatches=2,
    sub_policies=Z,
    information=0.7,
    discount=0.9,
    choice_discount=0.8,
    gae_lambda=0.6,
    value_coefficient=0.4,
    entropy_coefficient=0.03,
    choice_entropy_coefficient=0.05,
)


@dataclasses.dataclass(frozen=True)
class Linear:
    """A hierarchy of linear maps, with an offset for each agent."""

    policies: int = Z
    environment: SimpleNamespace = dataclasses.field(
        default_factory=lambda: SimpleNamespace(num_agents=A)
    )
    consensus: MeanUtility = dataclasses.field(default_factory=lambda: MeanUtility(None, 1))

    def seen(self, view, estimates):
        return jnp.concatenate([view.observation, estimates.mean[..., None]], -1)

    def choices(self, of, seen):
        return jax.nn.log_softmax(seen @ of["controller"] + of["own"])

    def choice_value(self, of, seen):
        return seen @ of["judge"] + of["worth"]

    def controller_outputs(self, of, agent, seen):
        scores = seen @ of["controller"] + of["own"][agent]
        return jax.nn.log_softmax(scores), seen @ of["judge"] + of["worth"][agent]

    def actions(self, of, chosen, seen):
        return jax.nn.log_softmax(jnp.einsum("baf,bafu->bau", seen, of["actors"][chosen]))

    def sub_policy_outputs(self, of, chosen, agent, seen):
        scores = jnp.einsum("ntf,nfu->ntu", seen, of["actors"][chosen])
        value = jnp.einsum("ntf,nf->nt", seen, of["critics"][chosen])
        return jax.nn.log_softmax(scores), value + of["worth"][agent][:, None]


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Parameters; the controller is sure enough for the floor of being chosen to count."""
    rng = np.random.default_rng(seed)
    shapes = {
        "controller": (F, Z), "own": (A, Z), "judge": (F,), "worth": (A,),
        "actors": (Z, F, U), "critics": (Z, F),
    }  # fmt: skip
    return {
        name: (2.5 if name == "controller" else 0.5) * rng.standard_normal(shape)
        for name, shape in shapes.items()
    }


def played() -> tuple[np.ndarray, np.ndarray, Steps]:
    """Choices [S, E, A], their log-probabilities, and steps, of which the first game's end once."""
    rng = np.random.default_rng(3)
    steps = Steps(
        seen=rng.standard_normal((S, T, E, A, F)),
        action=rng.integers(0, U, (S, T, E, A)),
        log_probability=-rng.random((S, T, E, A)),
        reward=rng.standard_normal((S, T, E, A)),
        objective=rng.standard_normal((S, T, E, A)),
        seen_after=rng.standard_normal((S, T, E, A, F)),
        done=np.zeros((S, T, E), bool),
        sent_bytes=np.zeros((S, T, E, A)),
        error=np.zeros((S, T, E, A)),
    )
    steps.done[1, T - 1, 0] = True
    chosen = rng.integers(0, Z, (S, E, A))
    return chosen, -rng.random((S, E, A)), steps


def learner(**settings) -> FENLearner:
    asked = dataclasses.replace(SETTINGS, **settings)
    policies = Z if asked.hierarchy else 1
    return FENLearner(Linear(policies), asked, optax.sgd(1.0), E)  # type: ignore[arg-type]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def rows(x: np.ndarray) -> np.ndarray:
    """[S, T, E, A, …] as [S·E·A, T, …]: one for each choice of an agent."""
    return np.stack([x[s, :, e, a] for s in range(S) for e in range(E) for a in range(A)])


def rewards_by_hand(of: dict, chosen: np.ndarray, steps: Steps) -> np.ndarray:
    """The first sub-policy's are the environment's, the others' log p(chosen) after the step."""
    found = np.zeros((S, T, E, A))
    for s, t, e, a in np.ndindex(S, T, E, A):
        k = chosen[s, e, a]
        log_p = log_softmax(steps.seen_after[s, t, e, a] @ of["controller"] + of["own"][a])
        found[s, t, e, a] = steps.reward[s, t, e, a] if k == 0 else 0.7 * max(log_p[k], -5.0)
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


@pytest.mark.parametrize("greedy", [True, False])
def test_agents_choose_every_so_many_steps_of_an_episode(greedy: bool):
    """The second game begins anew in its third step, where a choice would have gone on."""
    one, of, rng = learner(), drawn(2), np.random.default_rng(5)
    memory = one.memory(of, E)  # type: ignore[arg-type]
    assert not any(leaf.any() for leaf in jax.tree.leaves(memory))
    starts = [(True, True), (False, False), (False, True), *[(False, False)] * 4]
    clock, chosen = np.zeros(E, int), np.zeros((E, A), int)
    for number, start in enumerate(starts):
        seen, utility = rng.standard_normal((E, A, F - 1)), rng.random((E, A))
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
            known = np.append(seen[e, a], mean)
            if clock[e] % T == 0:
                log_p = log_softmax(known @ of["controller"] + of["own"][a])
                chosen[e, a] = picked(log_p, e, a, 0)
            log_p = log_softmax(known @ of["actors"][chosen[e, a]])
            assert action[e, a] == picked(log_p, e, a, 1)
        clock += 1
        assert memory.chosen.tolist() == chosen.tolist()
        assert memory.clock.tolist() == clock.tolist()


def test_objectives_of_every_agent():
    """For each agent a number of its own, in every game."""
    rng = np.random.default_rng(0)
    utility, reward = rng.random((2, 3, 4)).astype(np.float32)
    mean = rng.random((3, 4)).astype(np.float32)
    mean[0, 1] = 0.0

    def of(name: str, **more) -> np.ndarray:
        settings = FEN(objective=name, capacity=0.6, **more)  # type: ignore[arg-type]
        return np.asarray(objective(settings, reward, utility, mean))

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
    worth = (reward / (utility + 0.01) ** 2).mean(1, keepdims=True)
    np.testing.assert_allclose(of("alpha_fair", alpha=2.0), np.tile(worth, 4), rtol=1e-5)
    np.testing.assert_array_equal(of("minimum"), np.tile(utility.min(1, keepdims=True), 4))
    np.testing.assert_array_equal(of("own"), reward)
    np.testing.assert_allclose(of("average"), np.tile(reward.mean(1, keepdims=True), 4), rtol=1e-6)
