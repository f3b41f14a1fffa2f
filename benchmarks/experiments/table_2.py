"""The paper's Table 2: every scheduler on the nine networks, 20 seeds.

python benchmarks/experiments/table_2.py [--only SCHEDULERS]
"""

from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture
from benchmarks.record import record, recorded
from gradweave.cli.commands.compare import SCHEDULERS, strategies_of
from gradweave.report import TABLE_2, compare, comparison_chart
from gradweave.report.paper import PAPER_LEARNED

SEEDS = 20


def draw(result: dict[str, Any], path: Path) -> None:
    comparison_chart(result["rows"], path)


def main() -> None:
    picture = Picture("table_2", draw, ("rows",))
    parser = parser_of(__doc__, picture)
    text = "comma-separated strategies; the rows of others stay as recorded"
    parser.add_argument("--only", metavar="SCHEDULERS", help=text)
    only = parser.parse_args().only
    strategies = strategies_of(only or SCHEDULERS)
    rows = [row.as_object() for row in compare(TABLE_2, strategies, seeds=SEEDS, progress=print)]
    if only:
        known, _ = recorded("table_2", ["rows"])
        rows = merged(known["rows"], rows)
    record(
        "table_2",
        same_as=f"gradweave compare --seeds {SEEDS}",
        seeds=list(range(SEEDS)),
        rows=rows,
        paper_learned=PAPER_LEARNED,
    )
    picture.redraw()


def merged(known: list[dict[str, Any]], measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows measured now in the places of the same that are known."""
    by_case = {(row["label"], row["scheduler"]): row for row in [*known, *measured]}
    return list(by_case.values())


if __name__ == "__main__":
    main()
