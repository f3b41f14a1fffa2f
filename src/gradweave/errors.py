"""The hierarchy of Gradweave's errors.

    GradweaveError               names the field, what was expected, what came, the remedy
    ├── TopologyError            a network that cannot exist or cannot be used
    ├── SpecError                a specification of a topology or scheduler that cannot be parsed
    ├── FileError                a file that cannot be read or written, or holds something else
    ├── ScheduleError            columns that are not a schedule
    ├── OptionError              an option or argument that is unknown or out of its range
    │   └── MissingExtraError    a package that is not installed; an ImportError too
    └── Negative                 the question was sound and its answer is no
        ├── InvalidScheduleError a schedule that the verifier rejects
        ├── InvalidCertificateError a certificate that does not prove what it claims
        ├── NoScheduleError      no schedule was found within the limits given
        ├── NoProofError         no proof was found that there is none
        ├── DeadlockError        calls of several groups that may wait for each other forever
        ├── ConformanceError     a scheduler, family or other part that breaks a promise of its kind
        └── RunError             a run on real processes that did not finish, or had a wrong result
            └── LostServerError  one of its servers went away

The command line turns `Negative` into exit status 1 and every other `GradweaveError` into 2
(`exit_status`). Ambiguous input is accepted with an `InputWarning`.
"""

from typing import Any

from gradweave.printable import in_one_line

SUCCESS = 0
ANSWER_IS_NO = 1
"""Exit status after an invalid schedule, or none in the time given; processes that were lost."""
BAD_INPUT = 2
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class GradweaveError(Exception):
    """Base of Gradweave's errors.

    Whatever a message repeats of a file or of another library, it is one line without control
    characters: this is the one place that sees to it, for all errors and for `InputWarning`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*map(_shown, args))


class TopologyError(GradweaveError, ValueError):
    """A network that cannot exist or cannot be used."""


class SpecError(GradweaveError, ValueError):
    """A specification of a topology or scheduler that cannot be parsed."""


class FileError(GradweaveError, ValueError):
    """A file that cannot be read or written, or does not hold what it should."""


class ScheduleError(GradweaveError, ValueError):
    """Columns that are not a schedule."""


class OptionError(GradweaveError, ValueError):
    """An option or argument that is unknown or out of its range."""


class MissingExtraError(OptionError, ModuleNotFoundError):
    """A package that is not installed; the message names the extra that installs it."""


class Negative(GradweaveError):
    """The question was sound and its answer is no."""


class InvalidScheduleError(Negative):
    """A schedule that the verifier rejects."""


class InvalidCertificateError(Negative):
    """A certificate that does not prove what it claims, of the network that is meant."""


class NoScheduleError(Negative):
    """No schedule was found within the limits given."""


class NoProofError(Negative):
    """No proof was found that no schedule has so few rounds; there may be one."""


class DeadlockError(Negative):
    """Calls of several groups that may wait for each other forever."""


class ConformanceError(Negative):
    """A scheduler, family of networks or other part does not do what all of its kind promise."""


class RunError(Negative, RuntimeError):
    """A run on real processes that did not finish, or had a wrong result."""


class InputWarning(UserWarning):
    """Ambiguous input, and how it was understood; one line on the command line."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*map(_shown, args))


class LostServerError(RunError):
    """A server that others wait for went away: its process died or its connection broke."""

    def __init__(self, server: int, rank: int, how: str, label: str = "") -> None:
        super().__init__(
            f"lost server {label or server} (rank {rank}): {how}; the all-reduce "
            "cannot be completed, start the run again without it, or on a schedule for the network "
            "that is left"
        )
        self.server = server
        """Node id."""
        self.rank = rank
        """Its place among the servers, from 0."""
        self.label = label
        """Its name in the network, or empty."""


def _shown(argument: Any) -> Any:
    return in_one_line(argument) if isinstance(argument, str) else argument


def exit_status(error: GradweaveError) -> int:
    """Exit status of a command that ends with an error."""
    return ANSWER_IS_NO if isinstance(error, Negative) else BAD_INPUT
