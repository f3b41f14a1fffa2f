"""Rows of experiments that take long, kept while there are some left to measure."""

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.record import RESULTS, command_of, recorded, source_now


class Unfinished:
    """Rows of an experiment, in a file beside the results until all are there.

    Args:
        name: of the result.
        resume: whether the rows of an earlier run count; if not, they are put aside.
        command, libraries: as for `record`.
        from_record: whether an earlier run that is not here counts by the rows that it recorded.
    """

    def __init__(
        self,
        name: str,
        command: str | None = None,
        *,
        resume: bool,
        libraries: Iterable[str] = (),
        from_record: bool = False,
    ) -> None:
        self.path = RESULTS / f"{name}.partial.jsonl"
        self.command = command or command_of(name)
        self.libraries = tuple(libraries)
        if self.path.exists() and not resume:
            aside = RESULTS / f"{name}.aside.partial.jsonl"
            self.path.replace(aside)
            print(f"an earlier run had not ended; --resume goes on with it: it is now {aside.name}")
        if from_record and resume and not self.path.exists():
            for row in recorded(name, ("rows",))[0].get("rows", []):
                self._write(row)

    def rows(self) -> list[dict[str, Any]]:
        """Those that there are, each with its source."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def add(self, row: dict[str, Any]) -> None:
        """Keeps a row that was measured now."""
        self._write(row | {"source": source_now(self.command, self.libraries)})

    def _write(self, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def end(self) -> None:
        """All are recorded."""
        self.path.unlink(missing_ok=True)
