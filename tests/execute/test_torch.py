"""Schedules on torch.distributed (gloo), with a process a server.

Every strategy runs on two small networks of the conformance table, on one of them also every type,
reduction and collective, against the oracle's bits. Networks of more than nine servers
`test_program` plays without processes.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.execute.cases import FLOATS, INTEGERS, Case
from tests.execute.launch import (
    SMALL_NETWORKS,
    all_with_all,
    cases,
    check_all_name,
    check_reports,
    of_two,
    torch_job,
    write_job,
    write_schedules,
)

DTYPES = (*INTEGERS, *FLOATS)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_every_strategy_ends_with_the_bits_of_the_oracle(name: str, tmp_path: Path):
    wanted = cases(name, DTYPES)
    schedules = write_job(tmp_path, name, wanted)
    torch_job(tmp_path, next(iter(schedules.values())).topology.num_servers, "conformance")
    check_reports(tmp_path, schedules, wanted)


def test_servers_that_all_exchange_at_once(tmp_path: Path):
    wanted = all_with_all(DTYPES)
    schedules = write_job(tmp_path, "complete:4", wanted)
    torch_job(tmp_path, 4, "conformance")
    check_reports(tmp_path, schedules, wanted)


@pytest.mark.quick
def test_two_processes(tmp_path: Path):
    wanted = of_two(DTYPES)
    schedules = write_job(tmp_path, "complete:2", wanted)
    torch_job(tmp_path, 2, "conformance")
    check_reports(tmp_path, schedules, wanted)


def test_what_all_processes_check(tmp_path: Path):
    """Sizes, strides, types, disagreement, groups, bytes: the functions of `torch_cases`."""
    write_schedules(tmp_path)
    output = torch_job(tmp_path, 6, "checks")
    for rank in range(6):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert not report["wrong"], f"rank {rank}: {'; '.join(report['wrong'].values())} {output}"


def test_processes_in_different_numbers_of_groups(tmp_path: Path):
    write_schedules(tmp_path)
    torch_job(tmp_path, 6, "overlapping")


def has_gpu() -> bool:
    """Asked without CUDA's own start, after which processes could not be forked."""
    return Path("/dev/nvidia0").exists()


@pytest.mark.parametrize(
    "job",
    [
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param(
            "ddp_gpu", marks=pytest.mark.skipif(not has_gpu(), reason="needs a GPU of NVIDIA")
        ),
    ],
)
def test_training_with_the_hook_is_training_without(job: str, tmp_path: Path):
    wanted = [Case(name, "all_reduce", "", "", 0) for name in ("portfolio", "recursive doubling")]
    write_job(tmp_path, "complete:4", wanted)
    torch_job(tmp_path, 4, job)
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for name in reports[0]:
        of_all = [report[name] for report in reports]
        assert len({report["digest"] for report in of_all}) == 1
        for report in of_all:
            assert report["moved"] > 0.1
            assert report["apart"] <= (0.05 if "bfloat16" in name else 1e-6), name
        if "portfolio" in name:
            # Each gradient once around: 2(N−1)M over all servers.
            sent = sum(report["sent"] for report in of_all)
            assert sent == 2 * 3 * of_all[0]["gradients"]


LOSSES = (
    "0-between-file",
    "3-during-file",
    "3-idle-file",
    "3-comparing-file",
    "0-between-tcp",
    "0-during-tcp",
    "3-between-tcp",
    "7-during-tcp",
    "5-stopped-tcp",
)
"""Rank, when it is lost, and the kind of store."""
LOSSES_IN_TRAINING = (
    "2-stopped-tcp",
    "0-stopped-tcp",
    "2-during-tcp",
    "0-during-tcp",
    "2-asleep-tcp",
    "0-asleep-tcp",
)


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs all of them by one process that imports torch; of a ring, where only two others exchange
    messages with the process that is lost.
    """
    folder = tmp_path_factory.mktemp("lost")
    write_job(folder, "ring:8", [Case("ring", "all_reduce", "float64", "sum", 1)])
    torch_job(folder, 8, "lost", *LOSSES)
    return folder


@pytest.fixture(scope="module")
def losses_in_training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for DDP; of four in a ring, one exchanges no messages with what is lost."""
    folder = tmp_path_factory.mktemp("lost-in-training")
    write_job(folder, "ring:4", [Case("ring", "all_reduce", "float32", "mean", 1)])
    torch_job(folder, 4, "ddp_lost", *LOSSES_IN_TRAINING)
    return folder


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_process_is_named_by_all(loss: str, losses: Path):
    check_all_name(losses / loss, 8, int(loss[0]))


@pytest.mark.parametrize("loss", LOSSES_IN_TRAINING)
def test_backward_raises_the_loss_of_a_process(loss: str, losses_in_training: Path):
    check_all_name(losses_in_training / loss, 4, int(loss[0]))


def test_errors_in_the_hook_reach_the_training_loop(tmp_path: Path):
    write_job(tmp_path, "complete:4", [Case("portfolio", "all_reduce", "", "", 0)])
    torch_job(tmp_path, 4, "ddp_errors")
