"""FSDP2 by schedules: trained beside gloo, loss for loss; and what schedules shards can have."""

import importlib.util
import json
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.schedulers import Merged, Ring
from gradweave.schedules import COLLECTIVES, Schedule, integer_shares
from gradweave.schedules.schedule import Collective
from tests.conformance.networks import network
from tests.execute.cases import Case, in_two
from tests.execute.launch import check_all_name, torch_job, write_job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


def write_examples(folder: Path) -> None:
    """Schedules of two and four servers, those of four with pieces of unequal size."""
    four, two = gw.topology.from_spec("bcube:n=2,k=1"), gw.topology.complete(2)
    schedules = {
        (name, collective): Merged().schedule(net, collective=collective)
        for name, net in (("of four", four), ("of two", two))
        for collective in COLLECTIVES
    }
    for stage in COLLECTIVES[1:]:
        schedules["of four", stage] = in_two(schedules["of four", stage], (2, 1))
    (folder / "job.pickle").write_bytes(pickle.dumps((schedules, [])))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of four processes ended with, all examples in one start."""
    folder = tmp_path_factory.mktemp("fsdp")
    write_examples(folder)
    torch_job(folder, 4, "fsdp", module="torch_fsdp_cases")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def test_training_by_schedules_is_training_by_gloo(reports: list[dict]):
    for name, (plain, ours) in reports[0]["examples"].items():
        rough = name == "bfloat16"
        np.testing.assert_allclose(
            ours["losses"], plain["losses"], rtol=1e-2 if rough else 1e-6, err_msg=name
        )
        assert len(set(ours["losses"])) > 1 and len(set(ours["digests"])) == 1, name


def test_the_schedules_send_each_shard_to_all_others(reports: list[dict]):
    steps = 3
    gathers = {"resharded": 2, "kept whole": 1, "resharded in part": 1, "hybrid": 2}
    for name in reports[0]["examples"]:
        mine = [report["examples"][name][1] for report in reports]
        sent = {key: sum(each["sent"][key] for each in mine) for key in mine[0]["sent"]}
        whole = mine[0]["parameters"] * (2 if name == "bfloat16" else 4)
        hybrid = name.startswith("hybrid")
        copies = 2 * 1 if hybrid else 3  # in two replicas, one of two processes each
        assert sent["reduce_scatter"] == steps * copies * whole, name
        assert sent["all_gather"] == steps * gathers.get(name, 2) * copies * whole, name
        assert sent.get("all_reduce", 0) == (2 * steps * whole if "by sched" in name else 0), name


def test_what_is_asynchronous_and_what_is_refused(reports: list[dict]):
    assert not any(report["wrong"] for report in reports)


@pytest.mark.parametrize("loss", ["2-during-tcp"])
def test_a_lost_process_ends_the_training_of_all(loss: str, tmp_path: Path):
    write_job(tmp_path, "ring:4", [Case("ring", "all_gather", "float32", "sum", 1)])
    torch_job(tmp_path, 4, "fsdp_lost", loss, module="torch_fsdp_cases")
    check_all_name(tmp_path / loss, 4, int(loss[0]))


def stage(name: str = "irregular", collective: Collective = "reduce_scatter") -> Schedule:
    return Ring().schedule(network(name), collective=collective)


def test_pieces_come_in_the_order_of_ranks():
    from gradweave.execute.torch_distributed.shards import sharded

    for collective in COLLECTIVES[1:]:
        cut = in_two(stage(collective=collective), (2, 1))
        made = sharded(cut)
        ranks = made.topology.rank[made.root]
        assert not np.array_equal(cut.root, made.root) and (np.diff(ranks) >= 0).all()
        assert gw.verify(made).valid and made.shares is not None
        assert np.bincount(ranks, made.weights).tolist() == [3.0] * 6
        moved = [made.shares[made.piece], made.root[made.piece], made.source, made.round]
        before = [cut.shares[cut.piece], cut.root[cut.piece], cut.source, cut.round]  # type: ignore
        assert all(np.array_equal(a, b) for a, b in zip(moved, before, strict=True))
        assert sharded(made) is made


def test_what_has_no_equal_shards():
    from gradweave.execute.torch_distributed.shards import sharded

    with pytest.raises(ScheduleError, match="got all_reduce; make one of each"):
        sharded(Ring().schedule("ring:n=3"))
    even = stage("complete:4")
    shares = integer_shares([Fraction(1, 2), *[Fraction(1, 6)] * 3])
    first = int(even.topology.rank[even.root[0]])
    half = "1/2" if first == 0 else "1/6"
    with pytest.raises(ScheduleError, match=f"server 0 is the root of {half} .* 1/4 each"):
        sharded(even.replace(shares=shares))
    with pytest.raises(ScheduleError, match="merged or grown"):
        sharded(even.replace(root=np.zeros_like(even.root)))
