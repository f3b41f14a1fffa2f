"""Is a schedule valid? Contribution counts and link capacity, checked from first principles.

The package can be called like its function: ``gradweave.verify(schedule)``.
"""

import sys

from gradweave.verify.calling import CallablePackage
from gradweave.verify.contributions import exact_counts
from gradweave.verify.verdict import Verdict, Violation, ViolationKind
from gradweave.verify.verify import verify

__all__ = ["Verdict", "Violation", "ViolationKind", "exact_counts", "verify"]

sys.modules[__name__].__class__ = CallablePackage
