"""Processes as a launcher starts them, forked from one that has imported what they need.

    python -m tests.placement.launched_process FOLDER '[[4, {"WORLD_SIZE": "4"}, ["place", …]], …]'

Job after job: so many processes run the command with these variables, and each writes its outputs
to FOLDER/JOB-RANK.out and .err. Prints the jobs' exit statuses by rank.
"""

import json
import os
import socket
import sys
import traceback
from pathlib import Path

import gradweave.placement.training.launched  # noqa: F401  before the fork
from gradweave.cli.main import main


def run(folder: Path, job: int, processes: int, variables: dict, command: list[str]) -> list[int]:
    """Exit statuses of a job's processes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    children = [
        start(folder / f"{job}-{rank}", {**variables, "RANK": str(rank)}, command)
        for rank in range(processes)
    ]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def start(outputs: Path, variables: dict[str, str], command: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    status: object = 1
    try:
        os.environ.update(variables)
        for number, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(outputs.with_suffix(suffix), os.O_WRONLY | os.O_CREAT), number)
        main(command)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    jobs = json.loads(sys.argv[2])
    print(json.dumps([run(Path(sys.argv[1]), number, *job) for number, job in enumerate(jobs)]))
