"""The scheduling problem as a JAX multi-agent environment. Needs the extra ``learn``."""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.environment.environment import SchedulingEnvironment, Step, rounds
    from gradweave.environment.problem import Instance, Problem, Size, stack
    from gradweave.environment.rewards import Rewards
    from gradweave.environment.state import State

__all__ = [
    "Instance",
    "Problem",
    "Rewards",
    "SchedulingEnvironment",
    "Size",
    "State",
    "Step",
    "rounds",
    "stack",
]

__getattr__, __dir__ = lazily(__name__, "learn")
