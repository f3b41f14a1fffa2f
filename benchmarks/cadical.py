"""CaDiCaL as `gradweave.bounds.refute` takes a solver, and other programs that check its proofs."""

import resource
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradweave.bounds.refutations import Clause
from gradweave.errors import NoProofError

UNSATISFIABLE = 20
"""Exit status of solvers."""


class Cadical:
    """A solver whose proofs are in LRAT, by unit propagation alone.

    Args:
        program: the path of CaDiCaL, 2.0 or later.
        seconds: of processor time, after which to give up.
        seed: of its random choices.
    """

    def __init__(self, program: str, seconds: int, seed: int = 0) -> None:
        self.program, self.seconds, self.seed = program, seconds, seed
        self.took_s = 0.0
        """Seconds of processor time, of all calls."""

    def __call__(self, clauses: Sequence[Clause]) -> Iterator[str]:
        """The lines of a proof."""
        with tempfile.TemporaryDirectory() as folder:
            formula, proof = Path(folder, "formula.cnf"), Path(folder, "proof.lrat")
            formula.write_text(dimacs(clauses))
            # Factoring introduces variables, which unit propagation alone does not justify.
            options = ["-q", "--lrat", "--no-binary", "--factor=0", f"--seed={self.seed}"]
            command = [self.program, *options, str(formula), str(proof)]
            before = child_seconds()
            run = subprocess.run(command, capture_output=True, text=True, preexec_fn=self._limit)
            self.took_s += child_seconds() - before
            if run.returncode != UNSATISFIABLE:
                found = "s SATISFIABLE" in run.stdout
                limit = f"no proof in {self.seconds} s"
                raise NoProofError("there is a schedule" if found else limit)
            with proof.open() as lines:
                yield from lines

    def _limit(self) -> None:
        """Its own option limits the time on the clock, which other load makes longer."""
        resource.setrlimit(resource.RLIMIT_CPU, (self.seconds, self.seconds))


def child_seconds() -> float:
    """Seconds of processor time that ended processes have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dimacs(clauses: Sequence[Clause]) -> str:
    """Clauses as a file."""
    most = max(abs(x) for clause in clauses for x in clause)
    rows = (" ".join(map(str, (*clause, 0))) for clause in clauses)
    return "\n".join([f"p cnf {most} {len(clauses)}", *rows]) + "\n"


def checked_by(program: str, says: str, formula: Path, proof: Path) -> tuple[bool, float]:
    """Whether another program accepts a proof, and the seconds of processor time that it took.

    Args:
        program: lrat-check or cake_lpr.
        says: what stands in its output then.
        formula: in DIMACS.
        proof: in LRAT.
    """
    before = child_seconds()
    run = subprocess.run([program, formula, proof], capture_output=True, text=True)
    return says in run.stdout, child_seconds() - before
