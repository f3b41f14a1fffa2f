"""MSCCL's files, run by an interpreter of theirs, and its limits."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import FileError, InvalidScheduleError, OptionError, ScheduleError
from gradweave.export import msccl, save_msccl_xml, to_msccl_xml
from gradweave.schedules import COLLECTIVES, Schedule
from tests.conformance.made import made as schedule
from tests.conformance.networks import network
from tests.export.cases import (
    BY_HAND,
    CASES,
    ONE_EACH,
    laid_out,
    on_other_numbers,
    permuted,
    twice,
)
from tests.export.contributions import WrongCountError
from tests.export.interleaving import DeadlockError
from tests.export.msccl_interpreter import dependences, read, run
from tests.export.races import RaceError
from tests.verifier.random_schedules import valid_schedules

AGGREGATING = gw.schedulers.Merged(aggregating_switches=True)


def runs_right(made: Schedule, seeds: int = 4, **options: object) -> None:
    """In place and out of place, however steps interleave and little room connections have."""
    dialect = options.get("dialect", "msccl")
    algorithm = read(
        to_msccl_xml(made, **options), dialect=dialect, max_steps=64 if dialect == "rccl" else 256
    )
    for in_place in (True, False):
        for seed in range(seeds):
            run(algorithm, seed, in_place=in_place, room=1 + seed % 2)
        run(algorithm, 0, in_place=in_place, room=1, races=True)


@pytest.mark.parametrize(
    "case", [case for case in CASES if laid_out(schedule(*case))], ids="-".join
)
def test_runs_right(case):
    runs_right(schedule(*case))


@pytest.mark.parametrize("case", ONE_EACH, ids="-".join)
def test_runs_right_side_by_side(case):
    runs_right(schedule(*case), seeds=2, instances=3)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_server_ids_need_not_be_ranks_nor_roots_in_their_order(collective):
    runs_right(on_other_numbers(collective))


@pytest.mark.parametrize("case", ONE_EACH, ids="-".join)
def test_several_pieces_a_server(case):
    runs_right(twice(schedule(*case)), seeds=2, dialect="rccl")


@pytest.mark.parametrize("made", BY_HAND, ids=lambda made: made.__name__)
def test_by_hand(made):
    runs_right(made(), seeds=20)


@settings(max_examples=30)
@given(made=valid_schedules(), instances=st.integers(1, 2))
def test_random_networks(made, instances):
    assume(
        made.topology.is_server[made.target].all() and made.topology.is_server[made.source].all()
    )
    assume(laid_out(made))
    runs_right(made, seeds=2, instances=instances)


@pytest.mark.parametrize("case", ONE_EACH[:2], ids="-".join)
def test_a_wait_left_out_shows(case):
    """So that the tests above can fail: most waits matter, and the interpreter says so."""
    content = to_msccl_xml(schedule(*case))
    waits = dependences(read(content))
    shown = 0
    tried = waits[:: len(waits) // 20]
    for block, step, which in tried:
        algorithm = read(content)
        del algorithm.blocks[block].steps[step].waits_for[which]
        shown += any(_wrong(algorithm, seed) for seed in range(12))
    assert shown >= 0.7 * len(tried), f"{shown} of {len(tried)}"


def _wrong(algorithm: object, seed: int) -> bool:
    try:
        run(algorithm, seed, room=4)
    except WrongCountError:
        return True
    return False


def test_the_wait_of_a_swap_shows_in_some_orders_and_always_as_a_race():
    """Two servers add what the other has: the sum must wait for the send."""
    content = to_msccl_xml(schedule("complete:2", "recursive doubling", "all_reduce"))
    algorithm = read(content)
    for block in algorithm.blocks:
        for step in block.steps:
            step.waits_for.clear()
    assert {_wrong(algorithm, seed) for seed in range(20)} == {True, False}
    with pytest.raises(RaceError):
        run(algorithm, 0, races=True)


def test_the_interpreter_sees_a_deadlock():
    algorithm = read(to_msccl_xml(schedule("ring:8", "ring", "all_gather")))
    algorithm.blocks[0].steps.reverse()
    with pytest.raises((DeadlockError, WrongCountError)):
        run(algorithm, 0, room=1)


def test_order_on_links_is_kept():
    """With one link a server, a server's second send waits for the first, to whomever it goes."""
    made = gw.schedulers.Merged().schedule(network("star:5"))
    algorithm = read(to_msccl_xml(made))
    sends = [block for block in algorithm.blocks if block.gpu == 0 and block.send >= 0]
    free = [block for block in sends if not block.steps[0].waits_for]
    assert len(sends) == 4 and len(free) <= 2  # one under way and one ahead of it


@pytest.mark.parametrize(
    ("collective", "msccls", "rccls"),
    [
        ("all_reduce", "allreduce", "allreduce"),
        ("all_gather", "allgather", "allgather"),
        ("reduce_scatter", "reduce_scatter", "reducescatter"),
    ],
)
def test_dialects(collective, msccls, rccls):
    made = schedule("ring:8", "ring", collective)
    for dialect, name in (("msccl", msccls), ("rccl", rccls)):
        root = ET.fromstring(to_msccl_xml(made, dialect=dialect))
        assert root.attrib["coll"] == name


def test_attributes():
    made = schedule("ring:8", "ring", "all_reduce")
    options = {"protocol": "LL128", "in_place": False, "min_bytes": 1024, "max_bytes": 1 << 20}
    attributes = ET.fromstring(to_msccl_xml(made, name="mine", instances=2, **options)).attrib
    assert attributes == {
        "name": "mine",
        "proto": "LL128",
        "nchannels": "2",
        "nchunksperloop": "16",
        "ngpus": "8",
        "coll": "allreduce",
        "inplace": "0",
        "outofplace": "1",
        "minBytes": "1024",
        "maxBytes": "1048576",
        "nthreads": "0",
    }


@pytest.mark.parametrize("name", ['a"b<c>&\n\t\x00é', "x" * 1000, "", "'"])
def test_names_that_parsers_would_trip_over(name):
    made = schedule("complete:2", "recursive doubling", "all_reduce")
    assert read(to_msccl_xml(made, name=name)).root.attrib["name"]
    read(to_msccl_xml(made.replace(topology=_named(made.topology, name))))


def _named(topology: gw.Topology, name: str) -> gw.Topology:
    columns = ("is_server", "source", "target", "bandwidth_bytes_per_s", "latency_s", "capacity")
    return gw.Topology(name=name, **{column: getattr(topology, column) for column in columns})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"protocol": "ll"}, "protocol: expected one of Simple, LL, LL128 for msccl, got 'll'"),
        ({"protocol": "LL", "dialect": "rccl"}, "expected one of Simple, LL128 for rccl, got 'LL'"),
        ({"dialect": "nccl"}, "dialect: expected one of msccl, rccl, got 'nccl'"),
        ({"instances": 0}, "instances: expected 1 to 32, the most channels, got 0"),
        ({"instances": 33}, "instances: expected 1 to 32, the most channels, got 33"),
        ({"min_bytes": 2, "max_bytes": 1}, "min_bytes ≤ max_bytes < 2^63, got 2 and 1"),
    ],
)
def test_options(options, reason):
    with pytest.raises(OptionError) as error:
        to_msccl_xml(schedule("complete:4", "grown", "all_reduce"), **options)
    assert reason in str(error.value)


def test_too_many_peers():
    made = gw.schedulers.CentralParameterServer().schedule(gw.topology.star(34))
    with pytest.raises(ScheduleError, match=r"server 0: expected at most 32 servers .*, got 33; "):
        to_msccl_xml(made)


def test_too_many_blocks():
    made = schedule("complete:4", "grown", "all_reduce")
    assert len(read(to_msccl_xml(made, instances=21)).blocks) == 4 * 6 * 21
    with pytest.raises(ScheduleError, match="at most 128 thread blocks, got 132; take fewer inst"):
        to_msccl_xml(made, instances=22)


def test_too_many_steps():
    made = gw.schedulers.Ring().schedule(gw.topology.ring(34))  # 66 steps a stage and direction
    to_msccl_xml(made)
    with pytest.raises(ScheduleError, match="at most 64 steps in one thread block, got 66; take"):
        to_msccl_xml(made, dialect="rccl")


def test_too_many_elements():
    made = gw.schedulers.Ring(directions=2).schedule(gw.topology.ring(40))
    with pytest.raises(
        ScheduleError, match=r"at most 4,095 elements .* for one GPU, got .* fewer in"
    ):
        to_msccl_xml(made, instances=32)


def test_too_many_chunks(monkeypatch):
    monkeypatch.setattr(msccl, "MAX_CHUNKS", 15)
    with pytest.raises(
        ScheduleError, match="at most 15 chunks of one buffer, got 16; take fewer p"
    ):
        to_msccl_xml(schedule("ring:8", "ring", "all_reduce"), instances=2)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_roots_of_unequally_many_pieces(collective):
    made = schedule("ring:8", "central", collective)
    with pytest.raises(ScheduleError, match="got 8 at server 0 and 0 at server 1; make the sched"):
        to_msccl_xml(made)


def test_what_cannot_run_is_refused():
    made = schedule("ring:8", "ring", "all_reduce")
    with pytest.raises(InvalidScheduleError):
        to_msccl_xml(permuted(made, np.arange(8)).replace(op=1 - made.op))
    with pytest.raises(InvalidScheduleError):
        to_msccl_xml(AGGREGATING.schedule(network("fat_tree:4")))


def test_save(tmp_path):
    made = schedule("complete:4", "grown", "all_reduce")
    save_msccl_xml(made, tmp_path / "a.xml", instances=2)
    assert (tmp_path / "a.xml").read_bytes() == to_msccl_xml(made, instances=2)
    with pytest.raises(FileError):
        save_msccl_xml(made, tmp_path / "nowhere" / "a.xml")
