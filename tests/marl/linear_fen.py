"""FEN with linear networks, so that each number can be worked out from what agents saw."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave.aggregate import MixingMatrix
from gradweave.marl.fairness.hierarchy import Hierarchy
from gradweave.marl.fairness.learner import FENLearner
from gradweave.marl.fairness.mean_utility import MeanUtility
from gradweave.marl.fairness.settings import FEN

S, T, E, A, F, Z, U = 3, 4, 2, 2, 4, 3, 4
"""Choices, steps of each, games, agents, numbers seen, sub-policies, actions."""
SETTINGS = FEN(
    environments=E,
    capacity=0.6,
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


class Linear(Hierarchy):
    """A hierarchy of linear maps, with an offset for each agent."""

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


def learner(environment=None, mixing: MixingMatrix | None = None, **settings) -> FENLearner:
    environment = environment or SimpleNamespace(num_agents=A)
    asked = dataclasses.replace(SETTINGS, **settings)
    linear = Linear(environment, asked, MeanUtility(mixing, 1))
    return FENLearner(linear, asked, optax.sgd(1.0), E)


def known_of(utility: float, mean: float) -> tuple[float, float]:
    """What an agent sees of utilities: by which share its own is off the mean, and the mean."""
    return (utility - mean) / mean if mean else 0.0, min(1.0, mean / SETTINGS.capacity)


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def rows(x: np.ndarray) -> np.ndarray:
    """[S, T, E, A, …] as [S·E·A, T, …]: one for each choice of an agent."""
    return np.stack([x[s, :, e, a] for s in range(S) for e in range(E) for a in range(A)])
