"""Training of the two policies that `schedulers.Learned` plays. Needs the extra ``learn``.

To use trained weights takes none of this: the scheduler reads their file and plays without JAX.
"""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.learning.checkpoint import load_policy, save_policy
    from gradweave.learning.config import Config, Exercise, Group, read_config
    from gradweave.learning.networks import HierarchicalPolicy
    from gradweave.learning.ppo import PPO
    from gradweave.learning.training import Report, train

__all__ = [
    "PPO",
    "Config",
    "Exercise",
    "Group",
    "HierarchicalPolicy",
    "Report",
    "load_policy",
    "read_config",
    "save_policy",
    "train",
]

__getattr__, __dir__ = lazily(__name__, "learn")
