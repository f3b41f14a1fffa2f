"""What schedules become before they meet devices: matchings, steps, rows, programs, refusals."""

import time
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import gradweave as gw
from gradweave import jax as jax_mesh
from gradweave.errors import InvalidScheduleError, OptionError, ScheduleError
from gradweave.execute import play
from gradweave.execute.jax_mesh.buffers import by_dtype, divided, from_rows, joined, to_rows
from gradweave.execute.jax_mesh.permutations import (
    IDLE,
    MOST_UNROLLED,
    OP,
    SEND,
    TAKE,
    WRITE,
    steps,
)
from gradweave.execute.matchings import matchings
from gradweave.execute.reduction import combine
from gradweave.schedules import COPY, Schedule
from tests.conformance.made import made
from tests.conformance.networks import NETWORKS, network

QUICK = (
    "grown",
    "merged",
    "merged, random",
    "merged, overlap",
    "ring",
    "ring, both ways",
    "halving and doubling",
    "recursive doubling",
    "binomial",
    "parameter server",
    "central",
)


def degree(source: np.ndarray, target: np.ndarray) -> int:
    return max(int(np.bincount(end).max()) for end in (source, target))


edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60)


@given(edges)
def test_fewest_matchings(pairs: list[tuple[int, int]]):
    source, target = np.array(pairs).T
    found = matchings(source, target, 7)
    assert set(found) == set(range(degree(source, target)))
    for end in (source, target):
        assert len(set(zip(end.tolist(), found.tolist(), strict=True))) == len(pairs)


@given(edges, st.randoms())
def test_matchings_do_not_depend_on_the_order(pairs, random):
    other = random.sample(pairs, len(pairs))
    divisions = []
    for order in (pairs, other):
        found = matchings(*np.array(order).T, 7)
        divisions.append(sorted(zip(found.tolist(), order, strict=True)))
    assert divisions[0] == divisions[1]


def test_matchings_of_thousands_are_quick():
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 64, (2, 5000))
    begin = time.process_time()
    found = matchings(source, target, 64)
    assert time.process_time() - begin < 2
    assert found.max() + 1 == degree(source, target)


def played(schedule: Schedule, held: np.ndarray) -> np.ndarray:
    """What the steps make of everyone's elements, in plain NumPy."""
    at, plan = schedule.piece_offsets(held.shape[1]), steps(schedule)
    held = held.copy()
    for loop in plan.loops:
        for i, form in enumerate(loop.form):
            first = loop.start + i * loop.slots
            table = plan.table[:, :, first : first + loop.slots]
            play_round(held, at, table, loop.forms[form].permutations, loop.ops)
    return held


def play_round(held, at, table, permutations, ops) -> None:
    brought = {}
    for slot, permutation in enumerate(permutations):
        for source, target in permutation:
            piece = table[source, SEND, slot]
            brought[target, slot] = held[source, at[piece] : at[piece + 1]].copy()
    for write, allowed in enumerate(ops):
        assert set(table[:, OP, write].tolist()) <= allowed
        for server in np.flatnonzero(table[:, OP, write] != IDLE).tolist():
            piece, op = table[server, WRITE, write], table[server, OP, write]
            into = held[server, at[piece] : at[piece + 1]]
            came = brought.pop((server, int(table[server, TAKE, write])))
            if op == COPY:
                into[:] = came
            else:
                combine("sum", into, came)
    assert not brought


@pytest.mark.parametrize("strategy", QUICK)
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_do_what_the_schedule_says(name: str, strategy: str):
    schedule = made(name, strategy)
    servers = schedule.topology.num_servers
    held = np.random.default_rng(0).standard_normal((servers, 2 * schedule.pieces - 1))
    assert played(schedule, held).tobytes() == play(schedule, held).tobytes()
    forms = [loop.forms[form] for loop in steps(schedule).loops for form in loop.form]
    rank = schedule.topology.rank
    rounds = [
        (rank[schedule.source[a:b]], rank[schedule.target[a:b]])
        for a, b in zip(schedule.round_offsets, schedule.round_offsets[1:], strict=False)
        if a < b
    ]
    for form, ends in zip(forms, rounds, strict=True):
        assert len(form.permutations) == degree(*ends)
        for permutation in form.permutations:
            assert all(len(set(end)) == len(end) for end in zip(*permutation, strict=True))


def test_alike_rounds_share_a_loop():
    loops = steps(made("ring:8", "ring")).loops
    assert [len(loop.form) for loop in loops] == [7, 7]
    assert [len(loop.forms) for loop in loops] == [1, 1]


def test_many_forms_become_one_loop():
    (loop,) = steps(made("bcube:n=4,k=1", "parameter server")).loops
    assert sum(len(form.permutations) for form in loop.forms) > MOST_UNROLLED
    assert len(loop.forms) == len(set(loop.forms)) <= len(loop.form)


def test_steps_are_derived_once_and_not_kept():
    topology = gw.topology.ring(4)
    schedule = gw.schedulers.Ring().schedule(topology)
    assert steps(schedule) is steps(schedule)
    assert steps(schedule) is not steps(gw.schedulers.Ring().schedule(topology))


def test_steps_of_64_servers_are_quick():
    topology = gw.topology.from_spec("torus:8x8")
    schedule = gw.schedulers.CentralParameterServer().schedule(topology)
    begin = time.process_time()
    assert len(steps(schedule).loops) == 1
    assert time.process_time() - begin < 2


SIZES = [
    *([1] * 7, [1, 0, 0, 0, 0], [12] * 8 + [11], [3, 3, 2], [3] * 4),
    *([0, 43, 43, 14], [100, 0, 0], [42, 8, 42, 8]),
]


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_are_the_pieces(sizes: list[int]):
    elements = jnp.arange(1, sum(sizes) + 1)
    rows, at = to_rows(elements, sizes), np.cumsum([0, *sizes])
    assert rows.shape == (len(sizes), max(sizes))
    for piece, row in enumerate(np.asarray(rows)):
        expected = np.arange(at[piece], at[piece + 1]) + 1
        assert row.tolist() == [*expected, *[0] * (rows.shape[1] - len(expected))]
    assert from_rows(rows, sizes).tolist() == elements.tolist()


def test_leaves_are_joined_by_type():
    leaves: list[Any] = [jnp.ones((2, 3)), jnp.int8(4), jnp.zeros((0, 5)), jnp.float32(2)]
    assert list(by_dtype(leaves).values()) == [[0, 2, 3], [1]]
    floats = [leaves[0], leaves[2], leaves[3]]
    back = divided(joined(floats), floats)
    assert [leaf.shape for leaf in back] == [(2, 3), (0, 5), ()]
    assert back[2] == 2


def in_axis(run, servers: int, *arguments):
    return jax.make_jaxpr(run, axis_env=[("server", servers)])(*arguments)


def exchanges(jaxpr) -> int:
    """Ppermutes in a program, those inside its loops and branches included."""
    count = 0
    for equation in jaxpr.eqns:
        count += equation.primitive.name == "ppermute"
        if equation.primitive.name == "custom_linear_solve":
            count += exchanges(equation.params["jaxprs"].solve.jaxpr)
            continue
        inside = jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns"))
        inside = [getattr(each, "jaxpr", each) for each in inside]
        count += sum(exchanges(each) for each in inside if hasattr(each, "eqns"))
    return count


@pytest.mark.parametrize(
    ("name", "strategy", "expected"),
    [
        ("ring:8", "ring", 2),  # one in the loop of each stage
        ("bcube:n=3,k=1", "binomial", 8),  # of one round each
        ("bcube:n=3,k=1", "merged", None),
        ("irregular", "merged", None),
        ("bcube:n=4,k=1", "parameter server", None),
    ],
)
def test_fewest_ppermutes_in_the_program(name: str, strategy: str, expected: int | None):
    schedule = made(name, strategy)
    program = in_axis(jax_mesh.Collective(schedule), schedule.topology.num_servers, jnp.ones(50))
    forms = [form for loop in steps(schedule).loops for form in loop.forms]
    assert exchanges(program.jaxpr) == sum(len(form.permutations) for form in forms)
    assert exchanges(program.jaxpr) == expected or expected is None


def test_wrong_number_of_devices():
    with pytest.raises(ScheduleError, match=r"4 servers of ring:n=4.* 3 devices along axis 'serv"):
        in_axis(jax_mesh.Collective(gw.schedulers.Ring().schedule(gw.topology.ring(4))), 3, 1.0)


def test_mesh_with_too_few_devices():
    schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    with pytest.raises(ScheduleError, match=r"expected 4 devices.* got 1.*device_count=4"):
        jax_mesh.server_mesh(schedule, jax.devices()[:1])


def test_refused_schedules():
    topology = network("ring:8")
    stage = gw.schedulers.Ring().schedule(topology, collective="all_gather")
    with pytest.raises(ScheduleError, match="expected a schedule of collective all_reduce"):
        jax_mesh.all_reduce(jnp.ones(8), stage)
    schedule = gw.schedulers.Ring().schedule(topology)
    with pytest.raises(InvalidScheduleError, match="cannot run"):
        jax_mesh.Collective(schedule.replace(piece=np.roll(schedule.piece, 1)))
    star = network("star:5")
    adding = gw.schedulers.Merged(aggregating_switches=True).schedule(star)
    with pytest.raises(InvalidScheduleError, match="cannot run"):
        jax_mesh.Collective(adding)


@pytest.mark.parametrize(
    ("reduction", "gradient", "message"),
    [
        ("median", 1.0, "expected one of sum, mean, max, min"),
        ("mean", jnp.arange(3), "the mean needs a floating-point type, got int32"),
        ("mean", jnp.ones(3, bool), "the mean needs a floating-point type, got bool"),
        ("sum", jnp.ones(3, bool), "a sum of booleans is not a boolean"),
        ("sum", jax.random.key(0), "expected numbers or booleans, got key"),
    ],
)
def test_refused_reductions(reduction, gradient, message: str):
    schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    with pytest.raises(OptionError, match=message):
        in_axis(lambda x: jax_mesh.all_reduce(x, schedule, reduction=reduction), 4, gradient)


def test_nothing_to_reduce():
    schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    program = in_axis(jax_mesh.Collective(schedule), 4, {"a": jnp.zeros((0, 3)), "b": None})
    assert exchanges(program.jaxpr) == 0
