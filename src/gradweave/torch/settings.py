"""Settings from the environment of a group's rank 0."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from gradweave.common.checks import did_you_mean
from gradweave.errors import OptionError
from gradweave.printable import in_one_line
from gradweave.processes.peers import peer_value
from gradweave.topology.units import parse_seconds


@dataclasses.dataclass(frozen=True)
class Settings:
    """The sources of plans, and the folder that keeps them."""

    plans: tuple[Path, ...]
    """``GRADWEAVE_PLAN``: schedule files, each for all sizes of its collective."""
    topology: str | None
    """``GRADWEAVE_TOPOLOGY``: the network to make plans for, as a specification or a file, or
    ``measure``."""
    runtime: str
    """``GRADWEAVE_RUNTIME``: the cost of messages, as a name or a file; see
    `gradweave.simulator`."""
    cache: Path
    """``GRADWEAVE_CACHE``: the folder in which plans are kept."""
    replan: bool = False
    """``GRADWEAVE_REPLAN``: whether plans follow changes of the network during the job."""

    @property
    def wanted(self) -> bool:
        """Whether plans are wanted at all."""
        return bool(self.plans) or self.topology is not None

    @property
    def measures(self) -> bool:
        """Whether to measure the network when the job starts."""
        return self.topology == "measure"

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Reads the settings from an environment; empty variables count as unset."""
        plans = environment.get("GRADWEAVE_PLAN", "").split(os.pathsep)
        kept = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(
            plans=tuple(Path(plan) for plan in plans if plan),
            topology=environment.get("GRADWEAVE_TOPOLOGY") or None,
            runtime=environment.get("GRADWEAVE_RUNTIME") or "gloo",
            cache=Path(environment.get("GRADWEAVE_CACHE") or Path(kept) / "gradweave" / "plans"),
            replan=environment.get("GRADWEAVE_REPLAN", "") not in ("", "0"),
        )


NAMES = (
    "CACHE",
    "DEFAULT",
    "PLAN",
    "REPLAN",
    "RUNTIME",
    "SLOW_AFTER",
    "TOPOLOGY",
    "TRACE",
    "WATCH",
)
"""Names of the environment variables, without the prefix ``GRADWEAVE_``."""


def mistyped(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each environment variable that is almost one of `NAMES`.

    >>> mistyped({"GRADWEAVE_TOPLOGY": "star:n=4", "GRADWEAVE_RAY": "1"})
    ['GRADWEAVE_TOPLOGY is not read; did you mean GRADWEAVE_TOPOLOGY?']
    """
    given = [name.removeprefix(_PREFIX) for name in environment if name.startswith(_PREFIX)]
    meant = {name: did_you_mean(name, NAMES).strip() for name in given if name not in NAMES}
    return [
        in_one_line(f"{_PREFIX}{name} is not read; {_renamed(text)}")
        for name, text in sorted(meant.items())
        if text
    ]


_PREFIX = "GRADWEAVE_"


def _renamed(text: str) -> str:
    start = "did you mean "
    return f"{start}{_PREFIX}{text.removeprefix(start)}"


@dataclasses.dataclass(frozen=True)
class Recording:
    """Whether a job's collectives are recorded, and when hold-ups are reported."""

    slow_after_s: float | None = None
    """``GRADWEAVE_SLOW_AFTER``: seconds after which a rank that holds up a collective is
    reported."""
    watch: bool = False
    """``GRADWEAVE_WATCH``: whether `gradweave job watch` may connect, even without the former."""
    trace: Path | None = None
    """``GRADWEAVE_TRACE``: the folder where each rank writes its last collectives."""

    @property
    def wanted(self) -> bool:
        """Whether anything is recorded."""
        return self.slow_after_s is not None or self.watch or self.trace is not None

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Recording":
        """Reads the settings from an environment; empty variables count as unset.

        Raises:
            GradweaveError: ``GRADWEAVE_SLOW_AFTER`` is not a time above 0.
        """
        text, trace = environment.get("GRADWEAVE_SLOW_AFTER"), environment.get("GRADWEAVE_TRACE")
        slow_after_s = parse_seconds("GRADWEAVE_SLOW_AFTER", text) if text else None
        if slow_after_s is not None and not slow_after_s > 0:
            raise OptionError(f"GRADWEAVE_SLOW_AFTER: expected a time above 0, got {text}")
        watch = environment.get("GRADWEAVE_WATCH", "") not in ("", "0")
        return cls(slow_after_s, watch, Path(trace) if trace else None)

    def written(self) -> str:
        """The settings as JSON."""
        return json.dumps([self.slow_after_s, self.watch, self.trace and str(self.trace)])

    @classmethod
    def read(cls, text: bytes | str) -> "Recording":
        """Reads the settings from JSON.

        Raises:
            RunError: the text is not such settings.
        """
        kind = tuple[float | None, bool, str | None]
        slow_after_s, watch, trace = peer_value(text, kind, "the recording settings of rank 0")
        return cls(slow_after_s, watch, Path(trace) if trace else None)
