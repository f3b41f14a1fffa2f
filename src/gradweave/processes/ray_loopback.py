"""A Ray of this machine alone: it listens on the loopback address, and answers to a token only.

Ray has no option for the first: asked for 127.0.0.1 it takes the machine's address on the network.
The switch by which it stays on the loopback address on macOS is used here on every system.
"""

import contextlib
import ipaddress
import logging
import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradweave.errors import RunError

MARK = "GRADWEAVE_RAY"
"""Variable of the environment by which the processes of one Ray are known."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Options by which Ray says nothing but errors."""


def start(ray: Any, folder: Path, mark: str) -> None:
    """Starts Ray on this machine and connects to it.

    Its token is made for it. It is in the memory of this process and in the environment of Ray's,
    and in no file.

    Args:
        ray: the module.
        folder: for what Ray writes; readable by nobody else, since its sockets in there ask for no
            token.
        mark: value of `MARK` in the environment of its processes.

    Raises:
        RunError: it listens elsewhere than on the loopback address.
    """
    environment = {
        MARK: mark,
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Of whoever calls, perhaps for another cluster. Without a mode Ray asks for the token.
        "RAY_AUTH_TOKEN_PATH": None,
        "RAY_AUTH_MODE": None,
    }
    with _environment(environment), _staying_here():
        _forget_token(ray)
        ray.init(address="local", include_dashboard=False, _temp_dir=str(folder / "ray"), **QUIET)
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise RunError(f"this version of Ray listens on {address}, not on this machine alone")


def connect(ray: Any, address: str) -> None:
    """Connects to a cluster that is there.

    Args:
        ray: the module.
        address: of the cluster.
    """
    with _at_once():
        ray.init(address=address, **QUIET)


def stop(ray: Any) -> None:
    """Disconnects from Ray, and ends it where this process started it."""
    ray.shutdown()
    _forget_token(ray)


def mute(ray: Any) -> None:
    """Ends the thread that prints Ray's messages about its own processes, logs and all.

    Args:
        ray: the module, connected.
    """
    worker = ray._private.worker.global_worker
    thread = getattr(worker, "listener_thread", None)
    if thread is None:
        return
    worker.threads_stopped.set()
    worker.gcs_error_subscriber.close()
    thread.join()
    worker.threads_stopped.clear()


def _forget_token(ray: Any) -> None:
    """Has Ray read its token and whether there is one from the environment again."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _environment(changes: dict[str, str | None]) -> Iterator[None]:
    """Sets variables, or removes those of None, and sets them back."""
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _staying_here() -> Iterator[None]:
    from ray._private import ray_constants  # pyright: ignore[reportMissingImports]

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _at_once():
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _at_once() -> Iterator[None]:
    """Without the warning that JAX's threads are running: Ray's children become other programs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield
