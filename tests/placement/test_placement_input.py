"""Bad input: each refused in one line that says what is wrong and what would be right."""

import json

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import FileError, GradweaveError, InvalidCertificateError, OptionError
from gradweave.placement import (
    RandomOrder,
    Transformer,
    even_stages,
    load_placement,
    load_workload,
    place,
    recounted,
)
from gradweave.placement.bound.sequences import Sequences
from gradweave.placement.pairs import Pairs
from gradweave.placement.placing import cost_of

WORK = even_stages(4, activation_bytes=1e8, gradient_bytes=1e8, memory_bytes=2e9)
REFUSED = {
    "fewer devices than stages": (
        dict(network="ring:3"), "at most 3 stages, one for each device, got 4"),
    "groups that cannot be balanced": (
        dict(network="ring:10"), "10 devices cannot be balanced over 4 groups"),
    "more pipelines than devices": (
        dict(network="ring:10", data=3), "data: expected at most 2"),
    "stages that do not fit": (
        dict(network="ring:4", memory_bytes=[3e9, 3e9, 1e9, 3e9]),
        "need 4 devices with 2 GB or more, got 3"),
    "other stages than the workload's": (
        dict(network="ring:4", pipeline=2), "pipeline: expected 4, the stages of even stages"),
    "memory that is no number": (
        dict(network="ring:4", memory_bytes=float("nan")), "memory: expected numbers above 0"),
    "memory of other devices": (
        dict(network="ring:4", memory_bytes=[1e9]), "memory: expected 4, one for each device"),
    "unknown city": (dict(network="cities:Oregn.Tokyo,each=2"), "did you mean Oregon?"),
    "a city twice": (dict(network="cities:Oregon.oregon"), "Oregon is given twice"),
    "unknown strategy": (
        dict(network="ring:4", strategy="anealing"), "did you mean annealing?"),
    "no moves": (dict(network="ring:4", strategy="annealing:moves=0"), "moves: expected 1 to"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_placed(given, reason):
    with pytest.raises(GradweaveError) as refused:
        place(workload=WORK, **given)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -0.5])
def test_delays_that_are_no_numbers(wrong: float):
    latency = np.zeros((3, 3))
    latency[0, 2] = wrong
    with pytest.raises(OptionError, match=f"latency_s: .* from device 0 to 2, got {wrong}"):
        Pairs(latency, np.ones((3, 3)))
    with pytest.raises(OptionError, match=r"bandwidth_bytes_per_s: .* above 0"):
        Pairs(np.zeros((2, 2)), np.zeros((2, 2)))


def test_transformers_that_cannot_be_divided():
    with pytest.raises(OptionError, match="at most 2, the model's layers"):
        place("ring:8", Transformer(layers=2), pipeline=4)
    with pytest.raises(OptionError, match=r"data: .* batch that is a multiple of 16"):
        place("ring:8", Transformer(batch=24), pipeline=4)


def test_idle_servers_and_files(tmp_path):
    one = place("cities:each=2", even_stages(3, activation_bytes=1e8, gradient_bytes=1e8), data=5,
                strategy="annealing:restarts=1,moves=1000")  # fmt: skip
    assert len(one.idle) == 5 and one.cost_s == pytest.approx(cost_of(one))
    assert one.bound is not None and one.bound.seconds <= one.cost_s
    one.save(tmp_path / "p.json")
    again = load_placement(tmp_path / "p.json", gw.topology.from_spec("cities:each=2"))
    assert (again.servers == one.servers).all() and again.workload == one.workload
    with pytest.raises(FileError, match="not a placement of this network"):
        load_placement(tmp_path / "p.json", gw.topology.ring(4))
    read = recounted(tmp_path / "p.json")
    assert read.topology.same_network(one.topology) and read.cost_s == one.cost_s
    assert read.bound is not None and read.bound.seconds == one.bound.seconds
    (tmp_path / "w.json").write_text(json.dumps({"stages": [{"forward_s": -1}]}))
    with pytest.raises(FileError, match=r"w\.json"):
        load_workload(tmp_path / "w.json")


FORGED = {
    "a bound": (lambda file: file.update(bound_s=2 * file["bound_s"]), "its certificate proves"),
    "a cost": (lambda file: file.update(data_s=0.0), "states a cost"),
    "duals": (lambda file: file["certificate"]["duals_ns"][-1].append(1), "duals_ns: expected"),
    "huge duals": (
        lambda file: file["certificate"]["duals_ns"][-1].__setitem__(0, 10**17),
        "at most 100,000,000,000,000",
    ),
    "windows": (lambda file: file["certificate"]["since_ns"].reverse(), "ascending from 0"),
    "no window from 0": (
        lambda file: [file["certificate"][name].pop(0) for name in ("since_ns", "duals_ns")],
        "ascending from 0",
    ),
    "classes": (lambda file: file["certificate"]["classes"].pop(), "for each of 4 devices"),
    "no network": (lambda file: file.pop("topology"), "it has no network"),
}


@pytest.mark.parametrize(("forge", "reason"), FORGED.values(), ids=FORGED)
def test_a_placement_is_counted_again(tmp_path, forge, reason):
    work = even_stages(2, activation_bytes=1e8, gradient_bytes=1e9)
    one = place("leaf_spine:leaves=2,spines=1,servers_per_leaf=2", work)
    one.save(tmp_path / "p.json")
    assert recounted(tmp_path / "p.json").optimal
    file = json.loads((tmp_path / "p.json").read_text())
    forge(file)
    (tmp_path / "p.json").write_text(json.dumps(file))
    with pytest.raises((InvalidCertificateError, FileError), match=reason):
        recounted(tmp_path / "p.json")


ALL_DIFFER = "cities:Oregon.Virginia.London.Tokyo.Seoul.Ohio,each=1"


@pytest.mark.parametrize("pipelines", [1, 2])
def test_a_placement_among_cities_that_differ_is_counted_again(tmp_path, pipelines):
    """Also where nobody averages."""
    work = even_stages(6 // pipelines, activation_bytes=1e9, gradient_bytes=1e9)
    one = place(ALL_DIFFER, work, strategy="annealing:restarts=2,moves=1000")
    one.save(tmp_path / "p.json")
    assert one.optimal and recounted(tmp_path / "p.json").optimal
    file = json.loads((tmp_path / "p.json").read_text())
    if pipelines == 2:
        assert isinstance(one.bound and one.bound.certificate, Sequences)
        file["certificate"]["goal_ns"] *= 2
    file["bound_s"] *= 2
    (tmp_path / "p.json").write_text(json.dumps(file))
    with pytest.raises(InvalidCertificateError, match="its certificate proves"):
        recounted(tmp_path / "p.json")


@pytest.mark.parametrize("yields", [True, False])
def test_a_cheaper_placement_that_the_proof_comes_upon_is_taken(yields, monkeypatch):
    monkeypatch.setattr(RandomOrder, "yields", yields)
    work = even_stages(3, activation_bytes=1e9, gradient_bytes=1e9)
    found = place(ALL_DIFFER, work, strategy="random")
    least = place(ALL_DIFFER, work, strategy="exact")
    assert found.optimal == yields and found.strategy == ("exact" if yields else "random")
    assert least.optimal and found.cost_s == pytest.approx(cost_of(found))
    assert found.bound and least.cost_s == pytest.approx(found.bound.seconds, rel=1e-7)
