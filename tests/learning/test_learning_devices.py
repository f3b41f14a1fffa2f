"""A training whose episodes are divided between two devices, which average by a schedule."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("tensorboardX")

PROGRAM = """
import json, sys
from pathlib import Path
import jax
from gradweave.learning import read_config
from gradweave.learning.training import train

jax.config.update("jax_num_cpu_devices", 2)  # to import what learns has not started JAX
jax.config.update("jax_disable_most_optimizations", True)
config, folder, reports = read_config(Path(sys.argv[1])), Path(sys.argv[2]), []
train(config, folder, report=reports.append, devices=2, aggregation="scheduled:ring:2")
print(json.dumps({
    "devices": len(jax.devices()),
    "updates": [report.update for report in reports],
    "over_bound": [report.over_bound for report in reports],
    "finished": [report.figures["finished"].tolist() for report in reports],
    "decisions": [report.figures["decisions"].tolist() for report in reports],
}))
"""

TRAINING = """
iterations = 12
tree_updates = 0
workload_updates = 1
tree_bias = 3.0
draws = 2
checkpoint_minutes = 0.0

[rewards]
rounds = 1.0

[[groups]]
at_once = 1
episodes = 6
exercises = [{ topology = "ring:n=4" }]
"""


@pytest.mark.slow
def test_two_devices_train_together(tmp_path: Path):
    from gradweave.learning import load_policy

    (tmp_path / "train.toml").write_text(TRAINING)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "train.toml", "made"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["devices"] == 2
    assert said["updates"] == list(range(1, 13))
    assert all(over >= 0 for over in said["over_bound"])
    # Every episode of both devices counts: six of twelve transfers.
    for finished, decisions in zip(said["finished"], said["decisions"], strict=True):
        assert finished == [[1.0]] and decisions == [[6 * 12]]
    policy = load_policy(tmp_path / "made" / "weights.safetensors")
    assert abs(policy.workload.hop).max() > 0
    assert abs(policy.tree.score).max() == 0  # which was not trained
