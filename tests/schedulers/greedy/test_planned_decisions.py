"""The features and decisions of a plan of `planned`, and its decoded plan, by hand."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradweave.schedulers.greedy import decisions, decoding
from gradweave.schedulers.greedy.decisions import (
    FLATTER,
    SKETCH,
    WHOLE,
    Decisions,
    graph_of,
    proposal_of,
)
from gradweave.schedulers.greedy.decoding import Proposal, Wiring, _delay, _roots, even
from gradweave.schedules.schedule import REDUCE
from tests.schedulers.greedy.test_planned_growing import network

BYTES = 32.0
ROW = {(0, 2): 8.0, (1, 2): 4.0, (2, 0): 2.0, (2, 1): 8.0, (2, 3): 1.0, (3, 2): 1.0}
LATENCY = [0.5, 1.0, 2.0, 4.0, 9.0, 0.125]
OVERHEAD = [0.0, 0.25, 0.0, 0.5, 0.0, 0.0]


def wiring(gradient_bytes: float = BYTES) -> Wiring:
    """Servers 0 and 1 at switch 2, and a distant switch 3; no two links are equal."""
    made = network(2, ROW, latency_s=LATENCY, overhead_s=OVERHEAD)
    return Wiring(made, "all_reduce", gradient_bytes)


def in_order(values: list[float]) -> list[float]:
    """Values of link directions, which the network sorts by their ends."""
    by_ends = dict(zip(ROW, values, strict=True))
    return [by_ends[pair] for pair in sorted(ROW)]


def test_how_far_the_farthest_server_is():
    """One way, over latencies and overheads: 0 reaches 1 in 0.5 + 4.5, 1 reaches 0 in 1.25 + 2."""
    assert wiring().farthest_s.tolist() == [5, 3.25, 4.5, 4.625]
    assert wiring(math.inf).farthest_s.tolist() == [0, 0, 0, 0]
    near = network(2, ROW, latency_s=np.array(LATENCY) / 16, overhead_s=np.array(OVERHEAD) / 16)
    found = Wiring(near, "all_reduce", BYTES).farthest_s
    assert found.tolist() == [5 / 16, 3.25 / 16, 4.5 / 16, 4.625 / 16]


def test_what_a_piece_takes_over_each_link():
    """Bytes at its bandwidth, and its latency, as if in bytes at the largest bandwidth."""
    relative = [one / 8 for one in in_order(list(ROW.values()))]
    assert wiring().links.bandwidth.tolist() == relative
    late = [a + b for a, b in zip(in_order(LATENCY), in_order(OVERHEAD), strict=True)]
    expected = [1 / r + t * 8 * 16 / BYTES for r, t in zip(relative, late, strict=True)]
    assert _delay(wiring(), 16) == pytest.approx(expected)
    assert _delay(wiring(math.inf), 16) == pytest.approx([1 / r for r in relative])


def test_what_the_policy_sees(monkeypatch):
    load = [4.0, 1.0, 3.0, 2.0, 0.5, 0.0]

    def grown(made: Wiring, proposal: Proposal, trees: int, passes: int) -> SimpleNamespace:
        assert (trees, passes, proposal.shares.tolist()) == (SKETCH, 1, [0.5, 0.5])
        return SimpleNamespace(grown=SimpleNamespace(load=np.array(load)))

    monkeypatch.setattr(decisions, "grow_trees", grown)
    graph = graph_of(wiring())
    source, target = graph.source.tolist(), graph.target.tolist()
    assert list(zip(source, target, strict=True)) == sorted(ROW)
    bandwidth = [one / 8 for one in in_order(list(ROW.values()))]
    # Means of leaving links: 1; 1/2; 1/4, 1, 1/8; 1/8; of entering: 1/4; 1; 1, 1/2, 1/8; 1/8.
    leaves, enters = [1, 0.5, 1.375 / 3, 0.125], [0.25, 1, 1.625 / 3, 0.125]
    late = [a + b for a, b in zip(in_order(LATENCY), in_order(OVERHEAD), strict=True)]
    least_s = BYTES / (8 * sum(bandwidth) / 6)
    expected = [
        [
            math.log(one),
            math.log(one / leaves[a]),
            math.log(one / enters[b]),
            min(10 * late[link] / least_s, 3.0),
            a < 2,
            b < 2,
            load[link] / 4,
        ]
        for link, (one, a, b) in enumerate(zip(bandwidth, source, target, strict=True))
    ]
    assert graph.link == pytest.approx(np.array(expected, np.float32), rel=1e-5, abs=1e-6)
    assert {row[3] == 3.0 for row in expected} == {True, False}
    far = [math.log1p(10 * seconds / least_s) for seconds in (5, 3.25, 4.5, 4.625)]
    wide = [math.log(4 * sums / 3) for sums in (1, 0.5, 1.375, 0.125)]
    degree = [math.log(one) for one in (1, 1, 3, 1)]
    # Links 0–2, 1–2, 2–0, 2–1, 2–3 and 3–2, in this order.
    fullest = [1, 0.5, 1, 0.125]
    nodes = [[v < 2, wide[v], degree[v], far[v], fullest[v], 1] for v in range(4)]
    assert graph.node == pytest.approx(np.array(nodes, np.float32), rel=1e-5, abs=1e-6)
    spread = np.std([math.log(one) for one in bandwidth])
    whole = [math.log(2) - 2.5, spread, 0.5, sum(far) / 4, sum(load) / 24, 1]
    assert graph.whole == pytest.approx(np.array(whole), rel=1e-5)
    assert graph.link_share.tolist() == [1 / 6] * 6
    assert graph.node_share.tolist() == [0.25] * 4


def test_a_plan_of_decisions():
    """Servers root shares by the exponentials of their decisions; switches root none."""
    whole = np.arange(11) / 8
    # Multiples of 2⁻⁸, up to 2, whatever the last bits were.
    bias = np.array([0, 1.25, -9.0, 0.001, 0.003, 0.25 + 1e-12])
    decided = Decisions(bias, np.array([0.0, 1.0, 9.0, 9.0]), whole)
    plan, plain = proposal_of(wiring(), decided), even(wiring().topology)
    assert plan.shares == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])
    assert plan.bias.tolist() == [0, 1.25, -2, 0, 2**-8, 0.25]
    assert plan.order == pytest.approx(plain.order + whole[:6])
    assert plan.sharpness == pytest.approx(10 * math.exp(0.75))
    assert plan.residual == pytest.approx(math.exp(0.875))
    assert plan.flatter == pytest.approx(FLATTER * math.exp(2))
    assert plan.near == pytest.approx(1e-3 * math.exp(2 * 1.125))
    assert plan.fewer == 1 and plain.fewer == 1
    fewer = proposal_of(wiring(), decided._replace(whole=-whole))
    assert fewer.fewer == pytest.approx(math.exp(-1.25))
    assert plain.shares.tolist() == [0.5, 0.5] and plain.bias.tolist() == [0] * 6
    assert len(WHOLE) == 11


def test_servers_take_turns_by_their_shares():
    for shares, count, roots in [
        ([0.5, 0.5], 4, [0, 1, 0, 1]),
        ([0.25, 0.75], 4, [1, 0, 1, 1]),
        ([0.5, 0.25, 0.25], 4, [0, 1, 2, 0]),
        ([2.0, 1.0], 6, [0, 1, 0, 0, 1, 0]),  # in proportion to their sum
        ([0.5, 0.3, 0.2], 3, [0, 1, 2]),  # of 1.5, 0.9 and 0.6 the largest remainders
        ([0.34, 0.33, 0.33], 1, [0]),
        ([0.45, 0.1, 0.45], 2, [0, 2]),
    ]:
        assert sorted(_roots(np.array(shares), count)) == sorted(roots), shares
        assert _roots(np.array(shares), count).tolist() == roots, shares


def calls(monkeypatch, made: Wiring, count: int = 5) -> tuple:
    """Records the arguments of growing, without growing."""
    from gradweave.schedulers.greedy import transfers_kernel, tree_packing_kernel
    from gradweave.schedulers.greedy.tree_packing_kernel import Rates

    asked = []
    monkeypatch.setattr(tree_packing_kernel, "rates_of", lambda links, rates: Rates(rates, rates))
    grown = SimpleNamespace(load=np.ones(6))
    monkeypatch.setattr(tree_packing_kernel, "grow", lambda *given: asked.append(given) or grown)
    monkeypatch.setattr(
        transfers_kernel, "transfers_of", lambda *given: (asked.append(given), None)
    )
    proposal = Proposal(np.array([0.25, 0.75]), np.arange(6.0), np.zeros(6, np.float32), 3, 4, 5, 6)
    grove = decoding.grow_trees(made, proposal, count, 7)
    return grove, *asked


def test_what_trees_are_grown_and_lowered_with(monkeypatch):
    made = wiring()
    grove, (links, plan, rates, stages), (_, root, again, *costs) = calls(monkeypatch, made)
    assert links is made.links and stages.tolist() == again.tolist() == [0, 1]
    assert grove.root.tolist() == root.tolist() == plan.root.tolist() == [1, 1, 0, 1, 1]
    assert plan[2:5] == (3, 4, 5) and (plan.near, plan.passes) == (6, 7)
    assert plan.bias.tolist() == list(range(6)) and plan.delay == pytest.approx(_delay(made, 5))
    # What each rate sends in a link's overhead, relative to a fifth of the gradient.
    lost = np.outer(rates.rate, in_order(OVERHEAD)) * max(in_order(list(ROW.values()))) * 5
    assert plan.message == pytest.approx(lost / made.gradient_bytes)
    assert rates.rate.tolist() == [1 / 8, 1 / 4, 1 / 2, 1]
    assert [one.tolist() for one in costs] == [
        in_order(list(ROW.values())), in_order(LATENCY), in_order(OVERHEAD),
    ]  # fmt: skip
    # A single stage: equally many trees per server, at least as many as requested.
    one = dataclasses.replace(made, collective="all_gather")
    grove, (_, plan, _, stages), _ = calls(monkeypatch, one)
    assert grove.root.tolist() == [0, 1] * 3 and stages.tolist() == [1]
    assert plan.delay == pytest.approx(_delay(made, 6))
    # A single rate if there is no switch.
    ring = network(2, {(0, 1): 3.0, (1, 0): 6.0})
    assert Wiring(ring, "reduce_scatter", 1.0).rates.rate.tolist() == [0.5]
    assert Wiring(ring, "reduce_scatter", 1.0).stages.tolist() == [0]


def test_schedules_have_the_transfers_of_the_wires():
    """Server 0 sends to 1 over switch 2, and 1 to 0; each route from end to end."""
    from gradweave.schedulers.kernels.wires import Wires

    made = wiring()
    link = {pair: number for number, pair in enumerate(sorted(ROW))}
    over = np.array([link[pair] for pair in ((0, 2), (2, 1), (1, 2), (2, 0))])
    none = np.zeros(2)
    wires = Wires(over, np.array([0, 2, 4]), none, none, none, none)
    for collective, fixed, reduces in [
        ("all_reduce", False, 1), ("reduce_scatter", True, 1), ("all_gather", True, 0),
    ]:  # fmt: skip
        one = dataclasses.replace(made, collective=collective)
        root = np.array([0, 1, 1, 0])
        parts = decoding._parts(decoding.Grove(one, none, root, none, none, wires))  # type: ignore[arg-type]
        assert (parts.source.tolist(), parts.target.tolist()) == ([0, 1], [1, 0])
        assert (parts.fixed_roots, (parts.op[0] == REDUCE).sum()) == (fixed, reduces)
        assert parts.share.tolist() == [0.25] * 4 and parts.root is root


@pytest.mark.parametrize(
    ("improvements", "seconds", "best"),
    [(0, [5], 5), (1, [5, 1, 4], 4), (1, [5, 1, 5], 5), (2, [5, 1, 4, 2, 3], 3),
     (2, [5, 1, 4, 2, 6], 4)],
)  # fmt: skip
def test_the_order_is_mended_backwards_and_forwards(
    monkeypatch, improvements: int, seconds: list, best: float
):
    """Two transfers and three cuts; the first simulation makes seven tries."""
    from gradweave.schedulers.greedy import transfers_kernel
    from gradweave.schedulers.kernels.precedence import Dependencies
    from gradweave.schedulers.kernels.wires import Wires
    from gradweave.schedulers.ordering import list_scheduling

    trees = Dependencies(*np.array([[[0, 1]]] * 7))
    wires = Wires(*np.zeros((2, 3)), rate=np.array([1.0, 2.0]), overhead=np.array([0.5, 0]),
                  latency=np.zeros(2), bandwidth=np.zeros(1))  # fmt: skip
    # Transfers by weight 2 of the first feature, less the second.
    features = np.zeros((3, 2, 6), np.float32)
    features[..., 0] = [[3, 0], [1, 2], [0, 0]]
    features[..., 1] = [[0, 0], [0, 0], [5, 0]]
    starts = [np.array([4.0, 9.0, 3.0, 5.0, 1.0, 7.0]), *np.arange(36.0).reshape(6, 6)]
    simulated: list = []

    def dispatch(of, over, part, hold_s, order):
        assert over is wires and part.tolist() == [0, 0, 0] and hold_s.tolist() == [4.5, 2.0] * 3
        simulated.append((of, order.tolist()))
        return starts[len(simulated) - 1], seconds[len(simulated) - 1], 7

    monkeypatch.setattr(transfers_kernel, "features_of", lambda *_: features)
    monkeypatch.setattr(list_scheduling, "dispatch", dispatch)
    monkeypatch.setattr(list_scheduling, "reversed_precedence", lambda of: "back")
    made = dataclasses.replace(wiring(), gradient_bytes=12.0)
    grown, order = SimpleNamespace(), np.array([2, -1, 0, 0, 0, 0], np.float32)
    grove = decoding.Grove(made, even(made.topology), np.zeros(1, np.int64), grown, trees, wires)
    found = decoding.simulate(grove, order, 3, improvements)
    assert (found.seconds, found.cuts, found.tried) == (best, 3, 7)
    assert found.start is starts[seconds.index(best)]
    assert [of for of, _ in simulated] == [trees, *["back", trees] * (len(seconds) // 2)]
    assert simulated[0][1] == [4, 1, 5, 2, 3, 0]
    if len(seconds) > 1:
        # Held for 4.5 and 2 s: ends at 8.5, 11, 7.5, 7, 5.5, 9; the last first.
        assert simulated[1][1] == [1, 5, 0, 2, 3, 4]


@pytest.mark.parametrize(
    ("servers", "steps", "fewer", "tried", "effort_s", "trees", "cuts"),
    [
        # 192 trees of 30 transfers take 18 ms to grow and 2.3 ms to simulate; three simulations
        # of four pieces a tree 27.6 ms, of one 6.9 ms.
        (16, 6_000, 1.0, 5_760, 0.05, 192, [4]),
        (16, 6_001, 1.0, 2_880, 0.05, 96, [4, 3, 2, 1]),
        (21, 1_000, 1.0, 3_840, 0.05, 96, [4, 3, 2]),
        (16, 6_000, 0.25, 1_440, 0.05, 48, [4, 3, 2, 1]),
        (16, 6_000, 1e-9, 30, 0.05, 1, [4, 3, 2, 1]),
        (16, 6_000, 1.0, 5_760, 0.028, 192, [1]),
        (16, 6_000, 1.0, 5_760, 0.025, 192, []),
        # A failed try takes 40 ns with one piece, and 3.5 times that with two.
        (16, 6_000, 1.0, 25_760, 0.05, 192, [2]),
        (16, 6_000, 1.0, 105_760, 0.05, 192, [1]),
        (16, 6_000, 1.0, 955_760, 0.05, 192, []),
        (16, 1_000, 1.0, 240, 0.0004, 8, []),  # 30 transfers, four times
    ],
)
def test_how_many_trees_and_pieces_there_is_time_for(
    monkeypatch,
    servers: int,
    steps: int,
    fewer: float,
    tried: int,
    effort_s: float,
    trees: int,
    cuts: list[int],
):
    asked, found = _decoded(monkeypatch, servers, steps, fewer, tried, effort_s, {})
    assert asked == [trees, 2, (1, 0), *[(pieces, 1) for pieces in cuts]]
    assert found.cuts == 1 and found.improved == (1 in cuts)  # all are equally fast


@pytest.mark.parametrize(
    ("servers", "steps", "fewer", "effort_s", "expected"),
    [
        (48, 6_000, 1.0, 1.0, (96, 2)),
        # 49 servers: 0.1 ms for a tree, and 0.46 for its 96 transfers at 1.2 µs, four times; four
        # trees for each server at most, and fewer where the plan says so.
        (49, 6_000, 1.0, 1.0, (196, 1)),
        (49, 6_000, 0.4, 1.0, (49, 1)),
        (49, 6_000, 0.2, 1.0, (19, 2)),  # less than a tree for each
        (49, 6_000, 1.0, 0.25, (196, 1)),  # 96 trees, twice, take as long as 192 once
        (128, 6_000, 1.0, 0.05, (128, 1)),
        (193, 6_000, 1.0, 0.05, (81, 2)),  # 162 once would not be one for each
        (128, 400_000, 1.0, 1.0, (128, 1)),  # 3.1 ms for a tree, 1.2 for its transfers: 208
    ],
)
def test_among_many_servers_each_roots_as_many_trees(
    monkeypatch, servers: int, steps: int, fewer: float, effort_s: float, expected
):
    monkeypatch.setattr(decoding, "path_steps", lambda made: steps)
    made: Any = SimpleNamespace(topology=SimpleNamespace(num_servers=servers), stages=[0, 1])
    assert decoding.trees_for(made, fewer, effort_s) == expected


def test_the_plan_is_taken_whose_links_are_less_full(monkeypatch):
    full = {1.0: [0.5, 0.75], 2.0: [0.6, 0.7], 3.0: [0.7, 0.7]}

    def grown(made: Wiring, proposal: float, trees: int, passes: int) -> SimpleNamespace:
        assert (trees, passes) == (SKETCH, 1)
        return SimpleNamespace(grown=SimpleNamespace(load=np.array(full[proposal])))

    monkeypatch.setattr(decisions, "grow_trees", grown)
    monkeypatch.setattr(decisions, "proposal_of", lambda made, plan: plan)
    plans: Any = list(full)
    assert [decisions.less_full(wiring(), plans[:n]) for n in (1, 2, 3)] == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("seconds", "cuts"),
    [
        ({4: 1.0, 3: 1.1, 2: 1.1, 1: 1.1}, 4),
        ({4: 1.0, 3: 0.9, 2: 1.1, 1: 1.1}, 3),
        ({4: 1.0, 3: 1.0009, 2: 1.0008, 1: 1.002}, 2),  # the coarsest within a thousandth
        ({4: 1.0, 3: 1.0, 2: 1.0, 1: 1.0009}, 1),
    ],
)
def test_of_pieces_that_are_as_fast_the_fewest_are_taken(monkeypatch, seconds, cuts: int):
    _, found = _decoded(monkeypatch, 8, 1, 0.1, 240, 0.05, seconds)
    assert (found.cuts, found.improved) == (cuts, True)


def _decoded(monkeypatch, servers, steps, fewer, tried, effort_s, seconds) -> tuple[list, Any]:
    """The cuts requested and the cut taken, given the seconds of each number of pieces (else 2)."""
    asked: list = []

    def grow(made, proposal, number, passes):
        asked.extend([number, passes])
        trees = SimpleNamespace(hop=np.zeros((number, 2 * (servers - 1))))
        return SimpleNamespace(root=[0] * number, trees=trees, proposal=proposal, wiring=made)

    def simulate(grove, order, pieces, improvements=0):
        asked.append((pieces, improvements))
        took = seconds.get(pieces, 2.0) if improvements else 2.001
        return SimpleNamespace(cuts=pieces, seconds=took, tried=tried, improved=bool(improvements))

    monkeypatch.setattr(decoding, "grow_trees", grow)
    monkeypatch.setattr(decoding, "simulate", simulate)
    monkeypatch.setattr(decoding, "path_steps", lambda made: steps)
    made = SimpleNamespace(topology=SimpleNamespace(num_servers=servers), stages=[0, 1])
    proposal = SimpleNamespace(order=None, fewer=fewer)
    found = decoding.decode(made, proposal, effort_s)  # type: ignore[arg-type]
    return asked, found
