"""A run in safetensors files: one of each server's shard, and one that says which belong together.

A shard's file has its number of updates in its name. The file of the run is written when all shards
of one number are: until then an earlier cut stays whole. Shards that no file names are removed.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from gradweave.aggregate.asynchronous.history import COLUMNS, History
from gradweave.aggregate.asynchronous.shard import Shard
from gradweave.atomic import atomic_write
from gradweave.errors import FileError, OptionError

FILE = "run.safetensors"
FORMAT, SHARD_FORMAT, VERSION = "gradweave-asynchronous", "gradweave-shard", "1"


@dataclasses.dataclass(frozen=True)
class Cut:
    """A moment that a run can go on from: after one update, on every server."""

    updates: int
    clock: tuple[int, ...]
    """Of each worker."""
    history: History
    seconds: float
    """Since the run began."""


def shard_path(folder: str | Path, server: int, updates: int) -> Path:
    """Where a server's shard lies."""
    return Path(folder) / f"server-{server}-update-{updates}.safetensors"


def save_shard(path: Path, shard: Shard) -> None:
    """Writes a shard, whole or not at all."""
    names, leaves, _ = _named(shard)
    arrays = dict(zip(names, leaves, strict=True))
    atomic_write(path, to_bytes(arrays, {"format": SHARD_FORMAT, "version": VERSION}))


def load_shard(path: Path, like: Shard) -> Shard:
    """Reads a shard.

    Args:
        path: the file.
        like: a shard of the same range and optimizer.

    Raises:
        FileError: it cannot be read, is of another format, or of another optimizer's state.
    """
    names, leaves, structure = _named(like)
    arrays, _ = _read(path, SHARD_FORMAT)
    if set(arrays) != set(names):
        odd = sorted(set(arrays) ^ set(names))[0]
        raise FileError(
            f"{path}: array {odd!r} is missing, or there is no use for it; was it written with "
            "another optimizer?"
        )
    for name, leaf in zip(names, leaves, strict=True):
        found = arrays[name]
        if found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise FileError(
                f"{path}: array {name!r}: expected {leaf.dtype} {leaf.shape}, "
                f"got {found.dtype} {found.shape}"
            )
    return jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in names])


def save_cut(folder: Path, cut: Cut, digest: str, servers: int) -> None:
    """Makes a cut the one to go on from; its shards must be there already.

    Args:
        folder: of the checkpoint.
        cut: where the run is.
        digest: the task's fingerprint.
        servers: how many shards belong to it.
    """
    arrays = {name: getattr(cut.history, name) for name in COLUMNS}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "digest": digest,
        "run": json.dumps(
            {"updates": cut.updates, "clock": cut.clock, "seconds": cut.seconds}, sort_keys=True
        ),
    }
    atomic_write(folder / FILE, to_bytes(arrays, about))
    kept = {shard_path(folder, server, cut.updates) for server in range(servers)}
    for path in folder.glob("server-*-update-*.safetensors"):
        if path not in kept:
            path.unlink(missing_ok=True)


def load_cut(folder: Path, digest: str, workers: int) -> Cut | None:
    """The cut to go on from, if there is one.

    Args:
        folder: of the checkpoint.
        digest: the task's fingerprint.
        workers: how many.

    Raises:
        FileError: the file cannot be read, or is of another format.
        OptionError: it is of another task.
    """
    path = folder / FILE
    if not path.exists():
        return None
    arrays, about = _read(path, FORMAT)
    if about.get("digest") != digest:
        raise OptionError(
            f"{path}: is of another task (other params, workers, servers, seed or consistency); "
            "give another folder, or remove this one"
        )
    try:
        run: dict[str, Any] = json.loads(about["run"])
        history = History(**{name: arrays[name].astype(COLUMNS[name]) for name in COLUMNS})
        cut = Cut(
            int(run["updates"]), tuple(map(int, run["clock"])), history, float(run["seconds"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: expected a run's columns and clocks: {error!r}") from error
    if len(cut.clock) != workers or cut.updates != history.updates:
        raise FileError(f"{path}: its clocks or its history are not those of {cut.updates} updates")
    return cut


def _named(shard: Shard) -> tuple[list[str], list[Any], Any]:
    found, structure = jax.tree_util.tree_flatten_with_path(shard)
    names = [jax.tree_util.keystr(at, simple=True, separator=".") for at, _ in found]
    return names, [np.asarray(leaf) for _, leaf in found], structure


def _read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            if about.get("format") != kind or about.get("version") != VERSION:
                raise FileError(
                    f"{path}: expected a {kind} file of version {VERSION}, "
                    f"got {about.get('format')!r} of version {about.get('version')!r}"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, about
    except (OSError, SafetensorError, TypeError) as error:
        raise FileError(f"{path}: cannot be read as safetensors: {error}") from error
