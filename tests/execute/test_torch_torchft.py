"""torchft's manager over our process group: one of three replicas dies, and the others go on."""

import json
from pathlib import Path

import pytest

from tests.execute.launch import torch_job

pytest.importorskip("torchft", reason="torchft is not installed; it is part of no extra")
STEPS, DIES_AT = 8, 3
"""As `torchft_cases` has them."""


def test_a_lost_replica_costs_one_step(tmp_path: Path):
    torch_job(tmp_path, 3, module="torchft_cases")
    left = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert left[0] == left[1]
    assert left[0]["asked"] == [[0, 1, 2], [0, 1]]
    before = [[step, 3, True] for step in range(DIES_AT)]
    after = [[step, 2, True] for step in range(DIES_AT, STEPS)]
    assert left[0]["steps"] == [*before, [DIES_AT, 3, False], *after]
