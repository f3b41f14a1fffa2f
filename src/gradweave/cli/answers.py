"""The answer of a command, and the one place that prints it: as text, or as one JSON object."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gradweave.cli.console import Table, note, print_json, print_lines, print_table
from gradweave.errors import SUCCESS


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a command; `Command` prints it and exits with its status."""

    object: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    """For ``--json``; a function if it is expensive to make."""
    text: Iterable[str | Table]
    """Lines and tables for people. A generator runs only if they are printed."""
    asides: Iterable[str] = ()
    """Lines for people on standard error, below the text."""
    status: int = SUCCESS

    def written_to(self, output: Path | None) -> "Answer":
        """The answer with the file of ``--output``, if one was written."""

        def stated() -> dict[str, Any]:
            return {**self.as_object(), "output": output}

        lines = [] if output is None else [f"written to {output}"]
        return dataclasses.replace(self, object=stated, text=itertools.chain(self.text, lines))

    def as_object(self) -> Mapping[str, Any]:
        """The object for ``--json``."""
        return self.object() if callable(self.object) else self.object

    def show(self, as_json: bool) -> None:
        """Prints the answer."""
        if as_json:
            print_json(self.as_object())
            return
        for part in self.text:
            if isinstance(part, Table):
                print_table(part)
            else:
                print_lines(part)
        for line in self.asides:
            note(line)
