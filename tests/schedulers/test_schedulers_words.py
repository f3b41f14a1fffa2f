"""Networks and strategies as text in Python calls."""

import pytest

import gradweave as gw
from gradweave.errors import FileError, OptionError, SpecError
from gradweave.schedulers.spec import as_schedulers
from gradweave.topology.spec import as_topology


def test_solve_takes_words_as_the_command_line_does(tmp_path):
    made = gw.solve(gw.topology.ring(4), schedulers=[gw.schedulers.Ring(steps="paper")])
    for network in ("ring:4", "ring:n=4"):
        for schedulers in (["ring:steps=paper"], "ring:steps=paper", ("ring:steps=paper",)):
            solution = gw.solve(network, schedulers=schedulers)
            assert solution.scheduler == made.scheduler
            assert solution.schedule.topology.name == made.schedule.topology.name
            assert solution.rounds == made.rounds
    gw.topology.save(gw.topology.ring(4), tmp_path / "net.json")
    assert gw.solve(str(tmp_path / "net.json"), schedulers=["ring"]).bound == made.bound
    assert gw.schedulers.Ring().schedule("ring:4").collective == "all_reduce"


def test_a_list_may_mix_words_and_strategies():
    ring = gw.schedulers.Ring()
    assert as_schedulers(["merged:tries=2", ring]) == (gw.schedulers.Merged(tries=2), ring)
    assert as_schedulers("merged:rule=deepest,tries=2,ring") == (
        gw.schedulers.Merged(rule="deepest", tries=2),
        ring,
    )


@pytest.mark.parametrize(
    ("network", "got"), [(4, "int"), (None, "NoneType"), (["ring:4"], "list"), (b"ring:4", "bytes")]
)
def test_what_is_no_network(network, got):
    with pytest.raises(OptionError, match=f"expected a network: .* 'ring:4', .*; got {got}$"):
        gw.solve(network)


@pytest.mark.parametrize(
    ("schedulers", "got"),
    [
        ([3], "int"),
        (3, "int"),
        (gw.schedulers.Ring(), "Ring"),
        ([gw.schedulers.Ring], r"the class Ring; write Ring\(\)"),
        (gw.schedulers.Ring, r"the class Ring; write Ring\(\)"),
    ],
)
def test_what_are_no_strategies(schedulers, got):
    with pytest.raises(OptionError, match=f"expected strategies: a list .*; got {got}$"):
        gw.solve("ring:4", schedulers=schedulers)


def test_words_that_are_not_understood():
    with pytest.raises(SpecError, match="did you mean ring"):
        gw.solve("rin:4")
    with pytest.raises(SpecError, match="did you mean merged"):
        gw.solve("ring:4", schedulers=["mergd"])
    with pytest.raises(FileError, match="nowhere"):
        as_topology("nowhere.json")
