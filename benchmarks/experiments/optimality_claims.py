"""Claims of optimality: the files that they rest on, checked by both checkers, and what that takes.

    python benchmarks/experiments/optimality_claims.py

The claims are those of benchmarks/claims/optimality.toml. Times are of the processor; the second
checker is asked about all files at once.
"""

import gzip
import json
import resource
import sys
import tempfile
import time
import tomllib
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from command_line import parser_of
from record import record
from second_checker import SecondChecker

import gradweave_check as checker

BENCHMARKS = Path(__file__).parents[1]
SCHEDULES = BENCHMARKS / "library" / "schedules"


def main() -> None:
    parser_of(__doc__).parse_args()
    claims = tomllib.loads((BENCHMARKS / "claims" / "optimality.toml").read_text())["claim"]
    fewest = {name: rounds for claim in claims for name, rounds in claim["fewest"].items()}
    contents, rows = [], []
    for name, rounds in fewest.items():
        packed = (SCHEDULES / f"{name}.json.gz").read_bytes()
        content = json.loads(gzip.decompress(packed))
        begun = time.process_time()
        found = checker.check(content)
        spent = time.process_time() - begun
        optimal = any(text.endswith("optimal in rounds") for *_, text in found)
        if not (all(good for good, *_ in found) and optimal):
            sys.exit(f"{name}: {found}")
        contents.append(content)
        row = {"instance": name, "rounds": rounds, "bytes": len(packed)}
        rows.append({**row, "processor_s": round(spent, 4)})
    with tempfile.TemporaryDirectory() as folder:
        second = SecondChecker.compiled(Path(folder))
        begun = _children_s()
        marks = second.verdicts(contents)
        second_s = _children_s() - begun
    refused = [name for name, mark in zip(fewest, marks, strict=True) if "0" in mark]
    if refused:
        sys.exit(f"refused by the second checker: {', '.join(refused)}")
    total = {
        "claims": len(claims),
        "files": len(rows),
        "bytes": sum(row["bytes"] for row in rows),
        "checker_s": round(sum(row["processor_s"] for row in rows), 3),
        "second_checker_s": round(second_s, 3),
    }
    print(total)
    record("optimality_claims", total=total, rows=rows)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
