"""Every file of the library checked by both checkers, and what instances have come to.

    taskset -c 0 python benchmarks/experiments/library_checks.py [--resume]

Each schedule is played and its certificates are recounted by `gradweave_check`; value and bound
must be those of the index. The second checker, which needs a compiler of Rust, must accept schedule
and certificates, too. Processor seconds, of one core. With `--resume` files that an earlier run
checked, the same by their hash, are not checked again.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.second_checker import SecondChecker
from benchmarks.unfinished import Unfinished
from gradweave.library import Library, judge
from gradweave.library.instance import MODELS, Instance
from gradweave.library.store import OWN


def checked(library: Library, instance: Instance, second: SecondChecker) -> dict[str, Any]:
    """A file's times, and whether it proves what the index says."""
    data, begun = library.schedule(instance), time.process_time()
    judged = judge(data, instance)
    took = time.process_time() - begun
    begun = second.processor_s()
    (marks,) = second.verdicts([data])
    near = abs(judged.value / instance.record.value - 1) < 1e-12
    return {
        "instance": instance.id,
        "sha256": instance.record.sha256,
        "model": instance.model,
        "holds": near and str(judged.least) == instance.record.bound and "0" not in marks,
        "status": instance.status,
        "exact": instance.exact,
        "gap": instance.gap,
        "transfers": len(data["transfers"]["round"]),
        "bytes": len(library.packed(instance)),
        "processor_s": took,
        "second_checker_s": second.processor_s() - begun,
    }


def of_model(model: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What instances of a model have come to."""
    some = [row for row in rows if row["model"] == model]
    open_ = [row["gap"] for row in some if row["status"] == "open"]
    return {
        "model": model,
        "instances": len(some),
        "closed": len(some) - len(open_),
        "exact": sum(row["exact"] for row in some),
        "open": len(open_),
        "open_median": sorted(open_)[len(open_) // 2] if open_ else 0.0,
        "open_worst": max(open_, default=0.0),
        "processor_s": sum(row["processor_s"] for row in some),
        "second_checker_s": sum(row["second_checker_s"] for row in some),
    }


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    library = Library(OWN)
    kept = Unfinished("library_checks", resume=asked.resume, from_record=True)
    there = {(row["instance"], row.get("sha256")) for row in kept.rows()}
    with tempfile.TemporaryDirectory() as folder:
        second = SecondChecker.compiled(Path(folder))
        for one in library.instances.values():
            if (one.id, one.record.sha256) not in there:
                kept.add(checked(library, one, second))
    latest = {row["instance"]: row for row in kept.rows()}
    rows = [latest[one.id] for one in library.instances.values()]
    models = [of_model(model, rows) for model in MODELS]
    for row in models:
        show(row)
    wrong = [row["instance"] for row in rows if not row["holds"]]
    if wrong:
        sys.exit(f"not what the index says: {', '.join(wrong)}")
    total = {
        "instances": len(rows),
        "closed": sum(row["closed"] for row in models),
        "exact": sum(row["exact"] for row in models),
        "open": sum(row["open"] for row in models),
        "bytes": sum(row["bytes"] for row in rows),
        "processor_s": sum(row["processor_s"] for row in rows),
        "second_checker_s": sum(row["second_checker_s"] for row in rows),
    }
    record("library_checks", total=total, models=models, rows=rows)
    kept.end()


if __name__ == "__main__":
    main()
