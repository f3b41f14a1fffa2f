"""How finely a plan's carriers are cut, by hand."""

import dataclasses
import itertools
import types
from typing import Any

import numpy as np
import pytest

from gradweave.common import clock
from gradweave.schedulers.carriers import even_plan, path_carrier
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.ordering import pieces as pieces_module
from gradweave.schedulers.ordering.pieces import Pieces
from gradweave.schedules import collective
from gradweave.topology import Link, Topology


class Halved(Pieces):
    """Pieces whose order takes as long as a piece is large, found in half a second each time."""

    def __init__(self, most_halvings: int) -> None:
        self.most_halvings, self.tried = most_halvings, list[float]()

    def _balanced_halvings(self, most: float) -> int:
        return 3

    def _transfers(self, halvings: int) -> int:
        """As many as are always allowed, or one more."""
        return TUNING.transfers_always + (halvings > self.most_halvings)

    def _fastest_of(self, part: float, known: Any) -> Any:
        self.tried.append(part)
        return types.SimpleNamespace(seconds=part)


@pytest.mark.parametrize(("left_s", "finest"), [(0.99, 6), (1.0, 63)])
def test_many_transfers_are_tried_only_if_there_is_time_for_two(monkeypatch, left_s, finest):
    """Half a second for each number of pieces: if less than one is left, few transfers are."""
    times = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: next(times) / 2)
    pieces, stop = Halved(most_halvings=6), types.SimpleNamespace(seconds_left=left_s)
    assert pieces.fastest(stop).seconds <= 2.0**-finest
    assert 2.0**-finest in pieces.tried and 2.0 ** -(finest + 1) not in pieces.tried


@pytest.mark.parametrize(
    ("overhead_s", "most", "halvings"),
    [(0.0, 8, 2), (0.0, 4, 1), (0.0, 1, 0), (0.0, 1000, 3), (2e-3 / 16, 1000, 2), (2e-3, 1000, 0)],
)
def test_a_search_begins_where_overheads_balance_the_first_piece(overhead_s, most, halvings):
    """The path takes 2 ms; its last link has the overhead.

    N pieces take N overheads, and 2 ms / N longer than the bytes. Pieces have two transfers each,
    of which `most` are allowed, and are eight at first.
    """
    assert along_a_path(overhead_s)._balanced_halvings(most) == halvings


def along_a_path(overhead_s: float = 0.0) -> Pieces:
    """1 MB from server 0 over 1 to 2, at 1 GB/s; the second link has the overhead."""
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)
    path = Topology.from_links("path", servers=3, switches=0, links=[(0, 1), (1, 2)], link=link)
    overhead = np.where((path.source == 1) & (path.target == 2), overhead_s, 0.0)
    path = dataclasses.replace(path, overhead_s=overhead)
    ends = zip(path.source.tolist(), path.target.tolist(), strict=True)
    link_of = {pair: number for number, pair in enumerate(ends)}
    carrier = path_carrier(path, [0, 1, 2], lambda a, b: (link_of[a, b],))
    demand = collective("broadcast", [0, 1, 2], 1_000_000, root=0)
    return Pieces(even_plan(path, demand, [(0, carrier)]))


def test_no_order_is_improved_with_more_transfers_than_are_allowed(monkeypatch):
    """Four pieces with two transfers each, of which eight are allowed or seven."""
    pieces = along_a_path()
    known = dataclasses.replace(pieces._fastest_of(1.0, None), seconds=1.0)
    for most, improved in ((8, True), (7, False)):
        tuning = dataclasses.replace(TUNING, max_transfers=most)
        monkeypatch.setattr(pieces_module, "TUNING", tuning)
        assert (pieces._fastest_of(0.25, known) is not None) == improved
