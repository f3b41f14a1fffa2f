"""One process of a measurement on this machine, started by `gradweave.probe.launch`.

python -m gradweave.probe.rank_process TASK

It sends its parent ``doing``, ``says``, ``error`` and ``done``.
"""

import functools
import json
import os
import sys
from pathlib import Path

from gradweave.errors import GradweaveError
from gradweave.probe.launch import take_part, told_in_one_line
from gradweave.probe.session import Terms
from gradweave.processes.ending import end_at_once
from gradweave.processes.parent import Parent


def main(text: str) -> None:
    """Carries out a task."""
    task = json.loads(text)
    parent = Parent()
    parent.listen(lambda _: None)
    path, rank, size = task["store"]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        with told_in_one_line():
            take_part(
                Path(task["output"]),
                "torch",
                Terms(**task["terms"]),
                lambda doing: parent.send(doing=doing),
                lambda line: parent.send(says=line),
                (path, rank, size),
            )
    except GradweaveError as error:
        end_at_once(1, functools.partial(parent.send, error=str(error)))
    # Threads of the engine may still be waiting for messages that will never arrive.
    end_at_once(0, functools.partial(parent.send, done=True))


if __name__ == "__main__":
    main(sys.argv[1])
