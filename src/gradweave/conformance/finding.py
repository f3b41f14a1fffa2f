"""The results of checks, and functions that run them."""

import dataclasses
from collections.abc import Callable, Iterator

from gradweave.errors import ConformanceError, GradweaveError
from gradweave.printable import in_one_line


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check on one case."""

    check: str
    """The promise."""
    case: str
    """The case that was tried."""
    fault: str | None
    """The fault in one line, or None if the promise is kept."""


def expect(holds: object, fault: str) -> None:
    """Passes if a condition holds.

    Raises:
        ConformanceError: it does not hold; the message is the fault.
    """
    if not holds:
        raise ConformanceError(fault)


def attempt(check: str, case: str, promise: Callable[[], object]) -> Finding:
    """Runs a check. Any exception from the checked code becomes a fault of one line."""
    try:
        promise()
    except GradweaveError as error:
        return Finding(check, case, str(error))
    except (Exception, SystemExit) as error:
        return Finding(check, case, in_one_line(f"{type(error).__name__}: {error}"))
    return Finding(check, case, None)


Findings = Iterator[Finding]


def refused_in_one_line(make: Callable[[], object]) -> None:
    """Bad input is either accepted or rejected by one line of `gradweave.errors`."""
    try:
        make()
    except GradweaveError:
        return
    except Exception as error:
        raise ConformanceError(
            f"bad input raised {type(error).__name__}: {error}; raise an error of gradweave.errors"
        ) from error
