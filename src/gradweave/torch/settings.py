"""What the environment of a group's rank 0 asks for."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from gradweave.errors import OptionError
from gradweave.topology.units import parse_seconds


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which plans there are to be."""

    plans: tuple[Path, ...]
    """``GRADWEAVE_PLAN``: schedule files, each for all sizes of its collective."""
    topology: str | None
    """``GRADWEAVE_TOPOLOGY``: the network that plans are made for, as a specification or a file; or
    ``measure``."""
    runtime: str
    """``GRADWEAVE_RUNTIME``: what messages cost, a name or a file; see `gradweave.simulate`."""
    cache: Path
    """``GRADWEAVE_CACHE``: the folder in which plans are kept."""

    @property
    def wanted(self) -> bool:
        """Whether there are to be plans at all."""
        return bool(self.plans) or self.topology is not None

    @property
    def measures(self) -> bool:
        """Whether the network is to be measured when the job starts."""
        return self.topology == "measure"

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Those of an environment; empty variables count as unset."""
        plans = environment.get("GRADWEAVE_PLAN", "").split(os.pathsep)
        kept = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return cls(
            plans=tuple(Path(plan) for plan in plans if plan),
            topology=environment.get("GRADWEAVE_TOPOLOGY") or None,
            runtime=environment.get("GRADWEAVE_RUNTIME") or "gloo",
            cache=Path(environment.get("GRADWEAVE_CACHE") or Path(kept) / "gradweave" / "plans"),
        )


@dataclasses.dataclass(frozen=True)
class Recording:
    """What is kept and told of a job's collectives."""

    slow_after_s: float | None = None
    """``GRADWEAVE_SLOW_AFTER``: seconds after which it is said who holds a collective up."""
    watch: bool = False
    """``GRADWEAVE_WATCH``: whether `gradweave watch` may ask, though the former is not set."""
    trace: Path | None = None
    """``GRADWEAVE_TRACE``: the folder where each rank writes its last collectives."""

    @property
    def wanted(self) -> bool:
        """Whether anything is recorded."""
        return self.slow_after_s is not None or self.watch or self.trace is not None

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Recording":
        """That of an environment; empty variables count as unset.

        Raises:
            GradweaveError: ``GRADWEAVE_SLOW_AFTER`` is no time above 0.
        """
        text, trace = environment.get("GRADWEAVE_SLOW_AFTER"), environment.get("GRADWEAVE_TRACE")
        slow_after_s = parse_seconds("GRADWEAVE_SLOW_AFTER", text) if text else None
        if slow_after_s is not None and not slow_after_s > 0:
            raise OptionError(f"GRADWEAVE_SLOW_AFTER: expected a time above 0, got {text}")
        watch = environment.get("GRADWEAVE_WATCH", "") not in ("", "0")
        return cls(slow_after_s, watch, Path(trace) if trace else None)

    def written(self) -> str:
        """As JSON."""
        return json.dumps([self.slow_after_s, self.watch, self.trace and str(self.trace)])

    @classmethod
    def read(cls, text: bytes | str) -> "Recording":
        """From JSON."""
        slow_after_s, watch, trace = json.loads(text)
        return cls(slow_after_s, watch, Path(trace) if trace else None)
