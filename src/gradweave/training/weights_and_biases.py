"""Curves for Weights & Biases, if it is installed and requested."""

import importlib
import os
import uuid
from pathlib import Path
from typing import Any

from gradweave.common import lazy
from gradweave.common.atomic import atomic_write
from gradweave.errors import MissingExtraError

RUN = "wandb.id"
"""File with the name of the run at Weights & Biases, with which a resumed training continues it."""
_MODE = "WANDB_MODE"


def check_installed() -> None:
    """Refuses to start without Weights & Biases.

    Raises:
        MissingExtraError: it is not installed.
    """
    if not lazy.is_there("wandb"):
        raise MissingExtraError("--wandb needs wandb: pip install wandb")


def open_run(project: str, folder: Path) -> Any:
    """A run of a project, or the run that an earlier call started for the same folder.

    Nothing leaves this machine unless the environment has WANDB_MODE=online; the files written to
    the folder can be sent later by ``wandb sync``.

    Args:
        project: name of the project.
        folder: folder of the training.

    Raises:
        MissingExtraError: Weights & Biases is not installed.
    """
    check_installed()
    mode = os.environ.get(_MODE, "offline")
    if mode != "online":
        # otherwise it would report its errors to its makers
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    path = folder / RUN
    if not path.exists():
        atomic_write(path, uuid.uuid4().hex.encode())
    wandb = importlib.import_module("wandb")
    return wandb.init(
        project=project,
        dir=str(folder),
        id=path.read_text(),
        name=folder.name,
        resume="allow",
        mode=mode,
        settings=wandb.Settings(console="off", silent=True),
    )
