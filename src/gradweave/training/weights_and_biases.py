"""Curves for Weights & Biases, where it is installed and was asked for."""

import importlib
import os
import uuid
from pathlib import Path
from typing import Any

from gradweave import lazy
from gradweave.atomic import atomic_write
from gradweave.errors import MissingExtraError

RUN = "wandb.id"
"""File of the run's name there, by which a resumed training goes on with it."""
_MODE = "WANDB_MODE"


def check_installed() -> None:
    """Refuses to begin without it.

    Raises:
        MissingExtraError: it is not installed.
    """
    if not lazy.is_there("wandb"):
        raise MissingExtraError("--wandb needs wandb: pip install wandb")


def open_run(project: str, folder: Path) -> Any:
    """A run of a project, or the one that an earlier call began for the same folder.

    Nothing leaves this machine unless the environment has WANDB_MODE=online: what is written to
    the folder can be sent by ``wandb sync``.

    Args:
        project: its name there.
        folder: of the training.

    Raises:
        MissingExtraError: Weights & Biases is not installed.
    """
    check_installed()
    mode = os.environ.get(_MODE, "offline")
    if mode != "online":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it would report its own errors
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
