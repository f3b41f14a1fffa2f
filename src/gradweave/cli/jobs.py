"""Addresses of running jobs."""

import os
import re
from collections.abc import Mapping

from gradweave.errors import OptionError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^/\\:\s]+):(\d{1,5})")
PORT = 29_500
"""Default port of the store, which is PyTorch's default."""


def is_address(text: str) -> bool:
    """Whether a text is HOST:PORT."""
    return _ADDRESS.fullmatch(text) is not None


def address_of(text: str | None, environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port of a job's store.

    Args:
        text: HOST:PORT; if None, MASTER_ADDR and MASTER_PORT are used, or this machine.
        environment: has those two variables.

    Raises:
        OptionError: it is no address.

    >>> address_of("node1:29500"), address_of(None, {"MASTER_ADDR": "node2"})
    (('node1', 29500), ('node2', 29500))
    """
    if text is None:
        port = environment.get("MASTER_PORT", str(PORT))
        text = f"{environment.get('MASTER_ADDR', '127.0.0.1')}:{port}"
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise OptionError(f"{text}: expected HOST:PORT of a job's store, such as node1:29500")
    return match[1].strip("[]"), int(match[2])


def quiet_torch() -> None:
    """Keeps PyTorch, before it is imported, from telling how the store of an ended job broke."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
