"""Parts of any size in pieces of one size: the same trees, near the same time, files that run."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gradweave as gw
from gradweave.cli.commands.export import export
from gradweave.errors import OptionError, ScheduleError
from gradweave.export import in_equal_pieces, to_msccl_xml, to_mscclpp_json
from gradweave.export.equal_pieces import in_equal_pieces_for
from gradweave.schedulers import Packed
from gradweave.schedules import Schedule
from gradweave.schedules.schedule import COPY
from tests.conformance.networks import network
from tests.export import msccl_interpreter, mscclpp_interpreter

SIZE = 1e8


def thin_trunk() -> gw.Topology:
    """Two racks of three servers, and a trunk between them as fast as one server and a half."""
    links = [(server, 6 + server // 3) for server in range(6)] + [(6, 7)]
    return gw.Topology.from_links(
        "two racks", servers=6, switches=2, links=links, bandwidth_bytes_per_s=[1e9] * 6 + [1.5e9]
    )


def uneven_star() -> gw.Topology:
    star = network("star:5")
    bandwidths = np.array([1e9, 2e9, 3e9, 5e9, 7e9])
    ends = np.where(star.is_server[star.source], star.source, star.target)
    return dataclasses.replace(star, bandwidth_bytes_per_s=bandwidths[ends])


def uneven_mesh() -> gw.Topology:
    mesh = gw.topology.mesh((2, 3))
    bandwidths = np.where(mesh.source + mesh.target > 4, 3e9, 1e9)
    return dataclasses.replace(mesh, bandwidth_bytes_per_s=bandwidths)


NETWORKS = {"thin trunk": thin_trunk, "uneven star": uneven_star, "uneven mesh": uneven_mesh}


@functools.cache
def packed(name: str, collective: str = "all_reduce") -> Schedule:
    made = Packed(gradient_bytes=SIZE, pieces=256).schedule(NETWORKS[name](), collective=collective)
    return unequal(made)


def unequal(made: Schedule) -> Schedule:
    """Its pieces a little larger or smaller, where they are of one size."""
    if made.shares is not None or made.collective != "all_reduce":
        return made
    return made.replace(shares=1000 + np.arange(made.pieces) % 2)


def trees(schedule: Schedule, piece: int) -> tuple:
    rows = np.flatnonzero(schedule.piece == piece).tolist()
    moves = sorted((int(schedule.op[row]), schedule.route(row)) for row in rows)
    return int(schedule.root[piece]), *moves


@pytest.mark.parametrize("pieces", [1, 16, 64])
def test_each_tree_carries_its_share_within_a_piece(pieces):
    before = packed("uneven mesh")
    made = in_equal_pieces(before, pieces)
    assert made.shares is None and made.pieces == pieces
    assert gw.verify(made, forwarding_servers=False).valid
    share = dict.fromkeys((trees(before, piece) for piece in range(before.pieces)), 0.0)
    for piece in range(before.pieces):
        share[trees(before, piece)] += before.share[piece]
    for piece in range(pieces):
        share[trees(made, piece)] -= 1 / pieces  # no tree that was not there
    assert max(map(abs, share.values())) < 1 / pieces


@pytest.mark.parametrize("name", ["thin trunk", "uneven mesh"])
def test_as_many_as_are_worth_it_cost_little_time(name):
    before = packed(name)
    assert before.shares is not None
    made = in_equal_pieces(before)
    before_s, made_s = (gw.simulator.seconds(one, SIZE, "events") for one in (before, made))
    assert made_s < 1.05 * before_s
    few = in_equal_pieces(before, 8)
    assert gw.simulator.seconds(few, SIZE, "events") > 1.01 * made_s  # so that it could fail


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_files_run_right(name, collective):
    before = packed(name, collective)
    made = in_equal_pieces(before, 4 * before.topology.num_servers)
    algorithm = msccl_interpreter.read(to_msccl_xml(made), dialect="msccl", max_steps=256)
    msccl_interpreter.run(algorithm, 0, in_place=True, room=1, races=True)
    plan = mscclpp_interpreter.read(to_mscclpp_json(made))
    mscclpp_interpreter.run(plan, 0, in_place=True, races=True)


def test_fewer_where_a_format_takes_no_more():
    before = packed("uneven star")
    asked = []

    def write(made: Schedule) -> bytes:
        asked.append(made.pieces)
        if made.pieces > 20:
            raise ScheduleError("too many")
        return b"file"

    made, file = in_equal_pieces_for(before, write)
    assert file == b"file" and asked == sorted(asked, reverse=True)
    assert made.schedule.pieces == asked[-1] <= 20 < asked[0]
    with pytest.raises(ScheduleError, match="too many"):
        in_equal_pieces_for(before, write, pieces=24)


def test_the_size_is_what_it_was_planned_for_if_not_given():
    """A small gradient has fewer pieces: each adds latency, and there are few bytes to pipeline."""
    mesh = uneven_mesh()
    net = dataclasses.replace(mesh, latency_s=np.full(mesh.latency_s.shape, 1e-5))
    before = unequal(Packed(gradient_bytes=1e5, pieces=16).schedule(net))
    assert in_equal_pieces(before).pieces < in_equal_pieces(before, gradient_bytes=1e9).pieces
    other = before.replace(scheduler=dataclasses.replace(before.scheduler, options={}))
    assert in_equal_pieces(other).pieces == in_equal_pieces(other, gradient_bytes=1e8).pieces


def test_pieces_of_one_size_stay_where_no_number_is_asked_for():
    ring = gw.schedulers.Ring().schedule(network("ring:8"))
    assert in_equal_pieces(ring) is ring
    assert in_equal_pieces(ring, 24).pieces == 24


def test_what_it_refuses():
    before = packed("thin trunk", "all_gather")
    for pieces, expected in ((7, "a multiple of 6"), (0, "1 to 32768"), (1 << 20, "1 to 32768")):
        with pytest.raises(OptionError, match=f"equal pieces: expected {expected}"):
            in_equal_pieces(before, pieces)
    doubling = gw.schedulers.RecursiveDoubling().schedule(network("ring:4"))
    with pytest.raises(ScheduleError, match="pieces that each move over one tree to the root"):
        in_equal_pieces(doubling, 8)
    line = gw.Topology.from_links("line", servers=2, switches=0, links=[(0, 1)])
    one_root = Schedule.from_rows(line, [(0, 0, COPY, (0, 1))], root=[0], collective="all_gather")
    with pytest.raises(ScheduleError, match="server 1 is the root of nothing"):
        in_equal_pieces(one_root, 8)


def output(*arguments: object) -> str:
    answer = CliRunner().invoke(export, [str(each) for each in arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    before = packed("thin trunk")
    before.save("packed.json")
    file = "packed.json", "--format", "msccl-xml", "--output", "a.xml"
    with pytest.raises(ScheduleError, match=r"the chunks of MSCCL are of one size; .*--equal-p"):
        output(*file)
    assert not Path("a.xml").exists()

    said = json.loads(output(*file, "--equal-pieces", "--pieces", 24, "--json"))
    made = in_equal_pieces(before, 24)
    assert Path("a.xml").read_bytes() == to_msccl_xml(made)
    assert said["pieces"] == 24
    assert said["equal_pieces"] == {
        "gradient_bytes": SIZE,
        "seconds_before": gw.simulator.seconds(before, SIZE, "events"),
        "seconds": gw.simulator.seconds(made, SIZE, "events"),
        "pieces_before": before.pieces,
    }
    lines = output(*file, "--equal-pieces", "--size", "50MB").splitlines()
    assert lines[1].startswith("50 MB: ") and f"in the {before.pieces} pieces of" in lines[1]
    with pytest.raises(OptionError, match=r"--pieces: expected --equal-pieces with it"):
        output(*file, "--pieces", 8)
