"""The learned scheduler: its guarantees, its options, and refused weights."""

import json
import struct
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.environment.instance import Instance
from gradweave.errors import FileError, OptionError, SpecError
from gradweave.learning.best_episode import best_of
from gradweave.learning.episodes import episode as episodes
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.episodes.tuning import RULE
from gradweave.learning.policies.policy import read_weights
from gradweave.schedulers import Learned, to_spec
from gradweave.schedulers.solving.solution import bound_for
from gradweave.schedulers.spec import from_spec
from gradweave.verifier import verify
from tests.conformance.networks import network
from tests.schedules.same import same, same_columns

NETWORKS = ("bcube:n=3,k=1", "dgx1v", "leaf_spine:leaves=3,spines=2,servers_per_leaf=2", "lopsided")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
SHIPPED = files("gradweave.learning.policies").joinpath("weights/learned.safetensors")
DCELL = "dcell:n=4,k=1"


@pytest.mark.parametrize("trees", ["grown", "fixed"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", NETWORKS)
def test_it_verifies_and_is_not_better_than_possible(name, collective, trees):
    scheduler = Learned(samples=2, trees=trees)
    made = scheduler.schedule(network(name), collective=collective)
    verdict = verify(made, forwarding_servers=False)
    assert verdict.valid, verdict.violation
    assert made.rounds >= bound_for(network(name), collective, [scheduler]).rounds
    assert (made.collective, made.scheduler.name) == (collective, "learned")
    assert made.scheduler.options == scheduler.options()


@pytest.mark.parametrize("trees", ["grown", "fixed"])
def test_the_result_hangs_on_the_seed_and_not_on_the_threads(trees):
    topology = network(DCELL)
    alone = Learned(samples=6, trees=trees).schedule(topology, seed=3)
    assert same(Learned(samples=6, trees=trees).schedule(topology, seed=3), alone)
    for workers in (2, 3, 16):
        together = Learned(samples=6, trees=trees, workers=workers).schedule(topology, seed=3)
        assert same_columns(together, alone)
    seeds = [Learned(samples=6, trees=trees).schedule(topology, seed=seed) for seed in range(4)]
    assert not all(same_columns(other, seeds[0]) for other in seeds)


def test_no_samples_leave_the_best_actions_alone():
    instance = Instance(network(DCELL), "all_gather", "grown")
    made = Learned(samples=0).schedule(network(DCELL), collective="all_gather", seed=7)
    problem, weights = CompiledInstance.of(instance), RULE
    best = play(problem, weights, seed=(7, 0), temperature=0.0, repair=True)
    assert same_columns(made, instance.schedule(best.sent_round, best.sent_hop))
    plain = Learned(samples=0, repair=False).schedule(
        network(DCELL), collective="all_gather", seed=7
    )
    best = play(problem, weights, seed=(7, 0), temperature=0.0)
    assert same_columns(plain, instance.schedule(best.sent_round, best.sent_hop))


def test_more_samples_are_never_worse_and_the_first_of_the_best_is_kept():
    problem, weights = (
        CompiledInstance.of(Instance(network(DCELL), "all_gather", "grown")),
        read_weights(),
    )
    rounds = [
        play(problem, weights, seed=(0, number), temperature=float(number > 0)).rounds
        for number in range(8)
    ]
    for samples in range(8):
        best = best_of(problem, weights, range(samples + 1), repair=False)
        first = play(
            problem,
            weights,
            seed=(0, place := int(np.argmin(rounds[: samples + 1]))),
            temperature=float(place > 0),
        )
        assert best.rounds == min(rounds[: samples + 1])
        assert np.array_equal(best.sent_round, first.sent_round)


def test_the_search_ends_at_the_bound(monkeypatch):
    seen = []

    def counted(*arguments, **options):
        seen.append(options["seed"])
        return play(*arguments, **options)

    monkeypatch.setattr(episodes, "play", counted)
    topology = network("ring:8")
    made = Learned(samples=500).schedule(topology, collective="all_gather")
    assert made.rounds == gw.bounds.free_trees(topology, "all_gather").rounds
    assert len(seen) < 100


def test_fixed_trees_are_the_pinned_shortest_paths():
    topology = network(DCELL)
    made = Learned(samples=0, trees="fixed").schedule(topology, collective="reduce_scatter")
    workloads = gw.schedules.Workloads.of(
        gw.schedules.FlowTrees.shortest_path(topology), "reduce_scatter"
    )
    wanted = set(zip(workloads.piece, workloads.source, workloads.target, strict=True))
    assert set(zip(made.piece, made.source, made.target, strict=True)) == wanted
    grown = Learned(samples=0).schedule(topology, collective="reduce_scatter")
    assert set(zip(grown.piece, grown.source, grown.target, strict=True)) != wanted


@pytest.mark.parametrize("time_limit", [1e-9, 0.5])
def test_time_runs_out(monkeypatch, time_limit):
    def never_at_the_bound(*arguments, **options):
        episode = play(*arguments, **options)
        return episode._replace(rounds=episode.rounds + 1000 * (episode.rounds >= 0))

    monkeypatch.setattr(episodes, "play", never_at_the_bound)
    begun, begun_work = time.monotonic(), time.process_time()
    made = Learned(samples=1_000_000).schedule(network("ring:8"), time_limit=time_limit)
    assert time_limit <= time.monotonic() - begun
    assert time.process_time() - begun_work < time_limit + 10
    assert verify(made).valid


def test_it_is_written_in_words():
    scheduler = from_spec("learned:samples=0,trees=fixed")
    assert scheduler == Learned(samples=0, trees="fixed")
    for options in (
        {},
        {"samples": 5, "workers": 2},
        {"trees": "fixed", "weights": "some/folder/weights.safetensors"},
        {"greedy": False},
        {"policy": "rule"},
        {"policy": "trained"},
    ):
        assert from_spec(to_spec(Learned(**options))) == Learned(**options)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("learned:samples=-1", "samples: expected 0 to 1,000,000, got -1"),
        ("learned:samples=1e3", "samples must be an integer"),
        ("learned:samples=9999999999", "samples: expected 0 to"),
        ("learned:workers=0", "workers: expected 1 to"),
        ("learned:trees=tall", "trees must be one of fixed, grown, got 'tall'"),
        ("learned:samples=0,greedy=false", "leaves no episode"),
        ("learned:greedy=perhaps", "greedy must be true or false"),
        ("learned:policy=any", "policy must be one of rule, trained, got 'any'"),
        ("learned:policy=rule,weights=a.safetensors", "policy=rule has fixed weights"),
        ("learned:weights=", "expected a value after weights="),
        ("learned:depth=3", "'depth' is not an option"),
    ],
)
def test_options_are_refused(text, reason):
    with pytest.raises((OptionError, SpecError), match=reason) as raised:
        from_spec(text)
    assert "\n" not in str(raised.value)


def test_trees_and_policies_of_no_kind_are_refused():
    with pytest.raises(OptionError, match="trees: expected grown or fixed, got 'tall'"):
        Learned(trees="tall")
    with pytest.raises(OptionError, match="policy: expected rule or trained, got 'any'"):
        Learned(policy="any")


@pytest.mark.parametrize("trees", ["grown", "fixed"])
def test_the_rule_decides_unless_trained_policies_are_asked_for(trees):
    def made(**options):
        scheduler = Learned(samples=0, repair=False, trees=trees, **options)
        return scheduler.schedule(network(DCELL), collective="reduce_scatter")

    assert same_columns(made(), made(policy="rule"))
    trained = made(policy="trained")
    assert same_columns(made(weights=str(SHIPPED)), trained)
    assert not same_columns(made(), trained)


@pytest.mark.parametrize("trees", ["grown", "fixed"])
def test_a_rule_is_policies_whose_messages_count_for_nothing(trees):
    collective = "all_gather" if trees == "grown" else "reduce_scatter"
    problem = CompiledInstance.of(Instance(network(DCELL), collective, trees))
    shipped = read_weights()
    nothing = {
        name: np.zeros_like(array)
        for name, array in shipped.workload._asdict().items()
        if isinstance(array, np.ndarray)
    }
    numbers = {"common": np.float32(1), "hop": RULE.hop, "piece": RULE.piece}
    below = shipped.workload._replace(**nothing | numbers)
    for how in ({}, {"temperature": 0.0}, {"temperature": 2.0, "repair": True}):
        rule = play(problem, RULE, seed=5, **how)
        same_scores = play(problem, shipped._replace(workload=below), seed=5, select=False, **how)
        trained = play(problem, shipped, seed=5, **how)
        assert np.array_equal(rule.sent_hop, same_scores.sent_hop)
        assert np.array_equal(rule.sent_round, same_scores.sent_round)
        assert not np.array_equal(rule.sent_round, trained.sent_round)


def test_weights_that_were_written_are_read(tmp_path):
    jax = pytest.importorskip("jax")
    checkpoint = pytest.importorskip("gradweave.learning.checkpoint")
    networks = pytest.importorskip("gradweave.learning.networks")
    topology = network(DCELL)

    path = tmp_path / "again.safetensors"
    checkpoint.save_policy(path, checkpoint.load_policy(Path(str(SHIPPED))), {"of": "a test"})
    again = Learned(samples=2, weights=str(path)).schedule(topology)
    assert same_columns(again, Learned(samples=2, policy="trained").schedule(topology))

    checkpoint.save_policy(path, networks.HierarchicalPolicy(jax.random.key(0)), {})
    untrained = Learned(samples=2, weights=str(path)).schedule(topology)
    assert verify(untrained).valid
    assert not same_columns(untrained, again)


def header_and_body() -> tuple[dict, bytes]:
    raw = SHIPPED.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def written(header: dict, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def spoilt(*path, value) -> bytes:
    """The shipped weights with something else in the header."""
    header, body = header_and_body()
    inside = header
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return written(header, body)


def with_number(number: float) -> bytes:
    header, body = header_and_body()
    first = header["workload.match"]["data_offsets"][0]
    return written(header, body[:first] + struct.pack("<f", number) + body[first + 4 :])


def without(name: str) -> bytes:
    header, body = header_and_body()
    header["another"] = header.pop(name)
    return written(header, body)


BAD = {
    "text": (lambda: b"layers = 3\n", "cannot be read as safetensors"),
    "empty": (lambda: b"", "cannot be read as safetensors"),
    "pickle": (lambda: b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00.", "cannot be read as"),
    "truncated": (lambda: SHIPPED.read_bytes()[:-100], "cannot be read as safetensors"),
    "truncated header": (lambda: SHIPPED.read_bytes()[:300], "cannot be read as safetensors"),
    "endless header": (lambda: struct.pack("<Q", 2**60) + b"{}", "cannot be read as safetensors"),
    "no format": (
        lambda: spoilt("__metadata__", value={}),
        "a gradweave-policy file of .*, got None",
    ),
    "another format": (
        lambda: spoilt("__metadata__", "format", value="gradweave-training"),
        "a gradweave-policy file of .*, got 'gradweave-training'",
    ),
    "another version": (lambda: spoilt("__metadata__", "version", value="9"), "got .* '9'"),
    "no number": (lambda: spoilt("__metadata__", "common", value="8 or so"), "expected a number"),
    "no finite number": (lambda: spoilt("__metadata__", "common", value="inf"), "a number, got"),
    "NaN": (lambda: with_number(float("nan")), "'workload.match': expected finite float32"),
    "infinity": (lambda: with_number(float("inf")), "'workload.match': expected finite float32"),
    "missing array": (lambda: without("workload.piece"), r"'workload.piece': expected .* got None"),
    "wrong shape": (
        lambda: spoilt("workload.match", "shape", value=[8, 32]),
        r"'workload.match': expected finite float32 \(16, 16\), got .*\(8, 32\)",
    ),
    "integers": (
        lambda: spoilt("tree.score", "dtype", value="I32"),
        "'tree.score': .* got .'int32'",
    ),
    "numbers that NumPy has not": (
        lambda: spoilt("tree.score", value={"dtype": "BF16", "shape": [32], "data_offsets": _at()}),
        "'tree.score': expected no BF16",
    ),
}


def _at() -> list[int]:
    return header_and_body()[0]["tree.score"]["data_offsets"]


@pytest.mark.parametrize(("content", "reason"), BAD.values(), ids=BAD.keys())
def test_weights_that_are_none_are_refused(tmp_path, content, reason):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content())
    with pytest.raises(FileError, match=reason) as raised:
        Learned(weights=str(path)).schedule(network("ring:8"))
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "nowhere.safetensors", tmp_path):
        with pytest.raises(FileError, match=f"{path}: cannot be read as safetensors") as raised:
            Learned(weights=str(path)).schedule(network("ring:8"))
        assert "\n" not in str(raised.value)
