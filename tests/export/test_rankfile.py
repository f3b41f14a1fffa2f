"""Rankfiles: hosts by rank, and an mpirun that does what they say."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.cli.main import cli
from gradweave.errors import OptionError
from gradweave.export.rankfile import parse_hosts, to_rankfile

MPIRUN = Path(sys.executable).with_name("mpirun")


def star(labels=()):
    """Two servers of which the switch between has the middle id."""
    net = gw.Topology(
        name="star\n",
        is_server=[True, False, True],
        source=[0, 1, 1, 2],
        target=[1, 0, 2, 1],
        bandwidth_bytes_per_s=[1e9] * 4,
        latency_s=[0.0] * 4,
        capacity=[1] * 4,
        labels=labels,
    )
    return gw.schedulers.Ring().schedule(net)


def test_names_are_hosts():
    assert to_rankfile(star(("node-1", "leaf", "10.0.0.7"))).splitlines() == [
        "# star?: the r-th server, in order of id, has rank r",
        "rank 0=node-1 slot=0  # server node-1",
        "rank 1=10.0.0.7 slot=0  # server 10.0.0.7",
    ]


def test_hosts_are_given():
    assert to_rankfile(star(), parse_hosts("a:2")).splitlines()[1:] == [
        "rank 0=a slot=0  # server 0",
        "rank 1=a slot=1  # server 2",
    ]
    assert parse_hosts("a, b:2,a") == ["a", "b", "b", "a"]


@pytest.mark.parametrize(
    ("labels", "hosts", "culprit"),
    [
        ((), None, "have no names to use as hosts"),
        (("a b", "leaf", "c"), None, "expected host names such as node1 or 10.0.0.7, got 'a b'"),
        (("a\nrank 1=evil", "leaf", "c"), None, "expected host names"),
        ((), "a", "expected one for each of the 2 servers, got 1"),
        ((), "a:3", "got 3"),
        ((), "a,", "got ''"),
        ((), "a:0", "'a:0': expected a host and a number"),
        ((), "a:many", "expected a host and a number"),
        ((), "a:999999,b:999999", "more than 1,048,576 ranks"),
        ((), "-x,b", "got '-x'"),
        ((), "a#,b", "got 'a#'"),
    ],
)
def test_what_is_no_host_is_refused(labels, hosts, culprit):
    with pytest.raises(OptionError, match=culprit):
        to_rankfile(star(labels), None if hosts is None else parse_hosts(hosts))


def test_the_verb_prints_the_map(tmp_path, capsys):
    file, output = tmp_path / "star.json", tmp_path / "ranks.txt"
    star(("node-1", "leaf", "node-2")).save(file)
    arguments = ["export", str(file), "--format", "rankfile", "--output", str(output)]
    cli.main(arguments, standalone_mode=False)
    printed = capsys.readouterr().out
    assert "ranks: 0 is server node-1, 1 is server node-2" in printed
    assert output.read_text() == to_rankfile(star(("node-1", "leaf", "node-2")))
    with pytest.raises(OptionError, match="--hosts is for rankfile, not for msccl-xml"):
        cli.main(
            ["export", str(file), "--format", "msccl-xml", "--hosts", "a", "--output", "x"],
            standalone_mode=False,
        )


@pytest.mark.skipif(
    not MPIRUN.exists() or importlib.util.find_spec("mpi4py") is None, reason="there is no MPI"
)
def test_mpirun_takes_it(tmp_path):
    file = tmp_path / "ranks.txt"
    named = dataclasses.replace(star().topology, labels=("a", "b", "c"))
    file.write_text(to_rankfile(star().replace(topology=named), ["localhost"] * 2))
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    done = subprocess.run(
        [
            *(MPIRUN, *as_root, "--host", "localhost:2"),
            *("--map-by", f"rankfile:file={file}", "-n", "2"),
            *("sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:2]) == ["rank 0", "rank 1"]
