"""Sizes, orders, times and costs of placements, each calculated by hand."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import gradweave as gw
from benchmarks.naive_placement import Naive
from gradweave.placement import Placement, Stage, Transformer, Workload, exchange_kernel, step_time
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import Pairs, pairs_of
from gradweave.placement.problem import Problem
from gradweave.placement.timeline import groups as groups_of_step
from gradweave.placement.timeline.groups import GroupSchedule, group_schedules
from gradweave.placement.timeline.orders import stage_order
from gradweave.placement.timeline.step import exchange_seconds, pass_seconds
from gradweave.simulator import fair
from tests.interpreted import interpreted


@pytest.fixture(autouse=True)
def python():
    """Loops of few steps need not be compiled."""
    with interpreted(exchange_kernel, fair):
        yield


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[gw.Topology]:
    """Groups' schedules are rings, sought for the seconds of their gradient; for which networks."""
    asked: list[gw.Topology] = []

    def solve(net, *, objective, gradient_bytes, **_):
        assert objective == "seconds" and gradient_bytes > 0
        asked.append(net)
        timing = SimpleNamespace(seconds=7.0, bound=SimpleNamespace(seconds=5.0))
        return SimpleNamespace(schedule=gw.schedulers.Ring().schedule(net), timing=timing)

    monkeypatch.setattr(groups_of_step, "solve", solve)
    return asked


def network(servers: int, links: dict[tuple[int, int], tuple[float, float, float]]) -> gw.Topology:
    """Directions of links, each with its bandwidth, latency and overhead; switches follow."""
    ends = np.array(list(links), np.int64)
    columns = np.array(list(links.values())).T
    return gw.topology.Topology(
        name="by hand",
        is_server=np.arange(ends.max() + 1) < servers,
        source=ends[:, 0],
        target=ends[:, 1],
        bandwidth_bytes_per_s=columns[0],
        latency_s=columns[1],
        capacity=np.ones(len(ends), np.int64),
        overhead_s=columns[2],
    )


def placed(net: gw.Topology, stages: list[Stage], servers: list[list[int]], microbatches: int = 1):
    work = Workload(tuple(stages), microbatches)
    return Placement(net, work, np.array(servers), 0.0, 0.0, "by hand", {}, 0)


def both_ways(*links: tuple[int, int, float, float, float]):
    """Directions of links that are alike both ways."""
    return {pair: rest for a, b, *rest in links for pair in ((a, b), (b, a))}


def test_what_a_transformers_stages_take():
    """Layers of 2, 1 and 1; 8 sequences of 5 tokens in 2·2 micro-batches, so 10 tokens each."""
    model = Transformer(
        layers=4, width=2, sequence=5, batch=8, microbatches=2, vocabulary=7, value_bytes=3,
        flops=10.0,
    )  # fmt: skip
    layer, matrix, attention = 12 * 4, 7 * 2, 4 * 5 * 2
    first, middle, last = model.workload(3, 2).stages
    assert first.forward_s == 10 * (2 * 2 * layer + 2 * attention) / 10
    assert middle.forward_s == 10 * (2 * layer + attention) / 10
    assert last.forward_s == 10 * (2 * layer + attention + 2 * matrix) / 10
    assert [one.backward_s / one.forward_s for one in (first, middle, last)] == [2, 2, 2]
    assert {one.activation_bytes for one in (first, middle, last)} == {10 * 2 * 3}
    parameters = [2 * layer + matrix, layer, layer + matrix]
    assert [one.gradient_bytes for one in (first, middle, last)] == [3 * n for n in parameters]
    # Of 3, 2 and 1 micro-batches that may wait for their backward pass there are 2.
    kept = [34 * 10 * 2 * layers * waiting for layers, waiting in ((2, 2), (1, 2), (1, 1))]
    memory = [16 * n + m for n, m in zip(parameters, kept, strict=True)]
    assert [one.memory_bytes for one in (first, middle, last)] == memory
    (alone,) = model.workload(1, 1).stages
    assert alone.gradient_bytes == 3 * (4 * layer + 2 * matrix)
    assert alone.forward_s == 20 * (4 * (2 * layer + attention) + 2 * matrix) / 10
    assert alone.memory_bytes == 16 * (4 * layer + 2 * matrix) + 34 * 20 * 2 * 4


def passes(*args, **how) -> str:
    return " ".join(
        f"{'B' if one.backward else 'F'}{one.microbatch}{'abc'[one.chunk]}"
        for one in stage_order(*args, **how)
    )


def test_orders_as_their_papers_draw_them():
    """The interleaved one of two stages with two chunks: 4 and 2 forward passes come first."""
    assert passes("interleaved", 0, 2, 4, chunks=2) == (
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"
    )
    assert passes("interleaved", 1, 2, 4, chunks=2) == (
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"
    )
    # Three stages: two more for each stage after it, and three for the chunk before the last.
    for stage, ahead in ((0, 7), (1, 5), (2, 3)):
        order = stage_order("interleaved", stage, 3, 6, chunks=2)
        assert [one.backward for one in order].index(True) == ahead + 1
    assert passes("1f1b", 0, 3, 4) == "F0a F1a F2a B0a F3a B1a B2a B3a"
    assert passes("1f1b", 1, 3, 4) == "F0a F1a B0a F2a B1a F3a B2a B3a"
    assert passes("1f1b", 2, 3, 2) == "F0a B0a F1a B1a"
    assert passes("1f1b", 0, 4, 2) == "F0a F1a B0a B1a"
    assert passes("gpipe", 2, 3, 2) == "F0a F1a B0a B1a"


def test_messages_take_their_narrowest_link_and_longest_overhead():
    """Two links in a row: of 4 and 2 bytes/s, 3 and 5 s of overhead, 10 and 1 s of latency."""
    net = network(2, both_ways((0, 2, 4.0, 10.0, 3.0), (2, 1, 2.0, 1.0, 5.0)))
    one = placed(net, [Stage(0, 0, 8, 0), Stage(0, 0, 100, 0)], [[0], [1]], microbatches=3)
    # All micro-batches at once, there and back.
    assert pass_seconds(one) == pytest.approx(2 * (3 * 8 / 2 + 5 + 10 + 1))
    pairs = pairs_of(net)
    assert pairs.latency_s.tolist() == [[0, 11], [11, 0]]
    assert pairs.bandwidth_bytes_per_s.tolist() == [[np.inf, 2], [2, np.inf]]


def test_pairs_that_differ_by_direction():
    links = {
        (0, 3): (4.0, 1.0, 0.0), (1, 3): (5.0, 10.0, 0.0), (2, 3): (7.0, 100.0, 0.0),
        (3, 0): (6.0, 2.0, 0.0), (3, 1): (3.0, 20.0, 0.0), (3, 2): (8.0, 200.0, 0.0),
    }  # fmt: skip
    pairs = pairs_of(network(3, links))
    assert pairs.latency_s.tolist() == [[0, 21, 201], [12, 0, 210], [102, 120, 0]]
    wide = np.inf
    assert pairs.bandwidth_bytes_per_s.tolist() == [[wide, 3, 4], [5, wide, 5], [6, 3, wide]]


def test_a_boundarys_bytes_are_those_of_the_stage_before_it():
    """Links of 1 byte/s: 1 and 3 bytes cross, and as many come back; the last stage sends none."""
    net = network(3, both_ways((0, 1, 1.0, 0.0, 0.0), (1, 2, 1.0, 0.0, 0.0)))
    stages = [Stage(0, 0, 1, 0), Stage(0, 0, 3, 0), Stage(0, 0, 100, 0)]
    assert pass_seconds(placed(net, stages, [[0], [1], [2]])) == pytest.approx(2 * (1 + 3))
    # The exchange model too: both ways at once, each counted.
    found = exchange_cost(Problem(pairs_of(net), Workload(tuple(stages)), 1), [[0], [1], [2]])
    assert (found.data_s, found.pipeline_s) == (0.0, 2 * (1 + 3))


def test_what_devices_wait_and_compute(rings):
    """Two stages of two; the second's devices are twice and four times as fast."""
    net = gw.topology.complete(4, link=gw.topology.Link(1e15, 0.0, overhead_s=0.0))
    stages = [Stage(2.0, 4.0, 0.0, 0.0), Stage(8.0, 16.0, 0.0, 4e15)]
    step = step_time(placed(net, stages, [[0, 1], [2, 3]]), speed=[1.0, 1.0, 2.0, 4.0])
    assert step.busy_s.tolist() == [[6, 6], [12, 6]]
    # The first pipeline: 2, 4 and 8 s, then 4 s; the second one 2, 2 + 4 and 4 s.
    assert step.passes_s == pytest.approx(18)
    # A gradient of 4 s at full bandwidth: half of it each way in each of two stages, from 14 s on.
    assert step.reduced_s == pytest.approx([18, 14 + 4], rel=1e-6)
    assert step.seconds == pytest.approx(18, rel=1e-6)
    assert step.bubble == pytest.approx(1 - 30 / (4 * 18))
    slow = dataclasses.replace(stages[1], gradient_bytes=16e15)
    step = step_time(placed(net, [stages[0], slow], [[0, 1], [2, 3]]), speed=[1.0, 1.0, 2.0, 4.0])
    assert step.seconds == pytest.approx(14 + 16, rel=1e-6) and step.passes_s == pytest.approx(18)
    assert step.bubble == pytest.approx(1 - 30 / (4 * 18))
    assert step.utilisation == pytest.approx(30 / (4 * 30), rel=1e-6)
    starts = {
        (stage, pipeline, bool(backward)): start
        for stage, pipeline, backward, start in zip(
            step.stage.tolist(), step.pipeline.tolist(), step.backward, step.start_s, strict=True
        )
    }
    assert starts[0, 0, True] == pytest.approx(14) and starts[0, 1, True] == pytest.approx(8)
    assert (starts[1, 1, False], starts[1, 1, True]) == (pytest.approx(2), pytest.approx(4))


def test_an_all_reduces_messages_have_their_overheads():
    """Halves of 8 bytes over links of 2 and 4 bytes/s with a switch between: 2 s and overhead."""
    net = network(2, both_ways((0, 2, 2.0, 0.25, 5.0), (2, 1, 4.0, 0.5, 3.0)))
    schedule = gw.schedulers.Ring().schedule(net)
    group = GroupSchedule(schedule, np.arange(3, dtype=np.int32), 8.0, 0.0, 0.0)
    one = placed(net, [Stage(0, 0, 0, 8.0)], [[0, 1]])
    assert exchange_seconds([group], one) == pytest.approx(2 * (4 / 2 + 5 + 0.75))
    assert exchange_seconds([None], one) == 0.0


def test_costs_of_unlike_stages_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for devices, stages, data in ((8, 3, 2), (7, 2, 3), (6, 6, 1)):
        latency = rng.uniform(1e-3, 0.2, (devices, devices))
        bandwidth = 10 ** rng.uniform(7.5, 9.5, (devices, devices))
        moved, gradient = 10 ** rng.uniform(7, 9, (2, stages))
        work = Workload(tuple(Stage(0, 0, *one) for one in zip(moved, gradient, strict=True)))
        problem = Problem(Pairs(latency, bandwidth), work, data)
        naive = Naive(latency, bandwidth, gradient.tolist(), moved.tolist(), data)
        groups = rng.permutation(devices)[: stages * data].reshape(stages, data)
        found = exchange_cost(problem, groups)
        assert found.seconds == pytest.approx(naive.cost_in_order(groups.tolist()))
        assert found.data_s == pytest.approx(max(map(naive.exchange, groups, range(stages))))
        again = exchange_cost(problem, found.devices, as_placed=True)  # pipelines as matched
        assert again.seconds == pytest.approx(found.seconds)
        for stage in range(stages):
            alone = exchange_cost(problem, groups, stage=stage).data_s
            assert alone == pytest.approx(naive.exchange(groups[stage], stage))


def test_groups_are_in_their_best_order_up_to_so_many():
    """On a line that goes from end to end: each step is 1."""
    for count in (2, 3, 6):
        place = np.random.default_rng(count).permutation(count)
        lengths = np.abs(place[:, None] - place).astype(float)
        order = exchange_kernel.best_path(lengths)
        assert sorted(order) == list(range(count))
        assert np.abs(np.diff(place[order])).tolist() == [1] * (count - 1)
    most = exchange_kernel.MAX_PATH
    assert exchange_kernel.best_path(np.ones((most + 1,) * 2)).tolist() == list(range(most + 1))
    ordered = exchange_kernel.ordered
    delay = np.abs(np.subtract.outer([3.0, 1.0, 2.0, 0.0], [3.0, 1.0, 2.0, 0.0]))
    zero, groups = np.zeros_like(delay), np.arange(4).reshape(4, 1)
    assert ordered(delay, zero, np.zeros(3), True, groups)[0] == 3
    assert ordered(delay, zero, np.zeros(3), False, groups)[0] == 2 + 1 + 2


def test_groups_share_what_their_routes_cross(rings):
    """Two pairs over one trunk: each has half of it; a link of one pair alone is its own."""
    links = [(0, 4), (1, 5), (2, 4), (3, 5), (4, 5)]
    net = gw.topology.Topology.from_links("trunk", servers=4, switches=2, links=links)
    half, whole = group_schedules(net, np.array([[0, 1], [2, 3]]), [1e9, 1e9])
    assert half is not None and whole is not None
    assert (half.seconds, half.bound_s, len(rings)) == (7.0, 5.0, 1)
    assert half.schedule is whole.schedule and (half.nodes != whole.nodes).any()
    rate = float(net.bandwidth_bytes_per_s[0])
    trunk = half.schedule.topology
    within = np.flatnonzero(~trunk.is_server[trunk.source] & ~trunk.is_server[trunk.target])
    assert sorted(trunk.bandwidth_bytes_per_s / rate) == [0.5, 0.5, 1, 1, 1, 1]
    assert (trunk.bandwidth_bytes_per_s[within] == rate / 2).all()
    alone, _ = gw.topology.subnetwork(net, np.array([0, 1]))
    assert set(alone.bandwidth_bytes_per_s / rate) == {1.0}
    assert group_schedules(net, np.array([[0], [2]]), [1e9, 1e9]) == [None, None]
    assert group_schedules(net, np.array([[0, 1]]), [0.0]) == [None]
