"""Other tools' results as schedules: what they move, in which order, and what is refused."""

import pytest

import gradweave as gw
from gradweave.errors import FileError
from gradweave.export import to_msccl_xml
from gradweave.library.importers import imported, is_foreign
from gradweave.schedules import Job
from gradweave.schedules.jobs import demand_of
from gradweave.verifier import verify

PAIR = gw.topology.complete(2)
TREES = """<Algo nchunkspernode="2">
  <tree root="(0, 'GPU', 0)" index="0" nchunks="2" height="1">
    <send src="(0, 'GPU', 0)" dst="(0, 'GPU', 1)" path="x"/></tree>
  <tree root="(0, 'GPU', 1)" index="0" nchunks="1" height="1">
    <send src="(0, 'GPU', 1)" dst="(0, 'GPU', 0)" path="x"/></tree>
  <tree root="(0, 'GPU', 1)" index="1" nchunks="1" height="1">
    <send src="(0, 'GPU', 1)" dst="(0, 'GPU', 0)" path="x"/></tree>
</Algo>"""
TE_CCL = {
    "7-Flows": [
        "Chunk 0 from 1 traveled over 1->2 in epoch 0 via switches 0",
        "Chunk 0 from 2 traveled over 2->3 in epoch 0 via switches 0",
        "Chunk 0 from 3 traveled over 3->1 in epoch 0 via switches 0",
        "Chunk 0 from 1 traveled over 2->3 in epoch 1 via switches 0",
        "Chunk 0 from 2 traveled over 3->1 in epoch 1 via switches 0",
        "Chunk 0 from 3 traveled over 1->2 in epoch 1 via switches 0",
    ]
}


def _json(data):
    import json

    return json.dumps(data).encode()


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "dgx1v", "mesh:3x3"])
def test_what_is_exported_to_msccl_comes_back(spec, collective):
    schedule = gw.solve(spec, collective=collective).schedule
    again = imported(to_msccl_xml(schedule), "x.xml", schedule.topology, None)
    assert verify(again).valid
    assert (again.collective, again.pieces) == (schedule.collective, schedule.pieces)
    assert again.num_transfers == schedule.num_transfers
    assert again.root.tolist() == schedule.root.tolist()
    assert again.rounds <= schedule.rounds * 2


def test_an_all_to_all_of_msccl_needs_the_demand_and_serves_it():
    demand = demand_of(PAIR, [Job("all_to_all", 8)])
    gpus = "".join(
        f'<gpu id="{a}" i_chunks="2" o_chunks="2" s_chunks="0">'
        f'<tb id="0" send="{1 - a}" recv="{1 - a}" chan="0">'
        f'<step s="0" type="s" srcbuf="i" srcoff="{1 - a}" dstbuf="o" dstoff="{a}" cnt="1" '
        'depid="-1" deps="-1" hasdep="0"/>'
        f'<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{1 - a}" cnt="1" '
        'depid="-1" deps="-1" hasdep="0"/></tb></gpu>'
        for a in range(2)
    )
    text = f'<algo name="x" coll="alltoall" ngpus="2" nchunksperloop="2" inplace="0">{gpus}</algo>'
    schedule = imported(text.encode(), "x.xml", PAIR, None, demand)
    assert verify(schedule).valid and schedule.rounds == 1 and schedule.num_transfers == 2
    with pytest.raises(FileError, match=r"^x.xml: MSCCL: it is an all-to-all$"):
        imported(text.encode(), "x.xml", PAIR, None)
    stuck = text.replace('depid="-1" deps="-1"', 'depid="0" deps="1"')
    with pytest.raises(FileError, match="GPU 0, thread block 0, step 0: waits forever"):
        imported(stuck.encode(), "x.xml", PAIR, None, demand)
    lost = text.replace('srcoff="1"', 'srcoff="0"')
    with pytest.raises(FileError, match="output 0 of GPU 1 is not what the collective asks for"):
        imported(lost.encode(), "x.xml", PAIR, None, demand)


def test_partial_sums_that_have_no_counterpart_are_refused():
    """GPU 0 adds what it receives, and then sends its own contribution, which it kept, too."""
    step = (
        '<step s="{}" type="{}" srcbuf="{}" srcoff="0" dstbuf="{}" dstoff="0" cnt="1" depid="-1" '
        'deps="-1" hasdep="0"/>'
    )
    steps = [("cpy", "i", "s"), ("rrc", "i", "i"), ("s", "s", "s")]
    first = "".join(step.format(k, *one) for k, one in enumerate(steps))
    second = step.format(0, "s", "i", "i") + step.format(1, "r", "i", "i")
    text = (
        '<algo coll="allreduce" ngpus="2" nchunksperloop="1" inplace="1">'
        f'<gpu id="0"><tb id="0" send="1" recv="1" chan="0">{first}</tb></gpu>'
        f'<gpu id="1"><tb id="0" send="0" recv="0" chan="0">{second}</tb></gpu></algo>'
    )
    with pytest.raises(FileError, match="sends one partial sum of chunk 0 and keeps another"):
        imported(text.encode(), "x.xml", PAIR, None)


def test_trees_become_pieces_of_their_roots():
    schedule = imported(TREES.encode(), "t.xml", PAIR, "all_gather", gradient_bytes=1e9)
    assert verify(schedule).valid and schedule.scheduler.name == "ForestColl"
    assert sum(schedule.share[schedule.root == 0]) == pytest.approx(0.5)
    both = imported(TREES.encode(), "t.xml", PAIR, "all_reduce", gradient_bytes=1e9)
    assert verify(both).valid and both.collective == "all_reduce"
    with pytest.raises(FileError, match="2 roots; the network has 3 servers"):
        imported(TREES.encode(), "t.xml", gw.topology.ring(3), "all_gather")
    twice = TREES.replace("dst=\"(0, 'GPU', 1)\"", "dst=\"(0, 'GPU', 0)\"")
    with pytest.raises(FileError, match="twice"):
        imported(twice.encode(), "t.xml", PAIR, "all_gather")


def test_flows_of_te_ccl_become_transfers_with_their_switches():
    star = gw.topology.star(3)
    assert is_foreign(_json(TE_CCL), "s.json")
    schedule = imported(_json(TE_CCL), "s.json", star, None)
    assert verify(schedule).valid and schedule.rounds == 2
    late = {"7-Flows": TE_CCL["7-Flows"][:-1]}
    assert not verify(imported(_json(late), "s.json", star, None)).valid
    with pytest.raises(FileError, match=r"among 3 servers and takes numbers 0 for switches"):
        imported(_json(TE_CCL), "s.json", gw.topology.complete(4), None)
    early = {"7-Flows": [text.replace("epoch 1", "epoch 0") for text in TE_CCL["7-Flows"][::-1]]}
    with pytest.raises(FileError, match="the chunk is not there yet"):
        imported(_json(early), "s.json", star, None)


def test_paths_of_te_ccl_carry_parts_of_a_message():
    ring = gw.topology.ring(3)
    demand = demand_of(ring, [Job("all_to_all", 9)])
    ends = [(a, b) for a in range(3) for b in range(3) if a != b]
    paths = {
        f"Demand at {b} for chunk 0 from {a} met by epoch 0": [
            [[0, f"{a}->{b} with volume 1.0 in epoch 0"]]
        ]
        for a, b in ends
    }
    paths["Demand at 1 for chunk 0 from 0 met by epoch 0"] = [
        [[0, "0->1 with volume 0.75 in epoch 0"]],
        [[0, "0->2 with volume 0.25 in epoch 0"], [1, "2->1 with volume 0.25 in epoch 1"]],
    ]
    flows = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a, b in ends]
    data = {"6-Flows": flows, "7-chunk paths": paths}
    schedule = imported(_json(data), "s.json", ring, None, demand)
    assert verify(schedule).valid
    one, other = schedule.share[schedule.block == 0]
    assert one == 3 * other
    assert (schedule.pieces, schedule.num_transfers) == (7, 8)
    del paths["Demand at 1 for chunk 0 from 0 met by epoch 0"]
    with pytest.raises(FileError, match="nothing goes from 0 to 1"):
        imported(_json(data), "s.json", ring, None, demand)


@pytest.mark.parametrize(
    "content",
    [
        b'<!DOCTYPE a [<!ENTITY b "c">]><algo coll="allreduce">&b;</algo>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><algo/>',
        b"<algo",
        b'<algo coll="allreduce" ngpus="2" nchunksperloop="99999999999"/>',
        b'<algo coll="mine" ngpus="2"/>',
        b"<svg/>",
        b'{"7-Flows": {}}',
        b'{"7-Flows": [1]}',
        b'{"7-Flows": ["Chunk 0 from 1 traveled over 1->2 in epoch 99999999999"]}',
    ],
)
def test_hostile_files_are_one_line(content):
    with pytest.raises(FileError) as error:
        imported(content, "x", PAIR, "all_gather")
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def msccl(collective, gpus, chunks, programs, ends):
    """An algorithm of one thread block per GPU.

    Args:
        programs: of each GPU (type, buffer and offset read, buffer and offset written).
        ends: of each GPU, to which it sends and from which it receives.
    """
    text = f'<algo coll="{collective}" ngpus="{gpus}" nchunksperloop="{chunks}" inplace="0">'
    for gpu, (program, (to, of)) in enumerate(zip(programs, ends, strict=True)):
        text += f'<gpu id="{gpu}"><tb id="0" send="{to}" recv="{of}" chan="0">'
        text += "".join(
            f'<step s="{k}" type="{kind}" srcbuf="{read[0]}" srcoff="{read[1]}" '
            f'dstbuf="{written[0]}" dstoff="{written[1]}" cnt="1" depid="-1" deps="-1"/>'
            for k, (kind, read, written) in enumerate(program)
        )
        text += "</tb></gpu>"
    return (text + "</algo>").encode()


def test_what_is_used_twice_has_come_once():
    """A chunk that GPU g + 1 copies from its scratch buffer and then passes on from there."""
    programs = [
        [
            ("cpy", ("i", 0), ("o", g)),
            ("s", ("i", 0), ("o", 0)),
            ("r", ("i", 0), ("s", 0)),
            ("cpy", ("s", 0), ("o", (g - 1) % 3)),
            ("s", ("s", 0), ("o", 0)),
            ("r", ("i", 0), ("o", (g - 2) % 3)),
        ]
        for g in range(3)
    ]
    ends = [((g + 1) % 3, (g - 1) % 3) for g in range(3)]
    content = msccl("allgather", 3, 3, programs, ends)
    schedule = imported(content, "x.xml", gw.topology.ring(3), None)
    assert verify(schedule).valid
    assert (schedule.num_transfers, schedule.rounds) == (6, 2)


def test_a_sum_that_is_passed_on_and_kept_counts_each_message_once():
    """GPU 1 adds GPU 0's chunk from scratch, sends the sum on, and GPU 2 sends it back to all."""
    chain = [
        [("s", ("i", 0), ("i", 0)), ("r", ("i", 0), ("o", 0))],
        [("r", ("i", 0), ("s", 0)), ("re", ("s", 0), ("i", 0)), ("s", ("i", 0), ("i", 0))],
        [("rrc", ("i", 0), ("i", 0)), ("cpy", ("i", 0), ("o", 0)), ("s", ("o", 0), ("o", 0))],
    ]
    content = msccl("allreduce", 3, 1, chain, [(1, 2), (2, 0), (0, 1)])
    with pytest.raises(FileError, match="output 0 of GPU 1 is not what"):
        imported(content, "x.xml", gw.topology.ring(3), None)
    text = content.decode().replace('</tb></gpu><gpu id="2">', _TO_OUTPUT + '<gpu id="2">')
    text = text.replace("</tb></gpu></algo>", _FROM_OUTPUT + "</algo>")
    schedule = imported(text.encode(), "x.xml", gw.topology.ring(3), None)
    assert verify(schedule).valid
    assert sorted(zip(schedule.source.tolist(), schedule.target.tolist(), strict=True)) == [
        (0, 1), (1, 2), (2, 0), (2, 1),
    ]  # fmt: skip


_TO_OUTPUT = (
    '</tb><tb id="1" send="-1" recv="2" chan="1"><step s="0" type="r" srcbuf="i" srcoff="0" '
    'dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1"/></tb></gpu>'
)
_FROM_OUTPUT = (
    '</tb><tb id="1" send="1" recv="-1" chan="1"><step s="0" type="s" srcbuf="o" srcoff="0" '
    'dstbuf="o" dstoff="0" cnt="1" depid="0" deps="1"/></tb></gpu>'
)


def test_a_step_that_reads_nothing_is_named():
    programs = [[("s", ("s", 4), ("i", 0))], [("r", ("i", 0), ("i", 0))]]
    content = msccl("allreduce", 2, 1, programs, [(1, -1), (-1, 0)])
    with pytest.raises(FileError, match="GPU 0, thread block 0, step 0: reads s 4, which is empty"):
        imported(content, "x.xml", PAIR, None)
