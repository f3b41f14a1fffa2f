"""What servers compare before they start."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.execute.signature import WORDS, digest, mismatch, signature
from gradweave.schedulers import Merged, Ring

TOPOLOGY = gw.topology.ring(4)
SCHEDULE = Ring().schedule(TOPOLOGY)
SAME = (SCHEDULE, 10, "float32", "sum")


def found(*others: tuple) -> str:
    error = mismatch(np.stack([signature(*SAME), *(signature(*other) for other in others)]))
    return str(error) if error else ""


def test_a_digest_is_the_transfers_own(tmp_path):
    SCHEDULE.save(tmp_path / "ring.json")
    again = gw.load(tmp_path / "ring.json")
    assert digest(again) == digest(SCHEDULE) == digest(Ring().schedule(gw.topology.ring(4)))
    others = [
        Merged().schedule(TOPOLOGY),
        Ring().schedule(TOPOLOGY, collective="all_gather"),
        SCHEDULE.replace(op=SCHEDULE.op[::-1].copy()),
        Ring().schedule(gw.topology.ring(5)),
    ]
    assert len({digest(other) for other in [SCHEDULE, *others]}) == 5
    assert all(0 <= digest(other) < 1 << 63 for other in others)


def test_the_same_is_no_mismatch():
    assert signature(*SAME).shape == (WORDS,)
    assert found(SAME, SAME) == ""


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            (Merged().schedule(TOPOLOGY), 10, "float32", "sum"),
            "rank 2 runs a different schedule from rank 0",
        ),
        ((SCHEDULE, 11, "float32", "sum"), "of float32, rank 2 has 11 elements of float32"),
        ((SCHEDULE, 10, "int8", "sum"), "10 elements of float32, rank 2 has 10 elements of int8"),
        ((SCHEDULE, 10, "float64", "sum"), "float32, rank 2 has 10 elements of float64"),
        ((SCHEDULE, 10, "float32", "mean"), "rank 0 asks for the sum, rank 2 for the mean"),
        ((SCHEDULE, 1 << 40, "float32", "sum"), "rank 2 has 1,099,511,627,776 elements"),
    ],
)
def test_a_mismatch_names_the_rank_and_both(other: tuple, message: str):
    assert message in found(SAME, other, SAME)


def test_long_names_of_types_are_cut():
    name = "void" * 20
    assert found((SCHEDULE, 10, name, "sum")).endswith("an all-reduce needs equal ones")
