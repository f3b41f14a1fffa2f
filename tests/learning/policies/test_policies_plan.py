"""The message passing of the flow-tree policy, against plain loops and in another order."""

import numpy as np
import pytest

from gradweave.learning.policies import plan as policy
from gradweave.learning.policies.plan import LAYERS, _add, decide, shapes
from gradweave.schedulers.greedy.decisions import REACH, graph_of
from tests.schedulers.greedy.test_planned_decisions import wiring


def test_decisions_pass_messages_along_links():
    """Message passing equals plain loops over links and nodes, with random weights."""
    graph, rng = graph_of(wiring()), np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.4, shape) for name, shape in shapes().items()}
    decided = decide(weights, graph, np, _add)
    link = [np.tanh(one @ weights["link"]) for one in graph.link]
    node = [np.tanh(one @ weights["node"]) for one in graph.node]
    ends = list(zip(graph.source, graph.target, strict=True))
    for layer in range(LAYERS):
        link = [
            own + np.tanh(np.concatenate([own, node[a], node[b]]) @ weights[f"link.{layer}"])
            for own, (a, b) in zip(link, ends, strict=True)
        ]
        seen = []
        for v, own in enumerate(node):
            out = np.mean([one for one, (a, _) in zip(link, ends, strict=True) if a == v], axis=0)
            into = np.mean([one for one, (_, b) in zip(link, ends, strict=True) if b == v], axis=0)
            seen.append(np.concatenate([own, out, into]))
        node = [
            own + np.tanh(all_ @ weights[f"node.{layer}"])
            for own, all_ in zip(node, seen, strict=True)
        ]
    whole = np.concatenate([np.mean(link, 0), np.mean(node, 0), graph.whole]) @ weights["whole"]
    expected = [np.array(link) @ weights["bias"], np.array(node) @ weights["share"], whole]
    for found, one in zip(decided, expected, strict=True):
        assert found == pytest.approx(2 * np.tanh(one / 2), rel=1e-4, abs=1e-5)
        assert np.abs(found).max() <= REACH


def test_decisions_are_exact_enough_to_be_the_same_everywhere():
    """Sums in another order, as in other libraries, give the same plan."""
    made, rng = wiring(), np.random.default_rng(1)
    weights = {
        name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes().items()
    }
    turned = np.random.default_rng(2).permutation(policy.WIDTH)
    other = {name: array.copy() for name, array in weights.items()}
    blocks = np.concatenate([turned, policy.WIDTH + turned, 2 * policy.WIDTH + turned])
    for name in ("link", "node"):
        other[name] = weights[name][:, turned]
        for layer in range(LAYERS):
            other[f"{name}.{layer}"] = weights[f"{name}.{layer}"][blocks][:, turned]
    other["bias"], other["share"] = weights["bias"][turned], weights["share"][turned]
    tail = np.arange(2 * policy.WIDTH, len(weights["whole"]))
    other["whole"] = weights["whole"][np.concatenate([blocks[: 2 * policy.WIDTH], tail])]
    one, two = (policy.propose(made, x) for x in (weights, other))
    raw = [np.concatenate(policy.decided(made, x)) for x in (weights, other)]
    assert (raw[0] != raw[1]).any() and raw[0] == pytest.approx(raw[1], abs=1e-12)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
