"""Chakra's traces, decoded and run."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import FileError, InvalidScheduleError, OptionError, ScheduleError
from gradweave.export import chakra, save_chakra_et, to_chakra_et
from gradweave.schedules import COLLECTIVES, Schedule
from tests.conformance.made import made as schedule
from tests.conformance.networks import network
from tests.export.cases import BY_HAND, CASES, on_other_numbers, twice
from tests.export.chakra_interpreter import COMPUTE, RECEIVE, SEND, Trace, read, run, unordered
from tests.export.contributions import WrongCountError
from tests.export.interleaving import DeadlockError
from tests.verifier.random_demands import random_draft
from tests.verifier.random_schedules import valid_schedules


def traces_of(made: Schedule, gradient_bytes: int = 4096, **options: int) -> list[Trace]:
    return [read(each) for each in to_chakra_et(made, gradient_bytes=gradient_bytes, **options)]


def runs_right(made: Schedule, seeds: int = 4) -> None:
    traces = traces_of(made)
    for trace in traces:
        assert [node.id for node in trace.nodes] == list(range(len(trace.nodes)))
        assert not unordered(trace)
    roots = made.topology.rank[made.root].tolist()
    for seed in range(seeds):
        run(traces, roots, seed)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_runs_right(case):
    runs_right(schedule(*case))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_server_ids_need_not_be_ranks(collective):
    runs_right(on_other_numbers(collective))


@pytest.mark.parametrize("made", BY_HAND, ids=lambda made: made.__name__)
def test_by_hand(made):
    runs_right(made(), seeds=20)


def test_several_pieces_a_server():
    runs_right(twice(schedule("irregular", "grown", "all_gather")))


@settings(max_examples=25)
@given(made=valid_schedules())
def test_random_networks(made):
    assume(
        made.topology.is_server[made.target].all() and made.topology.is_server[made.source].all()
    )
    runs_right(made, seeds=2)


@settings(max_examples=25)
@given(draw=st.randoms(use_true_random=False), seed=st.integers(0, 9))
def test_random_demands(draw, seed):
    made = random_draft(draw).schedule()
    traces = traces_of(made, made.demand.total_bytes, element_bytes=1)
    rank, gets = made.topology.rank, made.destinations
    wanted = {
        (int(rank[server]), int(piece)): rank[made.contributors[piece]].tolist()
        for piece, server in zip(gets.owner, gets.servers, strict=True)
    }
    assert not any(map(unordered, traces))
    run(traces, rank[made.root].tolist(), seed, wanted)


def test_a_dependence_left_out_shows():
    made = schedule("hypercube:3", "recursive doubling", "all_reduce")
    content = to_chakra_et(made, gradient_bytes=64)
    roots = made.topology.rank[made.root].tolist()
    shown = tried = 0
    for node, held in enumerate(read(content[0]).nodes):
        for which in range(len(held.after)):
            traces = [read(each) for each in content]
            del traces[0].nodes[node].after[which]
            if unordered(traces[0]):
                tried += 1
                shown += any(_wrong(traces, roots, seed) for seed in range(20))
    assert tried >= 8 and shown == tried


def _wrong(traces: list[Trace], roots: list[int], seed: int) -> bool:
    try:
        run(traces, roots, seed)
    except WrongCountError:
        return True
    return False


def test_a_missing_send_is_a_deadlock():
    made = schedule("ring:8", "ring", "all_reduce")
    traces = traces_of(made)
    gone = next(node for node in traces[0].nodes if node.type == SEND)
    traces[0].nodes.remove(gone)
    for node in traces[0].nodes:
        node.after = [other for other in node.after if other != gone.id]
    with pytest.raises(DeadlockError):
        run(traces, made.topology.rank[made.root].tolist(), 0)


@pytest.mark.parametrize("element_bytes", [1, 4])
def test_sizes(element_bytes):
    """Every message has its piece's size; pieces differ by an element at most."""
    made = schedule("ring:8", "ring", "all_reduce")
    total = 1004
    sizes = np.diff(made.piece_offsets(total // element_bytes)) * element_bytes
    assert sizes.sum() == total and len(set(sizes.tolist())) == 2
    for trace in traces_of(made, total, element_bytes=element_bytes):
        kinds = [node.type for node in trace.nodes]
        assert [kinds.count(kind) for kind in (SEND, RECEIVE, COMPUTE)] == [14, 14, 7]
        for node in trace.nodes:
            size = sizes[node.at["piece"]]
            if node.type == COMPUTE:
                assert (node.at["tensor_size"], node.at["num_ops"]) == (size, size // element_bytes)
            else:
                assert node.at["comm_size"] == size


def test_metadata():
    (trace, *_) = traces_of(schedule("ring:8", "ring", "all_gather"), 1 << 40)
    assert trace.metadata == {
        "version": "0.0.4",
        "collective": "all_gather",
        "topology": "ring:n=8",
        "scheduler": "ring",
        "gradient_bytes": 1 << 40,
        "pieces": 8,
    }


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((10, 4), "gradient_bytes: expected a multiple of element_bytes, 4, got 10"),
        ((28, 4), "expected at least 32, an element of 4 bytes for each of 8 pieces, got 28"),
        ((0, 4), "expected at least 32"),
        ((64, 0), "expected a multiple of element_bytes, 0"),
    ],
)
def test_options(sizes, reason):
    with pytest.raises(OptionError) as error:
        to_chakra_et(
            schedule("ring:8", "ring", "all_reduce"),
            gradient_bytes=sizes[0],
            element_bytes=sizes[1],
        )
    assert reason in str(error.value)


def test_what_cannot_run_is_refused():
    made = gw.schedulers.Merged(aggregating_switches=True).schedule(network("fat_tree:4"))
    with pytest.raises(InvalidScheduleError):
        to_chakra_et(made, gradient_bytes=4096)


def test_save(tmp_path):
    made = schedule("complete:4", "grown", "all_reduce")
    paths = save_chakra_et(made, tmp_path / "a", gradient_bytes=64)
    assert [path.name for path in paths] == [f"a.{rank}.et" for rank in range(4)]
    assert [path.read_bytes() for path in paths] == to_chakra_et(made, gradient_bytes=64)
    assert sorted(tmp_path.iterdir()) == paths
    assert paths == save_chakra_et(made, tmp_path / "a", gradient_bytes=128)
    assert [path.read_bytes() for path in paths] == to_chakra_et(made, gradient_bytes=128)


def test_all_files_or_none(tmp_path, monkeypatch):
    made = schedule("complete:4", "grown", "all_reduce")
    (tmp_path / "a.2.et").mkdir()
    with pytest.raises(FileError, match="is a directory"):
        save_chakra_et(made, tmp_path / "a", gradient_bytes=64)
    for prefix in (tmp_path / "nowhere" / "a", tmp_path / "a\0", "."):
        with pytest.raises(FileError):
            save_chakra_et(made, prefix, gradient_bytes=64)
    write = chakra.atomic_write

    def full(path, content):
        if path.name == "b.3.et":
            raise FileError("the disk is full")
        write(path, content)

    monkeypatch.setattr(chakra, "atomic_write", full)
    with pytest.raises(FileError, match="full"):
        save_chakra_et(made, tmp_path / "b", gradient_bytes=64)
    assert [path.name for path in tmp_path.iterdir()] == ["a.2.et"]


def test_pieces_of_unequal_size():
    made = schedule("ring:8", "ring", "all_reduce").replace(shares=[1, 2, 3, 4, 5, 6, 7, 8])
    sizes = [4 * share for share in range(1, 9)]
    for trace in traces_of(made, 144):
        for node in trace.nodes:
            if node.type != COMPUTE:
                assert node.at["comm_size"] == sizes[node.at["piece"]]
    with pytest.raises(OptionError, match="expected at least 144, an element of 4 bytes for each"):
        gw.export.to_chakra_et(made, gradient_bytes=32)
    with pytest.raises(ScheduleError, match=r"shares\[2\]: is 0, but the piece is sent"):
        gw.export.to_chakra_et(made.replace(shares=[1, 1, 0, 1, 1, 1, 1, 1]), gradient_bytes=1024)


@pytest.mark.parametrize("write", [gw.export.to_msccl_xml, gw.export.to_mscclpp_json])
def test_formats_of_equal_chunks_refuse_shares(write):
    made = schedule("ring:8", "ring", "all_reduce").replace(shares=[1, 2, 3, 4, 5, 6, 7, 8])
    with pytest.raises(ScheduleError, match=r"shares: the chunks of MSCCL(\+\+)? are of one size"):
        write(made)
