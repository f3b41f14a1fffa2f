"""What is written of nodes where there is room for a few letters."""

import dataclasses

from gradweave.report.short_names import ROOM, short_names
from gradweave.topology import leaf_spine, ring


def test_names_are_told_apart() -> None:
    net = leaf_spine(2, 1, 2)
    given = ("rack-1-host-10", "rack-1-host-11", "rack-2-host-10", "rack-2-host-11")
    short = short_names(dataclasses.replace(net, labels=(*given, "leaf", "other-leaf", "s")))
    assert short == ["#0", "#1", "#2", "#3", "leaf", "…-leaf", "s"]
    given = ("host-10.example", "host-11.example", "host-12.example", "x")
    short = short_names(dataclasses.replace(ring(4), labels=given))
    assert short[3] == "x" and len(set(short)) == 4 and max(map(len, short)) <= ROOM
    assert short_names(dataclasses.replace(ring(3), labels=("gpu12", "gpu13", "gpu14"))) == [
        "gpu12",
        "gpu13",
        "gpu14",
    ]
    assert short_names(ring(3)) == ["0", "1", "2"]


def test_a_name_that_two_nodes_have_is_not_shown_as_one_of_them() -> None:
    twice = short_names(dataclasses.replace(ring(3), labels=("host", "host", "other")))
    assert len(set(twice)) == 3 and twice[2] == "other"
