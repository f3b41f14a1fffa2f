"""What a check found, and how checks are run one after another."""

import dataclasses
from collections.abc import Callable, Iterator

from gradweave.errors import ConformanceError, GradweaveError
from gradweave.printable import in_one_line


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found on one case."""

    check: str
    """What is promised."""
    case: str
    """On what it was tried."""
    fault: str | None
    """What is wrong, in one line; None where the promise is kept."""


def expect(holds: object, fault: str) -> None:
    """Goes on where something holds.

    Raises:
        ConformanceError: it does not; the message is the fault.
    """
    if not holds:
        raise ConformanceError(fault)


def attempt(check: str, case: str, promise: Callable[[], object]) -> Finding:
    """Runs a check. Whatever the code of others raises is a fault, and one line."""
    try:
        promise()
    except GradweaveError as error:
        return Finding(check, case, str(error))
    except (Exception, SystemExit) as error:
        return Finding(check, case, in_one_line(f"{type(error).__name__}: {error}"))
    return Finding(check, case, None)


Findings = Iterator[Finding]


def refused_in_one_line(make: Callable[[], object]) -> None:
    """Whether bad input is refused as it should be, where it is refused."""
    try:
        make()
    except GradweaveError:
        return
    except Exception as error:
        raise ConformanceError(
            f"bad input raised {type(error).__name__}: {error}; raise an error of gradweave.errors"
        ) from error
