"""A run in safetensors files: one per server's shard, and one that describes the snapshot.

The name of a shard's file contains its number of updates, and so does the file of a worker's state,
if workers have any. The run's file is written once all files with the same number exist; until then
an earlier snapshot is complete. Then the files of earlier snapshots are removed, but no others,
since servers and workers may already be writing those of the next snapshot.
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

from gradweave.aggregate.asynchronous.history import COLUMNS, History
from gradweave.aggregate.asynchronous.shard import Shard
from gradweave.common import arrays, pytrees
from gradweave.common.atomic import atomic_write, unfinished
from gradweave.errors import FileError, OptionError

FILE = "run.safetensors"
FORMAT, SHARD_FORMAT, VERSION = "gradweave-asynchronous", "gradweave-shard", "1"
STATE_FORMAT = "gradweave-worker"
_PART = re.compile(r"(?:server|worker)-\d+-update-(\d+)\.safetensors")


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A state to resume from: all servers after the same update."""

    updates: int
    clock: tuple[int, ...]
    """Clock of each worker."""
    history: History
    seconds: float
    """Time since the run began."""


def shard_path(folder: str | Path, server: int, updates: int) -> Path:
    """The file of a server's shard."""
    return Path(folder) / f"server-{server}-update-{updates}.safetensors"


def state_path(folder: str | Path, worker: int, updates: int) -> Path:
    """The file of a worker's state."""
    return Path(folder) / f"worker-{worker}-update-{updates}.safetensors"


def state_there(folder: str | Path, worker: int, updates: int) -> Path | None:
    """The file with a worker's state for its replacement.

    Args:
        folder: folder of the checkpoint.
        worker: number of the worker.
        updates: updates of the checkpoint when the replacement was requested, possibly long ago.

    Returns:
        The file of that checkpoint, or of the checkpoint that replaced it; None if there is none.
    """
    path = state_path(folder, worker, updates)
    if path.exists():
        return path
    own = path.name.removesuffix(f"{updates}.safetensors")
    later = [(number, one) for one, number in parts(Path(folder)) if one.name.startswith(own)]
    # Those of earlier checkpoints are removed, and later ones are not committed yet.
    return min(later)[1] if later else None


def keep_states(folder: Path, workers: Iterable[int], before: int, updates: int) -> None:
    """Copies the states of absent workers from one checkpoint to the next.

    A state of an absent worker in the later checkpoint is replaced or removed: a worker that was
    killed during the loss of a server may have written it after `remove_others`, for other updates.

    Args:
        folder: folder of both checkpoints.
        workers: the absent workers.
        before: updates of the earlier checkpoint.
        updates: updates of the later checkpoint.
    """
    for worker in workers:
        source, target = (state_path(folder, worker, number) for number in (before, updates))
        if source.exists():
            atomic_write(target, source.read_bytes())
        else:
            target.unlink(missing_ok=True)


def save_state(path: Path, state: Any) -> None:
    """Writes a worker's state atomically."""
    pytrees.save(path, state, {"format": STATE_FORMAT, "version": VERSION})


def load_state(path: Path, like: Any) -> Any:
    """Reads a worker's state.

    Args:
        path: the file.
        like: a state of the same computation.

    Raises:
        FileError: it cannot be read, has another format, or belongs to another computation.
    """
    arrays.check_format(path, arrays.metadata(path), STATE_FORMAT, VERSION)
    return pytrees.load(path, like, "; was it written by another computation?")


def save_shard(path: Path, shard: Shard) -> None:
    """Writes a shard atomically."""
    pytrees.save(path, shard, {"format": SHARD_FORMAT, "version": VERSION})


def load_shard(path: Path, like: Shard) -> Shard:
    """Reads a shard.

    Args:
        path: the file.
        like: a shard of the same range and optimizer.

    Raises:
        FileError: it cannot be read, has another format, or has the state of another optimizer.
    """
    arrays.check_format(path, arrays.metadata(path), SHARD_FORMAT, VERSION)
    read = pytrees.load(path, like, "; was it written with another optimizer?")
    return jax.tree.map(jnp.asarray, read)


def save_snapshot(
    folder: Path, snapshot: Snapshot, digest: str, about: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Makes a snapshot the one to resume from; its files must have been written.

    Args:
        folder: folder of the checkpoint.
        snapshot: the snapshot of the run.
        digest: fingerprint of the task.
        about: metadata of the training.
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
    """The metadata of the training in the current snapshot, and its number of gradients.

    Returns:
        None if there is no snapshot.

    Raises:
        FileError: the file cannot be read, or has another format.
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
        raise FileError(f"{path}: does not say which training it belongs to: {error!r}") from error


def remove_others(folder: Path, updates: int) -> None:
    """Removes all files that do not belong to the snapshot after `updates` updates.

    Call it only while nothing runs. It removes files of a later snapshot that a killed run left
    behind, and unfinished files of killed processes.
    """
    others = [path for path, number in parts(folder) if number != updates]
    for path in (*others, *unfinished(folder)):
        path.unlink(missing_ok=True)


def parts(folder: Path) -> list[tuple[Path, int]]:
    """The files of shards and states, with the number of updates at which each was written."""
    matches = [(path, _PART.fullmatch(path.name)) for path in folder.iterdir()]
    return [(path, int(match[1])) for path, match in matches if match]


def load_snapshot(folder: Path, digest: str, workers: int) -> Snapshot | None:
    """The snapshot to resume from, if there is one.

    Args:
        folder: folder of the checkpoint.
        digest: fingerprint of the task.
        workers: number of workers.

    Raises:
        FileError: the file cannot be read, or has another format.
        OptionError: it belongs to another task.
    """
    path = folder / FILE
    if not path.exists():
        return None
    metadata = arrays.metadata(path)
    arrays.check_format(path, metadata, FORMAT, VERSION)
    columns = arrays.read(path)
    if metadata.get("digest") != digest:
        raise OptionError(
            f"{path}: belongs to another task (other params, workers, servers, seed or "
            "consistency); "
            "give another folder, or remove this one"
        )
    run: Any = arrays.json_entry(path, metadata, "run")
    try:
        if "finite" not in columns:  # written by a version that did not skip gradients
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
