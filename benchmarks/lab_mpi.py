"""Open MPI and MPICH on an emulated network, with a process in each server's namespace."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gradweave as gw
from gradweave.lab import commands
from gradweave.lab.network import EmulatedNetwork

PATIENCE_S = 300


def mpi_json(
    lab: EmulatedNetwork,
    order: Sequence[int],
    program: str,
    given: Any,
    *,
    options: Sequence[str] = (),
    mpich: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """What one of the processes prints, a line of JSON.

    Open MPI yields when it waits, as it does where processes share cores.

    Args:
        lab: whose messages are routed already.
        order: servers, by rank.
        program: Python, as text.
        given: to the program as its argument, as JSON.
        options: for mpirun.
        mpich: a virtual environment with MPICH and mpi4py, which is used instead of Open MPI.
        environment: variables for all processes.

    Raises:
        SystemExit: it failed.
    """
    topology = lab.topology
    servers = topology.servers.tolist()
    addresses = [lab.address(0, server) for server in servers]
    inside = [sys.executable, "-I", "-S", str(Path(commands.__file__).with_name("inside.py"))]
    with tempfile.TemporaryDirectory() as folder:
        hosts, agent = Path(folder, "hosts"), Path(folder, "agent")
        gw.export.save_rank_order(topology, order, hosts, "hostfile", addresses)
        cases = "".join(f"{lab.address(0, s)}) space={lab.name(s)};;\n" for s in servers)
        # Each daemon has a host name and a folder of its own, as on machines of their own.
        agent.write_text(
            '#!/bin/sh\nwhile [ -z "${1%%-*}" ]; do shift; done\nhost=$1; shift\n'
            f"case $host in\n{cases}esac\nmkdir -p {folder}/$host\n"
            f"exec {shlex.join(inside)} $space unshare --uts sh -c "
            f'"hostname $space; export TMPDIR={folder}/$host; $*"\n'
        )
        agent.chmod(0o755)
        first = order[0]
        begin = ["unshare", "--uts", "sh", "-c", f'hostname {lab.name(first)}; exec "$@"', "sh"]
        home = [*inside, lab.name(first), *begin]
        interface = lab.interface(0)
        if mpich is None:
            command = [
                *home, str(Path(sys.executable).with_name("mpirun")),
                "--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(agent),
                "--prtemca", "prte_if_include", interface,
                "--mca", "btl_tcp_if_include", interface, "--mca", "mpi_yield_when_idle", "1",
                *options, "--hostfile", str(hosts), "--map-by", "slot", "-np", str(len(servers)),
                sys.executable, "-c", program, json.dumps(given),
            ]  # fmt: skip
        else:
            hosts.write_text("".join(f"{addresses[servers.index(one)]}:1\n" for one in order))
            command = [
                *home, str(mpich / "bin" / "mpiexec"), "-launcher", "ssh",
                "-launcher-exec", str(agent), "-iface", interface, *options,
                "-f", str(hosts), "-n", str(len(servers)),
                str(mpich / "bin" / "python"), "-c", program, json.dumps(given),
            ]  # fmt: skip
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, **(environment or {})},
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise SystemExit(done.stderr[-2000:] + done.stdout[-1000:])
        return json.loads(lines[0])
