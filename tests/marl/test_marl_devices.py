"""The same training on one device and on several, by every exact aggregation, and by gossip."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")
pytest.importorskip("jaxmarl")

PROGRAM = """
import json, sys
import jax
import jax.numpy as jnp
import numpy as np
import optax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_disable_most_optimizations", True)
from gradweave.aggregate import aggregator, disagreement
from gradweave.marl.learners import algorithms
from gradweave.marl.config import PPO
from gradweave.marl.program import Program
from tests.marl.doors import doors

# The whole roll-out in one part and advantages as they are: then the mean of the devices'
# gradients is the gradient of all games.
settings = PPO(environments=8, rollout=6, hidden=(8,), minibatches=1, epochs=3,
               normalise_advantages=False, normalise_values=True)

def spoilt(optimizer):
    # The first two gradients of device 2 are NaN.
    def update(updates, step, params=None):
        bad = (jax.lax.axis_index("server") == 2) & (step < 2)
        return jax.tree.map(lambda g: jnp.where(bad, jnp.nan, g), updates), step + 1
    spoil = optax.GradientTransformation(lambda params: jnp.int32(0), update)
    return optax.chain(spoil, aggregator("d_psgd", 4, same_data=True)(optimizer))

answers = {}
for spec, devices in json.loads(sys.argv[1]):
    aggregate = aggregator(spec, devices) if devices > 1 else (lambda optimizer: optimizer)
    aggregate = spoilt if spec == "d_psgd" else aggregate
    learner = algorithms.ALGORITHMS["mappo"].build(doors(), settings, devices, 20, aggregate)
    program = Program(learner, jax.devices()[:devices], 5, 1)
    state, metrics = program.run(program.start(), 6)
    leaves = [np.asarray(x) for x in jax.tree.leaves(state.parameters)]  # compile nothing for them
    moments = [np.asarray(x) for x in (state.returns.mean, state.returns.variance)]
    answers[f"{spec} {devices}"] = {
        "parameters": np.concatenate(
            [np.asarray(x).ravel() for x in jax.tree.leaves(program.parameters(state))]
        ).tolist(),
        "same": all(bool((x == x[:1]).all()) for x in leaves),
        "moments": [x[0].ravel().tolist() for x in moments],
        "same_moments": all(bool((x == x[:1]).all()) for x in moments),
        "disagreement": float(disagreement(leaves)),
        "axes": sorted({x.shape[:2] for x in leaves}),
        "returns": metrics.returns.tolist(),
        "episodes": metrics.episodes.tolist(),
        "not_finite": program.left_out(state),
        "figures": {name: x.ravel().tolist() for name, x in metrics.figures.items()},
    }
print(json.dumps(answers))
"""
EXACT = [["mean", 4], ["scheduled:ring:4", 4]]
CASES = [["mean", 1], *EXACT, ["d_psgd", 4]]


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CASES)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "devices"), EXACT)
def test_several_devices_learn_what_one_does(answers, spec, devices):
    one, several = answers["mean 1"], answers[f"{spec} {devices}"]
    assert several["axes"] == [[devices, 1]]
    assert several["same"], "every device has the same parameters, bit for bit"
    assert several["disagreement"] == 0 and several["same_moments"]
    np.testing.assert_allclose(several["moments"], one["moments"], rtol=1e-4)
    np.testing.assert_allclose(several["parameters"], one["parameters"], rtol=1e-3, atol=2e-5)
    assert several["episodes"] == one["episodes"]
    np.testing.assert_allclose(several["returns"], one["returns"], atol=1e-4)
    assert min(several["figures"]["sent_bytes"]) > 0 and "sent_bytes" not in one["figures"]


@pytest.mark.slow
def test_under_gossip_every_device_has_parameters_of_its_own(answers):
    gossip, mean = answers["d_psgd 4"], answers["mean 4"]
    assert not gossip["same"] and gossip["disagreement"] > 1e-4
    assert gossip["same_moments"], "so that the critics that are mixed say values on one scale"
    assert np.isfinite(gossip["parameters"]).all(), "though device 2 had NaN for gradients"
    assert gossip["not_finite"] == [0, 0, 2, 0] and mean["not_finite"] == [0] * 4
    assert not np.allclose(gossip["parameters"], mean["parameters"], atol=1e-5)
