"""Before training: what is refused, what is doubted, and aggregations in words."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradweave as gw
from gradweave import aggregate
from gradweave.aggregate import MaxNorm, MixingMatrix, ValidityWarning, aggregation
from gradweave.aggregate.spec import EXACT, GossipSpec
from gradweave.aggregate.validity import check_validity
from gradweave.errors import OptionError, ScheduleError, SpecError

RING = MixingMatrix.ring(8)
PARTS = MixingMatrix.of(np.kron(np.eye(2), np.full((2, 2), 0.5)))
SWAP = MixingMatrix.of([[0.0, 1.0], [1.0, 0.0]])
CYCLE = MixingMatrix.of(np.roll(np.eye(3), 1, 0) / 2 + np.eye(3) / 2)
PARAMS = {"x": jnp.zeros(100)}


def doubts(*arguments, **more) -> str:
    found = check_validity(*arguments, **more)
    assert not found.impossible
    return "; ".join(found.doubts)


def test_sound_choices():
    assert doubts("d_psgd", RING, None, 10**6) == ""
    assert doubts("dcd_psgd", RING, MaxNorm(bits=8, block=100), 10**6) == ""
    assert doubts("ecd_psgd", RING, aggregate.Grid(), 10**6) == ""
    assert doubts("choco_sgd", RING, aggregate.TopK(0.01), 10**6, consensus=0.007) == ""
    assert doubts("choco_sgd", RING, MaxNorm(bits=4), 10**6) == ""
    momentum = optax.chain(
        optax.add_decayed_weights(0.1), optax.sgd(optax.linear_schedule(1.0, 0.1, 9), 0.9)
    )
    assert doubts("d_psgd", RING, None, 10, optimizer=momentum) == ""
    assert doubts("d_psgd", RING, None, 10, optimizer=optax.adam(1.0), same_data=True) == ""
    refuses = optax.masked(optax.sgd(1.0), {"a": True})  # parameters other than its own
    assert doubts("d_psgd", RING, None, 10, optimizer=refuses) == ""


def test_doubtful_choices():
    said = doubts("dcd_psgd", RING, MaxNorm(bits=4, block=None), 10**6)
    assert "alpha 8.422 exceeds the limit (1 - rho) / (2 sqrt(2) mu) = 0.05178" in said
    assert "unbounded" in doubts("dcd_psgd", RING, aggregate.Grid(), 10)
    assert "unbiased" in doubts("dcd_psgd", RING, aggregate.TopK(1.0), 10)
    assert "grows with the vector" in doubts("ecd_psgd", RING, MaxNorm(), 1000)
    assert "not below 1" in doubts("choco_sgd", RING, aggregate.RandomK(0.25), 1000)
    assert "random_k_unscaled" in doubts("choco_sgd", RING, aggregate.RandomK(0.05), 1000)
    few = aggregate.RandomKUnscaled(0.05)
    assert not check_validity("choco_sgd", RING, few, 1000, consensus=0.03).doubts
    assert not check_validity("choco_sgd", RING, few, 1000).doubts  # as advised
    said = doubts("choco_sgd", RING, few, 1000, consensus=0.3)
    assert said.startswith("consensus 0.3 exceeds 0.03846, up to which errors of such a compressor")
    assert "not linear" in doubts("d_psgd", RING, None, 10, optimizer=optax.rmsprop(1.0))
    assert "parameters are bfloat16, and each mixing is rounded to 0.008 of them" in doubts(
        "d_psgd", RING, None, 10, dtype=jnp.bfloat16
    )
    assert "needs an unbiased" in doubts("dcd_psgd", RING, aggregate.RandomKUnscaled(0.5), 1000)
    assert "not symmetric" in doubts("d_psgd", CYCLE, None, 10)
    assert "stay in the parameters" in doubts("naive_psgd", RING, MaxNorm(), 10)


@pytest.mark.parametrize("mixing", [PARTS, SWAP, MixingMatrix.of(np.eye(3))])
def test_what_cannot_work_is_refused_always(mixing):
    optimizer = aggregate.d_psgd(optax.sgd(1.0), mixing, strictness="ignore")
    with pytest.raises(OptionError, match=r"rho is 1\.0+: updates of some workers never reach"):
        optimizer.init(PARAMS)


def test_strictness():
    def made(strictness):
        compressor = MaxNorm(bits=2, block=None)
        return aggregate.dcd_psgd(optax.sgd(1.0), RING, compressor, strictness=strictness)

    with pytest.raises(OptionError, match="dcd_psgd on ring:8: alpha"):
        made("refuse").init(PARAMS)
    with pytest.warns(ValidityWarning, match="dcd_psgd on ring:8: alpha"):
        made("warn").init(PARAMS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made("ignore").init(PARAMS)
    with pytest.raises(OptionError, match="refuse, warn or ignore, got 'what'"):
        made("what").init(PARAMS)


def test_refusals():
    with pytest.raises(OptionError, match="local_steps: expected 1 to 1,000,000, got 0"):
        aggregate.d_psgd(optax.sgd(1.0), RING, local_steps=0)
    with pytest.raises(OptionError, match="consensus: expected above 0"):
        aggregate.choco_sgd(optax.sgd(1.0), RING, MaxNorm(), consensus=0)
    turns = MixingMatrix.in_matchings(gw.topology.from_spec("ring:8"))
    with pytest.raises(OptionError, match=r"the same in all steps.*d_psgd supports it"):
        aggregate.dcd_psgd(optax.sgd(1.0), turns, MaxNorm())
    with pytest.raises(OptionError, match=r"parameter \['n'\]: expected floating-point.*int32"):
        aggregate.d_psgd(optax.sgd(1.0), RING).init({"n": jnp.zeros(3, jnp.int32)})
    with pytest.raises(OptionError, match=r"update\(gradients, state, params\)"):
        optimizer = aggregate.d_psgd(optax.sgd(1.0), RING)
        optimizer.update(PARAMS, optimizer.init(PARAMS))
    with pytest.raises(OptionError, match="expected one aggregation in it, found 0"):
        aggregate.sent_bytes(optax.sgd(1.0).init(PARAMS))


@pytest.mark.parametrize(
    "text",
    [
        "mean",
        "ring",
        "parameter-server",
        "scheduled:ring:8",
        "d_psgd",
        "d_psgd:mixing=matchings",
        "d_psgd:mixing=clusters,network=bcube:n=2,k=2",
        "dcd_psgd:bits=6,block=none,network=hypercube:dimension=3",
        "ecd_psgd:compressor=grid,step=0.01,seed=2",
        "choco_sgd:compressor=top_k,share=0.1,consensus=0.07,local_steps=4,strictness=refuse",
        "diloco:local_steps=20,outer_rate=0.5,quorum=6,in_time=1",
        "streaming_diloco:bits=4,seed=2",
        "noloco:seed=1,consensus=1.2",
        "gasloc:mixing=changing_matchings,steps=9,network=hypercube:dimension=3",
        "sparseloco:share=0.1,block=64,decay=0.9",
        "sparse_averaging:local_steps=60,fragments=10,delay=3,bits=8",
    ],
)
def test_words(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ValidityWarning)
        made = aggregate.aggregator(text, 8)
        assert made.spec == text and made.workers == 8
        assert made.exact == (text.partition(":")[0].replace("-", "_") in EXACT)
        made(optax.sgd(1e-3)).init(PARAMS)


def test_words_are_parsed_without_jax_and_without_solving():
    program = """
import sys
from gradweave.aggregate.spec import parse
assert parse("dcd_psgd:bits=4,network=torus:2x4").compressor.bits == 4
assert parse("choco_sgd:consensus=0.1").rule.consensus == 0.1
parse("scheduled:bcube:n=4,k=2").check_workers(64)
assert not {"jax", "optax", "ortools"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_network_is_solved_for_once(monkeypatch):
    asked = []

    def solve(network, **options):
        asked.append((network.name, options["seed"]))
        return gw.solve(network, **options)

    monkeypatch.setattr(aggregation, "solve", solve)
    made = aggregate.resolve(aggregate.parse("scheduled:ring:4"), 4, seed=3)
    assert made.schedule is not None and made.schedule.topology.name == "ring:n=4"
    for _ in range(2):
        made(optax.sgd(1.0)).init(PARAMS)
    assert asked == [("ring:n=4", 3)]
    with pytest.raises(ScheduleError, match="ring:n=4 has 4 servers, but there are 8 workers"):
        aggregate.aggregator("scheduled:ring:4", 8)
    assert len(asked) == 1, "refused before solving"


def test_names_of_earlier_versions():
    spec = aggregate.parse("choco_sgd:compressor=exact")
    assert isinstance(spec, GossipSpec) and spec.compressor == aggregate.Uncompressed()


def test_networks_that_change_in_words(tmp_path):
    trace = tmp_path / "links.csv"
    trace.write_text("0,0,1\n1,2,3\n")
    torus = gw.topology.from_spec("torus:2x4")
    said = {
        "changing_matchings,steps=9,seed=3,network=torus:2x4": aggregate.changing_matchings(
            torus, 9, 3
        ),
        "fast_matchings,step_s=0.1,network=torus:2x4": aggregate.fast_matchings(torus, step_s=0.1),
        "changing_clusters,clusters=3": aggregate.changing_clusters(8, 3),
        "failing_links,probability=0.5,network=torus:2x4": aggregate.failing_links(torus, 0.5),
        "absent_workers,leave=0.2,come_back=0.5,network=torus:2x4": aggregate.absent_workers(
            torus, 0.2, 0.5
        ),
        f"trace,file={trace}": aggregate.read_trace(trace, 8),
    }
    for words, expected in said.items():
        spec = aggregate.parse(f"d_psgd:mixing={words}")
        assert isinstance(spec, GossipSpec)
        np.testing.assert_array_equal(spec.mixing_matrix(8).weights, expected.weights)
    refused = r"choco_sgd: expected a mixing matrix that is the same .* d_psgd supports it$"
    with pytest.raises(OptionError, match=refused):
        aggregate.aggregator("choco_sgd:mixing=changing_matchings", 8)


def test_a_rule_of_ones_own():
    class Silent(aggregate.GossipRule):
        name = "silent"
        keeps_estimates = False

        def communicate(self, worker, u, channel):
            return worker._replace(x=worker.x + u)

    method = aggregate.gossip(Silent(), optax.sgd(1.0), MixingMatrix.ring(4), aggregate.TopK())
    params = jnp.zeros((4, 3))
    state = jax.vmap(method.init)(params)
    updates, state = jax.vmap(method.update, axis_name="server")(params + 1, state, params)
    assert (updates == -1).all() and not aggregate.sent_bytes(state).any()


def test_a_schedule_from_a_file(tmp_path):
    gw.solve(gw.topology.ring(4)).schedule.save(tmp_path / "ring.json")
    assert aggregate.aggregator(f"scheduled:{tmp_path / 'ring.json'}", 4).exact
    with pytest.raises(ScheduleError, match="ring:n=4 has 4 servers, but there are 8 workers"):
        aggregate.aggregator(f"scheduled:{tmp_path / 'ring.json'}", 8)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("rnig", SpecError, "no aggregation 'rnig'; did you mean ring?"),
        ("ring:8", SpecError, "a value without a key is not an option; it has no options"),
        ("scheduled", SpecError, "expected a schedule's file or a network"),
        ("parameter_server:server=8", OptionError, "server: expected 0 to 7, got 8"),
        ("dcd_psgd:bit=4", SpecError, "'bit' is not an option; did you mean bits\\? options are"),
        ("dcd_psgd:bits=four", SpecError, "bits must be an integer, got 'four'"),
        ("dcd_psgd:compressor=zip", OptionError, "compressor: expected uncompressed, max_norm"),
        ("d_psgd:mixing=trace", OptionError, "trace: expected file=PATH"),
        ("d_psgd:mixing=failing_links,probability=2", OptionError, "probability: expected 0 to 1"),
        ("d_psgd:mixing=changing_clusters,leave=1", SpecError, "'leave' is not an option"),
        ("d_psgd:network=ring:4", OptionError, "has 4 servers, but there are 8 workers"),
        ("dilco", SpecError, "no aggregation 'dilco'; did you mean diloco?"),
        ("diloco:step=3", SpecError, "'step' is not an option"),
        ("diloco:local_steps=0", OptionError, "local_steps: expected 1 to 1,000,000, got 0"),
        ("diloco:outer_rate=nan", OptionError, "outer_rate: expected a number above 0, got nan"),
        ("diloco:outer_momentum=1", OptionError, "outer_momentum: expected 0 to below 1, got 1"),
        ("diloco:quorum=9", OptionError, "quorum: expected 1 to 8, got 9"),
        ("streaming_diloco:fragments=3", OptionError, "a divisor of local_steps, 50"),
        ("streaming_diloco:delay=10", OptionError, "delay: expected 0 to 9, so that an average"),
        ("noloco:consensus=0.2", OptionError, "consensus: expected above outer_momentum"),
        ("d_psgd:mixing=all", OptionError, "mixing: expected weights, matchings, clusters"),
        ("d_psgd:bits=4", SpecError, "'bits' is not an option"),
    ],
)
def test_words_that_are_not_understood(text, kind, said):
    with pytest.raises(kind, match=said):
        aggregate.aggregator(text, 8)


def test_replicas():
    params = {"a": jnp.arange(3.0), "b": jnp.ones(())}
    all_of_them = aggregate.replicate(params, 4)
    assert all_of_them["a"].shape == (4, 3) and all_of_them["b"].shape == (4,)
    assert float(aggregate.disagreement(all_of_them)) == 0
    apart = {"x": jnp.array([[1.0], [-1.0], [3.0], [-3.0]])}
    assert float(aggregate.disagreement(apart)) == pytest.approx(np.sqrt(5))
    assert aggregate.consensus(all_of_them)["a"].tolist() == [0, 1, 2]


def test_all_that_is_promised_is_there():
    for name in aggregate.__all__:
        assert getattr(aggregate, name) is not None
    assert gw.aggregate is aggregate
