"""The explanations of certificates, and the links that they count, for steps written by hand."""

from fractions import Fraction

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds.explanations import explained, limiting_links
from gradweave.schedules import Demand, sends

RING = gw.topology.from_spec("ring:4,bandwidth=1GB/s")
CLAIM = {"unit": "seconds", "least": "4", "collective": "all_reduce", "bytes": "8000"}


def of(step: dict, demand: Demand | None = None) -> str:
    claim = CLAIM if demand is None else {"unit": "seconds", "least": "4"}
    return explained({"claim": claim, "proof": [step]}, Fraction(4), RING, demand)


@pytest.mark.parametrize("stage", ["all_gather", "reduce_scatter"])
def test_of_several_sets_the_links_of_the_dearest_limit(stage):
    """Copies leave a set, sums enter it."""
    sets = [
        {"stage": stage, "servers": [server], "switches": [], "price": price}
        for server, price in ((0, 1), (2, 3), (1, 2))
    ]
    proof = [{"kind": "crossings", "sets": sets}]
    end = RING.source if stage == "all_gather" else RING.target
    expected = np.flatnonzero(end == 2).tolist()
    assert limiting_links({"claim": CLAIM, "proof": proof}, RING) == expected


def test_lengths_around_a_server_are_its_port():
    """Both directions of both links, one of which the rate counts, or one alone."""
    both = ((RING.source == 1) | (RING.target == 1)).astype(int).tolist()
    into = (RING.target == 1).astype(int).tolist()
    port = "server 1's 16 Gbit/s port must carry"
    blocks = sends([(0, 1, 1000)])
    whole = of({"kind": "lengths", "lengths": both})
    assert whole == f"{port} the whole gradient (8 kB) in and out once: 4 s"
    for lengths, way in ((both, "in and out"), (into, "in")):
        said = of({"kind": "lengths", "lengths": lengths}, blocks)
        assert said == f"{port} what its blocks need {way}: 4 s"


def test_a_server_sends_its_block_of_a_demand_or_the_whole_gradient():
    step = {"kind": "reach", "server": 2, "leaving": True, "seconds": "0", "block": 1}
    blocks = sends([(0, 1, 1000), (2, 1, 3000)])
    assert of(step, blocks).startswith("3 kB must leave server 2 at 16 Gbit/s, and the last byte")
    assert of(step).startswith("8 kB must leave server 2 at 16 Gbit/s, and the last byte")
