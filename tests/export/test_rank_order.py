"""Orders of ranks as launchers take them, read back as they read them."""

import dataclasses
import json
import re

import pytest
import yaml

import gradweave as gw
from gradweave.errors import InputWarning, OptionError
from gradweave.export import save_rank_order, to_rank_order
from gradweave.export.rank_order import ORDER_FORMATS

HOSTS = ["n0", "n1", "10.0.0.7", "n3"]
RANKS = (2, 0, 3, 1)
ADDRESSES = [f"10.0.0.{n}" for n in range(4)]
IN_ORDER = ["10.0.0.7", "n0", "n3", "n1"]


def net(labels=HOSTS) -> gw.Topology:
    star = gw.topology.star(4)
    return dataclasses.replace(star, labels=(*labels, "switch") if labels else ())


def read(text: str, format: str) -> list[str]:
    """The hosts in the order of ranks, as a launcher understands the file."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if format == "hostfile":
        pairs = [re.fullmatch(r"(\S+) slots=(\d+)", line) for line in lines]
        return [pair[1] for pair in pairs if pair for _ in range(int(pair[2]))]
    if format == "rankfile":
        ranks = dict(re.findall(r"^rank (\d+)=(\S+) slot=\d+ ", text, re.MULTILINE))
        return [ranks[str(rank)] for rank in range(len(ranks))]
    if format == "torchrun":
        ranks = {line.split()[0]: line.split()[1] for line in lines}
        return [ranks[str(rank)] for rank in range(len(ranks))]
    if format == "jax":
        permutation = json.loads(text)["permutation"]
        return [HOSTS[place] for place in permutation]
    if format == "mlx":
        return [host["ssh"] for host in json.loads(text)]
    if format == "kubernetes":
        ranks = {rank: node for node, rank in yaml.safe_load(text)["data"].items()}
        return [ranks[str(rank)] for rank in range(len(ranks))]
    return lines


@pytest.mark.parametrize("format", ORDER_FORMATS)
def test_every_format_says_the_order(format: str, tmp_path):
    ips = ADDRESSES if format == "mlx" else None
    written = to_rank_order(net(), RANKS, format, addresses=ips)
    assert read(written, format) == IN_ORDER
    assert read(to_rank_order(net(()), RANKS, format, HOSTS, ips), format) == IN_ORDER
    save_rank_order(net(), RANKS, tmp_path / "file", format, addresses=ips)
    assert (tmp_path / "file").read_text() == written


def test_what_else_the_files_say():
    assert "--master-addr 10.0.0.7 --master-port 29500" in to_rank_order(net(), RANKS, "torchrun")
    with pytest.warns(InputWarning, match="and 2 more without an IP address, which mlx.launch's"):
        mlx = json.loads(to_rank_order(net(), RANKS, "mlx"))
    assert [host["ips"] for host in mlx] == [["10.0.0.7"], [], [], []]
    mlx = json.loads(to_rank_order(net(), RANKS, "mlx", addresses=ADDRESSES))
    assert [host["ips"] for host in mlx] == [["10.0.0.2"], ["10.0.0.0"], ["10.0.0.3"], ["10.0.0.1"]]
    assert json.loads(to_rank_order(net(()), RANKS, "jax")) == {"permutation": [2, 0, 3, 1]}
    assert json.loads(to_rank_order(net(), RANKS, "jax"))["hosts"] == IN_ORDER


def test_nodes_of_kubernetes():
    """All keys and values of a ConfigMap's data are strings, which these are not without quotes."""
    names = ["1e3", "0x10", "null", "1.5"]
    manifest = yaml.safe_load(to_rank_order(net(()), RANKS, "kubernetes", names))
    assert (manifest["apiVersion"], manifest["kind"]) == ("v1", "ConfigMap")
    assert manifest["data"] == {"null": "0", "1e3": "1", "1.5": "2", "0x10": "3"}
    assert "--nnodes 4 " in to_rank_order(net(), RANKS, "kubernetes")
    for bad in ("Node1", "a_b"):
        with pytest.raises(OptionError, match="expected names of nodes, in lower case"):
            to_rank_order(net(()), RANKS, "kubernetes", ["a", "b", "c", bad])
    many = gw.topology.star(5_000)
    long = [f"{'x' * 220}{n}" for n in range(5_000)]
    with pytest.raises(OptionError, match="a ConfigMap holds at most 1,048,576 bytes, 5,000 nodes"):
        to_rank_order(many, range(5_000), "kubernetes", long)


def test_several_servers_on_a_host():
    pairs = ["a", "a", "b", "b"]
    assert to_rank_order(net(()), (2, 3, 0, 1), "hostfile", pairs) == "b slots=2\na slots=2\n"
    rankfile = to_rank_order(net(()), (0, 2, 1, 3), "rankfile", pairs)
    assert "rank 2=a slot=1" in rankfile and "rank 3=b slot=1" in rankfile
    with pytest.raises(OptionError, match="use the format rankfile"):
        to_rank_order(net(()), (0, 2, 1, 3), "hostfile", pairs)
    for format in ("torchrun", "mlx", "kubernetes"):
        with pytest.raises(OptionError, match="expected one server a host, got 2 on 'a'"):
            to_rank_order(net(()), (0, 1, 2, 3), format, pairs)


@pytest.mark.parametrize(
    ("ranks", "format", "hosts", "message"),
    [
        (RANKS, "hostfil", None, "did you mean hostfile"),
        ((0, 1, 2), "slurm", None, "each of the 4 servers once"),
        ((0, 1, 2, 4), "slurm", None, "each of the 4 servers once"),
        (RANKS, "slurm", ["a", "b"], "expected one for each of the 4 servers, got 2"),
        (RANKS, "slurm", ["a", "b", "c", "d;rm"], "expected host names such as node1"),
        (RANKS, "torchrun", ["a", "b", "c", "$(x)"], "expected host names such as node1"),
        (RANKS, "mlx", ["a", "b", "c", "d e"], "expected host names such as node1"),
        (RANKS, "jax", ["a", "b", "c", "d\n"], "expected host names such as node1"),
    ],
)
def test_bad_orders_and_hosts_are_named(ranks, format: str, hosts, message: str):
    with pytest.raises(OptionError, match=message):
        to_rank_order(net(), ranks, format, hosts)


@pytest.mark.parametrize(
    ("format", "addresses", "message"),
    [
        ("mlx", ADDRESSES[:3], "one for each of the 4 servers, got 3"),
        ("mlx", [*ADDRESSES[:3], "node3"], "expected such as 10.0.0.7, got 'node3'"),
        ("slurm", ADDRESSES, "are for the format mlx; slurm has no place for them"),
    ],
)
def test_bad_addresses_are_named(format: str, addresses, message: str):
    with pytest.raises(OptionError, match=f"addresses: .*{message}"):
        to_rank_order(net(), RANKS, format, addresses=addresses)


def test_without_names_hosts_are_asked_for():
    with pytest.raises(OptionError, match="have no names to use as hosts"):
        to_rank_order(net(()), RANKS, "hostfile")
