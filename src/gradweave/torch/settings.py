"""What the environment of a group's rank 0 asks for."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which plans there are to be."""

    plans: tuple[Path, ...]
    """``GRADWEAVE_PLAN``: schedule files, each for all sizes of its collective."""
    topology: str | None
    """``GRADWEAVE_TOPOLOGY``: the network that plans are made for, as a specification or a file."""
    runtime: str
    """``GRADWEAVE_RUNTIME``: what messages cost, a name or a file; see `gradweave.simulate`."""
    cache: Path
    """``GRADWEAVE_CACHE``: the folder in which plans are kept."""

    @property
    def wanted(self) -> bool:
        """Whether there are to be plans at all."""
        return bool(self.plans) or self.topology is not None

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
