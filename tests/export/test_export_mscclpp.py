"""MSCCL++'s plans, run by an interpreter of theirs, and their limits."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import FileError, InvalidScheduleError, OptionError, ScheduleError
from gradweave.export import save_mscclpp_json, to_mscclpp_json
from gradweave.export.mscclpp import MAX_CHANNELS, _parts
from gradweave.export.mscclpp_rounds import Operation
from gradweave.schedules import COLLECTIVES, COPY, REDUCE, Schedule
from tests.conformance.made import made as schedule
from tests.conformance.networks import network
from tests.export.cases import (
    BY_HAND,
    CASES,
    ONE_EACH,
    laid_out,
    on_other_numbers,
    twice,
    useless_copy,
)
from tests.export.contributions import WrongCountError
from tests.export.interleaving import DeadlockError
from tests.export.mscclpp_interpreter import Plan, read, run
from tests.export.races import RaceError
from tests.verifier.random_schedules import valid_schedules


def runs_right(made: Schedule, seeds: int = 4, **options: object) -> Plan:
    """In place and out of place, twice in a row, however operations interleave."""
    plan = read(to_mscclpp_json(made, **options))
    for in_place in (True, False):
        for seed in range(seeds):
            run(plan, seed, in_place=in_place)
        run(plan, 0, in_place=in_place, races=True)
    return plan


@pytest.mark.parametrize(
    "case", [case for case in CASES if laid_out(schedule(*case))], ids="-".join
)
def test_runs_right(case):
    runs_right(schedule(*case), seeds=2)


@pytest.mark.parametrize("case", ONE_EACH, ids="-".join)
def test_runs_right_side_by_side(case):
    runs_right(schedule(*case), seeds=2, instances=2)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_server_ids_need_not_be_ranks_nor_roots_in_their_order(collective):
    runs_right(on_other_numbers(collective))


@pytest.mark.parametrize("case", ONE_EACH, ids="-".join)
def test_several_pieces_a_server(case):
    runs_right(twice(schedule(*case)), seeds=2)


@pytest.mark.parametrize("made", BY_HAND, ids=lambda made: made.__name__)
def test_by_hand(made):
    runs_right(made(), seeds=20)


@settings(max_examples=25)
@given(made=valid_schedules(), instances=st.integers(1, 2))
def test_random_networks(made, instances):
    assume(
        made.topology.is_server[made.target].all() and made.topology.is_server[made.source].all()
    )
    assume(laid_out(made))
    runs_right(made, seeds=2, instances=instances)


def test_many_sums_and_copies_into_one_piece_in_one_round():
    """More sums than an operation takes, and in the order of the rows."""
    star = gw.Topology.from_links(
        "star", servers=12, switches=0, links=[(0, v) for v in range(1, 12)]
    )
    rows = [(0, 0, REDUCE, (v, 0)) for v in range(1, 12)]
    rows += [(1, 0, COPY, (0, v)) for v in range(1, 12)]
    plan = runs_right(Schedule.from_rows(star, rows, root=[0]))
    operations = [op for block in plan.gpus[0]["threadblocks"] for op in block["ops"]]
    sums = [len(op["src_buff"]) for op in operations if op["name"] == "re"]
    assert sums == [8, 5]
    assert max(len(op["dst_buff"]) for op in operations if op["name"] == "put") == 8


def test_a_copy_that_may_go_where_it_belongs_does():
    """In an all-reduce along trees no copy needs scratch memory."""
    plan = read(to_mscclpp_json(schedule("ring:8", "ring", "all_reduce")))
    assert {gpu["scratch_chunks"] for gpu in plan.gpus} == {7}  # its sums alone


def test_a_copy_over_what_may_still_be_in_use_does_not():
    plan = runs_right(useless_copy())
    copies = [
        [op["name"] for block in gpu["threadblocks"] for op in block["ops"]].count("copy")
        for gpu in plan.gpus
    ]
    # Server 1 sends while the first copy comes, and nobody hears when it has stored it.
    assert copies == [0, 2, 0]


def test_long_programs_go_on_in_other_thread_blocks():
    plan = runs_right(schedule("ring:8", "ring", "all_reduce"), seeds=2)
    for gpu in plan.gpus:
        assert len(gpu["threadblocks"]) == 2 and len(gpu["semaphores"]) == 1


def without_greeting(plan: Plan) -> Plan:
    """The plan without the signals by which servers say that they have started."""
    for gpu in plan.gpus:
        operations = gpu["threadblocks"][0]["ops"]
        while operations.pop(0)["name"] != "nop":
            pass
    return plan


@pytest.mark.parametrize(
    "case",
    [("complete:2", "recursive doubling", "all_reduce"), ("ring:8", "ring", "all_gather")],
    ids="-".join,
)
def test_without_a_greeting_one_run_overwrites_the_last(case):
    plan = without_greeting(read(to_mscclpp_json(schedule(*case))))
    run(plan, 0, runs=1)
    assert any(_wrong(plan, seed) for seed in range(20))
    with pytest.raises(RaceError):
        run(plan, 0, races=True)


def test_a_wait_left_out_shows():
    content = to_mscclpp_json(schedule("hypercube:3", "recursive doubling", "all_reduce"))
    shown, tried = 0, 0
    for rank in range(8):
        operations = json.loads(content)["gpus"][rank]["threadblocks"][0]["ops"]
        for place, operation in enumerate(operations[3:], start=3):
            if operation["name"] == "wait":
                plan = read(content)
                # Waits for nobody.
                plan.gpus[rank]["threadblocks"][0]["ops"][place]["channel_ids"] = []
                tried += 1
                shown += any(_wrong(plan, seed, runs=1) for seed in range(10))
    assert tried == 24 and shown == tried


def _wrong(plan: Plan, seed: int, runs: int = 3) -> bool:
    try:
        run(plan, seed, runs=runs)
    except WrongCountError:
        return True
    except AssertionError as error:
        assert "left over" in str(error)
    return False


def test_a_nop_left_out_shows():
    content = to_mscclpp_json(schedule("complete:4", "grown", "all_reduce"))
    operations = json.loads(content)["gpus"][0]["threadblocks"][0]["ops"]
    nops = [place for place, each in enumerate(operations) if each["name"] == "nop"]
    for place in nops[:-1]:  # the last has nothing after it
        plan = read(content)
        del plan.gpus[0]["threadblocks"][0]["ops"][place]
        with pytest.raises(AssertionError, match=r"nop is missing|before all threads have"):
            run(plan, 0)


def test_a_signal_left_out_is_a_deadlock():
    plan = read(to_mscclpp_json(schedule("ring:8", "ring", "all_reduce")))
    operations = plan.gpus[3]["threadblocks"][0]["ops"]
    del operations[next(n for n, each in enumerate(operations) if n and each["name"] == "signal")]
    with pytest.raises(DeadlockError):
        run(plan, 0)


def test_attributes():
    options = {"in_place": False, "min_bytes": 16, "max_bytes": 1 << 30}
    plan = json.loads(
        to_mscclpp_json(schedule("ring:8", "ring", "all_gather"), name='a"b', **options)
    )
    assert plan["name"] == "a_b" and plan["collective"] == "allgather"
    assert plan["inplace"] is False
    assert (plan["min_message_size"], plan["max_message_size"]) == (16, 1 << 30)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"instances": 0}, "instances: expected 1 to 108, got 0"),
        ({"max_bytes": 1 << 64}, f"< 2^64, got 0 and {1 << 64}"),
        ({"min_bytes": -1}, "expected 0 ≤ min_bytes ≤ max_bytes < 2^64, got -1"),
    ],
)
def test_options(options, reason):
    with pytest.raises(OptionError) as error:
        to_mscclpp_json(schedule("complete:4", "grown", "all_reduce"), **options)
    assert reason in str(error.value)


def test_too_many_blocks():
    made = schedule("ring:8", "ring", "all_reduce")
    read(to_mscclpp_json(made, instances=54))
    with pytest.raises(
        ScheduleError, match=r"server 0: expected at most 108 .* got 110; take fewer"
    ):
        to_mscclpp_json(made, instances=55)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_roots_of_unequally_many_pieces(collective):
    with pytest.raises(ScheduleError, match="got 8 at server 0 and 0 at server 1"):
        to_mscclpp_json(schedule("ring:8", "central", collective))


def test_what_cannot_run_is_refused():
    made = schedule("ring:8", "ring", "all_reduce")
    with pytest.raises(InvalidScheduleError):
        to_mscclpp_json(made.replace(op=np.zeros_like(made.op)))
    aggregating = gw.schedulers.Merged(aggregating_switches=True)
    with pytest.raises(InvalidScheduleError):
        to_mscclpp_json(aggregating.schedule(network("fat_tree:4")))


def test_save(tmp_path):
    made = schedule("complete:4", "grown", "all_reduce")
    save_mscclpp_json(made, tmp_path / "a.json", name="mine")
    assert (tmp_path / "a.json").read_bytes() == to_mscclpp_json(made, name="mine")
    with pytest.raises(FileError):
        save_mscclpp_json(made, tmp_path / "nowhere" / "a.json")


@pytest.mark.parametrize("channels", [1, 16, 17, 40])
def test_a_block_has_at_most_so_many_channels(channels):
    """Those to peers that are signalled count, and those to memory that is put into."""
    signals = [Operation("signal", peers=(peer,)) for peer in range(channels)]
    puts = [Operation("put", put=((peer, "input", 0),)) for peer in range(channels)]
    for operations in (signals, puts):
        parts = _parts(operations)
        assert [one for part in parts for one in part] == operations
        assert len(parts) == -(-channels // MAX_CHANNELS)
        assert all(len(part) <= MAX_CHANNELS for part in parts)
