"""One process of a training, started by `gradweave.placement.training.running`.

    python -m gradweave.placement.training.server

Rank and number of processes are in the environment, as with torchrun. Each task is a JSON object,
and so is its answer.
"""

import hashlib
import os
import socket
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from gradweave.placement.training.measured_clock import clock_ahead_s
from gradweave.placement.training.plan import Plan
from gradweave.placement.training.text import characters
from gradweave.placement.training.trainer import StageTrainer
from gradweave.processes.parent import Parent


class TrainingServer:
    """A server's state between tasks."""

    def __init__(self) -> None:
        self._trainer: StageTrainer | None = None
        self._connected = False

    def introduce(self, _task: dict[str, Any]) -> dict[str, Any]:
        """Returns the machine's name and the hash of the text that it trains on."""
        text = hashlib.sha256(characters().tobytes()).hexdigest()
        return {"host": socket.gethostname(), "text": text}

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Connects to the others unless a launcher has, and creates this server's stage."""
        self._connected = task["store"] is not None
        if self._connected:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{task['store']}",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
            )
        # Processes that connect by a file are on one machine and share a clock.
        ahead_s = 0.0 if self._connected else clock_ahead_s()
        self._trainer = StageTrainer(msgspec.convert(task["plan"], Plan), ahead_s)
        return {}

    def step(self, task: dict[str, Any]) -> dict[str, Any]:
        """Runs a step."""
        assert self._trainer is not None
        return self._trainer.step(task["number"], task["at"])

    def finish(self, _task: dict[str, Any]) -> dict[str, Any]:
        """Closes the connections that `prepare` made."""
        self._trainer = None
        if self._connected:
            dist.destroy_process_group()
        return {}


def main() -> None:
    """Carries out tasks until the training ends."""
    torch.set_num_threads(1)  # as many processes as servers share the cores
    Parent().serve(TrainingServer())


if __name__ == "__main__":
    main()
