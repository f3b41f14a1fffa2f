"""Claims of optimality: the files that they rest on, checked by both checkers, and what that takes.

    python benchmarks/experiments/optimality_claims.py [--make ARCHIVES]

The claims are those of benchmarks/claims/optimality.toml. Times are of the processor; the second
checker is asked about all files of a claim at once. `--make` first makes the schedules of these
archives again, comma-separated, such as clusters (benchmarks/optimal_files.py).
"""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.optimal_files import ARCHIVES, LIBRARY, claims, contents, optimal, write_archive
from benchmarks.record import printed, record
from benchmarks.second_checker import SecondChecker


def checked(claim: dict[str, Any], second: SecondChecker) -> dict[str, Any]:
    """A claim's files, and what both checkers take for them; both must accept each."""
    files = list(contents(claim))
    begun = time.process_time()
    rounds = [optimal(content) for _, content in files]
    spent = time.process_time() - begun
    begun = _children_s()
    marks = second.verdicts([content for _, content in files])
    second_s = _children_s() - begun
    for (name, _), fewest, mark in zip(files, rounds, marks, strict=True):
        if fewest is None or "0" in mark:
            sys.exit(f"{claim['text']}: {name} is not accepted")
    packed = [LIBRARY / f"{name}.json.gz" for name in claim.get("fewest", ())]
    packed += [ARCHIVES / f"{claim['archive']}.tar.xz"] if "archive" in claim else []
    return {
        "page": claim["page"],
        "claim": claim["text"],
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in packed),
        "transfers": sum(len(content["transfers"]["round"]) for _, content in files),
        "checker_s": round(spent, 3),
        "second_checker_s": round(second_s, 3),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--make", default="", metavar="ARCHIVES", help="make these again")
    for name in filter(None, parser.parse_args().make.split(",")):
        print(f"{name}: {write_archive(name)} files", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        second = SecondChecker.compiled(Path(folder))
        rows = printed(checked(claim, second) for claim in claims())
    sums = ("files", "bytes", "transfers", "checker_s", "second_checker_s")
    total = {"claims": len(rows)} | {key: round(sum(row[key] for row in rows), 3) for key in sums}
    print(total)
    record("optimality_claims", total=total, rows=rows)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
