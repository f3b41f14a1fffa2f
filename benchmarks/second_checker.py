"""The second checker, checkers/gradweave_check.rs, compiled and asked."""

import json
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "checkers" / "gradweave_check.rs"
COMMAND = ("rustc", "--edition", "2021", "-C", "overflow-checks=on")


class SecondChecker:
    """A program that says of files what is valid and proved in them.

    Args:
        program: its path.
    """

    def __init__(self, program: Path) -> None:
        self.program = program

    @classmethod
    def available(cls) -> bool:
        """Whether there is a compiler."""
        return shutil.which(COMMAND[0]) is not None

    @classmethod
    def compiled(cls, folder: Path, optimized: bool = True) -> "SecondChecker":
        """Compiles it, in 20 seconds of the processor, or three where it is not optimized.

        Args:
            folder: for the program.
            optimized: whether it shall be quick.
        """
        program = folder / "gradweave_check"
        level = f"opt-level={3 if optimized else 0}"
        subprocess.run([*COMMAND, "-C", level, str(SOURCE), "-o", str(program)], check=True)
        return cls(program)

    def verdicts(self, contents: Sequence[dict[str, Any]], *, adding: bool = False) -> list[str]:
        """Of each file, part by part, 1 where it is accepted and 0 where it is not.

        Args:
            contents: of files.
            adding: whether switches may add.
        """
        if not contents:
            return []
        command = [str(self.program), "--lines", *["--aggregating-switches"] * adding]
        lines = "\n".join(map(json.dumps, contents))
        ran = subprocess.run(command, input=lines.encode(), capture_output=True, check=True)
        return ran.stdout.decode().splitlines()

    @staticmethod
    def processor_s() -> float:
        """Seconds of the processor that this process's children have taken until now."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
