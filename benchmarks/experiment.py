"""The runner of experiments: arguments, warm-up, processes, resumption, the record.

    def measure(network: str, limit_s: float) -> dict[str, Any]: ...

    if __name__ == "__main__":
        run(__doc__, Rows(grid(network=NETWORKS, limit_s=LIMITS_S), measure), seeds=[SEED])

Each row is kept as soon as it is measured, with its source; the record is written once no case is
missing. Options of every experiment: `--resume` goes on after an interruption, `--only` measures
some cases again and keeps the recorded rows of the others, `--dry` records nothing.
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture
from benchmarks.processes import printed_json
from benchmarks.record import record, recorded, show
from benchmarks.unfinished import Unfinished

Row = dict[str, Any]
Case = Mapping[str, Any]
"""Arguments of a measurement by name. Its rows have them too: objects by their `name`."""


@dataclass(frozen=True)
class Rows:
    """A list of rows of a record."""

    cases: Iterable[Case] | Callable[[], Iterable[Case]]
    measure: Callable[..., Row | list[Row]]
    """The row of a case, or its rows."""
    name: str = "rows"
    """Key of the list in the record."""

    def every(self) -> list[Case]:
        """All cases, in the order of the record."""
        return list(self.cases() if callable(self.cases) else self.cases)

    def of(self, case: Case) -> list[Row]:
        """Measures a case."""
        found = self.measure(**case)
        own = labels(case)
        return [own | row | own for row in (found if isinstance(found, list) else [found])]


def grid(**axes: Iterable[Any]) -> list[Case]:
    """A case for every combination of values; those of the last axis change first."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def labels(case: Case) -> Row:
    """The arguments of a case as they stand in its rows, after a round trip through JSON."""
    return {key: json.loads(json.dumps(getattr(x, "name", x))) for key, x in case.items()}


def run(
    doc: str | None,
    *parts: Rows,
    warm: Callable[[], Any] | None = None,
    alone: bool = False,
    processor_time: bool = False,
    finish: Callable[..., Row] | None = None,
    picture: Picture | None = None,
    libraries: Iterable[str] = (),
    **about: Any,
) -> None:
    """Measures the cases that the command line selects; the record has the script's name.

    Args:
        doc: of the script.
        parts: what is measured, in this order.
        warm: called once before the first measurement, so that compiling does not count.
        alone: whether a new process measures each case.
        processor_time: whether time limits are of processor time (after `warm`).
        finish: takes the rows of each part and returns more to record, such as means. A value under
            the name of a part replaces the rows of that part.
        picture: drawn of the record.
        libraries: as for `record`.
        about: recorded too: seeds, limits, sizes.
    """
    script = Path(sys.argv[0])
    parser = parser_of(doc, picture, resumes=True)
    text = "measure again the cases with one of these labels; other rows stay as recorded"
    parser.add_argument("--only", nargs="+", metavar="LABEL", help=text)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()

    def begin() -> None:
        if warm:
            warm()
        if processor_time:
            time.monotonic = time.process_time

    if asked.case:
        part = next(one for one in parts if one.name == asked.case[0])
        with contextlib.redirect_stdout(sys.stderr):
            begin()
            found = part.of(part.every()[int(asked.case[1])])
        print(json.dumps(found))
        return
    kept = None if asked.dry else Unfinished(script.stem, resume=asked.resume, libraries=libraries)
    wanted = {part.name: _Wanted(part, asked.only) for part in parts}
    if asked.only:
        there, sources = recorded(script.stem, list(wanted))
        for name, rows in there.items():  # a part that is one row is not in a list
            wanted[name].keep([rows | {"source": sources[name]}] if name in sources else rows)
    for row in kept.rows() if kept else ():
        wanted[row.pop(PART, parts[0].name)].rows.append(row)
    left = [(one, *case) for one in wanted.values() for case in one.left()]
    if left and not alone:
        begin()
    for one, number, case in left:
        name, command = one.part.name, [sys.executable, str(script), "--case"]
        try:
            found = printed_json([*command, name, f"{number}"]) if alone else one.part.of(case)
        except SystemExit as failed:
            if not alone:
                raise
            print(failed, file=sys.stderr, flush=True)
            continue
        for row in found:
            show(row)
            if kept:
                kept.add(row | {PART: name})
            one.rows.append(row)
    missing = [labels(case) for one in wanted.values() for _, case in one.left()]
    if missing:
        sys.exit(f"not recorded; --resume measures what is missing: {missing}")
    lists = {name: one.in_order() for name, one in wanted.items()}
    more = finish(*lists.values()) if finish else {}
    for name, value in more.items():
        for line in value if isinstance(value, list) and name not in lists else ():
            show(line)
    if kept:
        record(script.stem, libraries=libraries, **about | more | lists | more)
        kept.end()
        if picture:
            picture.redraw()


PART = "rows_of"
"""Key of a kept row: the part that it belongs to."""


class _Wanted:
    """The cases of a part that are asked for, and the rows that there are."""

    def __init__(self, part: Rows, only: list[str] | None) -> None:
        self.part, self.rows = part, list[Row]()
        self.every = [(labels(case), case) for case in part.every()]
        self._only = set(only or ())

    def keep(self, rows: list[Row]) -> None:
        """Takes over recorded rows of the cases that are not asked for."""
        for row in rows:
            case = next((own for own, _ in self.every if _is_of(own)(row)), None)
            if case is None:
                raise SystemExit(f"the record has a row of no case: measure without --only: {row}")
            if not self._asked(case):
                self.rows.append(row)

    def _asked(self, case: Row) -> bool:
        return not self._only or bool(self._only & {self.part.name, *map(str, case.values())})

    def left(self) -> list[tuple[int, Case]]:
        """The cases without a row, and their places among all."""
        return [
            (number, case)
            for number, (own, case) in enumerate(self.every)
            if self._asked(own) and not any(map(_is_of(own), self.rows))
        ]

    def in_order(self) -> list[Row]:
        """The rows in the order of their cases."""
        return [row for own, _ in self.every for row in filter(_is_of(own), self.rows)]


def _is_of(case: Row) -> Callable[[Row], bool]:
    return lambda row: all(key in row and row[key] == value for key, value in case.items())
