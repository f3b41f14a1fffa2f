"""Messages call a node by its name, else by its id, and a rank a rank; files stay by rank."""

import dataclasses

import pytest

from gradweave.errors import OptionError, ScheduleError
from gradweave.export import to_chakra_et, to_msccl_xml, to_mscclpp_json, to_rankfile
from gradweave.schedules import Schedule
from gradweave.topology import Topology
from tests.conformance.made import made as schedule


def behind_switches(made: Schedule, named: bool) -> Schedule:
    """The same schedule where two switches have the least ids, so that ids are not ranks."""
    net, more = made.topology, 2
    first = made.topology.num_servers
    topology = Topology(
        name=net.name,
        is_server=[False] * more + net.is_server.tolist(),
        source=[0, 1, 0, more, *(net.source + more)],
        target=[1, 0, more, 0, *(net.target + more)],
        bandwidth_bytes_per_s=[1e9] * (4 + len(net.source)),
        latency_s=[0.0] * (4 + len(net.source)),
        capacity=[1] * (4 + len(net.source)),
        labels=[f"spine-{i}" for i in range(more)] + [f"gpu-{i}" for i in range(first)]
        if named
        else (),
    )
    return made.replace(
        topology=topology,
        root=made.root + more,
        source=made.source + more,
        target=made.target + more,
        route_nodes=made.route_nodes + more,
    )


@pytest.mark.parametrize(("named", "name"), [(True, "server gpu-0"), (False, "server 2")])
def test_a_limit_names_the_server(named, name):
    made = behind_switches(schedule("complete:4", "grown", "all_reduce"), named)
    with pytest.raises(ScheduleError, match=f"^{name}: expected at most 128 thread blocks"):
        to_msccl_xml(made, instances=32)
    with pytest.raises(ScheduleError, match=f"^{name}: expected at most 108 thread blocks"):
        to_mscclpp_json(
            behind_switches(schedule("ring:8", "ring", "all_reduce"), named), instances=55
        )


@pytest.mark.parametrize(
    ("named", "most", "least"),
    [(True, "server gpu-0", "server gpu-1"), (False, "server 2", "server 3")],
)
@pytest.mark.parametrize("write", [to_msccl_xml, to_mscclpp_json])
def test_roots_of_unequally_many_pieces_are_named(write, named, most, least):
    made = behind_switches(schedule("ring:8", "central", "all_gather"), named)
    with pytest.raises(ScheduleError, match=f"got 8 at {most} and 0 at {least}; make the"):
        write(made)


def test_names_change_no_file():
    made = behind_switches(schedule("ring:8", "ring", "all_reduce"), False)
    renamed = behind_switches(schedule("ring:8", "ring", "all_reduce"), True)
    for write in (to_msccl_xml, to_mscclpp_json):
        assert write(renamed) == write(made)
    assert to_chakra_et(renamed, gradient_bytes=64) == to_chakra_et(made, gradient_bytes=64)


def test_chakra_calls_a_rank_a_rank():
    made = behind_switches(schedule("complete:2", "recursive doubling", "all_reduce"), True)
    (first, _) = to_chakra_et(made, gradient_bytes=64)
    assert b"send piece 0 to rank 1" in first and b"receive piece 0 from rank 1" in first
    assert b"reduce piece 0 from rank 1" in first


def test_rankfiles_say_which_rank_and_which_server():
    made = behind_switches(schedule("complete:2", "recursive doubling", "all_reduce"), True)
    assert to_rankfile(made, ["a", "a"]).splitlines()[1:] == [
        "rank 0=a slot=0  # server gpu-0",
        "rank 1=a slot=1  # server gpu-1",
    ]
    with pytest.raises(OptionError, match=r"got '-b' for rank 1$"):
        to_rankfile(made, ["a", "-b"])


def test_names_that_are_shared_have_their_ids():
    made = behind_switches(schedule("ring:8", "central", "all_gather"), True)
    same = dataclasses.replace(made.topology, labels=["n"] * made.topology.num_nodes)
    with pytest.raises(ScheduleError, match=r"server n \(node 2\) and 0 at server n \(node 3\)"):
        to_msccl_xml(made.replace(topology=same))
