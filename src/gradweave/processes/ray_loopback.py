"""Runs Ray on this machine only: it listens on the loopback address, and requires a token.

Ray has no option for the former: for 127.0.0.1, it uses the machine's address on the network. On
macOS, a switch in Ray keeps it on the loopback address; that switch is set here on every system.
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
"""Environment variable that marks the processes of one Ray."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Options that make Ray log only errors."""


def start(ray: Any, folder: Path, mark: str) -> None:
    """Starts Ray on this machine and connects to it.

    Its token is new. It is only in the memory of this process and in the environment of Ray's
    processes, never in a file.

    Args:
        ray: the module.
        folder: folder for Ray's files; it must be private, since Ray's sockets require no token.
        mark: value of `MARK` in the environment of Ray's processes.

    Raises:
        RunError: Ray does not listen on the loopback address.
    """
    environment = {
        MARK: mark,
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # The caller's settings may be for another cluster. Without a mode, Ray requires the token.
        "RAY_AUTH_TOKEN_PATH": None,
        "RAY_AUTH_MODE": None,
    }
    with _environment(environment), _on_loopback():
        _forget_token(ray)
        ray.init(address="local", include_dashboard=False, _temp_dir=str(folder / "ray"), **QUIET)
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise RunError(f"this version of Ray listens on {address}, not only on this machine")


def connect(ray: Any, address: str) -> None:
    """Connects to a running cluster.

    Args:
        ray: the module.
        address: address of the cluster.
    """
    with _without_fork_warning():
        ray.init(address=address, **QUIET)


def stop(ray: Any) -> None:
    """Disconnects from Ray, and ends it if this process started it."""
    ray.shutdown()
    _forget_token(ray)


def mute(ray: Any) -> None:
    """Ends the thread that prints Ray's messages about its processes, with their logs.

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
    """Makes Ray read its token's settings from the environment again."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _environment(changes: dict[str, str | None]) -> Iterator[None]:
    """Sets variables, removes those that are None, and restores them."""
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
def _on_loopback() -> Iterator[None]:
    from ray._private import ray_constants  # pyright: ignore[reportMissingImports]

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with _without_fork_warning():
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _without_fork_warning() -> Iterator[None]:
    """Suppresses the warning about JAX's threads: Ray's children exec other programs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield
