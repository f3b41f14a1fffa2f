"""The backend gradweave of torch.distributed: who runs plans, from which call on, what is kept."""

import dataclasses
import datetime
import json
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import gradweave as gw
from gradweave.errors import OptionError, RunError, ScheduleError
from gradweave.schedule import Job, Schedule, demand_of
from gradweave.schedulers import RecursiveDoubling, Ring
from gradweave.schedulers.demands.textbook import Direct
from tests.execute.launch import run

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402

from gradweave.torch import NAME, calls, choice, register  # noqa: E402
from gradweave.torch import agreement as agreements  # noqa: E402
from gradweave.torch.calls import AllReduce, SizeClass  # noqa: E402
from gradweave.torch.choice import Choices, Stage  # noqa: E402
from gradweave.torch.plans import Sources, planned  # noqa: E402
from gradweave.torch.progress import Progress, handover_s  # noqa: E402
from gradweave.torch.settings import Settings  # noqa: E402

EXACT = ("ddp", "fsdp2", "hsdp", "tensor_parallel", "pipeline", "others")


def settings(folder: Path, **given: Any) -> Settings:
    return Settings(**{"plans": (), "topology": None, "runtime": "gloo", "cache": folder} | given)


def agreed(ranks: int, of: Settings, ranks_in_group: list[int] | None = None) -> list[bool]:
    """Which of a group's ranks run plans, by a store that threads share."""
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    found = [False] * ranks

    def rank(number: int) -> None:
        options = types.SimpleNamespace(
            store=store,
            group_rank=number,
            group_size=ranks,
            global_ranks_in_group=ranks_in_group or [],
        )
        found[number] = agreements.agreement(options, of).plans

    threads = [
        threading.Thread(target=rank, args=(number,), name=str(number)) for number in range(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_the_name_is_registered_once():
    before = list(dist.Backend.backend_list)
    register()
    assert dist.Backend.backend_list == before and before.count(NAME) == 1
    assert dist.is_backend_available("gradweave") and dist.is_backend_available("cpu:gradweave")


def test_the_environment():
    assert not Settings.of({"GRADWEAVE_PLAN": ""}).wanted
    made = Settings.of({"GRADWEAVE_TOPOLOGY": "star:n=4", "GRADWEAVE_CACHE": "/plans"})
    assert made.wanted and made.topology == "star:n=4" and made.runtime == "gloo"
    assert made.cache == Path("/plans") and not made.plans
    assert Settings.of({"XDG_CACHE_HOME": "/c"}).cache == Path("/c/gradweave/plans")


def test_all_ranks_do_as_rank_0_says(tmp_path: Path, lines: list[str]):
    assert agreed(3, settings(tmp_path)) == [False] * 3
    assert agreed(3, settings(tmp_path, topology="star:n=3")) == [True] * 3
    assert not lines


def test_one_line_where_there_can_be_no_plans(tmp_path: Path, lines: list[str]):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for wrong, said in (
        ({"topology": "star:n=4"}, "star:n=4 has 4 servers, the job 3 processes"),
        ({"topology": "nowhere.graphml"}, "nowhere.graphml"),
        ({"plans": (broken,)}, "broken.json"),
    ):
        assert agreed(3, settings(tmp_path, **wrong)) == [False] * 3
        assert len(lines) == 1 and said in lines.pop(), lines


def test_smaller_groups_have_plans_of_their_own(tmp_path: Path, lines: list[str]):
    of = settings(tmp_path, topology="star:n=4")
    assert agreed(4, of) == [True] * 4
    assert agreed(2, of, [1, 3]) == [True] * 2
    assert agreed(2, of, [3, 1]) == [True] * 2 and not lines
    other = settings(tmp_path, topology="star:n=5")
    assert agreed(4, other) == [False] * 4 and len(lines) == 1


def test_the_network_of_a_group(tmp_path: Path):
    of = settings(tmp_path, topology="torus:3x3")
    plans = Sources.read(of).of_group(9, [0, 1, 2], order=[8, 7, 6, 5, 4, 3, 2, 1, 0])
    assert plans.network is not None and plans.network.num_servers == 3
    assert plans.network.num_links == 3  # a row is a ring
    ring = Ring().schedule(gw.topology.ring(9))
    ring.save(tmp_path / "ring.json")
    sources = Sources.read(settings(tmp_path, plans=(tmp_path / "ring.json",)))
    given = sources.of_group(9)
    assert given.find(SizeClass("all_reduce", 8), threading.Event()) is not None
    assert given.find(SizeClass("all_gather", 8), threading.Event()) is None
    assert not sources.of_group(9, [0, 1, 2]).any


def test_other_versions_and_other_hosts(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
):
    labelled = tmp_path / "network.json"
    net = gw.topology.star(2)
    names = ("node1", "node2", "switch")
    gw.topology.save(dataclasses.replace(net, labels=names), labelled)
    abouts: list[dict[str, str]] = []

    def about() -> dict[str, str]:
        return abouts[int(threading.current_thread().name)]

    monkeypatch.setattr(agreements, "_about", about)

    def tried(versions: str, hosts: list[str]) -> list[bool]:
        abouts[:] = [{"version": v, "host": h} for v, h in zip(versions, hosts, strict=True)]
        return agreed(2, settings(tmp_path, topology=str(labelled)))

    for versions, hosts, said in (
        ("12", ["a", "a"], "has Gradweave"),
        ("11", ["node1", "node3"], "rank 1 runs on host node3"),
    ):
        assert tried(versions, hosts) == [False, False]
        assert len(lines) == 1 and said in lines.pop(), lines
    assert tried("11", ["node2", "node1"]) == [True, True] and not lines
    assert agreements._default is not None and agreements._default.order == [1, 0]


def test_a_network_is_measured_once_for_its_hosts(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
):
    of = settings(tmp_path / "cache", topology="measure")
    gw.topology.save(gw.topology.complete(3), tmp_path / "found.json")
    taken: list[int] = []

    class Child(subprocess.Popen[str]):
        """Of rank 0 it leaves a network, in place of measuring one."""

        def __init__(self, command: list[str], env: dict[str, str], **given: Any) -> None:
            taken.append(int(env["RANK"]))
            assert command[2:4] == ["gradweave", "measure"] and env["WORLD_SIZE"] == "3"
            wanted = env["RANK"] == "0" and fails is False
            copy = ("cp", str(tmp_path / "found.json"), command[4])
            super().__init__(copy if wanted else ("false",), **given)

    monkeypatch.setattr(subprocess, "Popen", Child)
    fails = True
    assert agreed(3, of) == [False] * 3 and sorted(taken) == [0, 1, 2]
    assert len(lines) == 1 and "GRADWEAVE_TOPOLOGY=measure: " in lines.pop()
    fails = False
    assert agreed(3, of) == [True] * 3 and len(taken) == 6
    assert agreements._default is not None and agreements._default.network
    assert agreed(3, of) == [True] * 3 and len(taken) == 6  # an earlier job has kept it
    assert agreed(2, of, [0, 2]) == [True] * 2 and not lines


def test_a_job_on_some_of_a_clusters_hosts(tmp_path: Path):
    hosts = tmp_path / "ours.hosts"
    hosts.write_text("".join(f"rack{n % 2}:node{n}\n" for n in range(8)))
    sources = Sources.read(settings(tmp_path, topology=str(hosts)))
    assert sources.network is not None
    names = ["node6", "node1", "node3", "node4"]
    order = sources.order(names)
    assert order is not None and [sources.network.label(place) for place in order] == names
    plans = sources.of_group(4, order=order)
    assert plans.network is not None
    assert [plans.network.label(server) for server in plans.network.servers] == names
    of_two = sources.of_group(4, [1, 2], order).network  # both in one rack: its switch alone
    assert of_two is not None and of_two.num_links == 2
    assert [of_two.label(server) for server in of_two.servers] == ["node1", "node3"]
    with pytest.raises(OptionError, match="8 servers, the job 4 processes"):
        sources.of_group(4)


def test_plans_are_kept_by_network_collective_and_size(tmp_path: Path, lines: list[str]):
    def plans(folder: Path, network: str = "star:n=4") -> Any:
        return Sources.read(settings(folder, topology=network)).of_group(4)

    of, made = SizeClass("all_reduce", 4096), plans(tmp_path)
    plan = Ring().schedule(made.network)
    assert made.kept(of) is None
    made.keep(plan, of)
    kept = plans(tmp_path).kept(of)
    assert isinstance(kept, Schedule) and kept.num_transfers == plan.num_transfers
    for other in (SizeClass("all_reduce", 8192), SizeClass("all_gather", 4096)):
        assert made.kept(other) is None
    assert plans(tmp_path, "complete:n=4").kept(of) is None
    Ring().schedule(gw.topology.complete(4)).save(made.file(of))
    assert made.kept(of) is None and "plan of another network" in lines.pop()
    made.file(of).write_text("{")
    assert made.kept(of) is None and "made anew" in lines.pop()
    (tmp_path / "file").write_text("")
    plans(tmp_path / "file").keep(plan, of)
    assert "the plan is not kept" in lines.pop()


def test_plans_are_searched_for_on_the_groups_network(tmp_path: Path):
    of = settings(tmp_path, topology="torus:2x4")
    plans = Sources.read(of).of_group(8, [0, 2, 4, 6])
    for collective in ("all_gather", "reduce_scatter"):
        plan = plans.find(SizeClass(collective, 1 << 16), threading.Event())
        assert plan is not None and plan.collective == collective
        ranks = plan.topology.rank[plan.root].tolist()
        assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2, 3}
    assert len(list(tmp_path.iterdir())) == 2


def test_plans_of_demands(tmp_path: Path):
    of = settings(tmp_path, topology="complete:n=3")
    plans = Sources.read(of).of_group(3)
    wanted = SizeClass("reduce", 1 << 10, root=2)
    plan = plans.find(wanted, threading.Event())
    assert plan is not None and planned(plan) == "reduce" and plans.kept(wanted) is not None
    plans.file(wanted).rename(plans.file(wanted._replace(root=1)))
    assert plans.kept(wanted._replace(root=1)) is None
    net = gw.topology.complete(3)
    uneven = [Job("all_to_all", [[0, 8, 16], [8, 0, 8], [8, 8, 0]]), Job("gather", 24, root=0)]
    for job in (*uneven, Job("broadcast", 8, [0, 1], root=0)):
        with pytest.raises(ScheduleError, match="expected a plan of one of all_reduce, reduce_sca"):
            planned(Direct().schedule(net, demand_of(net, [job])))


def test_calls_that_plans_of_demands_run():
    four, options = torch.ones(4, 2), dist.BroadcastOptions()
    assert calls.all_to_all(2, torch.empty(4, 2), four, [], []) is not None
    for sizes in ([2, 2], [1, 3]):  # which other ranks may have unequal
        assert calls.all_to_all(2, torch.empty(4, 2), four, sizes, []) is None
    assert calls.all_to_all(3, torch.empty(4, 2), four, [], []) is None
    assert calls.all_to_all(2, torch.empty(2, 2), four, [], []) is None
    options.rootRank = 1
    call = calls.broadcast([four], options)
    assert call is not None and SizeClass.of(call) == ("broadcast", 32, 1)
    assert calls.broadcast([four.T], options) is None
    assert calls.reduce([four > 0], dist.ReduceOptions()) is None


def test_what_a_plan_can_run():
    def asked(tensors: Any, operation: Any) -> str | None:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        call = calls.all_reduce(tensors, options)
        return call and call.reduction

    ones = torch.ones(4, 4)
    with torch.inference_mode():
        inference = torch.ones(3)
    assert asked([ones], dist.ReduceOp.SUM) == "sum"
    assert asked([ones.bfloat16()], dist.ReduceOp.AVG) == "mean"
    assert asked([ones.long()], dist.ReduceOp.MAX) == "max"
    for tensors, operation in (
        ([ones.long()], dist.ReduceOp.AVG),
        ([ones], dist.ReduceOp.PRODUCT),
        ([ones.bool()], dist.ReduceOp.MAX),
        ([ones.T[:2]], dist.ReduceOp.SUM),
        ([ones, ones], dist.ReduceOp.SUM),
        ([ones[:0]], dist.ReduceOp.SUM),
        ([ones.to_sparse()], dist.ReduceOp.SUM),
        ([ones.to("meta")], dist.ReduceOp.SUM),
        ([inference], dist.ReduceOp.SUM),
    ):
        assert asked(tensors, operation) is None
    assert calls.all_reduce(ones, dist.ReduceOp.SUM) is None


def test_what_plans_of_a_stage_can_run():
    whole, part = torch.ones(8), torch.ones(2)
    options: Any = dist.ReduceScatterOptions()
    assert calls.all_gather(4, whole, part) and calls.all_gather(4, whole.bool(), part.bool())
    scatter = calls.reduce_scatter(4, part, whole, options)
    assert scatter and scatter.reduction == "sum" and scatter.result is part
    for servers, one, other in (
        (3, whole, part),
        (4, whole, part.double()),
        (4, whole.view(4, 2).T, part),
        (4, whole[:0], part[:0]),
    ):
        assert calls.all_gather(servers, one, other) is None
        assert calls.reduce_scatter(servers, other, one, options) is None
    assert calls.reduce_scatter(4, part.bool(), whole.bool(), options) is None
    options.reduceOp = dist.ReduceOp.PRODUCT
    assert calls.reduce_scatter(4, part, whole, options) is None


KIB = SizeClass("all_reduce", 1024)
CALL = AllReduce(torch.ones(250), "sum")


class Rank:
    """One rank's choices, whose votes are counted with those of all others."""

    def __init__(self, votes: list[list[Any]]) -> None:
        self._votes, self._cast = votes, 0
        self.states: dict[SizeClass, int] = {}
        self.made: Any = lambda tensor, reduction: None
        self.channel = (None,)
        self.choices = Choices(self, self)  # type: ignore[arg-type]

    def allreduce(self, tensors: list[Any], options: Any) -> Any:
        if len(self._votes) == self._cast:
            self._votes.append([])
        vote = self._votes[self._cast]
        self._cast += 1
        vote.append(tensors[0])

        def wait() -> None:
            least = torch.stack(vote).amin(0)
            tensors[0].copy_(least)

        return types.SimpleNamespace(wait=wait)

    def want(self, of: SizeClass) -> None:
        self.states[of] = 0

    def state(self, of: SizeClass) -> int:
        return self.states[of]

    def plan(self, of: SizeClass) -> Any:
        return self.made

    def rank(self) -> int:
        return 1


def test_a_plan_is_taken_up_at_the_same_call(monkeypatch: pytest.MonkeyPatch):
    votes: list[list[Any]] = []
    ranks = [Rank(votes) for _ in range(3)]

    def call() -> list[bool]:
        return [rank.choices.of(CALL) is not None for rank in ranks]

    by_plan = []
    for number in range(60):
        for rank, ready in zip(ranks, (2, 13, 20), strict=True):
            if number == ready:
                rank.states[KIB] = 1
        found = call()
        assert len(set(found)) == 1
        by_plan.append(found[0])
        if by_plan[-1] and number == 40:
            for rank in ranks:
                rank.choices._classes[KIB].trial.decided = True  # type: ignore[union-attr]
    first = by_plan.index(True)
    assert first == 24 + choice.VOTE_FOR and all(by_plan[first:])
    assert [rank.choices.listed()[0].stage for rank in ranks] == [Stage.PLAN] * 3
    asked = len(votes)
    call()
    assert len(votes) == asked  # nothing is left to vote on


@pytest.mark.parametrize("refused", [True, False])
def test_where_a_rank_cannot_run_it_or_gloo_is_as_fast(refused: bool):
    votes: list[list[Any]] = []
    ranks = [Rank(votes) for _ in range(2)]
    if not refused:
        for rank in ranks:
            rank.made = None
    for number in range(20):
        found = [rank.choices.of(AllReduce(torch.ones(2), "sum")) for rank in ranks]
        assert found == [None, None]
        if number == 1:
            of = SizeClass("all_reduce", 8)
            ranks[0].states[of], ranks[1].states[of] = 1, -1 if refused else 1
    assert ranks[0].choices.listed()[0].stage is Stage.OWN and len(votes) == 2


class Gloo:
    """Takes half a millisecond for an all-reduce."""

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return types.SimpleNamespace(wait=lambda: self.clock.advance(0.5e-3))

    def size(self) -> int:
        return 2

    clock: Any


@pytest.mark.parametrize(("plan_s", "taken"), [(0.4e-3, True), (0.47e-3, False), (2e-3, False)])
def test_the_slower_is_left(plan_s: float, taken: bool, monkeypatch: pytest.MonkeyPatch):
    now = 0.0

    class Clock:
        @staticmethod
        def advance(seconds: float) -> None:
            nonlocal now
            now += seconds

    monkeypatch.setattr(choice.time, "perf_counter", lambda: now)
    monkeypatch.setattr(choice, "handover_s", lambda: 0.01e-3)
    Gloo.clock = Clock

    def plan(tensor: Any, reduction: str = "sum") -> None:
        Clock.advance(plan_s)

    trial = choice.Trial(plan, Gloo())  # type: ignore[arg-type]
    for _ in range(choice.TRIAL):
        assert not trial.decided
        trial.run(CALL)
    assert trial.decided and trial.takes_plan is taken
    assert trial.plan_s == pytest.approx(plan_s + 0.01e-3) and trial.own_s == pytest.approx(0.5e-3)


def test_what_a_caller_waits_for():
    progress, begin = Progress(), threading.Event()
    ones = torch.ones(3, requires_grad=True)

    def doubled() -> None:
        begin.wait()
        ones.mul_(2)

    def increased() -> None:
        ones.add_(1)

    first, second = progress.start(ones, doubled), progress.start(ones, increased)
    assert not first.is_completed() and not second.is_success()
    with pytest.raises(RuntimeError, match="not complete after"):
        first.wait(datetime.timedelta(milliseconds=1))
    begin.set()
    assert second.wait() and first.is_success() and ones.tolist() == [3, 3, 3]
    assert second.get_future().wait() == [ones] == second.result()
    assert 0 < handover_s() < 1


def test_the_error_of_a_collective():
    def fails() -> None:
        raise RunError("lost server 2")

    failed = Progress().start(torch.ones(1), fails)
    with pytest.raises(RunError, match="lost server 2"):
        failed.wait()
    assert failed.is_completed() and not failed.is_success()
    with pytest.raises(RuntimeError, match="lost server 2"):
        failed.get_future().wait()


@pytest.mark.slow
def test_examples_train_as_under_gloo(tmp_path: Path):
    """DDP, FSDP2, HSDP, tensor and pipeline parallelism; the examples are `torch_backend_cases`."""
    net = gw.topology.complete(4)
    RecursiveDoubling().schedule(net).save(tmp_path / "plan-0.json")
    for stage in ("all_gather", "reduce_scatter"):
        Ring().schedule(net, collective=stage).save(tmp_path / f"plan-{stage}.json")
    for job in (Job("all_to_all", 64), Job("broadcast", 64, root=1), Job("reduce", 64, root=2)):
        plan = Direct().schedule(net, demand_of(net, [job]))
        plan.save(tmp_path / f"plan-{job.collective}.json")
    module = (sys.executable, "-m", "tests.execute.torch_backend_cases", str(tmp_path), "4")
    status, output = run([*module, *EXACT], tmp_path)
    assert status == 0, output
    for example in EXACT:
        own, ours = (
            json.loads((tmp_path / f"{example}-{backend}.json").read_text())
            for backend in ("gloo", NAME)
        )
        assert ours["losses"] == pytest.approx(own["losses"], rel=1e-5), example
        assert len(set(ours["digests"])) == 1 and not own["by_plan"]

    def ran(example: str) -> list[list[Any]]:
        return json.loads((tmp_path / f"{example}-{NAME}.json").read_text())["by_plan"]

    assert ["all_reduce", 1 << 15] in ran("ddp")  # the bucket of all gradients
    assert {kind for kind, _ in ran("fsdp2")} >= {"all_gather", "reduce_scatter"}
    assert sorted(ran("others")) == [[one, 512] for one in ("all_to_all", "broadcast", "reduce")]
