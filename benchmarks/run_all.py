"""Measures all experiments again, one after the other: `make bench`.

python benchmarks/run_all.py                       measures; takes many hours
python benchmarks/run_all.py --parse-only          shows that each would start
python benchmarks/run_all.py --only steps fen      some of them

An experiment that fails, for want of root or of memory, does not end the others; those that failed
are named at the end, and the exit status is 1.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.command_line import PARSE_ONLY

EXPERIMENTS = Path(__file__).parent / "experiments"


def scripts() -> list[Path]:
    """Those that are programs."""
    return [path for path in sorted(EXPERIMENTS.glob("*.py")) if "__main__" in path.read_text()]


def started(script: Path, *, parse_only: bool) -> int:
    """The exit status of an experiment, or of as much of it as reads its arguments."""
    command = [sys.executable, str(script)]
    environment = os.environ | ({PARSE_ONLY: "1"} if parse_only else {})
    out = subprocess.DEVNULL if parse_only else None
    return subprocess.run(command, env=environment, stdout=out).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [script.stem for script in scripts()]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names)
    parser.add_argument("--parse-only", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    failed = []
    for script in scripts():
        if script.stem not in asked.only:
            continue
        began = time.monotonic()
        print(script.stem, flush=True)
        status = started(script, parse_only=asked.parse_only)
        failed += [f"{script.stem} (exit status {status})"] if status else []
        if not asked.parse_only:
            print(f"{script.stem}: {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print(f"{'would measure' if asked.parse_only else 'measured'}: {len(asked.only)} experiments")


if __name__ == "__main__":
    main()
