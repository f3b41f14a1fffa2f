"""Servers that exchange a piece each with each: all end with the same bits of its sum."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.execute import Action, Program, play, same_bits
from gradweave.execute.exchanges import OWN, Write, exchanged, writes
from gradweave.schedulers import Merged, RecursiveDoubling
from gradweave.schedules import COPY, REDUCE

MESH4 = "complete:4,bandwidth=40Gbit/s,latency=300us"


def brought(servers: int) -> np.ndarray:
    """Numbers of very different magnitudes, so that each order of adding gives different bits."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((servers, 1_000)) * 10.0 ** rng.integers(-3, 3, (servers, 1))
    return numbers.astype(np.float32)


@pytest.mark.parametrize("servers", [2, 3, 4, 6])
def test_all_add_in_the_order_of_ids(servers):
    schedule = RecursiveDoubling(radix=64).schedule(gw.topology.from_spec(f"complete:{servers}"))
    given = brought(servers)
    by_hand = given[0].copy()
    for row in given[1:]:
        by_hand += row
    assert schedule.rounds == 1 and same_bits(schedule)
    assert (play(schedule, given) == by_hand).all()
    if servers > 3:
        assert not np.array_equal(given[3] + given[0] + given[1] + given[2], by_hand)


@pytest.mark.parametrize(("servers", "radix"), [(9, 3), (12, 3), (16, 4), (8, 4), (10, 8)])
def test_several_exchanges_end_in_the_same_bits_too(servers, radix):
    network = gw.topology.from_spec(f"complete:{servers}")
    schedule = RecursiveDoubling(radix=radix).schedule(network)
    ends = play(schedule, brought(servers))
    assert same_bits(schedule) and (ends == ends[0]).all()


def test_what_a_server_held_is_added_in_its_place():
    schedule = RecursiveDoubling(radix=4).schedule(gw.topology.from_spec("complete:4"))
    assert exchanged(schedule).all()
    row = {
        (int(a), int(b)): t
        for t, (a, b) in enumerate(zip(schedule.source, schedule.target, strict=True))
    }

    def into(server: int) -> list[Write]:
        return list(writes(schedule, [t for (_, b), t in row.items() if b == server]))

    assert into(1) == [Write(row[other, 1], REDUCE) for other in (0, 2, 3)]
    assert into(2) == [
        Write(row[0, 2], COPY, first_own=True),
        Write(row[1, 2], REDUCE),
        Write(OWN, REDUCE),
        Write(row[3, 2], REDUCE),
    ]
    kinds = [Action(kind) for kind in Program.of(schedule, 2).kind if kind > Action.RECEIVE]
    assert kinds == [Action.KEEP, Action.COPY, *[Action.REDUCE] * 3]


def test_other_rounds_keep_the_schedules_order():
    for spec in ("star:5", "hypercube:3"):
        assert not exchanged(Merged().schedule(gw.topology.from_spec(spec))).any()
    assert not exchanged(RecursiveDoubling().schedule(gw.topology.hypercube(3))).any()


def test_a_small_all_reduce_on_a_full_mesh_is_one_message_long():
    found = gw.solve(
        MESH4,
        objective="seconds",
        gradient_bytes=20_000,
        schedulers=["recursive_doubling", "recursive_doubling:radix=64", "binomial"],
    )
    # 1 us of overhead, 20 kB at 40 Gbit/s: 4 us, and 300 us of latency; two in a row take 610.
    assert found.timing.seconds == pytest.approx(305e-6)
    assert found.scheduler == RecursiveDoubling(radix=64)
    assert {one.scheduler.name for one in found.attempts} == {"recursive_doubling", "binomial"}


def test_formats_that_add_in_another_order_refuse_it():
    schedule = RecursiveDoubling(radix=4).schedule(gw.topology.from_spec("complete:4"))
    for write in (gw.export.to_msccl_xml, gw.export.to_mscclpp_json):
        with pytest.raises(ScheduleError, match="add in the order of their ids; this format"):
            write(schedule)
