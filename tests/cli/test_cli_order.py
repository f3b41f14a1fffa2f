"""``gradweave ranks``: what it prints and writes, and what it refuses."""

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
    answer = gradweave("ranks", hosts, *THIN, "--output", "h.txt", "--size", "1MB,100MB")
    assert answer.status == 0, answer
    rows = answer.stdout.splitlines()
    assert rows[0] == "ours.hosts: 8 servers, for gloo" and rows[1].startswith("ranks: node0 ")
    assert rows[4].startswith("100 MB  ring") and "(4.0" in rows[4] and "at least" in rows[2]
    assert "every ring was compared" in answer.stdout
    (bound,) = (row for row in rows if row.startswith("no order is predicted below the bound"))
    assert "since a hop must" in bound
    assert bound.endswith("where each two servers use the widest of their shortest routes")
    order = [line.split()[0] for line in (here / "h.txt").read_text().splitlines()]
    assert {int(host[-1]) % 2 for host in order[:4]} in ({0}, {1})
    said = gradweave("ranks", hosts, *THIN, "--size", "1MB,100MB", "--json").json
    assert said["names"] == order and said["gradient_bytes"] == 1e8 and said["output"] is None
    assert [one["gradient_bytes"] for one in said["sizes"]] == [1e6, 1e8]
    assert said["sizes"][1]["seconds"] == said["seconds"] >= said["bound_s"]


def test_a_mesh_is_placed(gradweave, hosts):
    arguments = ("ranks", hosts, *THIN, "--mesh", "dp=2,tp=4", "--size", "tp=4GB,dp=500MB")
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
    answer = gradweave("ranks", "star:4", *options)
    assert answer.status == 0 and "for nccl" in answer.stdout, answer
    assert sorted(json.loads((here / "o.json").read_text())["permutation"]) == [0, 1, 2, 3]


def test_addresses_are_in_mlx_files(gradweave, hosts, here):
    options = ("--output", "m.json", "--format", "mlx", "--size", "1MB")
    said = gradweave("ranks", hosts, *THIN, *options)
    assert "without an IP address, which mlx.launch's ring refuses" in said.stderr
    ips = [f"10.0.0.{n}" for n in range(8)]
    said = gradweave("ranks", hosts, *THIN, *options, "--addresses", ", ".join(ips), "--json")
    assert said.stderr == "" and {
        one["ssh"]: one["ips"] for one in json.loads((here / "m.json").read_text())
    } == {f"node{n}": [ips[n]] for n in range(8)}


def test_where_processors_decide_it_says_so(gradweave, hosts):
    answer = gradweave("ranks", hosts, "--size", "1MB")
    assert "processors, not links, limit the time at this size" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ranks", "star:4", "--format", "slurm"], "expected --output with it"),
        (["ranks", "star:4", "--output", "x"], "have no names to use as hosts"),
        (["ranks", "star:4", "--hosts", "a,b", "--output", "x"], "one for each of the 4 servers"),
        (["ranks", "star:4", "--bandwidth", "1Gbit/s"], "--bandwidth: expected a FILE with it"),
        (
            ["ranks", "star:4", "--addresses", "10.0.0.1", "--output", "x"],
            "expected --format mlx with it",
        ),
        (["ranks", "ours.hosts", "--oversubscription", "0.1"], "expected a number of at least 1"),
        (["ranks", "ours.hosts", "--bandwidth", "fast"], "bandwidth"),
        (["ranks", "ours.hosts", "--mesh", "dp"], "--mesh: expected axes such as dp=4,tp=8"),
        (["ranks", "ours.hosts", "--mesh", "dp=x"], "--mesh: dp: expected a number of ranks"),
        (["ranks", "ours.hosts", "--mesh", "dp=8", "--size", "dp=1x"], "--size"),
        (
            ["ranks", "ours.hosts", *THIN, "--mesh", "dp=4", "--size", "dp=1MB"],
            "as many ranks as serv",
        ),
        (
            ["ranks", "ours.hosts", *THIN, "--size", "dp=1MB"],
            "--size: expected --mesh with sizes",
        ),
        (["ranks", "ours.hosts", *THIN, "--runtime", "x"], "runtime: expected"),
        (["ranks", "none.conf"], "none.conf: No such file"),
    ],
)
def test_bad_input_is_refused_in_one_line(refused, here, arguments, message: str):
    (here / "ours.hosts").write_text(ROWS)
    assert message in refused(*arguments)


def test_what_is_found_is_what_python_finds(gradweave, hosts):
    said = gradweave("ranks", hosts, "--for", "openmpi", "--json").json
    with pytest.warns(gw.errors.InputWarning, match="no switch joins rack0, rack1"):
        assert said["ranks"] == list(gw.ranks.optimize(hosts, "openmpi").ranks)
