"""Measures a job's network when the job starts, and keeps it for later jobs on its hosts."""

import contextlib
import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradweave.common.atomic import atomic_write, make_folder
from gradweave.errors import FileError, GradweaveError, OptionError
from gradweave.processes.cleared import cleared_folder
from gradweave.processes.peers import Count, Text, peer_value
from gradweave.topology.spec import as_topology
from gradweave.torch.cache import check_regular, set_aside
from gradweave.torch.child import run_command

SLOT_S = 0.05
"""Seconds per transfer, which keeps eight servers under a minute. `gradweave topology measure` by
itself takes four times as long per transfer and finds slow links more precisely."""
MOST_S = 120.0
"""Timeout of the measurement, after which the job continues without plans."""
_log = logging.getLogger("gradweave")


def measured_file(cache: Path, hosts: Sequence[str]) -> Path:
    """The file of the network measured between some hosts.

    Args:
        cache: folder of plans.
        hosts: the host of each rank.
    """
    key = hashlib.blake2b(json.dumps(list(hosts)).encode(), digest_size=12).hexdigest()
    return cache / "networks" / f"measured-{key}.json"


def kept_network(file: Path) -> str | None:
    """The network measured by an earlier job, if any; an unusable file is set aside."""
    if not os.path.lexists(file):
        return None
    try:
        check_regular(file)
        as_topology(str(file))
        return file.read_text()
    except (GradweaveError, OSError, UnicodeError) as error:
        set_aside(file, str(error).removeprefix(f"{file}: "))
    return None


def measured(store: Any, rank: int, size: int, output: Path | None = None) -> str:
    """Measures the network between a job's processes; collective.

    A child of each process takes part (`python -m gradweave.probe`), so that its imports stay out
    of the job.

    Args:
        store: the store of the group.
        rank: rank of this process.
        size: number of processes.
        output: where rank 0 keeps the network; other ranks pass None.

    Returns:
        At rank 0, the text of a file that `gradweave.topology.read` reads; elsewhere "".

    Raises:
        OptionError: the measurement failed or timed out, with the message of the child.
        RunError: the address of the measurement in the store is invalid.
    """
    if rank == 0:
        store.set("gradweave measured at", json.dumps(_address()))
    at = store.get("gradweave measured at")
    address, port = peer_value(at, tuple[Text, Count], "the address of the measurement")
    given = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    until = time.monotonic() + MOST_S
    late = f"it took more than {MOST_S:g} s; run gradweave topology measure, and give the file"
    with cleared_folder("gradweave-") as folder:  # even if this process is killed
        found = folder / "network.json"
        try:
            run_command(
                ["gradweave.probe", str(found), str(SLOT_S)],
                folder / "said",
                lambda: late if time.monotonic() > until else None,
                _environment(given),
            )
        except OptionError as error:
            raise OptionError(f"GRADWEAVE_TOPOLOGY=measure: {error}") from None
        text = "" if rank else found.read_text()
    if output is not None:
        _keep(text, output)
    return text


def _keep(text: str, output: Path) -> None:
    try:
        make_folder(output.parent)
        if os.path.lexists(output):  # a file that could not be set aside
            check_regular(output)
        atomic_write(output, text.encode())
    except FileError as error:
        _log.warning("GRADWEAVE_CACHE: the network is not kept: %s", error)


def _address() -> tuple[str, int]:
    """The address on which rank 0's child listens."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("", 0))
        return os.environ.get("MASTER_ADDR") or socket.gethostname(), free.getsockname()[1]


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a fresh torchrun process, independent of this process's launcher."""
    others = ("OMPI_", "PMIX_", "PMI_", "TORCHELASTIC_", "GRADWEAVE_")
    mine = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return mine | {name: str(value) for name, value in given.items()}
