"""Runs a user's program on an emulated network, once per server."""

import dataclasses
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gradweave.common.wording import listed
from gradweave.errors import OptionError, RunError
from gradweave.lab.commands import server_commands
from gradweave.lab.emulation import Emulation, measured_network
from gradweave.processes.children import STOP_S, how_ended
from gradweave.processes.ending import termination
from gradweave.topology.formats.files import save
from gradweave.topology.topology import Topology

_TICK_S = 0.05
AFTER_FAILURE_S = 30.0
"""Time for the other servers' programs to report what they noticed, after one has failed."""


def run_program(
    topology: Topology,
    command: Sequence[str],
    write: Callable[[int, str], None],
    progress: Callable[[str], None] = lambda _: None,
    begin: Callable[[Emulation], None] = lambda _: None,
) -> None:
    """Runs a command on each server of an emulated network, as torchrun would with one per machine.

    ``GRADWEAVE_TOPOLOGY`` is the emulated network, unless the environment sets it. Messages take
    shortest paths, even in planned calls.

    Args:
        topology: the network, with the bandwidths and latencies to emulate.
        command: the program and its arguments, the same for all servers.
        write: called with a server's rank and each line that its program prints, to either output.
        progress: called with the current step.
        begin: called with a description of the links, before the programs start.

    Raises:
        OptionError: the caller is not root, the kernel lacks a feature, the emulation is far from
            the request, or the program does not exist.
        RunError: a program did not end with status 0.
    """
    if shutil.which(command[0]) is None:
        raise OptionError(f"{command[0]!r:.200}: no such program, or it is not executable")
    emulated = measured_network(topology, progress)
    with termination(), emulated as (network, emulation, folder):
        begin(emulation)
        file = folder / "topology.json"
        save(dataclasses.replace(topology, labels=()), file)  # labels would be looked up as hosts
        starts = [
            (line, {"GRADWEAVE_TOPOLOGY": str(file)} | environment)
            for line, environment in server_commands(network, command)
        ]
        with _programs(starts, write) as programs:
            _wait(programs, network.check)
        servers = topology.servers.tolist()
        failed = [
            f"{topology.node_name(server)}: {how_ended(one.returncode)}"
            for server, one in zip(servers, programs, strict=True)
            if one.returncode
        ]
        if failed:
            raise RunError(f"{Path(command[0]).name} failed on {listed(failed)}")


_Program = subprocess.Popen[str]


@contextmanager
def _programs(
    starts: Sequence[tuple[Sequence[str], Mapping[str, str]]], write: Callable[[int, str], None]
) -> Iterator[list[_Program]]:
    """Starts programs and forwards their output; ends all their processes after the block."""
    programs: list[_Program] = []
    listeners: list[threading.Thread] = []
    turn = threading.Lock()

    def listen(rank: int, program: _Program) -> None:
        assert program.stdout is not None
        with program.stdout as lines:
            for line in lines:
                with turn:
                    write(rank, line.rstrip("\n"))

    try:
        for rank, (command, environment) in enumerate(starts):
            program = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            programs.append(program)
            listeners.append(threading.Thread(target=listen, args=(rank, program), daemon=True))
            listeners[-1].start()
        yield programs
    finally:
        for end in (signal.SIGTERM, signal.SIGKILL):
            for program in programs:
                if end is signal.SIGKILL or program.poll() is None:
                    with suppress(ProcessLookupError):  # a session may outlive its first process
                        os.killpg(program.pid, end)
            until = time.monotonic() + STOP_S
            while any(one.poll() is None for one in programs) and time.monotonic() < until:
                time.sleep(_TICK_S)
        for listener in listeners:
            listener.join(STOP_S)


def _wait(programs: Sequence[_Program], check: Callable[[], None]) -> None:
    """Waits until all programs have ended, or for a while after one has failed."""
    until = None
    while None in (statuses := [one.poll() for one in programs]):
        check()
        if until is None and any(statuses):
            until = time.monotonic() + AFTER_FAILURE_S
        if until is not None and time.monotonic() > until:
            return
        time.sleep(_TICK_S)
