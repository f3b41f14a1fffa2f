"""Every file reader, fuzzed by coverage: what comes of inputs is a value or an error in one line.

Needs atheris, which nothing else does; without, this says so. A reader at a time, each in a process
of its own, which records how many inputs it read and what it found: an exception that is none of
gradweave.errors, a message of several lines or with control characters, more than a second of
processor time or 500 MB for one input.
"""

import argparse
import base64
import contextlib
import importlib
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.fuzz_mutations import mutated
from benchmarks.fuzz_readers import READERS, ROOT, reader
from benchmarks.record import record, show

SLOW_S = 1.0
LARGE_BYTES = 500 << 20
LONGEST = 1_000
"""Characters of a message, a path included."""
STRUCTURED = 0.6
"""Share of mutations that follow the structure of an input; others are libFuzzer's."""
LARGEST = 1 << 17
"""Bytes of an input."""


class Judge:
    """Reads inputs, and keeps what should not be: one input for each place where it comes from."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reader = reader(name)
        self.outcomes: Counter[str] = Counter()
        self.findings: dict[str, dict[str, str]] = {}
        self._path = folder / f"input{self.reader.suffix}"
        self._warned: list[str] = []
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: self._warned.append(str(message))

    def __call__(self, data: bytes) -> None:
        """Reads one input."""
        from gradweave.errors import GradweaveError

        self._path.write_bytes(data)
        self._warned.clear()
        before, started = _memory(), time.process_time()
        said, kind = "", "value"
        try:
            self.reader.read(self._path)
        except GradweaveError as error:
            said, kind = str(error), type(error).__name__
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{type(error).__name__} at {Path(last.filename).name}:{last.name}"
            self._found(f"raised {place}", data, str(error))
            kind = "raised"
        if time.process_time() - started > SLOW_S:
            self._found("slow", data, f"{time.process_time() - started:.1f} s")
        if _memory() - before > LARGE_BYTES:
            self._found("large", data, f"{(_memory() - before) >> 20} MB")
        for message in (said, *self._warned):
            if not message.isprintable():
                self._found("not in one printable line", data, message)
            elif len(message) > LONGEST:
                self._found("long message", data, message)
        self.outcomes[kind] += 1

    def _found(self, what: str, data: bytes, said: str) -> None:
        known = self.findings.get(what)
        if known is None or len(known["input"]) > len(data) * 4 / 3 + 4:
            self.findings[what] = {
                "said": ascii(said)[:300],
                "input": base64.b64encode(data).decode(),
            }


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def fuzz_one(name: str, runs: int, seed: int, corpus: Path, report: Path) -> None:
    """Fuzzes one reader; writes the report as the process ends."""
    import atexit

    atheris: Any = importlib.import_module("atheris")

    kernels = {
        "gradweave." + ".".join(path.relative_to(ROOT / "src/gradweave").with_suffix("").parts)
        for pattern in ("*_kernel.py", "kernels/*.py")
        for path in (ROOT / "src/gradweave").rglob(pattern)
    }  # numba compiles these from their bytecode
    with atheris.instrument_imports(
        include=["gradweave", "tomllib"], exclude=[*kernels, "gradweave.common.compiled"]
    ):
        judge = Judge(name, corpus.parent)
    for number, first in enumerate(judge.reader.seeds):
        (corpus / f"seed{number}").write_bytes(first)

    def mutate(data: bytes, most: int, drawn: int) -> bytes:
        rng = random.Random(drawn)
        if rng.random() < STRUCTURED:
            return mutated(data, judge.reader.shape, rng)[:most]
        return atheris.Mutate(data, most)

    def write() -> None:
        content = {"outcomes": judge.outcomes, "findings": judge.findings}
        report.write_text(json.dumps(content | {"cpu_s": time.process_time()}))

    atexit.register(write)
    options = [
        f"-atheris_runs={runs}",
        f"-max_len={LARGEST}",
        "-rss_limit_mb=8192",
        f"-seed={seed}",
    ]
    options += ["-timeout=300", "-mutate_depth=2", str(corpus)]
    atheris.Setup([sys.argv[0], *options], judge, custom_mutator=mutate, internal_libfuzzer=True)
    atheris.Fuzz()


def fuzzed(name: str, runs: int, seed: int) -> dict[str, Any]:
    """A reader's row: a process of its own, which a broken reader may take with it."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder:
        corpus, report = Path(folder) / "corpus", Path(folder) / "report.json"
        corpus.mkdir()
        command = [
            sys.executable,
            __file__,
            "--one",
            name,
            "--runs",
            str(runs),
            "--seed",
            str(seed),
        ]
        command += ["--corpus", str(corpus), "--report", str(report)]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if not report.exists():
            return {"reader": name, "executions": 0, "died": ran.stderr[-2000:]}
        said = json.loads(report.read_text())
        kept = len(list(corpus.iterdir()))
    outcomes = said["outcomes"]
    return {
        "reader": name,
        "executions": sum(outcomes.values()),
        "outcomes": outcomes,
        "inputs_kept": kept,
        "cpu_s": round(said["cpu_s"], 1),
        "findings": said["findings"],
    }


def main() -> None:
    """Fuzzes the readers, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=45_000, help="inputs for each reader")
    parser.add_argument("--readers", default=",".join(READERS), help="which, joined by commas")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is not installed: pip install atheris, where this Python finds it")
    if given.one:
        fuzz_one(given.one, given.runs, given.seed, given.corpus, given.report)
        return
    with contextlib.suppress(OSError):
        os.nice(5)
    rows = []
    for name in given.readers.split(","):
        rows.append(fuzzed(name, given.runs, given.seed))
        show({key: value for key, value in rows[-1].items() if key != "findings"})
        for what, found in rows[-1].get("findings", {}).items():
            print("   ", what, found)
        record(
            "fuzz",
            f"python benchmarks/experiments/fuzz.py --runs {given.runs} --seed {given.seed}",
            ["atheris"],
            executions=sum(row["executions"] for row in rows),
            slow_s=SLOW_S,
            large_bytes=LARGE_BYTES,
            rows=rows,
        )


if __name__ == "__main__":
    main()
