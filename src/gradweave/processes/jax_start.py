"""Settings of JAX that must be made before it starts."""

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 2**30
"""Size of the cache of compiled programs; it evicts the least recently used programs."""


def start_jax(devices: int | None = None) -> None:
    """Sets the number of CPU devices, and caches compiled programs for later commands.

    Args:
        devices: number of devices, or None for JAX's default of one per processor.
    """
    import jax

    if devices is not None:
        with suppress(RuntimeError):  # JAX has started already, for example in a test
            jax.config.update("jax_num_cpu_devices", devices)
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or (folder := compiled_folder()) is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    # Small programs as well: importing JaxMARL compiles some 70 of them, which takes a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def bind_address(coordinator: str | None) -> str | None:
    """The address on which `jax.distributed`'s first process should listen; the default is all.

    Args:
        coordinator: the address by which the other processes reach it.

    Returns:
        The same address if it is reachable only on this machine; otherwise None for JAX's default.

    >>> bind_address("127.0.0.1:5000"), bind_address("node1:5000")
    ('127.0.0.1:5000', None)
    """
    host, _, port = (coordinator or "").rpartition(":")
    if host == "localhost":
        return f"127.0.0.1:{port}"
    return coordinator if host.startswith("127.") or host == "[::1]" else None


def compiled_folder() -> Path | None:
    """The cache of compiled programs: a folder of the user for each kind of processor.

    Machines that cannot run each other's programs may share a home folder.

    Returns:
        The folder, or None if it is not writable or its size cannot be limited.
    """
    try:
        import filelock  # noqa: F401  # JAX limits a cache that processes share by it
    except ImportError:
        return None
    name = f"jax-{hashlib.sha256(processor_kind().encode()).hexdigest()[:12]}"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "gradweave" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError if there is no home folder
        return None
    return folder if os.access(folder, os.W_OK) else None


def processor_kind() -> str:
    """A name that is the same for all processors that can run each other's programs."""
    features = ""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                features = line
                break
    return f"{platform.machine()} {platform.processor()} {features}"
