"""``gradweave job watch`` and ``job trace``, of a job whose ranks are threads of this process."""

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
    seen = gradweave("job", "watch", job.address, *options, "--json").json
    states = [rank["state"] for rank in seen["ranks"]]
    assert states == ["in a collective", "in its own code", "in a collective"]
    assert [rank["behind"] for rank in seen["ranks"]] == [0, 1, 0]
    assert [rank["calls"] for rank in seen["ranks"]] == [1, 0, 1]
    assert seen["holdup"]["kind"] == "late" and seen["holdup"]["ranks"] == [1]
    page = (here / "w.html").read_text()
    assert "rank 1 (" in page and "all_reduce float32[9] sum" in page and "http-equiv" in page
    answer = gradweave("job", "watch", job.address, "--once", "--every", 1, "--slow-after", 60)
    assert answer.status == 0 and "3 ranks, of which 2 in a collective" in answer.stdout
    assert "holds up" not in answer.stdout


def test_it_ends_with_the_job(gradweave, job: Job, monkeypatch: pytest.MonkeyPatch):
    statuses, looks = jobs.Job.statuses, iter((True, True, False))

    def until_then(self: jobs.Job) -> Any:
        if not next(looks):
            raise RunError("the job's store has ended")
        return statuses(self)

    monkeypatch.setattr(jobs.Job, "statuses", until_then)
    answer = gradweave("job", "watch", job.address, "--every", 0.1)
    assert answer.status == 0 and answer.stderr == "the job has ended\n", answer
    assert answer.stdout.count("3 ranks, of which") == 1


def test_ranks_are_asked_for_what_they_keep(gradweave, here, job: Job):
    said = gradweave("job", "trace", job.address, "--output", "t.pftrace", "--json").json
    assert said == {"ranks": [0, 1, 2], "missing": [], "calls": 2, "output": "t.pftrace"}
    assert (here / "t.pftrace").stat().st_size > 100


def test_files_of_ranks_are_merged(gradweave, here, job: Job):
    for rank in (0, 2):
        TraceFile(here / "folder", job.recorders[rank], rank, RANKS, machine()).close()
    answer = gradweave("job", "trace", "folder", "--output", "t.pftrace")
    assert "2 calls of 2 ranks" in answer.stdout and "rank 1 is missing" in answer.stderr


def test_what_is_refused(refused, job: Job):
    for name, *options in (("watch",), ("trace", "--output", "t.pftrace")):
        said = refused("job", name, "127.0.0.1:9", *options)
        assert "no job's store answers" in said
    assert "expected HOST:PORT" in refused("job", "watch", "node1")
    assert "there is no" in refused("job", "trace", "nowhere", "--output", "a/t.pftrace")
    assert "cannot be read" in refused("job", "trace", "nowhere", "--output", "t.pftrace")
    assert ".pftrace" in refused("job", "trace", "nowhere", "--output", "t.json")
    assert "alone" in refused("job", "trace", job.address, "folder", "--output", "t.pftrace")


def test_a_job_that_records_nothing(refused):
    made: Any = dist
    store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    said = refused("job", "watch", f"127.0.0.1:{store.port}", status=1)
    assert "records nothing" in said and "GRADWEAVE_WATCH" in said


def test_addresses():
    assert is_address("node1:29500") and is_address("[::1]:80")
    assert not is_address("folder/a") and not is_address("rank-0.json")
    assert address_of("[::1]:80") == ("::1", 80)
    assert address_of(None, {}) == ("127.0.0.1", 29500)
    for wrong in ("node1", "node1:0", "node1:99999"):
        with pytest.raises(OptionError, match="expected HOST:PORT"):
            address_of(wrong)


HOSTILE = (
    b"",
    b"{",
    b"null",
    b'["job"]',
    b'["job", 1000000000]',
    b'["job", -1]',
    b"\xff",
    b"[" * 9999,
)


def test_a_store_that_anyone_may_write_to(gradweave, here, refused):
    made: Any = dist
    store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    address = f"127.0.0.1:{store.port}"
    for value in HOSTILE:
        store.set(JOB, value)
        said = refused("job", "watch", address, "--once", status=1)
        assert "the job: not what a rank of this job writes" in said
    store.set(JOB, json.dumps(["job", RANKS]))
    ours = PrefixStore("gradweave monitor", PrefixStore("job", store))
    for rank, value in enumerate(HOSTILE[:RANKS]):
        ours.set(f"stand {rank}", value)
    answer = gradweave("job", "watch", address, "--once", "--every", 0.1, "--output", "w.html")
    assert answer.status == 0 and "0 ranks, of which 0" in answer.stdout, answer


def test_records_that_anyone_may_write(job: Job, monkeypatch: pytest.MonkeyPatch):
    written = kept(job.recorders[1], 1, RANKS, machine()).written()
    answers = iter((b"{", written, kept(job.recorders[2], 2, RANKS, machine()).written()))
    monkeypatch.setattr(jobs, "value_of", lambda store, key: next(answers))
    asked, found = jobs.Job.__new__(jobs.Job), {}
    asked.size, asked._store = RANKS, job.store
    asked._collect("a", found)
    assert sorted(found) == [1, 2]  # rank 0 has no record
    monkeypatch.setattr(jobs, "value_of", lambda store, key: written)
    found.clear()
    asked._collect("a", found)
    assert sorted(found) == [1]  # the other records belong to other ranks than their keys say
