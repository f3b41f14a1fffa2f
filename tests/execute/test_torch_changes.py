"""Changes of the network during a job: noticed from rates, located on links, followed by plans."""

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.schedulers import Packed
from gradweave.schedulers.solving.variants import split
from gradweave.simulator.runtime import runtime_of
from gradweave.topology.faults import slowed

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

from gradweave.execute.torch_distributed.sockets import Connection  # noqa: E402
from gradweave.torch import call_class, changes, choice, plans  # noqa: E402
from gradweave.torch.call_class import Stage  # noqa: E402
from gradweave.torch.calls import AllReduce, SizeClass  # noqa: E402
from gradweave.torch.changes import Changes  # noqa: E402
from gradweave.torch.located import Flow, located, routes  # noqa: E402
from gradweave.torch.planner import Planner, Running  # noqa: E402
from gradweave.torch.plans import Plans  # noqa: E402
from gradweave.torch.predicted import COSTS, costlier, message_cost, plan_seconds  # noqa: E402
from gradweave.torch.rates import SentRates  # noqa: E402
from gradweave.torch.settings import Settings  # noqa: E402
from tests.execute.launch import run  # noqa: E402
from tests.execute.test_torch_backend import KIB, Rank, called, decide  # noqa: E402

MESSAGE = 1 << 20


class Line:
    """A connection to rank 1, and the rates of what it has sent."""

    def __init__(self) -> None:
        self.rates, self.now_s, self.bytes, self.busy_s = SentRates(), 0.0, 0, 0.0
        self.rates.use("as planned")

    def send(
        self, rate: float, seconds: float, *, idle: float = 0.5, delivered: float | None = None
    ) -> None:
        """Sends at a rate; `idle` is the fraction of the time without bytes to send."""
        for _ in range(round(seconds / 0.25)):
            self.now_s += 0.25
            busy_s = 0.25 * (1 - idle)
            self.bytes, self.busy_s = self.bytes + int(rate * busy_s), self.busy_s + busy_s
            known = rate if delivered is None else delivered
            end = Connection("a:1", "b:2", self.bytes, 0, 0, self.busy_s, 0.0, known)
            self.rates.sample(self.now_s, [end], {"b:2": 1})


def test_a_lasting_change_of_a_rate_is_seen():
    line = Line()
    line.send(1e7, 8.0)
    assert not line.rates.slower and not line.rates.faster
    line.send(0.25e7, 1.0 + 0.25)
    assert not line.rates.slower  # one window may be one late message
    line.send(0.25e7, 1.0)
    assert line.rates.slower and not line.rates.faster
    assert line.rates.ratios()[1] == pytest.approx(0.25, rel=0.05)
    line.rates.use("another plan")
    assert not line.rates.slower and not line.rates.ratios()
    line.rates.use("as planned")
    line.send(1e7, 3.0)
    assert not line.rates.slower and line.rates.ratios()[1] == pytest.approx(1.0, rel=0.05)
    line.send(2e7, 3.0)
    assert line.rates.faster


def test_what_is_no_change_of_the_network():
    line = Line()
    line.send(1e7, 8.0)
    line.send(1e7, 10.0, idle=0.97)  # ranks compute for longer
    assert not line.rates.slower
    # Rare messages: the time until the last acknowledgement counts as busy.
    line.send(0.4e7, 10.0, delivered=1e7)
    assert not line.rates.slower
    line.send(1e7, 10.0, delivered=30e7)  # a sample that is far too high
    assert not line.rates.faster
    random = np.random.default_rng(0)
    for _ in range(400):
        line.send(1e7 * random.uniform(0.8, 1.2), 0.25)
        assert not line.rates.slower and not line.rates.faster


def test_rates_that_vary_by_themselves():
    """As small messages on busy processors; then the link becomes far slower."""
    line, random = Line(), np.random.default_rng(1)
    line.send(1e7, 1.25)
    for rate in (0.5e7, 2e7, 1.2e7, 0.8e7):
        line.send(rate, 1.0)
    for _ in range(50):
        line.send(1e7 * random.uniform(0.5, 2.0), 1.0)
        assert not line.rates.slower and not line.rates.faster
    line.send(0.2e7, 3.0)
    assert line.rates.slower and line.rates.ratios()[1] == pytest.approx(0.2, rel=0.2)


def test_time_in_which_the_receiver_has_no_room_does_not_count():
    found, at = SentRates(), {"b:2": 1}
    found.use("as planned")
    busy_s = blocked_s = 0.0
    for tick in range(1, 80):
        slow = tick > 40  # the receiver reads at a quarter of the rate
        busy_s, blocked_s = busy_s + (0.24 if slow else 0.06), blocked_s + (0.18 if slow else 0.0)
        end = Connection("a:1", "b:2", tick * 600_000, 0, 0, busy_s, blocked_s, 1e7)
        found.sample(tick * 0.25, [end], at)
    assert found.ratios()[1] == pytest.approx(1.0, rel=0.05)


def flows(plan: gw.Schedule, now: gw.Topology, seed: int = 0) -> list[Flow]:
    """Rates as the narrowest links have them, 5 % off at random."""
    random, found = np.random.default_rng(seed), []
    before = plan.topology.bandwidth_bytes_per_s
    for links in routes(plan).values():
        ratio = now.bandwidth_bytes_per_s[links].min() / before[links].min()
        found.append(Flow(links, float(ratio * random.uniform(0.95, 1.05))))
    return found


NETWORKS = ["complete:5", "star:n=6", "torus:3x3", "fat_tree:k=4", "bcube:n=3,k=1", "dcell:n=3,k=1"]


@pytest.mark.parametrize("spec", NETWORKS)
@pytest.mark.parametrize("factor", [0.5, 0.25, 0.1])
def test_a_slow_link_is_located(spec: str, factor: float):
    network = gw.topology.from_spec(spec)
    plan = Packed(gradient_bytes=1e7).schedule(network)
    ends = int(network.source[3]), int(network.target[3])
    truth = slowed(network, {ends: factor}).topology
    found = located(network, flows(plan, truth))
    assert found is not None
    ratio = found.bandwidth_bytes_per_s / truth.bandwidth_bytes_per_s
    assert ratio == pytest.approx(np.ones(len(ratio)), rel=0.12)


def test_all_links_of_a_server_that_slowed_down():
    network = gw.topology.from_spec("torus:3x3")
    plan = Packed(gradient_bytes=1e7).schedule(network)
    links = {
        (4, int(b)): 0.25 for a, b in zip(network.source, network.target, strict=True) if a == 4
    }
    truth = slowed(network, links).topology
    found = located(network, flows(plan, truth))
    assert found is not None
    ratio = found.bandwidth_bytes_per_s / truth.bandwidth_bytes_per_s
    assert ratio == pytest.approx(np.ones(len(ratio)), rel=0.12)


def test_one_direction_if_the_other_is_known_to_be_as_before():
    network = gw.topology.complete(3)
    away, back = (network.find_links([a], [b]) for a, b in ((0, 1), (1, 0)))
    found = located(network, [Flow(away, 0.3), Flow(back, 1.0)])
    assert found is not None
    changed = np.flatnonzero(found.bandwidth_bytes_per_s != network.bandwidth_bytes_per_s)
    assert changed.tolist() == away.tolist()
    found = located(network, [Flow(away, 0.3)])
    assert found is not None
    changed = np.flatnonzero(found.bandwidth_bytes_per_s != network.bandwidth_bytes_per_s)
    assert set(changed.tolist()) == {*away.tolist(), *back.tolist()}


def test_a_link_that_is_less_off_is_no_further_change():
    network = gw.topology.from_spec("complete:5")
    plan = Packed(gradient_bytes=1e7).schedule(network)
    truth = slowed(network, {(0, 1): 0.25}).topology
    seen = flows(plan, truth)
    seen = [flow._replace(ratio=0.6) if place == 7 else flow for place, flow in enumerate(seen)]
    assert seen[7].links.tolist() not in ([x] for x in network.find_links([0, 1], [1, 0]))
    found = located(network, seen)
    assert found is not None
    changed = found.bandwidth_bytes_per_s != network.bandwidth_bytes_per_s
    assert set(np.flatnonzero(changed)) == set(network.find_links([0, 1], [1, 0]).tolist())


def test_nothing_is_located_where_nothing_has_changed():
    network = gw.topology.from_spec("torus:3x3")
    plan = Packed(gradient_bytes=1e7).schedule(network)
    assert located(network, flows(plan, network)) is None and located(network, []) is None


class Made:
    """A plan, as far as choices need one."""

    def __init__(self) -> None:
        self.schedule = object()


class Followed(Rank):
    """One rank's choices if plans follow changes of the network."""

    def __init__(self, votes: list[list[Any]], number: int) -> None:
        super().__init__(votes, number)
        self.changes = self
        self.now = 0
        self.used: list[list[Running]] = []
        self.channel = (object(), object())  # type: ignore[assignment]
        self.made = Made()

    def ballot(self) -> int:
        return 0

    def counted(self, vote: int, *, adapting: bool) -> int:
        return self.now

    def use(self, running: list[Running]) -> None:
        self.used.append(running)

    def unwant(self, of: SizeClass) -> None:
        self.weights.pop(of, None)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[Followed]:
    """Two ranks whose calls run by a plan; they vote as often as if calls were slow."""
    monkeypatch.setattr(choice, "VOTE_S", 0.0)
    monkeypatch.setattr(call_class, "digest", id)
    votes: list[list[Any]] = []
    found = [Followed(votes, number) for number in range(2)]
    for rank in found:
        rank.states[KIB] = 1
    follow(found, Stage.TRIAL)
    for rank in found:
        decide(rank, KIB, rank.made)
    follow(found, Stage.PLAN)
    return found


def follow(ranks: list[Followed], until: Stage, calls: int = 400) -> None:
    """Calls until all ranks are at that stage, after the same call."""
    for _ in range(calls):
        called(list(ranks))
        (stage,) = {rank.choices._classes[KIB].stage for rank in ranks}
        if stage is until:
            return
    raise AssertionError(f"{stage} instead of {until}")


def changed(ranks: list[Followed], number: int) -> list[Any]:
    """The new plans of all ranks for the network after a change, on trial."""
    old = [rank.made for rank in ranks]
    for rank in ranks:
        rank.now = number
    follow(ranks, Stage.WAITING)
    for rank in ranks:
        assert called([rank]) or True
        rank.made = Made()
        rank.states[KIB._replace(change=number)] = 1
    follow(ranks, Stage.TRIAL)
    for rank, plan in zip(ranks, old, strict=True):
        trial = rank.choices._classes[KIB].trial
        assert trial is not None and trial._candidates == (rank.made, None, plan)
    return old


def test_a_plan_for_the_changed_network_is_tried_at_the_same_call(ranks: list[Followed]):
    assert [one.of for one in ranks[0].used[-1]] == [KIB]
    changed(ranks, 1)
    assert ranks[0].used[-1] == []  # while plans are on trial, rates are not compared
    for rank in ranks:
        decide(rank, KIB, rank.made)
    follow(ranks, Stage.PLAN)
    (listed,) = ranks[0].choices.listed()
    assert listed.change == 1 and [one.change for one in ranks[0].used[-1]] == [1]


def test_the_same_plan_again_needs_no_trial(ranks: list[Followed]):
    for rank in ranks:
        rank.now = 1
    follow(ranks, Stage.WAITING)
    for rank in ranks:
        rank.states[KIB._replace(change=1)] = 1
    one = ranks[0].choices._classes[KIB]
    one.plan_s, one.own_s = 1.0, 9.0  # gloo's own is far slower
    ranks[1].choices._classes[KIB].plan_s, ranks[1].choices._classes[KIB].own_s = 1.0, 9.0
    follow(ranks, Stage.PLAN)
    assert one.trial is None and ranks[0].choices.listed()[0].change == 1


def test_what_ran_before_is_tried_again_and_more_rarely(ranks: list[Followed]):
    (old, _) = changed(ranks, 1)
    for rank in ranks:
        decide(rank, KIB, rank.made)
    follow(ranks, Stage.PLAN)
    waits = []
    for _ in range(3):
        before = ranks[0].choices._calls
        follow(ranks, Stage.TRIAL, 4 * call_class.LOOK_MOST)
        waits.append(ranks[0].choices._calls - before)
        for rank in ranks:
            assert rank.choices._classes[KIB].trial._candidates[1] is rank.made  # type: ignore[union-attr]
            decide(rank, KIB, rank.made)
        follow(ranks, Stage.PLAN)
    assert call_class.LOOK_AFTER < waits[0] < waits[1] < waits[2]
    follow(ranks, Stage.TRIAL, 4 * call_class.LOOK_MOST)
    trials = [rank.choices._classes[KIB].trial for rank in ranks]
    for rank, trial in zip(ranks, trials, strict=True):
        decide(rank, KIB, trial._candidates[0])  # type: ignore[union-attr]
    assert trials[0]._candidates[0] is old  # type: ignore[union-attr]
    follow(ranks, Stage.PLAN)
    assert ranks[0].choices.listed()[0].change == 0
    for _ in range(
        4 * call_class.LOOK_MOST
    ):  # it is not tried again, and the change is not followed
        called(list(ranks))
    assert ranks[0].choices.listed()[0].stage is Stage.PLAN


def test_a_recovery_in_part_ends_with_what_ran_before(ranks: list[Followed]):
    """The network changes again, and a plan for that is tried: the old plan is tried with it."""
    (old, _) = changed(ranks, 1)
    for rank in ranks:
        decide(rank, KIB, rank.made)
    follow(ranks, Stage.PLAN)
    (found, _) = [rank.made for rank in ranks]
    for rank in ranks:
        rank.now, rank.made = 2, Made()
        rank.states[KIB._replace(change=2)] = 1
    follow(ranks, Stage.TRIAL)
    trials = [rank.choices._classes[KIB].trial for rank in ranks]
    assert trials[0]._candidates == (ranks[0].made, old, None, found)  # type: ignore[union-attr]
    for rank, trial in zip(ranks, trials, strict=True):
        decide(rank, KIB, trial._candidates[1])  # type: ignore[union-attr]
    follow(ranks, Stage.PLAN)
    one = ranks[0].choices._classes[KIB]
    assert one.plan is old and not one.usual and one.change == 2


def test_calls_of_few_bytes_are_left_alone(ranks: list[Followed]):
    few = AllReduce(torch.ones(2), "sum")
    for rank in ranks:
        rank.states[SizeClass.of(few)] = -1
    for _ in range(60):
        called(list(ranks), few)
        called(list(ranks))
    assert [one.stage for one in ranks[0].choices.listed()] == [Stage.OWN, Stage.PLAN]
    changed(ranks, 1)
    assert [one.stage for one in ranks[0].choices.listed()] == [Stage.OWN, Stage.TRIAL]


class Source:
    """Plans of a network, for a planner."""

    def __init__(self, network: gw.Topology) -> None:
        self.network = network
        self.settings = types.SimpleNamespace(runtime="ideal")

        self.cost, self.first = 1, False

    def on(self, network: gw.Topology, *, cost: int) -> "Source":
        return Source(network)

    def costing(self, cost: int) -> "Source":
        found = Source(self.network)
        found.cost = cost
        return found

    def measured_cost(self, plan: Any, of: SizeClass, timed: tuple[float, int]) -> int:
        return 1 if timed is None else round(timed[0])

    def is_first(self, of: SizeClass) -> bool:
        return self.first


def test_the_planner_works_out_the_network(lines: list[str]):
    network = gw.topology.complete(4)
    plan = Packed(gradient_bytes=1e7).schedule(network)
    planner = Planner(Source(network))  # type: ignore[arg-type]
    ratios = dict.fromkeys(routes(plan), 1.0) | {(0, 1): 0.25, (1, 0): 0.25}
    running = [Running(SizeClass("all_reduce", 1 << 24), plan, 0)]
    planner.note(running, ratios)
    planner._follow(planner._next())  # type: ignore[arg-type]
    assert planner.changes == 1 and len(lines) == 1
    assert "0→1" in lines[0] and "1→0" in lines[0] and "instead of" in lines[0]
    planner.note(running, dict.fromkeys(routes(plan), 1.0))
    planner._follow(planner._next())  # type: ignore[arg-type]
    assert planner.changes == 1 and len(lines) == 1
    planner.note([Running(KIB, plan, 5)], ratios)  # there is no such change
    planner._follow(planner._next())  # type: ignore[arg-type]
    assert planner.changes == 1 and "seems to have changed" in lines[1]
    # From the network as given, 20 % more or less would not be reported.
    back = dict.fromkeys(routes(plan), 1.0) | {(0, 1): 3.2, (1, 0): 4.8}
    planner.note([Running(KIB, plan, 1)], back)
    planner._follow(planner._next())  # type: ignore[arg-type]
    assert planner.changes == 2 and lines[2] == "the network is again as given"
    assert planner._plans[2] is planner._plans[0]  # plans from files apply again


def test_messages_that_cost_more_than_stated_lead_to_other_plans(lines: list[str]):
    network = gw.topology.complete(4)
    planner = Planner(Source(network))  # type: ignore[arg-type]
    plan = Packed(gradient_bytes=1e7).schedule(network)
    planner.timed([])
    planner.timed([Running(KIB, plan, 0)])
    planner.timed([Running(KIB, plan, 0, (1.0, 1024))])
    assert planner.changes == 0
    planner.timed([Running(KIB, plan, 0, (2.0, 1024))])
    assert planner.changes == 1 and planner._plans[1].cost == 2
    assert planner._next() == KIB._replace(change=1)
    planner.timed([Running(KIB, plan, 1, (2.0, 1024))])
    planner.timed([Running(KIB, plan, 0, (2.0, 1024))])  # the plan from before is back
    assert planner.changes == 1
    slow = dict.fromkeys(routes(plan), 1.0) | {(0, 1): 0.25, (1, 0): 0.25}
    planner.note([Running(KIB, plan, 1)], slow)
    planner._follow(planner._next())  # type: ignore[arg-type]
    back = dict.fromkeys(routes(plan), 1.0) | {(0, 1): 4.0, (1, 0): 4.0}
    planner.note([Running(KIB, plan, 2)], back)
    planner._follow(planner._next())  # type: ignore[arg-type]
    assert planner.changes == 3 and planner._plans[3] is planner._plans[1]


def test_a_longer_search_follows_once_the_first_plans_run():
    source = Source(gw.topology.complete(4))
    source.first = True
    planner, plan = Planner(source), Packed().schedule(source.network)  # type: ignore[arg-type]
    other = KIB._replace(size=2048)
    planner.want(other, lambda: None)  # type: ignore[arg-type, return-value]
    planner.timed([Running(KIB, plan, 0)])
    assert planner.changes == 0  # other calls still wait for a first plan
    planner.unwant(other)
    planner.timed([Running(KIB, plan, 0)])
    assert planner.changes == 1 and planner._next() == KIB._replace(change=1)
    planner.timed([Running(KIB, plan, 1)])
    assert planner.changes == 1


def test_the_cost_of_messages_from_a_plans_time():
    """Many messages show their cost; few do not, since a slower network looks the same."""
    network, runtime = gw.topology.from_spec("complete:4,bandwidth=40Mbit/s"), runtime_of("gloo")
    of = SizeClass("all_reduce", 1 << 20)
    few = Packed(gradient_bytes=of.size).schedule(network)
    many = split(few, 32)
    for cost in COSTS:
        seconds = plan_seconds(many, costlier(runtime, cost), of)
        assert message_cost(many, runtime, of, 1.03 * seconds) == cost
        assert message_cost(many, runtime_of("ideal"), of, seconds) == 1
    assert message_cost(few, runtime, of, 1.15 * plan_seconds(few, runtime, of)) == 1


def test_a_search_with_measured_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It has its own file, and its plan has fewer messages."""
    settings = Settings(plans=(), topology="complete:4", runtime="gloo", cache=tmp_path)
    network = gw.topology.from_spec("complete:4,bandwidth=40Mbit/s")
    source = Plans(settings, (), network, search_s=2.0)
    of = SizeClass("all_reduce", 1 << 20)
    asked: list[list[str]] = []

    def run_command(arguments: list[str], *_: Any, **__: Any) -> None:
        asked.append(arguments)
        module, request = arguments[0], json.loads(arguments[1])
        assert module == "gradweave.schedulers.request"
        stated = runtime_of(request["runtime"])
        assert stated.executor.seconds == pytest.approx(costly.runtime.executor.seconds, rel=1e-4)
        found = Packed(gradient_bytes=of.size).schedule(network)
        found.save(request["output"])

    monkeypatch.setattr(plans, "run_command", run_command)
    first = dataclasses.replace(source, first=True)
    costly = source.costing(4)
    costly.searched(of)
    assert len(asked) == 1 and costly.file(of).is_file() and not source.file(of).is_file()
    many = split(Packed(gradient_bytes=of.size).schedule(network), 32)
    costly = source
    assert first.is_first(of) and not source.is_first(of)
    first.searched(of)
    assert not source.file(of).exists()  # the plan of the longer search is kept
    assert first.costing(1).search_s == plans.SEARCH_S and not first.costing(1).first
    first.costing(1).searched(of)
    assert source.file(of).is_file() and not first.is_first(of)
    costly = source.costing(4)
    timed = costly.seconds(many, of), of.size
    assert source.measured_cost(many, of, timed) == 4
    assert source.measured_cost(None, of, timed) == 1
    assert source.measured_cost(many, of, None) == 1


class Store:
    """A store with what ranks have written."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self.values[key] = value.encode() if isinstance(value, str) else value

    def add(self, key: str, number: int) -> int:
        self.set(key, str(int(self.values.get(key, b"0")) + number))
        return int(self.values[key])

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.values.get(key, desired.encode())


class Rank0:
    """Rank 0 of four, whose clock is set, and what its planner is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: int = 0) -> None:
        self.noted: list[Any] = []
        self.planner: Any = types.SimpleNamespace(changes=0, timed=lambda running: None)
        self.planner.note = lambda *given: self.noted.append(given)
        self.changes, self.store, self.now_s = Changes(0, 4, self.planner), Store(), 100.0
        monkeypatch.setattr(changes.time, "monotonic", lambda: self.now_s)
        self.changes.use([Running(KIB, None, change)])
        self.after(0.0)

    def after(self, seconds: float) -> int:
        """Lets time pass; returns how often the planner has been told of a change."""
        self.now_s += seconds
        self.changes.tick(self.store)  # type: ignore[arg-type]
        return len(self.noted)

    def reports(self, **ratios: float) -> None:
        """Ranks report the rates of their messages to rank 0, such as ``r1=0.5``."""
        for rank, ratio in ratios.items():
            self.store.set(f"rates 1 {rank[1:]}", json.dumps([[0, ratio]]))
        self.store.add("changed 1", 1)


def test_rank_0_locates_a_change_soon_and_then_ever_more_rarely(monkeypatch: pytest.MonkeyPatch):
    job = Rank0(monkeypatch)
    assert job.after(10.0) == 0
    job.reports(r1=0.5, r2=1.0)
    assert job.after(0.1) == 0  # the rates of others come soon
    assert job.after(changes.SETTLE_S) == 1 and job.noted[0][1] == {(1, 0): 0.5, (2, 0): 1.0}
    assert job.after(changes.QUIET_S - 1) == 1 and job.after(1) == 2
    assert job.after(changes.QUIET_S + 1) == 2 and job.after(changes.QUIET_S) == 3
    job.planner.changes = 1
    assert job.after(1000.0) == 3  # a vote has yet to tell all ranks
    assert job.changes.counted(-1, adapting=False) == 1
    assert job.after(1000.0) == 3  # plans are about to be requested
    assert job.changes.counted(-1, adapting=True) == 1
    assert job.after(1000.0) == 3  # plans are searched for or on trial
    job.changes.use([Running(KIB, None, 1)])
    job.changes.counted(-1, adapting=False)
    assert job.after(1000.0) == 3  # what was written under other plans does not count


def test_a_change_that_does_not_last_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    job = Rank0(monkeypatch)
    job.reports(r1=0.5)
    job.after(0.1)
    job.store.set("rates 1 1", json.dumps([[0, 0.95]]))
    assert job.after(changes.SETTLE_S) == 0 and job.after(1000.0) == 0
    job.reports(r1=0.5)
    assert job.after(0.1) == 0 and job.after(changes.SETTLE_S) == 1


def test_faster_messages_are_located_too(monkeypatch: pytest.MonkeyPatch):
    job = Rank0(monkeypatch, change=2)
    job.reports(r1=3.0, r2=1.0)
    job.after(0.1)
    assert job.after(changes.SETTLE_S) == 1 and job.noted[0][1] == {(1, 0): 3.0, (2, 0): 1.0}


def test_what_other_ranks_write_is_checked(monkeypatch: pytest.MonkeyPatch):
    job = Rank0(monkeypatch)
    job.store.set("ends 1 1", json.dumps(["b:2"]))
    job.store.set("ends 1 2", "[1, 2")
    job.reports(r1=0.5)
    job.store.set("rates 1 2", json.dumps([[-1, 0.5]]))
    job.store.set("rates 1 3", json.dumps([[0, "x"]]))
    job.after(0.1)
    assert job.changes._owner == {"b:2": 1} and job.changes._heard == {1, 2}
    assert job.after(changes.SETTLE_S) == 1 and job.noted[0][1] == {(1, 0): 0.5}


def test_all_ranks_follow_at_the_same_call(tmp_path: Path):
    """Real processes, searches and votes; the rates are those of `torch_changes_cases`."""
    module = (sys.executable, "-m", "tests.execute.torch_changes_cases", str(tmp_path))
    status, output = run(module, tmp_path)
    assert status == 0, output
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    stages = reports[0]["stages"]
    assert all(report["stages"] == stages for report in reports), reports
    assert [stage for _, stage, _ in stages].count("TRIAL") == 2 and stages[-1][2] == 1, stages
    (line,) = [line for line in reports[0]["lines"] if "the network has changed" in line]
    assert "0→1 255.1 Mbit/s instead of 1 Gbit/s, 1→0 255.1 Mbit/s" in line
