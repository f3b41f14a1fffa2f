"""What a message costs on an emulated network, from a run in pieces of one element."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.lab.measure import ELEMENT_BYTES, message_cost_of, with_message_cost
from gradweave.simulator import seconds

NETWORKS = ("ring:5", "bcube:n=3,k=1", "leaf_spine:leaves=2,spines=2,servers_per_leaf=3")


@pytest.mark.parametrize("spec", NETWORKS)
@pytest.mark.parametrize("cost_s", [0.0, 1e-4, 7e-3])
def test_the_cost_comes_out_that_a_run_had(spec, cost_s):
    made = gw.schedulers.Merged(tries=1).schedule(gw.topology.from_spec(f"{spec},latency=20us"))
    took = seconds(with_message_cost(made, cost_s), made.pieces * ELEMENT_BYTES, "events")
    assert message_cost_of(made, took) == pytest.approx(cost_s, abs=1e-9)


def test_half_is_at_the_sender_and_half_at_the_receiver():
    """Whatever switches a message passes on its way."""
    for spec in NETWORKS:
        made = gw.schedulers.Merged(tries=1).schedule(gw.topology.from_spec(spec))
        costly = with_message_cost(made, 3e-3)
        links, transfer = made.route_links
        added = np.bincount(transfer, (costly.topology.latency_s - made.topology.latency_s)[links])
        np.testing.assert_allclose(added, 3e-3)


def test_what_latencies_explain_costs_nothing():
    made = gw.schedulers.Ring().schedule(gw.topology.from_spec("ring:4,latency=50ms"))
    assert message_cost_of(made, 0.25) < 1e-9
