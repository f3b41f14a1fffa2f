"""A Ray cluster: one that is there already, one at an address, or this machine."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from gradweave.errors import OptionError, RunError


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[Any]:
    """The module `ray`, connected.

    Args:
        address: of a running cluster, which must have Gradweave installed; if not given, the one
            that this process is connected to, or else this machine, whose processes end afterwards.

    Raises:
        OptionError: where Ray (extra ``ray``) is not installed.
        RunError: where Ray cannot start or find the cluster.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise OptionError("a cluster needs Ray; pip install 'gradweave[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        quiet["include_dashboard"] = False
    try:
        with warnings.catch_warnings():
            # JAX's threads are running, perhaps; Ray's children become other programs at once.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            # "local" even where RAY_ADDRESS is set: this machine unless asked otherwise.
            ray.init(address=address or "local", **quiet)
    except Exception as error:
        where = "on this machine" if address is None else f"at {address}"
        raise RunError(f"Ray does not start {where}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
