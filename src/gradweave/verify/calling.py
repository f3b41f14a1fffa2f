"""`gradweave.verify` is a package and can be called like the function of that name in it."""

import inspect
from types import ModuleType
from typing import TYPE_CHECKING

from gradweave.verify.verify import verify as check


class CallablePackage(ModuleType):
    """The class of the package `gradweave.verify`: calling it verifies a schedule."""

    __call__ = staticmethod(check)
    __signature__ = inspect.signature(check)


if TYPE_CHECKING:
    # Type checkers take no module for a function: they see the package as this class. Calling it
    # makes a verdict, and the package's names are found in it.
    class verify:  # noqa: D101
        from gradweave.verify.contributions import exact_counts as _exact_counts
        from gradweave.verify.verdict import Verdict as Verdict
        from gradweave.verify.verdict import Violation as Violation
        from gradweave.verify.verdict import ViolationKind as ViolationKind

        _Verdict = Verdict

        exact_counts = staticmethod(_exact_counts)
        verify = staticmethod(check)

        def __new__(  # noqa: D102
            cls,
            schedule: "Schedule",
            *,
            forwarding_servers: bool = True,
            aggregating_switches: bool = False,
            block_bytes: int = 1 << 27,
        ) -> _Verdict: ...

    from gradweave.schedule.schedule import Schedule
