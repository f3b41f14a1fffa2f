"""The table of transfers: what it says of all servers and of one."""

import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.export import to_csv


def rows(text: str) -> list[str]:
    head, *lines = text.splitlines()
    assert head == "round,piece,op,source,target,route"
    return lines


@pytest.mark.parametrize("spec", ["ring:4", "bcube:n=3,k=1"])
def test_ranks_have_the_lines_of_their_transfers(spec):
    made = gw.schedulers.implicit(spec)
    every = rows(to_csv(made))
    assert len(every) == made.num_transfers and every == rows(to_csv(made.expand()))
    for rank, server in enumerate(made.topology.servers.tolist()):
        own = [line for line in every if str(server) in line.split(",")[3:5]]
        assert rows(to_csv(made.expand(), rank=rank)) == own
        assert sorted(rows(to_csv(made, rank=rank))) == sorted(own)


def test_there_is_no_rank_beyond_the_last():
    made = gw.schedulers.implicit("ring:4")
    for schedule in (made, made.expand()):
        with pytest.raises(OptionError, match="rank: expected 0 to 3, got 4"):
            to_csv(schedule, rank=4)
