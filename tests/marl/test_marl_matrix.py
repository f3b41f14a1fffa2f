"""Every environment by a variant of PPO: traced; and one run whose actions are continuous.

benchmarks/experiments/marl_matrix.py runs them all.
"""

import itertools

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")
pytest.importorskip("jaxmarl")

import jax

from gradweave.marl.games.environments import make
from tests.marl.doors import learner

ENVIRONMENTS = (
    "MPE_simple_spread_v3",
    "MPE_simple_tag_v3",
    "MPE_simple_world_comm_v3",
    "MPE_simple_world_comm_v3:continuous=true",
    "switch_riddle",
    "coin_game",
    "storm",
    "overcooked",
    "overcooked_v2",
    "jaxnav:continuous=true",
    "MPE_simple_speaker_listener_v4",
    "hanabi",
    "SMAX",
    "HeuristicEnemySMAX",
    "gradweave:bcube:n=2,k=1",
)
VARIANTS = [
    *(("ippo", False, "end"), ("mappo", True, "bootstrap")),
    *(("ippo", True, "bootstrap"), ("mappo", False, "end")),
]


@pytest.mark.parametrize(
    ("env", "variant"), list(zip(ENVIRONMENTS, itertools.cycle(VARIANTS), strict=False))
)
def test_an_update_of_a_learner_is_a_learner_again(env, variant):
    algorithm, recurrent, truncation = variant
    one = learner(algorithm, environment=make(env), recurrent=recurrent, truncation=truncation)
    state = jax.eval_shape(one.init, jax.random.key(0), 0)
    after, metrics = jax.eval_shape(one.update, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
    assert metrics.returns.shape == (one.players.environment.num_agents,)
    seen = state.parameters.critic.layers[0].weight.shape[0]
    environment = one.players.environment
    assert seen == (environment.world if algorithm == "mappo" else environment.observation)


def test_continuous_actions_are_learned_from():
    environment = make("MPE_simple_spread_v3:continuous=true")
    one = learner("mappo", environment=environment, updates=2, entropy_coefficient=0.1)
    before = jax.jit(one.init)(jax.random.key(0), 0)
    after, metrics = jax.jit(one.update)(before)
    for x, y in zip(
        jax.tree.leaves(before.parameters), jax.tree.leaves(after.parameters), strict=True
    ):
        assert np.isfinite(y).all() and (x != y).any()
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics.figures))
