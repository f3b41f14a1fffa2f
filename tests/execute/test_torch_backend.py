"""The backend gradweave of torch.distributed: who runs plans, from which call on, what is kept."""

import dataclasses
import datetime
import itertools
import json
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import gradweave as gw
from gradweave.errors import InputWarning, LostServerError, OptionError, RunError, ScheduleError
from gradweave.schedulers import RecursiveDoubling, Ring
from gradweave.schedulers.textbook.runtimes import Direct
from gradweave.schedules import Job, Schedule, demand_of
from tests.execute.launch import run

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._functional_collectives import AsyncCollectiveTensor  # noqa: E402

from gradweave.torch import agreement as agreements  # noqa: E402
from gradweave.torch import calls, choice, measuring, register, trial  # noqa: E402
from gradweave.torch.awaited import AwaitedWork  # noqa: E402
from gradweave.torch.calls import AllReduce, SizeClass  # noqa: E402
from gradweave.torch.choice import Choices, Stage  # noqa: E402
from gradweave.torch.equal_parts import EqualParts  # noqa: E402
from gradweave.torch.group import PlannedGroup, RecordedPlannedGroup  # noqa: E402
from gradweave.torch.plans import Sources, planned  # noqa: E402
from gradweave.torch.progress import PlannedWork, Progress, handover_s  # noqa: E402
from gradweave.torch.recorded import RecordedGroup  # noqa: E402
from gradweave.torch.settings import Settings  # noqa: E402
from gradweave.torch.trial import Trial  # noqa: E402
from gradweave.torch.wrapper import METHODS, GroupWrapper  # noqa: E402

EXACT = (
    "ddp",
    "fsdp2",
    "hsdp",
    "tensor_parallel",
    "pipeline",
    "compiled",
    "compiled_ddp",
    "others",
)


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
    assert dist.Backend.backend_list == before and before.count("gradweave") == 1
    assert dist.is_backend_available("gradweave") and dist.is_backend_available("cpu:gradweave")


@pytest.mark.parametrize("default", ["1", "0"])
def test_programs_that_ask_for_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str):
    """With two ranks; the ways to ask are those of `torch_default_cases`."""
    monkeypatch.setenv("GRADWEAVE_DEFAULT", default)
    monkeypatch.setenv("GRADWEAVE_TOPOLOGY", "star:n=2")
    monkeypatch.setenv("GRADWEAVE_CACHE", str(tmp_path))
    module = (sys.executable, "-m", "tests.execute.torch_default_cases", str(tmp_path))
    status, output = run(module, tmp_path)
    assert status == 0, output
    found = json.loads((tmp_path / "found.json").read_text())
    ours, gloo = ["PlannedGroup", "gloo"], ["ProcessGroup", "gloo"]
    others = dict.fromkeys(
        ("gloo", "keyword", "none", "mesh", "devices"), (gloo, ours)[default == "1"]
    )
    assert found == {**others, "map": ours}


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
        ({"topology": "star:n=4"}, "star:n=4 has 4 servers, but the job has 3 processes"),
        ({"topology": "nowhere.graphml"}, "nowhere.graphml"),
        ({"plans": (broken,)}, "broken.json"),
        ({"topology": "star:n=3", "runtime": "glo"}, "GRADWEAVE_RUNTIME: runtime: "),
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
    assert given.find(SizeClass("all_reduce", 8)) is not None
    assert given.find(SizeClass("all_gather", 8)) is None
    assert not sources.of_group(9, [0, 1, 2]).any


def test_other_versions_and_other_hosts(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
):
    labelled = tmp_path / "network.json"
    net = gw.topology.star(2)
    names = ("node1", "node2", "switch")
    gw.topology.save(dataclasses.replace(net, labels=names), labelled)
    abouts: list[agreements._About] = []

    def about() -> agreements._About:
        return abouts[int(threading.current_thread().name)]

    monkeypatch.setattr(agreements, "_about", about)

    def tried(versions: str, hosts: list[str]) -> list[bool]:
        abouts[:] = [agreements._About(h, v) for v, h in zip(versions, hosts, strict=True)]
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

        def __init__(self, command: list[str], env: Any = None, **given: Any) -> None:
            if env is None:  # the process that clears up
                super().__init__(command, **given)
                return
            taken.append(int(env["RANK"]))
            assert command[1:3] == ["-m", "gradweave.probe"] and env["WORLD_SIZE"] == "3"
            wanted = env["RANK"] == "0" and fails is False
            copy = ("cp", str(tmp_path / "found.json"), command[3])
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


def test_a_network_that_cannot_be_kept_costs_a_line(tmp_path: Path, lines: list[str]):
    (tmp_path / "file").write_text("")
    measuring._keep("{}", tmp_path / "file" / "networks" / "measured.json")
    assert len(lines) == 1 and "GRADWEAVE_CACHE: the network is not kept: " in lines[0]


def test_a_job_on_some_of_a_clusters_hosts(tmp_path: Path):
    hosts = tmp_path / "ours.hosts"
    hosts.write_text("".join(f"rack{n % 2}:node{n}\n" for n in range(8)))
    with pytest.warns(InputWarning, match="no switch joins rack0, rack1"):
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
    with pytest.raises(OptionError, match="8 servers, but the job has 4 processes"):
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
    assert made.kept(of) is None and "created again" in lines.pop()
    (tmp_path / "file").write_text("")
    blocked = plans(tmp_path / "file")
    assert "GRADWEAVE_CACHE: plans are not kept: " in lines.pop()  # when the job begins
    for size in (4096, 8192):
        blocked.keep(plan, SizeClass("all_reduce", size))
    plans(tmp_path / "file")
    assert not lines  # and once only


def test_plans_are_searched_for_on_the_groups_network(tmp_path: Path):
    of = settings(tmp_path, topology="torus:2x4")
    plans = Sources.read(of).of_group(8, [0, 2, 4, 6])
    for collective in ("all_gather", "reduce_scatter"):
        plan = plans.find(SizeClass(collective, 1 << 16))
        assert plan is not None and plan.collective == collective
        ranks = plan.topology.rank[plan.root].tolist()
        assert ranks == sorted(ranks) and set(ranks) == {0, 1, 2, 3}
    assert len(list(tmp_path.iterdir())) == 2


def test_plans_of_demands(tmp_path: Path):
    of = settings(tmp_path, topology="complete:n=3")
    plans = Sources.read(of).of_group(3)
    wanted = SizeClass("reduce", 1 << 10, root=2)
    plan = plans.find(wanted)
    assert plan is not None and planned(plan) == "reduce" and plans.kept(wanted) is not None
    plans.file(wanted).rename(plans.file(wanted._replace(root=1)))
    assert plans.kept(wanted._replace(root=1)) is None
    net = gw.topology.complete(3)
    uneven = [Job("all_to_all", [[0, 8, 16], [8, 0, 8], [8, 8, 0]]), Job("gather", 24, root=0)]
    for job in (*uneven, Job("broadcast", 8, [0, 1], root=0)):
        with pytest.raises(ScheduleError, match="expected a plan of one of all_reduce, reduce_sca"):
            planned(Direct().schedule(net, demand_of(net, [job])))


def test_calls_that_plans_of_demands_run():
    four, two = torch.ones(4, 2), torch.empty(2, 2)
    for servers, output, sizes, equal in (
        (2, four, ([], []), True),
        (2, four, ([2, 2], []), True),
        (2, four, ([2, 2], [1, 3]), False),
        (3, four, ([], []), False),
        (2, two, ([], []), False),
        (2, four[:0], ([], [0, 0]), False),
        (2, four.double(), ([], []), False),
    ):
        call = calls.all_to_all(servers, torch.empty_like(output), four, *sizes)
        assert call is not None and call.equal is equal and not call.fits
    options = dist.BroadcastOptions()
    options.rootRank = 1
    for given in ((four, 1), ([four.T], options), ([four[:, :1].expand(4, 2)], options)):
        call = calls.broadcast(*given)
        assert call is not None and SizeClass.of(call) == SizeClass("broadcast", 32, 1)
    assert calls.reduce([four > 0], dist.ReduceOptions()) is None
    call = calls.reduce(four, 1, dist.ReduceOp.MAX)
    assert call is not None and (call.root, call.reduction) == (1, "max")


class Told:
    """The gloo of one of two ranks, which answers votes with the other rank's ballots."""

    def __init__(self, *ballots: list[int]) -> None:
        self.ballots = list(ballots)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        assert options.reduceOp == dist.ReduceOp.MIN
        torch.minimum(tensors[0], torch.tensor(self.ballots.pop(0)), out=tensors[0])
        return types.SimpleNamespace(wait=lambda: None)


def test_ranks_agree_on_the_size_of_parts():
    def call(sizes: list[int]) -> calls.AllToAll:
        made = calls.all_to_all(2, torch.empty(4), torch.ones(4), sizes, sizes)
        assert made is not None
        return made

    equal, unequal, wanted = call([]), call([1, 3]), SizeClass("all_to_all", 16)
    # A call in eight is voted on, and the vote is counted four calls later: the other rank's parts
    # are unequal at first, then those of this rank.
    told: Any = Told([0, 0], [16, -16], [32, -32], [16, -16])
    parts = EqualParts(told)
    at = [equal] * 8 + [unequal] + [equal] * 20
    found = [parts.of(one) for one in at]
    assert found == [None] * 28 + [wanted] and not told.ballots
    assert parts.of(equal) == wanted and equal.fits
    assert parts.of(unequal) == wanted and not unequal.fits
    larger = calls.all_to_all(2, torch.empty(8), torch.ones(8))
    assert larger is not None and parts.of(larger) == wanted and not larger.fits


def test_what_a_plan_can_run():
    def asked(tensors: Any, operation: Any) -> str | None:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        call = calls.all_reduce(tensors, options)
        return call and call.reduction

    ones = torch.ones(4, 4)
    with torch.inference_mode():
        inference = torch.ones(3)
    for local in (inference, ones.T[:2], torch.nn.Parameter(ones), ones[:1].expand(4, 4)):
        assert asked([local], dist.ReduceOp.SUM) == "sum"  # other ranks may have another kind
    assert asked([ones], dist.ReduceOp.SUM) == "sum"
    assert asked([ones.bfloat16()], dist.ReduceOp.AVG) == "mean"
    assert asked([ones.long()], dist.ReduceOp.MAX) == "max"
    for tensors, operation in (
        ([ones.long()], dist.ReduceOp.AVG),
        ([ones], dist.ReduceOp.PRODUCT),
        ([ones.bool()], dist.ReduceOp.MAX),
        ([ones, ones], dist.ReduceOp.SUM),
        ([ones[:0]], dist.ReduceOp.SUM),
        ([ones.to_sparse()], dist.ReduceOp.SUM),
        ([ones.to("meta")], dist.ReduceOp.SUM),
        (FakeTensorMode().from_tensor(ones), dist.ReduceOp.SUM),
    ):
        assert asked(tensors, operation) is None
    for given in ((ones,), ((ones,), dist.ReduceOp.SUM), ([ones], dist.AllreduceOptions())):
        call = calls.all_reduce(*given)
        assert call is not None and call.whole is ones and call.reduction == "sum"
    wrapped = AsyncCollectiveTensor(ones)
    call = calls.all_reduce(wrapped, op=dist.ReduceOp.MIN)
    assert call is not None and call.whole is ones and call.reduction == "min"


def test_what_plans_of_a_stage_can_run():
    whole, part = torch.ones(8), torch.ones(2)
    options: Any = dist.ReduceScatterOptions()
    assert calls.all_gather(4, whole, part) and calls.all_gather(4, whole.bool(), part.bool())
    scatter = calls.reduce_scatter(4, part, whole, options)
    assert scatter and scatter.reduction == "sum" and scatter.result is part
    assert calls.reduce_scatter(4, part, whole) and calls.all_gather(4, whole.view(4, 2).T, part)
    for servers, one, other in (
        (3, whole, part),
        (4, whole, part.double()),
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

    def __init__(self, votes: list[list[Any]], number: int = 1) -> None:
        self._votes, self._cast, self._number = votes, 0, number
        self.states: dict[SizeClass, int] = {}
        self.weights: dict[SizeClass, Any] = {}
        self.made: Any = object()
        self.channel = (None, None)
        self.changes: Any = None
        self.choices = Choices(self, self)  # type: ignore[arg-type]

    def allreduce(self, tensors: list[Any], options: Any) -> Any:
        if len(self._votes) == self._cast:
            self._votes.append([])
        vote = self._votes[self._cast]
        self._cast += 1
        vote.append(tensors[0])
        combine = torch.amin if options.reduceOp == dist.ReduceOp.MIN else torch.amax

        def wait() -> None:
            tensors[0].copy_(combine(torch.stack(vote), 0))

        return types.SimpleNamespace(wait=wait)

    def want(self, of: SizeClass, weight: Any) -> None:
        self.states.setdefault(of, 0)
        self.weights[of] = weight

    def unwant(self, of: SizeClass) -> None:
        del self.weights[of]

    def state(self, of: SizeClass) -> int:
        return self.states[of]

    def plan(self, of: SizeClass) -> Any:
        return self.made

    def rank(self) -> int:
        return self._number


def decide(rank: Rank, of: SizeClass, best: Any) -> None:
    """Ends the trial of a class, as its last call does."""
    made = rank.choices._classes[of].trial
    assert made is not None
    made.best, made.decided = best, True
    made.seconds = {each: 1.0 if each is best else 2.0 for each in made._candidates}


def called(ranks: list[Rank], call: Any = CALL) -> bool:
    """One call of all ranks; returns whether it went to a plan or its trial, as at all ranks."""
    (found,) = {rank.choices.of(call) is not None for rank in ranks}
    return found


def test_a_plan_is_taken_up_at_the_same_call():
    votes: list[list[Any]] = []
    ranks = [Rank(votes) for _ in range(3)]
    by_plan = []
    for number in range(1, 80):
        for rank, ready in zip(ranks, (12, 23, 30), strict=True):
            if number == ready:
                rank.states[KIB] = 1
        by_plan.append(called(ranks))
        if number == 60:
            assert [rank.choices.listed()[0].stage for rank in ranks] == [Stage.TRIAL] * 3
            for rank in ranks:
                decide(rank, KIB, rank.made)
    # Wanted at call 8; votes at 16 and, since that changed nothing, 16 calls after its count.
    first = by_plan.index(True) + 1
    assert first == 16 + choice.VOTE_FOR + 2 * choice.VOTE_EVERY + choice.VOTE_FOR
    assert all(by_plan[first - 1 :])
    assert [rank.choices.listed()[0].stage for rank in ranks] == [Stage.PLAN] * 3
    asked = len(votes)
    called(ranks)
    assert len(votes) == asked  # nothing is left to vote on


def test_a_plan_that_one_rank_lacks_is_not_taken_up():
    votes: list[list[Any]] = []
    ranks = [Rank(votes) for _ in range(3)]
    for _ in range(200):
        for rank in ranks[:2]:
            rank.states[KIB] = 1
        assert not called(ranks)
    assert len(votes) > 2 and ranks[0].choices.listed()[0].stage is Stage.WAITING


def test_calls_that_do_not_recur_get_no_plan():
    """DDP's broadcasts of parameters, and then an all-reduce for each of 3,000 steps."""
    votes: list[list[Any]] = []
    ranks = [Rank(votes) for _ in range(2)]
    few, many = (calls.Broadcast(torch.ones(size), 0) for size in (64, 1 << 12))
    for _ in range(choice.RECURS - 1):
        called(ranks, few)
    for _ in range(20):
        called(ranks, many)
    assert list(ranks[0].weights) == [SizeClass.of(many)]  # the few are not wanted
    before = len(votes)
    for _ in range(3000):
        called(ranks)
    stages = {one.size: one.stage for one in ranks[0].choices.listed()}
    assert stages == {256: Stage.RARE, 1 << 14: Stage.RARE, 1024: Stage.WAITING}
    assert list(ranks[1].weights) == [KIB]  # the many are not wanted any more
    assert len(votes) - before <= 3000 / choice.VOTE_MOST + 6
    for _ in range(choice.RECURS):
        called(ranks, many)
    assert SizeClass.of(many) in ranks[0].weights  # until they recur


def test_what_is_large_and_recurs_is_planned_first():
    rank = Rank([])
    large, small = AllReduce(torch.ones(1 << 12), "sum"), AllReduce(torch.ones(2), "sum")
    for call in (large, small):
        for _ in range(choice.RECURS):
            rank.choices.of(call)
    weight = {call.size: rank.weights[call] for call in rank.weights}
    assert weight[1 << 14]() > weight[8]()
    for _ in range(choice.LATELY - choice.RECURS):
        rank.choices.of(small)
    assert weight[1 << 14]().lately
    rank.choices.of(small)
    assert weight[1 << 14]() < weight[8]()  # since its calls seem to have ended


def test_what_has_ended_is_wanted_no_more():
    rank = Rank([])
    for _ in range(choice.RECURS):
        rank.choices.of(CALL)
    other = calls.Broadcast(torch.ones(64), 0)
    for number in range(1, choice.GIVEN_UP + 2):
        rank.choices._vote_at, rank.choices._vote = 0, None  # a vote at each call
        rank.choices.of(other)
        assert (KIB in rank.weights) is (number <= choice.GIVEN_UP)


@pytest.mark.parametrize("refused", [True, False])
def test_where_a_rank_cannot_run_it_or_gloo_is_as_fast(refused: bool):
    votes: list[list[Any]] = []
    ranks = [Rank(votes) for _ in range(2)]
    if not refused:
        for rank in ranks:
            rank.made = None
    of = SizeClass("all_reduce", 8)
    for number in range(60):
        assert not called(ranks, AllReduce(torch.ones(2), "sum"))
        if number == 22:
            ranks[0].states[of], ranks[1].states[of] = 1, -1 if refused else 1
    assert ranks[0].choices.listed()[0].stage is Stage.OWN and len(votes) == 2


class Plan:
    """A plan whose all-reduce takes a fixed time on a simulated clock."""

    def __init__(self, seconds: float, clock: list[float]) -> None:
        self._seconds, self._clock = seconds, clock

    def __call__(self, tensor: Any, reduction: str = "sum") -> None:
        self._clock[0] += self._seconds

    def attended(self, call: Any) -> None:
        call()


class Gloo:
    """Takes half a millisecond for an all-reduce."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def allreduce(self, tensors: Any, options: Any) -> Any:
        def wait() -> None:
            self._clock[0] += 0.5e-3

        return types.SimpleNamespace(wait=wait)

    def size(self) -> int:
        return 2


@pytest.mark.parametrize("candidates", [2, 3])
@pytest.mark.parametrize("cycles", [trial.SHORT_CYCLES, trial.CYCLES])
def test_a_trial_times_all_as_often_and_at_the_same_time_on_average(candidates: int, cycles: int):
    """So that it is fair while a network becomes slower; the first cycle does not count."""
    made = Trial([Plan(1.0, []) for _ in range(candidates)], None)  # type: ignore[list-item]
    length = 2 * candidates
    assert made.lengths == (trial.SHORT_CYCLES * length, trial.CYCLES * length)
    calls_of = [
        [call for call in range(length, cycles * length) if made._turn(call) == place]
        for place in range(candidates)
    ]
    (sums,) = {(len(each), sum(each)) for each in calls_of}
    assert sums[0] == 2 * (cycles - 1)


@pytest.mark.parametrize(
    ("plan_s", "taken", "timed"),
    [
        (0.4e-3, True, 16),
        (0.47e-3, False, 16),
        (0.9e-3, False, 16),
        (2e-3, False, 8),
        (0.2e-3, True, 8),
    ],
)
def test_the_slower_is_left(
    plan_s: float, taken: bool, timed: int, monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]
    monkeypatch.setattr(trial.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(trial, "handover_s", lambda: 0.01e-3)
    plan: Any = Plan(plan_s, clock)
    made = Trial([plan, None], Gloo(clock))
    for _ in range(timed):
        assert not made.decided
        made.run(CALL)
    assert made.decided and (made.best is plan) is taken
    assert made.seconds == {plan: pytest.approx(plan_s + 0.01e-3), None: pytest.approx(0.5e-3)}
    made.run(CALL)
    assert made.seconds[None] == pytest.approx(0.5e-3)  # it is over


@pytest.mark.parametrize(("new_s", "best"), [(0.5e-3, "new"), (0.96e-3, "old"), (3e-3, "old")])
def test_a_plan_replaces_another_only_if_it_is_clearly_faster(
    new_s: float, best: str, monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]
    monkeypatch.setattr(trial.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(trial, "handover_s", lambda: 0.0)
    plans: dict[str, Any] = {"new": Plan(new_s, clock), "old": Plan(1e-3, clock)}
    made = Trial([plans["new"], plans["old"]], Gloo(clock))
    while not made.decided:
        made.run(CALL)
    assert made.best is plans[best] and len(made.seconds) == 2


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


def write_plans(folder: Path) -> None:
    """One of each collective, for four ranks."""
    net = gw.topology.complete(4)
    RecursiveDoubling().schedule(net).save(folder / "plan-0.json")
    for stage in ("all_gather", "reduce_scatter"):
        Ring().schedule(net, collective=stage).save(folder / f"plan-{stage}.json")
    for job in (Job("all_to_all", 64), Job("broadcast", 64, root=1), Job("reduce", 64, root=2)):
        plan = Direct().schedule(net, demand_of(net, [job]))
        plan.save(folder / f"plan-{job.collective}.json")


def test_the_compiler_stays_out_of_groups_and_works():
    """DDP's reducer calls them while compiled code runs: see `wrapper.untraced`."""
    groups = (GroupWrapper, PlannedGroup, RecordedGroup, RecordedPlannedGroup)
    methods = [(made, name) for made in groups for name in METHODS if hasattr(made, name)]
    for made in (PlannedWork, AwaitedWork):
        methods += [(made, name) for name in ("wait", "get_future", "is_completed", "result")]
    seen = [getattr(getattr(made, name), "_torchdynamo_disable", False) for made, name in methods]
    assert all(seen) and len(seen) > 80


def test_ranks_may_differ_in_all_that_is_their_own(tmp_path: Path):
    """Layouts, inference mode, memory, sizes that are given; in the sequences of calls of
    `torch_mixed_cases`, of which 200 with the seed 1000 were tried."""
    write_plans(tmp_path)
    module = (sys.executable, "-m", "tests.execute.torch_mixed_cases", str(tmp_path), "4")
    status, output = run([*module, "6", "1000", "forced"], tmp_path)
    assert status == 0, output
    report = json.loads((tmp_path / "mixed-forced.json").read_text())
    by_plan = {kind for kind, _, stage in report["stages"] if stage == "PLAN"}
    assert by_plan == set(report["calls"]) - {"other"} and len(by_plan) == 6


def test_an_error_in_a_backward_pass_keeps_its_type():
    lost = LostServerError(7, 2, "its connection broke")

    def fails() -> None:
        raise lost

    progress, weight = Progress(), torch.ones(1, requires_grad=True)
    weight.register_hook(lambda gradient: progress.start(gradient, fails).get_future() and None)
    with pytest.raises(LostServerError) as raised:
        (2 * weight).sum().backward()
    assert raised.value is lost and raised.value.rank == 2


def test_a_lost_rank_is_caught_under_ddp(tmp_path: Path):
    """By its type, in processes; the job is `torch_lost_cases`."""
    Ring().schedule(gw.topology.ring(3)).save(tmp_path / "plan.json")
    status, output = run(
        (sys.executable, "-m", "tests.execute.torch_lost_cases", str(tmp_path)), tmp_path
    )
    assert status == 0, output
    for rank, hooked in itertools.product((0, 2), (False, True)):
        report = json.loads((tmp_path / f"{rank}-{hooked}.json").read_text())
        assert report == {"rank": 1, "step": 3}


@pytest.mark.slow
def test_examples_train_as_under_gloo(tmp_path: Path):
    """DDP, FSDP2, HSDP, tensor and pipeline parallelism; the examples are `torch_backend_cases`."""
    write_plans(tmp_path)
    module = (sys.executable, "-m", "tests.execute.torch_backend_cases", str(tmp_path), "4")
    status, output = run([*module, *EXACT], tmp_path)
    assert status == 0, output
    for example in EXACT:
        own, ours = (
            json.loads((tmp_path / f"{example}-{backend}.json").read_text())
            for backend in ("gloo", "gradweave")
        )
        assert ours["losses"] == pytest.approx(own["losses"], rel=1e-5), example
        assert len(set(ours["digests"])) == 1 and not own["by_plan"]

    def ran(example: str) -> list[list[Any]]:
        return json.loads((tmp_path / f"{example}-gradweave.json").read_text())["by_plan"]

    assert ["all_reduce", 1 << 15] in ran("ddp")  # the bucket of all gradients
    assert {kind for kind, _ in ran("fsdp2")} >= {"all_gather", "reduce_scatter"}
    assert sorted(ran("others")) == [[one, 512] for one in ("all_to_all", "broadcast", "reduce")]
