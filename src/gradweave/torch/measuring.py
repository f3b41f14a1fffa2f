"""The network of a job, measured when it starts, and kept for its hosts."""

import contextlib
import hashlib
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradweave.atomic import atomic_write, make_folder
from gradweave.errors import FileError, OptionError
from gradweave.torch.child import run_verb

SLOT_S = 0.05
"""Seconds of a transfer: eight servers take less than a minute so, where `gradweave measure` alone
takes transfers four times as long, which find slow links more exactly."""
MOST_S = 120.0
"""Longest measurement, after which the job goes on without plans."""
_log = logging.getLogger("gradweave")


def measured_file(cache: Path, hosts: Sequence[str]) -> Path:
    """The file of a network that was measured between some hosts.

    Args:
        cache: folder of plans.
        hosts: of each rank.
    """
    key = hashlib.blake2b(json.dumps(list(hosts)).encode(), digest_size=12).hexdigest()
    return cache / "networks" / f"measured-{key}.json"


def measured(store: Any, rank: int, size: int, output: Path | None = None) -> str:
    """Measures the network between a job's processes; all call it.

    Beside each process a child takes part (`gradweave measure`), so that what is imported for it
    stays out of the job.

    Args:
        store: the group's.
        rank: this process's.
        size: how many there are.
        output: where rank 0 keeps the network; None in the others.

    Returns:
        The network as `gradweave.topology.load` reads it from a file; empty in all processes but
        that of rank 0.

    Raises:
        OptionError: it took too long or failed, in words of the child.
    """
    if rank == 0:
        store.set("gradweave measured at", json.dumps(_address()))
    address, port = json.loads(store.get("gradweave measured at"))
    given = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    until = time.monotonic() + MOST_S
    late = f"it took more than {MOST_S:g} s; measure with gradweave measure, and give the file"
    with tempfile.TemporaryDirectory(prefix="gradweave-") as folder:
        found = Path(folder, "network.json")
        try:
            run_verb(
                ["measure", str(found), "--slot", str(SLOT_S)],
                Path(folder, "said"),
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
        atomic_write(output, text.encode())
    except FileError as error:
        _log.warning("GRADWEAVE_CACHE: the network is not kept: %s", error)


def _address() -> tuple[str, int]:
    """Where rank 0's child listens."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("", 0))
        return os.environ.get("MASTER_ADDR") or socket.gethostname(), free.getsockname()[1]


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    """That of a process which torchrun started anew, whatever started this one."""
    others = ("OMPI_", "PMIX_", "PMI_", "TORCHELASTIC_", "GRADWEAVE_")
    mine = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return mine | {name: str(value) for name, value in given.items()}
