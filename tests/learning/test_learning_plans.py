"""The training of `planned`'s upper agent: one definition with the decoder, resumable."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import gradweave as gw
from benchmarks.plan_training import WEIGHTS, PlanConfig, _add, _padded, train_plan
from gradweave.errors import FileError
from gradweave.learning.policies import plan as policy
from gradweave.schedulers.greedy import decisions
from gradweave.schedulers.greedy.decoding import Wiring
from tests.schedulers.packing.test_unequal_packing import NETWORKS

TINY = PlanConfig(updates=2, networks=2, pairs=1)


def wirings() -> list[Wiring]:
    return [Wiring(NETWORKS[name], "all_reduce", 1e8) for name in ("half speed", "torus")]


def random_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in policy.shapes().items()
    }


def test_jax_decides_as_numpy_does_and_what_fills_up_a_batch_counts_for_nothing():
    weights, graphs = random_weights(), [decisions.graph_of(wiring) for wiring in wirings()]
    batch = _padded(graphs)
    for place, graph in enumerate(graphs):
        plain = policy.decide(weights, graph, np, policy._add)
        padded = decisions.Graph(*(x[place] for x in batch))
        filled = policy.decide(weights, padded, jnp, _add)
        assert np.abs(plain.whole).max() > 0.01
        for one, other in zip(plain, filled, strict=True):
            assert np.allclose(one, np.asarray(other)[: len(one)], atol=1e-5)


def test_relabelling_a_network_relabels_the_decisions(monkeypatch):
    """But for what is full, which depends on the order in which trees grow."""

    def grown(made: Wiring, *_: object) -> SimpleNamespace:
        return SimpleNamespace(grown=SimpleNamespace(load=1 / made.links.bandwidth))

    monkeypatch.setattr(decisions, "grow_trees", grown)
    network = NETWORKS["torus"]
    order = np.random.default_rng(1).permutation(network.num_nodes)
    renamed = gw.topology.Topology.from_links(
        "renamed",
        servers=network.num_nodes,
        switches=0,
        links=[
            (int(order[a]), int(order[b]))
            for a, b in zip(network.source, network.target, strict=True)
            if a < b
        ],
    )
    rates = {
        (int(order[a]), int(order[b])): rate
        for a, b, rate in zip(
            network.source, network.target, network.bandwidth_bytes_per_s, strict=True
        )
    }
    ends = zip(renamed.source.tolist(), renamed.target.tolist(), strict=True)
    renamed = dataclasses.replace(
        renamed, bandwidth_bytes_per_s=np.array([rates[pair] for pair in ends])
    )
    weights = random_weights()
    here, there = (
        policy.propose(Wiring(each, "all_reduce", np.inf), weights) for each in (network, renamed)
    )
    assert np.allclose(here.shares, there.shares[order], atol=1e-5)
    assert np.allclose(here.order, there.order, atol=1e-4)


def test_constants_are_the_same_for_all_networks(tmp_path):
    constants = dataclasses.replace(TINY, constants=True)
    weights = train_plan(constants, wirings(), tmp_path, lambda _: None)
    found = [policy.decided(wiring, weights) for wiring in wirings()]
    assert not any(one.bias.any() or one.share.any() for one in found)
    assert found[0].whole.all() and np.array_equal(found[0].whole, found[1].whole)


def test_a_resumed_training_ends_with_the_same_weights(tmp_path):
    whole = train_plan(TINY, wirings(), tmp_path / "whole", lambda _: None)
    train_plan(dataclasses.replace(TINY, updates=1), wirings(), tmp_path / "two", lambda _: None)
    resumed = train_plan(TINY, wirings(), tmp_path / "two", lambda _: None)
    assert any(np.abs(whole[name]).max() > 0 for name in ("bias", "share", "whole"))
    for name in whole:
        assert np.array_equal(whole[name], resumed[name])
    read = policy.read_weights(str(tmp_path / "two" / WEIGHTS))
    assert all(np.array_equal(read[name], whole[name]) for name in whole)


def test_weights_of_something_else_are_refused(tmp_path):
    from gradweave.common import arrays

    path = tmp_path / "other.safetensors"
    text = {"format": policy.FORMAT, "version": policy.VERSION}
    arrays.save(path, random_weights() | {"bias": np.zeros(3, np.float32)}, text)
    with pytest.raises(FileError, match="array 'bias': expected finite float32"):
        policy.read_weights(str(path))
