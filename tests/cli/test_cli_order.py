"""``gradweave order``: what it prints and writes, and what it refuses."""

import json

import pytest

import gradweave as gw

ROWS = "".join(f"rack{n % 2}:node{n}\n" for n in range(8))
THIN = ("--oversubscription", 4, "--bandwidth", "10Gbit/s")


@pytest.fixture
def hosts(here):
    (here / "ours.hosts").write_text(ROWS)
    return "ours.hosts"


def test_it_prints_times_and_writes_the_order(gradweave, hosts, here):
    answer = gradweave("order", hosts, *THIN, "--output", "h.txt", "--gradient-bytes", "1MB,100MB")
    assert answer.status == 0, answer
    rows = answer.stdout.splitlines()
    assert rows[0] == "ours.hosts: 8 servers, for gloo" and rows[1].startswith("ranks: node0 ")
    assert rows[4].startswith("100 MB  ring") and "(4.0" in rows[4] and "at least" in rows[2]
    assert "every ring was compared" in answer.stdout and "a hop must" in answer.stdout
    order = [line.split()[0] for line in (here / "h.txt").read_text().splitlines()]
    assert {int(host[-1]) % 2 for host in order[:4]} in ({0}, {1})
    said = gradweave("order", hosts, *THIN, "--gradient-bytes", "1MB,100MB", "--json").json
    assert said["names"] == order and said["gradient_bytes"] == 1e8 and said["output"] is None
    assert [one["gradient_bytes"] for one in said["sizes"]] == [1e6, 1e8]
    assert said["sizes"][1]["seconds"] == said["seconds"] >= said["bound_s"]


def test_a_mesh_is_placed(gradweave, hosts):
    arguments = ("order", hosts, *THIN, "--mesh", "dp=2,tp=4", "--bytes", "tp=4GB,dp=500MB")
    said = gradweave(*arguments, "--json").json
    assert said["mesh"]["axes"] == {"dp": 2, "tp": 4} and set(said["mesh"]["axis_s"]) == {
        "dp",
        "tp",
    }
    assert said["by_id_s"] > 1.8 * said["seconds"]
    assert "dp " in gradweave(*arguments).stdout


def test_hosts_of_a_specification_are_given(gradweave, here):
    hosts = ",".join(f"n{s}" for s in range(4))
    options = ("--hosts", hosts, "--for", "nccl", "--output", "o.json", "--format", "jax")
    answer = gradweave("order", "star:4", *options)
    assert answer.status == 0 and "for nccl" in answer.stdout, answer
    assert sorted(json.loads((here / "o.json").read_text())["permutation"]) == [0, 1, 2, 3]


def test_where_processors_decide_it_says_so(gradweave, hosts):
    answer = gradweave("order", hosts, "--gradient-bytes", "1MB")
    assert "processors, not links, decide at this size" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["order", "star:4", "--format", "slurm"], "give both"),
        (["order", "star:4", "--output", "x"], "have no names to use as hosts"),
        (["order", "star:4", "--hosts", "a,b", "--output", "x"], "one for each of the 4 servers"),
        (["order", "star:4", "--bandwidth", "1Gbit/s"], "star:4: unknown kind of file"),
        (["order", "ours.hosts", "--oversubscription", "0.1"], "expected a number of at least 1"),
        (["order", "ours.hosts", "--bandwidth", "fast"], "bandwidth"),
        (["order", "ours.hosts", "--mesh", "dp"], "--mesh: expected axes such as dp=4,tp=8"),
        (["order", "ours.hosts", "--mesh", "dp=x"], "--mesh: dp: expected a number of ranks"),
        (["order", "ours.hosts", "--mesh", "dp=8", "--bytes", "dp=1x"], "--bytes: "),
        (["order", "ours.hosts", "--mesh", "dp=4", "--bytes", "dp=1MB"], "as many ranks as serv"),
        (["order", "ours.hosts", "--bytes", "dp=1MB"], "expected a mesh with it"),
        (["order", "ours.hosts", "--runtime", "x"], "runtime: expected"),
        (["order", "none.conf"], "none.conf: No such file"),
    ],
)
def test_bad_input_is_refused_in_one_line(refused, here, arguments, message: str):
    (here / "ours.hosts").write_text(ROWS)
    assert message in refused(*arguments)


def test_what_is_found_is_what_python_finds(gradweave, hosts):
    said = gradweave("order", hosts, "--for", "openmpi", "--json").json
    assert said["ranks"] == list(gw.order(hosts, "openmpi").ranks)
