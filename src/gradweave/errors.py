"""The hierarchy of Gradweave's errors.

    GradweaveError               names the field, the expected and the given value, the remedy
    ├── TopologyError            a network that cannot exist or cannot be used
    ├── SpecError                a specification of a topology or scheduler that cannot be parsed
    ├── FileError                a file that cannot be read or written, or has the wrong content
    ├── ScheduleError            columns that are not a schedule
    ├── OptionError              an option or argument that is unknown or out of range
    │   ├── MissingExtraError    a package that is not installed; also an ImportError
    │   └── RewardError          a reward that a composed or projected machine cannot reproduce
    └── Negative                 the question was valid and its answer is no
        ├── InvalidScheduleError a schedule that the verifier rejects
        ├── InvalidCertificateError a certificate that does not prove its claim
        ├── NoScheduleError      no schedule was found within the given limits
        ├── NoProofError         no proof was found that there is no schedule
        ├── DeadlockError        calls of several groups that may wait for each other forever
        ├── ConformanceError     a scheduler, family or other part that breaks a promise of its kind
        └── RunError             a run on real processes that did not finish, or had a wrong result
            ├── LostServerError  one of its servers was lost
            └── NotFiniteError   a training whose parameters or gradients are no longer finite

The command line turns `Negative` into exit status 1 and every other `GradweaveError` into 2
(`exit_status`). Ambiguous input is accepted with an `InputWarning`, incomplete input with an
`AssumedWarning`; a bound that lacks its expected certificate, with a `CertificateWarning`.
"""

from typing import Any

from gradweave.printable import in_one_line

SUCCESS = 0
ANSWER_IS_NO = 1
"""Exit status if the answer is no: an invalid schedule, none found in time, or a lost process."""
BAD_INPUT = 2
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class GradweaveError(Exception):
    """Base of Gradweave's errors.

    A message is always one line without control characters, even if it quotes a file or another
    library: this class ensures it for all errors, as `InputWarning` does for its messages.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*map(_shown, args))


class TopologyError(GradweaveError, ValueError):
    """A network that cannot exist or cannot be used."""


class SpecError(GradweaveError, ValueError):
    """A specification of a topology or scheduler that cannot be parsed."""


class FileError(GradweaveError, ValueError):
    """A file that cannot be read or written, or has the wrong content."""


class ScheduleError(GradweaveError, ValueError):
    """Columns that are not a schedule."""


class OptionError(GradweaveError, ValueError):
    """An option or argument that is unknown or out of range."""


class MissingExtraError(OptionError, ModuleNotFoundError):
    """A package that is not installed; the message names the extra that installs it."""


class RewardError(OptionError):
    """A reward that a machine composed or projected from others cannot reproduce."""


class Negative(GradweaveError):
    """The question was valid and its answer is no."""


class InvalidScheduleError(Negative):
    """A schedule that the verifier rejects."""


class InvalidCertificateError(Negative):
    """A certificate that does not prove its claim about the given network."""


class NoScheduleError(Negative):
    """No schedule was found within the given limits."""


class NoProofError(Negative):
    """No proof was found that no schedule has this few rounds; there may be such a schedule."""


class DeadlockError(Negative):
    """Calls of several groups that may wait for each other forever."""


class ConformanceError(Negative):
    """A scheduler, family of networks or other part that breaks a promise of its kind."""


class RunError(Negative, RuntimeError):
    """A run on real processes that did not finish, or had a wrong result."""


class InputWarning(UserWarning):
    """Ambiguous input, and how it was interpreted; one line on the command line."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*map(_shown, args))


class AssumedWarning(InputWarning):
    """An assumption about something that a file does not state, with its source."""


class CertificateWarning(UserWarning):
    """A bound's certificate that cannot be recounted; the plan is not affected."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*map(_shown, args))


class LostServerError(RunError):
    """A server that others wait for was lost: its process died or its connection broke."""

    def __init__(self, server: int, rank: int, how: str, label: str = "") -> None:
        super().__init__(
            f"lost server {label or server} (rank {rank}): {how}; the all-reduce "
            "cannot be completed, start the run again without it, or on a schedule for the network "
            "that is left"
        )
        self.server = server
        """Node id."""
        self.rank = rank
        """Its rank among the servers, from 0."""
        self.label = label
        """Its name in the network, or empty."""


class NotFiniteError(RunError):
    """A training whose parameters, or all of whose gradients, hold a NaN or an infinity."""


def _shown(argument: Any) -> Any:
    return in_one_line(argument) if isinstance(argument, str) else argument


def exit_status(error: GradweaveError) -> int:
    """Exit status of a command that ends with an error."""
    return ANSWER_IS_NO if isinstance(error, Negative) else BAD_INPUT
