"""One seed gives one schedule, whatever instructions processors have and libraries use."""

import os
import subprocess
import sys

import numpy as np

from tests.patience import PATIENCE_S

SCRIPT = """
import hashlib, sys
import numpy as np
from gradweave.schedulers.greedy.decoding import Wiring
from gradweave.schedulers.greedy.planned import Planned
import gradweave as gw
known = hashlib.sha256()
for spec in sys.argv[1:]:
    net = gw.topology.from_spec(spec)
    for effort in (0.01, 0.1):
        made = Planned(gradient_bytes=1e8, effort=effort).decode(net)
        known.update(made.start.tobytes())
        known.update(made.grove.root.tobytes())
print(known.hexdigest())
"""
NETWORKS = ("leaf_spine:leaves=3,spines=1,servers_per_leaf=3,oversubscription=3", "mesh:3x3")
PLAIN = " ".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"])


def digest(**environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *NETWORKS],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout


def test_plans_are_the_same_with_other_instructions():
    # Kernels of OpenBLAS for processors of 2013 and 2006; NumPy without wide vectors.
    usual = digest()
    assert usual == digest(OPENBLAS_CORETYPE="Haswell")
    assert usual == digest(OPENBLAS_CORETYPE="Prescott", NPY_DISABLE_CPU_FEATURES=PLAIN)
