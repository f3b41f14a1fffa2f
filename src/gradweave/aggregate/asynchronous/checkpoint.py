"""A run in safetensors files: one for each server's shard, and one that says which belong together.

A shard's file has its number of updates in its name, and so has the file of a worker's state, where
workers have any. The run's file is written when all the others of one number are: until then an
earlier snapshot stays complete. Then those of earlier snapshots are removed, and no others: servers
and workers may be writing those of the next ones already.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradweave import arrays, pytrees
from gradweave.aggregate.asynchronous.history import COLUMNS, History
from gradweave.aggregate.asynchronous.shard import Shard
from gradweave.atomic import atomic_write, unfinished
from gradweave.errors import FileError, OptionError

FILE = "run.safetensors"
FORMAT, SHARD_FORMAT, VERSION = "gradweave-asynchronous", "gradweave-shard", "1"
STATE_FORMAT = "gradweave-worker"
_PART = re.compile(r"(?:server|worker)-\d+-update-(\d+)\.safetensors")


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A state to resume from: after one update, on every server."""

    updates: int
    clock: tuple[int, ...]
    """Of each worker."""
    history: History
    seconds: float
    """Since the run began."""


def shard_path(folder: str | Path, server: int, updates: int) -> Path:
    """The file of a server's shard."""
    return Path(folder) / f"server-{server}-update-{updates}.safetensors"


def state_path(folder: str | Path, worker: int, updates: int) -> Path:
    """The file of a worker's state."""
    return Path(folder) / f"worker-{worker}-update-{updates}.safetensors"


def state_there(folder: str | Path, worker: int, updates: int) -> Path | None:
    """The file of a worker's state that a replacement takes.

    Args:
        folder: of the checkpoint.
        worker: whose.
        updates: of the checkpoint when the replacement was asked for, which may be long ago.

    Returns:
        That checkpoint's, or the newest one that took its place; None where there is none.
    """
    path = state_path(folder, worker, updates)
    if path.exists():
        return path
    own = path.name.removesuffix(f"{updates}.safetensors")
    later = [(number, one) for one, number in parts(Path(folder)) if one.name.startswith(own)]
    return max(later)[1] if later else None


def keep_states(folder: Path, workers: Iterable[int], before: int, updates: int) -> None:
    """Has a checkpoint take the states of the one before it, of workers that are not there.

    Args:
        folder: of both.
        workers: which.
        before: updates of the earlier one.
        updates: of the later one.
    """
    for worker in workers:
        source, target = (state_path(folder, worker, number) for number in (before, updates))
        if source.exists() and not target.exists():
            atomic_write(target, source.read_bytes())


def save_state(path: Path, state: Any) -> None:
    """Writes a worker's state, whole or not at all."""
    pytrees.save(path, state, {"format": STATE_FORMAT, "version": VERSION})


def load_state(path: Path, like: Any) -> Any:
    """Reads a worker's state.

    Args:
        path: the file.
        like: a state of the same computation.

    Raises:
        FileError: it cannot be read, is of another format, or of another computation.
    """
    arrays.check_format(path, arrays.metadata(path), STATE_FORMAT, VERSION)
    return pytrees.load(path, like, "; was it written by another computation?")


def save_shard(path: Path, shard: Shard) -> None:
    """Writes a shard, whole or not at all."""
    pytrees.save(path, shard, {"format": SHARD_FORMAT, "version": VERSION})


def load_shard(path: Path, like: Shard) -> Shard:
    """Reads a shard.

    Args:
        path: the file.
        like: a shard of the same range and optimizer.

    Raises:
        FileError: it cannot be read, is of another format, or of another optimizer's state.
    """
    arrays.check_format(path, arrays.metadata(path), SHARD_FORMAT, VERSION)
    read = pytrees.load(path, like, "; was it written with another optimizer?")
    return jax.tree.map(jnp.asarray, read)


def save_snapshot(
    folder: Path, snapshot: Snapshot, digest: str, about: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Makes a snapshot the one to resume from; its parts must have been written.

    Args:
        folder: of the checkpoint.
        snapshot: of the run.
        digest: the task's fingerprint.
        about: what it says of the training.
    """
    columns = {name: getattr(snapshot.history, name) for name in COLUMNS}
    run = {
        "updates": snapshot.updates,
        "gradients": snapshot.history.gradients,
        "clock": snapshot.clock,
        "seconds": snapshot.seconds,
        "about": dict(about),
    }
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "digest": digest,
        "run": json.dumps(run, sort_keys=True),
    }
    arrays.save(folder / FILE, columns, metadata)
    for path, updates in parts(folder):
        if updates < snapshot.updates:
            path.unlink(missing_ok=True)


def about(folder: Path) -> tuple[dict[str, Any], int] | None:
    """What the snapshot to resume from says of its training, and how many gradients it has had.

    Returns:
        None where there is none.

    Raises:
        FileError: the file cannot be read, or is of another format.
    """
    path = folder / FILE
    if not path.exists():
        return None
    metadata = arrays.metadata(path)
    arrays.check_format(path, metadata, FORMAT, VERSION)
    run = arrays.json_entry(path, metadata, "run")
    try:
        return dict(run["about"]), int(run["gradients"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path}: does not say what training it is of: {error!r}") from error


def remove_others(folder: Path, updates: int) -> None:
    """Removes the parts that do not belong to the snapshot after `updates` updates.

    Only while nothing runs: parts of a later snapshot that a killed run left, and files that killed
    processes left unfinished.
    """
    others = [path for path, number in parts(folder) if number != updates]
    for path in (*others, *unfinished(folder)):
        path.unlink(missing_ok=True)


def parts(folder: Path) -> list[tuple[Path, int]]:
    """The files of shards and states, and after how many updates each was written."""
    matches = [(path, _PART.fullmatch(path.name)) for path in folder.iterdir()]
    return [(path, int(match[1])) for path, match in matches if match]


def load_snapshot(folder: Path, digest: str, workers: int) -> Snapshot | None:
    """The snapshot to resume from, if there is one.

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
    metadata = arrays.metadata(path)
    arrays.check_format(path, metadata, FORMAT, VERSION)
    columns = arrays.read(path)
    if metadata.get("digest") != digest:
        raise OptionError(
            f"{path}: is of another task (other params, workers, servers, seed or consistency); "
            "give another folder, or remove this one"
        )
    run: Any = arrays.json_entry(path, metadata, "run")
    try:
        if "finite" not in columns:  # of a version that did not leave gradients out
            columns = {**columns, "finite": np.ones_like(columns["update"])}
        history = History(**{name: columns[name].astype(COLUMNS[name]) for name in COLUMNS})
        if {getattr(history, name).shape for name in COLUMNS} != {(len(history.update),)}:
            raise ValueError("columns of different lengths")
        snapshot = Snapshot(
            int(run["updates"]), tuple(map(int, run["clock"])), history, float(run["seconds"])
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path}: expected a run's columns and clocks: {error!r}") from error
    if len(snapshot.clock) != workers or snapshot.updates != history.updates:
        raise FileError(
            f"{path}: its clocks or its history are not those of {snapshot.updates} updates"
        )
    return snapshot
