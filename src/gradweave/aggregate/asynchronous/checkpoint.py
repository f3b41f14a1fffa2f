"""A run in safetensors files: one of each server's shard, and one that says which belong together.

A shard's file has its number of updates in its name. The file of the run is written when all shards
of one number are: until then an earlier cut stays whole. Then the shards of earlier cuts are
removed, and no others: servers may be writing those of the next cuts already.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradweave import arrays
from gradweave.aggregate.asynchronous.history import COLUMNS, History
from gradweave.aggregate.asynchronous.shard import Shard
from gradweave.atomic import unfinished
from gradweave.errors import FileError, OptionError

FILE = "run.safetensors"
FORMAT, SHARD_FORMAT, VERSION = "gradweave-asynchronous", "gradweave-shard", "1"
_SHARD = re.compile(r"server-\d+-update-(\d+)\.safetensors")


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
    arrays.save(path, shard, {"format": SHARD_FORMAT, "version": VERSION})


def load_shard(path: Path, like: Shard) -> Shard:
    """Reads a shard.

    Args:
        path: the file.
        like: a shard of the same range and optimizer.

    Raises:
        FileError: it cannot be read, is of another format, or of another optimizer's state.
    """
    arrays.check_format(path, arrays.metadata(path), SHARD_FORMAT, VERSION)
    read = arrays.load(path, like, "; was it written with another optimizer?")
    return jax.tree.map(jnp.asarray, read)


def save_cut(folder: Path, cut: Cut, digest: str) -> None:
    """Makes a cut the one to go on from; its shards must be there already.

    Args:
        folder: of the checkpoint.
        cut: where the run is.
        digest: the task's fingerprint.
    """
    columns = {name: getattr(cut.history, name) for name in COLUMNS}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "digest": digest,
        "run": json.dumps(
            {"updates": cut.updates, "clock": cut.clock, "seconds": cut.seconds}, sort_keys=True
        ),
    }
    arrays.save(folder / FILE, columns, about)
    for path, updates in shards(folder):
        if updates < cut.updates:
            path.unlink(missing_ok=True)


def remove_others(folder: Path, updates: int) -> None:
    """Removes the shards that do not belong to the cut after so many updates.

    Only while no server runs: what a run that was killed left of a later cut, and what servers that
    were killed as they wrote left unfinished.
    """
    others = [path for path, number in shards(folder) if number != updates]
    for path in (*others, *unfinished(folder)):
        path.unlink(missing_ok=True)


def shards(folder: Path) -> list[tuple[Path, int]]:
    """The files of shards, and after how many updates each was written."""
    found = [(path, _SHARD.fullmatch(path.name)) for path in folder.iterdir()]
    return [(path, int(match[1])) for path, match in found if match]


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
    about = arrays.metadata(path)
    arrays.check_format(path, about, FORMAT, VERSION)
    columns = arrays.read(path)
    if about.get("digest") != digest:
        raise OptionError(
            f"{path}: is of another task (other params, workers, servers, seed or consistency); "
            "give another folder, or remove this one"
        )
    try:
        run: dict[str, Any] = json.loads(about["run"])
        if "finite" not in columns:  # written before gradients were left out
            columns = {**columns, "finite": np.ones_like(columns["update"])}
        history = History(**{name: columns[name].astype(COLUMNS[name]) for name in COLUMNS})
        cut = Cut(
            int(run["updates"]), tuple(map(int, run["clock"])), history, float(run["seconds"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: expected a run's columns and clocks: {error!r}") from error
    if len(cut.clock) != workers or cut.updates != history.updates:
        raise FileError(f"{path}: its clocks or its history are not those of {cut.updates} updates")
    return cut
