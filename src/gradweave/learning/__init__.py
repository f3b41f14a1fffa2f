"""The paper's method: episodes, its two policies and their training. Used by `schedulers.Learned`.

Only training needs the extra ``learn``: `learning.episodes` and `learning.policies` decode without
JAX.
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.learning.checkpoint import load_policy, save_policy
    from gradweave.learning.config import read_config
    from gradweave.learning.networks import HierarchicalPolicy

__all__ = [
    "HierarchicalPolicy",
    "load_policy",
    "read_config",
    "save_policy",
]

__getattr__, __dir__ = lazily(__name__, "learn")
