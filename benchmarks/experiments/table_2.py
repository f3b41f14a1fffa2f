"""The paper's Table 2: every scheduler on the nine networks, 20 seeds.

python benchmarks/experiments/table_2.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import RESULTS, record

from gradweave.cli.verbs.compare import SCHEDULERS, strategies_of
from gradweave.report import TABLE_2, compare, comparison_chart
from gradweave.report.paper import PAPER_LEARNED

SEEDS = 20


def main() -> None:
    rows = compare(TABLE_2, strategies_of(SCHEDULERS), seeds=SEEDS, progress=print)
    objects = [row.as_object() for row in rows]
    record(
        "table_2",
        same_as=f"gradweave compare --seeds {SEEDS}",
        seeds=list(range(SEEDS)),
        rows=objects,
        paper_learned=PAPER_LEARNED,
    )
    comparison_chart(objects, RESULTS / "table_2.png")


if __name__ == "__main__":
    main()
