"""What a demand is, and what of it a schedule and its file keep."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import FileError, OptionError, ScheduleError
from gradweave.schedules import COPY, REDUCE, Demand, collective, sends
from gradweave.schedules.demand import MAX_BYTES, MAX_CELLS, NAMES, ROOTED, Sets
from gradweave.verifier import verify
from tests.schedules.small_demands import by_hand, two_jobs


def blocks(demand: Demand) -> list[tuple[list[int], list[int], int]]:
    """Contributors, destinations and bytes of each block."""
    return [
        (demand.contributors[b].tolist(), demand.destinations[b].tolist(), int(demand.bytes[b]))
        for b in range(len(demand))
    ]


EXPECTED = {
    "broadcast": [([7], [2, 5, 7], 90)],
    "reduce": [([2, 5, 7], [7], 90)],
    "all_reduce": [([2, 5, 7], [2, 5, 7], 90)],
    "scatter": [([7], [5], 30), ([7], [2], 30)],
    "gather": [([5], [7], 30), ([2], [7], 30)],
    "all_gather": [([s], [2, 5, 7], 30) for s in (5, 7, 2)],
    "reduce_scatter": [([2, 5, 7], [s], 30) for s in (5, 7, 2)],
    "all_to_all": [([a], [b], 30) for a in (5, 7, 2) for b in (5, 7, 2) if a != b],
}


@pytest.mark.parametrize("name", NAMES)
def test_each_collective_is_these_blocks(name: str):
    root = 7 if name in ROOTED else None
    assert blocks(collective(name, [5, 7, 2], 90, root=root)) == EXPECTED[name]


def test_sizes_of_ranks_differ_where_they_are_listed():
    gathered = collective("all_gather", [0, 1, 2], [5, 0, 7])
    assert blocks(gathered) == [([0], [0, 1, 2], 5), ([2], [0, 1, 2], 7)]
    table = collective("all_to_all", [0, 1], [[9, 4], [3, 9]])
    assert blocks(table) == [([0], [1], 4), ([1], [0], 3)]
    assert collective("scatter", [0, 1, 2], 10, root=0).bytes.tolist() == [3, 3]


def test_several_jobs_are_one_demand():
    both = Demand.together([collective("broadcast", [0, 1], 8, root=1), sends([(2, 3, 5)])])
    assert both.name == "broadcast + send"
    assert both.job.tolist() == [0, 1]
    assert both.total_bytes == 13
    assert both.servers_of(1).tolist() == [2, 3]
    assert not both.unicast and sends([(2, 3, 5)]).unicast


REFUSED = {
    "unknown collective": (lambda: collective("alltoall", [0, 1], 8), "did you mean all_to_all?"),
    "no root": (lambda: collective("reduce", [0, 1], 8), "reduce: expected a root, got None"),
    "needless root": (lambda: collective("all_reduce", [0, 1], 8, root=0), "expected no root"),
    "strange root": (lambda: collective("gather", [0, 1], 8, root=2), "one of its servers, got 2"),
    "server twice": (lambda: collective("all_gather", [0, 1, 0], 8), "server 0 twice"),
    "names": (lambda: collective("all_reduce", ["a", "b"], 8), "flat list of node ids"),
    "half a server": (lambda: collective("all_reduce", [0.5, 1], 8), "flat list of node ids"),
    "groups in a group": (lambda: collective("all_reduce", [[0, 1], [2]], 8), "flat list of node"),
    "one server": (lambda: collective("all_reduce", [3], 8), "at least two servers, got 1"),
    "nothing to move": (lambda: collective("all_to_all", [0, 1], 0), "expected bytes to move"),
    "negative bytes": (lambda: collective("all_reduce", [0, 1], -1), "whole number from 0"),
    "part of a byte": (lambda: collective("all_reduce", [0, 1], 1.5), "expected one number"),
    "too few parts": (lambda: collective("all_gather", [0, 1, 2], [1, 2]), "3 parts"),
    "too few rows": (lambda: collective("all_to_all", [0, 1, 2], [[1, 2]]), "3 rows"),
    "10⁹ times 10⁹": (
        lambda: Demand.together([sends([(0, 1, 10**9)] * 9 + [(1, 0, MAX_BYTES)])]),
        f"at most {MAX_BYTES:,} bytes in all",
    ),
    "huge message": (lambda: sends([(0, 1, 10**18)]), "whole number from 0 to"),
    "to itself": (lambda: sends([(0, 1, 3), (2, 2, 3)]), "block 1: its only contributor, server 2"),
    "empty message": (lambda: sends([(0, 1, 0)]), "block 0: expected at least one byte, got 0"),
    "no message": (lambda: sends([]), "nothing is to be moved"),
    "half a message": (lambda: sends([(0, 1)]), "expected sender, receiver and bytes"),
    "starts nowhere": (
        lambda: Demand([1], Sets.of([[]]), Sets.of([[0]])),
        "block 0: expected contributors, got none",
    ),
    "ends nowhere": (
        lambda: Demand([1], Sets.of([[1]]), Sets.of([[]])),
        "block 0: expected destinations, got none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(case: str):
    make, message = REFUSED[case]
    with pytest.raises(OptionError) as raised:
        make()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_equal_sets_are_stored_once():
    scatter = collective("reduce_scatter", range(4096), 4096)
    assert len(scatter.contributors) == 4096 and len(scatter.contributors.members) == 4096
    some = Demand.together([scatter.of_job(0), collective("broadcast", [1, 2], 8, root=1)])
    assert len(some.contributors.members) == 4097
    assert some.contributors[4096].tolist() == [1] and some.contributors.sizes.sum() == 4096**2 + 1
    read = Sets.of([[2, 0], [1], [2, 0]])
    assert read.members.tolist() == [0, 2, 1] and read.stored.tolist() == [0, 1, 0]
    assert read.servers.tolist() == [0, 2, 1, 0, 2] and read.owner.tolist() == [0, 0, 1, 2, 2]
    assert read.same(Sets.of([[0, 2], [1], [2, 0]])) and not read.same(Sets.of([[0, 2], [1], [1]]))


def test_sets_know_their_members():
    lists = [[3, 1], [2], [0, 1, 2], [3, 1]]
    sets = Sets.of(lists).take(np.array([3, 2, 1]))
    number, server = (each.ravel() for each in np.indices((3, 4)))
    expected = [s in lists[3 - n] for n, s in zip(number.tolist(), server.tolist(), strict=True)]
    assert sets.has(number, server).tolist() == expected
    assert sets.has(number, server + (server == 3) * MAX_CELLS).tolist() == [
        known and s < 3 for known, s in zip(expected, server.tolist(), strict=True)
    ]  # beyond the table
    everyone = Sets.alike(np.array([0, 2]), 3)
    assert everyone.has(number, server).tolist() == [s in (0, 2) for s in server.tolist()]
    assert sets.union.tolist() == [0, 1, 2, 3] and sets.take(np.array([2])).union.tolist() == [2]
    assert sets.mapped(np.array([9, 0, 5, 4]))[1].tolist() == [0, 5, 9]


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_reduce"])
def test_pieces_of_all_servers_have_the_sets_of_their_collective(name: str):
    schedule = gw.schedulers.Ring().schedule(gw.topology.ring(3), collective=name)  # type: ignore[arg-type]
    asked = collective(name, range(3), 3)
    for mine, theirs in (
        (schedule.contributors, asked.contributors),
        (schedule.destinations, asked.destinations),
    ):
        for piece, root in enumerate(schedule.root.tolist()):
            assert mine[piece].tolist() == theirs[0 if name == "all_reduce" else root].tolist()


def test_a_schedule_of_two_jobs_is_valid_and_its_file_keeps_it(tmp_path):
    schedule = two_jobs()
    assert verify(schedule).valid
    schedule.save(tmp_path / "two.json")
    again = gw.load(tmp_path / "two.json")
    assert '"version":3' in (tmp_path / "two.json").read_text()
    assert gw.schedules.file.to_bytes(again) == gw.schedules.file.to_bytes(schedule)
    assert verify(again).valid and again.name == "reduce + send"


def test_only_what_the_demand_asks_for_is_looked_at():
    schedule = two_jobs()
    late = schedule.replace(round=np.array([1, 1, 0]), op=np.array([REDUCE, REDUCE, COPY]))
    message = verify(late).violation.message
    assert message == (
        "end: server 2 holds piece 0 with the contribution of server 0 never; expected once"
    )
    stale = schedule.replace(op=np.array([REDUCE, REDUCE, REDUCE]))
    assert verify(stale).violation.message == (
        "end: server 2 holds piece 1 with the contribution of server 2 once; expected never"
    )


def test_only_servers_of_the_job_and_relays_take_part():
    rows = [(0, 0, COPY, (0, 1)), (1, 0, COPY, (1, 2))]
    refused = verify(by_hand(sends([(0, 2, 4)]), rows, [0])).violation
    assert refused.kind == "relay" and refused.server == 1
    assert "server 1 has no part in it; expected servers of send, or relays" in refused.message
    assert verify(by_hand(sends([(0, 2, 4)], relays=[1]), rows, [0])).valid
    through = verify(by_hand(sends([(0, 2, 4)]), [(0, 0, COPY, (0, 1, 2))], [0])).violation
    assert through.kind == "relay" and through.server == 1


def test_a_relay_may_add_what_it_has_been_given():
    demand = collective("reduce", [0, 2, 3], 8, root=3, relays=[1])
    rows = [
        (0, 0, COPY, (0, 1)),
        (1, 0, REDUCE, (2, 1)),
        (2, 0, COPY, (1, 2)),
        (3, 0, REDUCE, (2, 3)),
    ]
    assert verify(by_hand(demand, rows, [0])).valid
    unfilled = [(0, 0, REDUCE, (0, 1)), *rows[1:]]
    assert not verify(by_hand(demand, unfilled, [0])).valid


def test_pieces_divide_their_block_alone():
    demand = sends([(0, 1, 30), (1, 0, 10)])
    rows = [(0, 0, COPY, (0, 1)), (1, 1, COPY, (0, 1)), (0, 2, COPY, (1, 0))]
    schedule = by_hand(demand, rows, [0, 0, 1], shares=[1, 2, 7])
    assert schedule.shares.tolist() == [1, 2, 1]
    assert schedule.share.tolist() == pytest.approx([0.25, 0.5, 0.25])
    assert schedule.piece_offsets(40).tolist() == [0, 10, 30, 40]
    assert schedule.piece_offsets(4).tolist() == [0, 1, 3, 4]
    with pytest.raises(OptionError, match="fill blocks of 40 bytes in all, got 3"):
        schedule.piece_offsets(3)


AMONG_ALL = {
    "its collective": lambda schedule: schedule.collective,
    "reversed": gw.schedules.reverse,
    "composed": lambda schedule: gw.schedules.compose(schedule, schedule),
    "overlapping": gw.schedules.overlap,
    "equal pieces": gw.export.in_equal_pieces,
    "MSCCL": gw.export.to_msccl_xml,
    "MSCCL++": gw.export.to_mscclpp_json,
    "re-planned": lambda schedule: gw.schedulers.replan(schedule, schedule.topology, 13, 1e-6),
    "under way": lambda schedule: gw.solve(schedule.topology, start_from=schedule),
}


@pytest.mark.parametrize("what", AMONG_ALL)
def test_what_knows_three_collectives_refuses_a_demand(what: str):
    with pytest.raises(ScheduleError, match=r"among all servers, got reduce \+ send$"):
        AMONG_ALL[what](two_jobs())


def test_no_bound_is_made_up_for_a_demand():
    assert gw.bounds.of_schedule(two_jobs()) is None


def test_times_are_those_of_its_own_bytes():
    schedule = two_jobs()
    own, twice = (gw.simulator.seconds(schedule, size) for size in (None, 26))
    link = gw.topology.Link()
    assert own == pytest.approx(
        2 * (link.latency_s + link.overhead_s) + 16 / link.bandwidth_bytes_per_s
    )
    assert twice == pytest.approx(own + 16 / link.bandwidth_bytes_per_s)
    assert gw.simulator.traffic(schedule).sent_bytes.tolist() == [8, 8, 0, 5]
    assert gw.export.to_perfetto(schedule, gradient_bytes=13)
    assert gw.report.to_svg(schedule, round=0).count("13 bytes") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": [0]}, "block: expected 2 entries, one a piece, got 1"),
        ({"block": [1, 0]}, r"block\[1\]: expected ascending blocks, got 0"),
        ({"block": [1, 1]}, "block: expected at least one piece of block 0"),
        ({"block": [0, 0]}, "block: expected at least one piece of block 1"),
        ({"block": [0, 2]}, r"block\[1\]: expected 0 to 1, got 2"),
        ({"demand": None}, "block: expected none"),
        ({"demand": sends([(0, 9, 1), (1, 0, 1)])}, "destinations: .* has no server 9"),
        ({"collective": "all_reduce"}, "or demand with a demand, got 'all_reduce'"),
    ],
)
def test_a_schedule_s_blocks_must_be_its_demand_s(change, message):
    if change.get("demand", ()) is None:
        change = change | {"collective": "all_reduce"}
    with pytest.raises(ScheduleError, match=message):
        two_jobs().replace(**change)


def test_servers_in_another_order_take_the_demand_along():
    schedule = two_jobs().with_server_order([3, 2, 1, 0])
    assert blocks(schedule.demand) == [([1, 2, 3], [1], 8), ([0], [1], 5)]
    assert verify(schedule).valid


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version":3', '"version":2', "demand: expected one in version 3 alone, got one in 2"),
        ('"contributors":[[0,1,2]', '"contributors":[[0,1,1]', "block 0: server 1 twice"),
        ('"contributors":[[0,1,2]', '"contributors":[[]', "block 0: expected contributors"),
        ('"bytes":[8,5]', '"bytes":[8]', "demand: job"),
        ('"bytes":[8,5]', '"bytes":[8,0]', "block 1: expected at least one byte"),
        ('"bytes":[8,5]', '"bytes":[8,99999999999999999999]', "does not fit in 64 bits"),
        ('"job":[0,1]', '"job":[0,2]', "job: expected 2 numbers from 0 to 1"),
        ('"block":[0,1]', '"block":[0,0]', "at least one piece of block 1"),
    ],
)
def test_a_file_s_demand_is_checked(tmp_path, old: str, new: str, message: str):
    content = gw.schedules.file.to_bytes(two_jobs()).decode()
    assert old in content
    with pytest.raises(FileError, match=message) as raised:
        gw.schedules.file.from_bytes(content.replace(old, new).encode(), "hostile.json")
    assert "\n" not in str(raised.value)
