"""Micro benchmarks: `make bench` runs them with pytest-benchmark."""

import pytest

import gradweave as gw
from gradweave.schedulers import Merged, ParameterServer, Ring

NETWORKS = ("bcube:n=5,k=1", "dcell:n=6,k=1", "jellyfish:reference=J20", "bcube:n=8,k=1")


@pytest.fixture(params=NETWORKS)
def network(request):
    return gw.topology.from_spec(request.param)


@pytest.mark.parametrize(
    "scheduler",
    [Merged(tries=1), Merged(tries=1, swap_passes=0), Ring(), ParameterServer()],
    ids=gw.schedulers.to_spec,
)
def test_schedule(benchmark, network, scheduler):
    assert benchmark(scheduler.schedule, network).rounds


def test_bound(benchmark, network):
    assert benchmark(gw.bounds.free_trees, network).rounds


def test_verify(benchmark, network):
    schedule = Merged(tries=1).schedule(network)
    assert benchmark(gw.verifier.verify, schedule).valid


@pytest.mark.parametrize("model", ["rounds", "events"])
def test_seconds(benchmark, network, model):
    schedule = Merged(tries=1).schedule(network)
    assert benchmark(gw.simulator.seconds, schedule, 100e6, model) > 0
