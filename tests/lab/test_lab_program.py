"""``gradweave lab NETWORK -- COMMAND``: a program per server; needs root."""

import sys

import pytest

from gradweave.cli.main import main
from tests.lab.test_lab import emulated

SAYS = f"""
echo rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, at $MASTER_ADDR
test -f $GRADWEAVE_TOPOLOGY && {sys.executable} -c '
import json, sys
print(len(json.load(open(sys.argv[1]))["nodes"]), "nodes")' $GRADWEAVE_TOPOLOGY
echo $RANK to standard error >&2
"""


def lab(*command: str, network: str = "cities:Oregon.Tokyo") -> int:
    with pytest.raises(SystemExit) as exited:
        main(["lab", network, "--latency", "0ms", "--bandwidth", "50Mbit/s", "--", *command])
    assert isinstance(exited.value.code, int)
    return exited.value.code


@emulated
@pytest.mark.filterwarnings("ignore:.*(is the machine busy|no netem, so that|loaded at once)")
def test_a_program_runs_once_per_server(capsys, monkeypatch):
    monkeypatch.delenv("GRADWEAVE_TOPOLOGY", raising=False)
    assert lab("sh", "-c", SAYS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 processes, 1 link, the slowest 50 Mbit/s" in lines[0] and "emulated with" in lines[1]
    for rank, name in enumerate(("Oregon", " Tokyo")):
        ours = [line.removeprefix(f"[{name}] ") for line in lines if line.startswith(f"[{name}]")]
        at = lines[2].rpartition(" ")[2]
        assert ours == [
            f"rank {rank} of 2, local 0, at {at}",
            "2 nodes",
            f"{rank} to standard error",
        ]


@emulated
@pytest.mark.filterwarnings("ignore:.*(is the machine busy|no netem, so that|loaded at once)")
def test_a_program_that_fails_ends_the_others(capsys, monkeypatch):
    monkeypatch.setattr("gradweave.lab.program.AFTER_FAILURE_S", 0.2)
    assert lab("sh", "-c", "test $RANK = 0 && exec sleep 1000; exit 3") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("gradweave: sh failed on server Oregon: its process was ended by SIG")
    assert said.endswith("and server Tokyo: its process ended with status 3")


@emulated
def test_what_a_program_has_no_use_for_is_refused(capsys):
    for arguments, message in (
        (["lab", "star:2", "--scheduler", "ring", "--", "true"], "expected only --bandwidth"),
        (["lab", "star:2", "--", "no-such-program"], "'no-such-program': no such program"),
    ):
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        assert exited.value.code == 2 and message in capsys.readouterr().err
