"""Is a schedule valid? Contribution counts and link capacity, checked from first principles."""

from gradweave.verify.contributions import exact_counts
from gradweave.verify.verdict import Verdict, Violation, ViolationKind
from gradweave.verify.verify import verify

__all__ = ["Verdict", "Violation", "ViolationKind", "exact_counts", "verify"]
