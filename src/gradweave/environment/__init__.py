"""The scheduling problem as a JAX multi-agent environment. Needs the extra ``learn``."""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.environment.environment import SchedulingEnvironment, rounds
    from gradweave.environment.problem import Size, stack
    from gradweave.environment.rewards import Rewards
    from gradweave.environment.state import State

__all__ = [
    "Rewards",
    "SchedulingEnvironment",
    "Size",
    "State",
    "rounds",
    "stack",
]

__getattr__, __dir__ = lazily(__name__, "learn")
