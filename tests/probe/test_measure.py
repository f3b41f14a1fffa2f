"""`gradweave topology measure`: between processes of this machine, and in a lab."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.cli.main import main
from gradweave.topology.formats.files import read
from tests.patience import PATIENCE_S

pytest.importorskip("torch")
COMMAND = [sys.executable, "-m", "gradweave", "topology", "measure"]


def said(arguments: list[str], capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["topology", "measure", *arguments])
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return int(ended.value.code or 0), lines[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["net.json"], "expected mpirun or torchrun around this"),
        (["net.xyz", "--servers", "2"], "expected a name ending in .json or .yaml"),
        (["no/net.json", "--servers", "2"], "there is no directory no"),
        (["net.json", "--servers", "1"], "1 is not in the range 2<=x<=256"),
        (["net.json", "--servers", "2", "--slot", "nan"], "expected a float above 0, got nan"),
        (["net.json", "--servers", "2", "--slot", "100"], "slot: expected 0.01 to 60 s, got 100"),
    ],
)
def test_bad_input(arguments, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, line = said(arguments, capsys)
    assert status == 2 and expected in line


def test_another_launcher(tmp_path):
    launched = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    command = [*COMMAND, str(tmp_path / "net.json")]
    run = subprocess.run(command, env=launched, capture_output=True, text=True, timeout=PATIENCE_S)
    assert run.returncode == 2 and len(run.stderr.strip().splitlines()) == 1
    assert "--backend torch does not run under the launcher of mpi" in run.stderr


@pytest.mark.slow
def test_a_server_that_is_killed_is_named_and_what_was_measured_is_kept(tmp_path):
    output = tmp_path / "net.json"
    process = subprocess.Popen(
        [*COMMAND, str(output), "--servers", "3", "--slot", "3"],
        stderr=subprocess.PIPE,
        text=True,
    )
    kept = output.with_name("net.json.measurements.json")
    until = time.monotonic() + PATIENCE_S
    while not kept.exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    servers = [
        x for x in children if b"probe.rank_process" in Path(f"/proc/{x}/cmdline").read_bytes()
    ]
    os.kill(int(servers[1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "measuring 3 servers takes about" in errors and "lost server 1" in errors
    assert "Traceback" not in errors and not output.exists()
    content = json.loads(kept.read_text())
    assert np.array(content["latency_s"]).shape == (3, 3) and len(content["hosts"]) == 3


def can_emulate() -> str | None:
    if os.geteuid() != 0:
        return "a lab needs root"
    try:
        from gradweave.lab import network
        from gradweave.topology import from_spec

        with network.EmulatedNetwork(from_spec("complete:2,bandwidth=100Mbit/s")):
            return None
    except (gw.errors.GradweaveError, ImportError) as error:
        return f"no network can be emulated here: {error}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.skipif(bool(why := can_emulate()), reason=str(why))
def test_a_lab_network_is_found(tmp_path):
    """Two racks of two behind a trunk at 0.6 of a server's link, the fourth server at a half.

    Measured again where a figure is off, as a busy processor may make a link seem slow.
    """
    rate = 12.5e6 * np.array([1.0, 1.0, 1.0, 0.5, 0.6])
    truth = gw.topology.Topology.from_links(
        "truth",
        servers=4,
        switches=2,
        links=[(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)],
        link=gw.topology.Link(latency_s=0.0),
        bandwidth_bytes_per_s=rate,
    )
    output = tmp_path / "net.json"
    for attempt in range(3):
        measure_in_lab(truth, output, tmp_path / f"log-{attempt}")
        found = read(output)  # without a warning, which would be an error here
        assert found.num_servers == 4
        if is_near(found, rate):
            break
    assert is_near(found, rate)
    measured = json.loads(output.read_text())
    assert measured["graph"]["measured"]["at"]
    assert all("bandwidth_spread_bytes_per_s" in link for link in measured["links"])
    assert gw.solve(found).schedule.rounds


def measure_in_lab(truth: gw.Topology, output: Path, log: Path) -> None:
    from gradweave.lab.commands import server_commands
    from gradweave.lab.network import EmulatedNetwork
    from gradweave.processes.children import Children

    with EmulatedNetwork(truth) as network:
        command = [*COMMAND, str(output)]
        with Children(server_commands(network, command), log) as children:
            assert [child.wait(PATIENCE_S) for child in children.processes] == [0] * 4, (
                log.read_text()
            )


def is_near(found: gw.Topology, rate: np.ndarray) -> bool:
    """Both racks found, and each bandwidth within a tenth of the truth."""
    if len(found.switches) != 2:
        return False
    links = [*found.first_link[:4], *found.find_links([4, 5], [5, 4])]
    return np.allclose(found.bandwidth_bytes_per_s[links], rate[[0, 1, 2, 3, 4, 4]], rtol=0.1)
