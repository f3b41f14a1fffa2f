"""``gradweave watch`` and ``gradweave trace``, of a job whose ranks are threads of this process."""

import json
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

from gradweave.cli.jobs import address_of, is_address
from gradweave.errors import OptionError, RunError

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from torch.distributed.distributed_c10d import PrefixStore  # noqa: E402

from gradweave.torch import job as jobs  # noqa: E402
from gradweave.torch.kept import TraceFile, kept  # noqa: E402
from gradweave.torch.machine import machine  # noqa: E402
from gradweave.torch.monitor import Monitor  # noqa: E402
from gradweave.torch.record import Recorder  # noqa: E402
from gradweave.torch.recorded import JOB  # noqa: E402

RANKS = 3


class Work:
    def is_completed(self) -> bool:
        return False


class Job:
    """Rank 1 has not entered the first call, in which the others wait."""

    def __init__(self) -> None:
        made: Any = dist
        self.store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.address = f"127.0.0.1:{self.store.port}"
        self.store.set(JOB, json.dumps(["job", RANKS]))
        self.recorders = [Recorder() for _ in range(RANKS)]
        lanes = [each.lane("g", tuple(range(RANKS))) for each in self.recorders]
        options = types.SimpleNamespace(reduceOp=dist.ReduceOp.SUM)
        for rank in (0, 2):
            entry = self.recorders[rank].enter(lanes[rank], "all_reduce", torch.ones(9), options)
            self.recorders[rank].started(entry, Work())
        self.monitors = [self.monitor(rank) for rank in range(RANKS)]

    def monitor(self, rank: int) -> Monitor:
        recorder, store = self.recorders[rank], PrefixStore("job", self.store)
        keep = lambda: kept(recorder, rank, RANKS, machine()).written()  # noqa: E731
        return Monitor(recorder, store, rank, RANKS, 60.0, keep)

    def close(self) -> None:
        for each in self.monitors:
            each.close()


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_who_is_behind_is_shown(gradweave, here, job: Job):
    time.sleep(0.6)
    options = ("--once", "--every", 1, "--slow-after", 0.5, "--output", "w.html")
    seen = gradweave("watch", job.address, *options, "--json").json
    states = [rank["state"] for rank in seen["ranks"]]
    assert states == ["in a collective", "in its own code", "in a collective"]
    assert [rank["behind"] for rank in seen["ranks"]] == [0, 1, 0]
    assert [rank["calls"] for rank in seen["ranks"]] == [1, 0, 1]
    assert seen["holdup"]["kind"] == "late" and seen["holdup"]["ranks"] == [1]
    page = (here / "w.html").read_text()
    assert "rank 1 (" in page and "all_reduce float32[9] sum" in page and "http-equiv" in page
    answer = gradweave("watch", job.address, "--once", "--every", 1, "--slow-after", 60)
    assert answer.status == 0 and "3 ranks, of which 2 in a collective" in answer.stdout
    assert "holds up" not in answer.stdout


def test_it_ends_with_the_job(gradweave, job: Job, monkeypatch: pytest.MonkeyPatch):
    stands, looks = jobs.Job.stands, iter((True, True, False))

    def until_then(self: jobs.Job) -> Any:
        if not next(looks):
            raise RunError("the job's store has ended")
        return stands(self)

    monkeypatch.setattr(jobs.Job, "stands", until_then)
    answer = gradweave("watch", job.address, "--every", 0.1)
    assert answer.status == 0 and answer.stderr == "the job has ended\n", answer
    assert answer.stdout.count("3 ranks, of which") == 1


def test_ranks_are_asked_for_what_they_keep(gradweave, here, job: Job):
    said = gradweave("trace", job.address, "--output", "t.pftrace", "--json").json
    assert said == {"ranks": [0, 1, 2], "missing": [], "calls": 2, "output": "t.pftrace"}
    assert (here / "t.pftrace").stat().st_size > 100


def test_files_of_ranks_are_merged(gradweave, here, job: Job):
    for rank in (0, 2):
        TraceFile(here / "folder", job.recorders[rank], rank, RANKS, machine()).close()
    answer = gradweave("trace", "folder", "--output", "t.pftrace")
    assert "2 calls of 2 ranks" in answer.stdout and "rank 1 is missing" in answer.stderr


def test_what_is_refused(refused, job: Job):
    for verb in (("watch",), ("trace", "--output", "t.pftrace")):
        assert "no job's store answers" in refused(verb[0], "127.0.0.1:9", *verb[1:])
    assert "expected HOST:PORT" in refused("watch", "node1")
    assert "there is no" in refused("trace", "nowhere", "--output", "a/t.pftrace")
    assert "cannot be read" in refused("trace", "nowhere", "--output", "t.pftrace")
    assert ".pftrace" in refused("trace", "nowhere", "--output", "t.json")
    assert "alone" in refused("trace", job.address, "folder", "--output", "t.pftrace")


def test_a_job_that_records_nothing(refused):
    made: Any = dist
    store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = refused("watch", f"127.0.0.1:{store.port}", status=1)
    assert "records nothing" in said and "GRADWEAVE_WATCH" in said


def test_addresses():
    assert is_address("node1:29500") and is_address("[::1]:80")
    assert not is_address("folder/a") and not is_address("rank-0.json")
    assert address_of("[::1]:80") == ("::1", 80)
    assert address_of(None, {}) == ("127.0.0.1", 29500)
    for wrong in ("node1", "node1:0", "node1:99999"):
        with pytest.raises(OptionError, match="expected HOST:PORT"):
            address_of(wrong)
