"""gradweave job plan: plans for the backend of torch.distributed, made ahead and listed."""

import os
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.schedulers import Ring
from gradweave.schedules import Provenance

torch = pytest.importorskip("torch")


@pytest.fixture
def planned(gradweave):
    """The rows that it prints."""
    return lambda *arguments: gradweave("job", "plan", *arguments, "--json").json["plans"]


def keep(folder: Path, network: gw.Topology, size: int, **options: object) -> gw.Schedule:
    """A plan as an earlier job would have left it."""
    from gradweave.torch.calls import SizeClass
    from gradweave.torch.plans import Plans
    from gradweave.torch.settings import Settings

    given = {"objective": "seconds", "gradient_bytes": size, "runtime": "gloo", **options}
    plan = Ring().schedule(network).replace(scheduler=Provenance("ring", given))
    plans = Plans(Settings((), None, "gloo", folder), {}, network)
    plans.keep(plan, SizeClass.of_bytes("all_reduce", size))
    return plan


def test_what_is_there_is_not_made_again(planned, tmp_path: Path):
    star = gw.topology.star(4)
    keep(tmp_path, star, 1 << 20)
    keep(tmp_path, star, 1 << 22, own=True)
    sizes = ("--size", "1MiB,4MiB", "--cache", str(tmp_path))
    small, large = planned("star:n=4", *sizes)
    assert small["bytes"] == 1 << 20 and small["scheduler"] == "ring" and not small["is_own"]
    assert small["seconds"] and small["own_seconds"] and large["is_own"]
    assert large["seconds"] == large["own_seconds"]
    assert sorted(map(str, planned("--list", "--cache", str(tmp_path)))) == sorted(
        map(str, (small, large))
    )


def test_groups_that_are_alike_share_a_plan(planned, tmp_path: Path):
    from gradweave.topology import subnetwork

    pairs, _ = subnetwork(star := gw.topology.star(4), star.servers[:2])
    keep(tmp_path, pairs, 1 << 20)
    mesh = ("--mesh", "replicate=2,shard=2", "--size", "1MiB")
    (row,) = planned("star:n=4", *mesh, "--cache", str(tmp_path))
    assert row["servers"] == 2 and len(list(tmp_path.iterdir())) == 1


def test_a_table(gradweave, tmp_path: Path):
    keep(tmp_path, gw.topology.star(4), 1 << 20)
    (tmp_path / "other.json").write_text("{")
    answer = gradweave("job", "plan", "--list", "--cache", str(tmp_path))
    assert answer.status == 0 and "all-reduce" in answer.stdout and "1 MiB" in answer.stdout
    assert "no plan: " in answer.stderr and "other.json" in answer.stderr
    none = gradweave("job", "plan", "--list", "--cache", str(tmp_path / "none"))
    assert "no plans in" in none.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected a network to plan for, or --list"),
        (("star:n=4", "--list"), "leave out the network"),
        (("star:n=4", "--mesh", "dp=3"), "dp=3 has 3 ranks, the network 4 servers"),
        (("star:n=4", "--runtime", "fast"), "runtime: expected"),
    ],
)
def test_bad_input(gradweave, arguments: tuple[str, ...], said: str):
    answer = gradweave("job", "plan", *arguments)
    assert answer.status == 2 and said in answer.stderr and "\n" not in answer.stderr.strip()


def test_a_list_of_files_that_are_no_plans(gradweave, tmp_path: Path):
    (tmp_path / "a.json").write_text("{")
    os.mkfifo(tmp_path / "b.json")
    answer = gradweave("job", "plan", "--list", "--cache", str(tmp_path))
    assert answer.status == 0 and answer.stderr.count("warning: no plan: ") == 2
    assert "got a named pipe" in answer.stderr and "no plans in" in answer.stderr
