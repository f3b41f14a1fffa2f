"""The verifier: contribution counts and link capacity, checked from first principles."""

from gradweave.verifier.verdict import Verdict, Violation, ViolationKind
from gradweave.verifier.verify import verify

__all__ = ["Verdict", "Violation", "ViolationKind", "verify"]
