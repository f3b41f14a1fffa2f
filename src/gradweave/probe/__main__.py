"""``python -m gradweave.probe OUTPUT SLOT``: one process's part of a measurement by PyTorch.

OUTPUT is the file of the topology, SLOT the seconds of each transfer; a launcher's environment
names the other processes. An error is one line on standard error.
"""

import sys
from pathlib import Path

from gradweave.execute.running.joined import ended_at_once
from gradweave.printable import in_one_line
from gradweave.probe.launch import take_part, told_in_one_line
from gradweave.probe.session import TIMEOUT_S, Terms
from gradweave.processes.ending import end_at_once


def _say(line: str) -> None:
    print(f"gradweave: {in_one_line(line)}", file=sys.stderr)


if __name__ == "__main__":
    with ended_at_once(_say), told_in_one_line():
        terms = Terms(float(sys.argv[2]), TIMEOUT_S)
        take_part(Path(sys.argv[1]), "torch", terms, lambda _: None, _say)
    end_at_once(0, lambda: None)  # the engine would take seconds to clear away
