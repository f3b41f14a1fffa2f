"""Multi-agent learners on JaxMARL's environments and Gradweave's own, trained on many devices.

Gradients, or parameters, of the devices are combined by any aggregation of `gradweave.aggregate`.
Needs the extra ``marl``.
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.marl.config import PPO, Config
    from gradweave.marl.evaluation import evaluate
    from gradweave.marl.folder import load_trained
    from gradweave.marl.games.environment import Environment, View
    from gradweave.marl.games.environments import make
    from gradweave.marl.games.family import Family
    from gradweave.marl.games.reading import Reading
    from gradweave.marl.learners.learner import Learner
    from gradweave.marl.results import Trained
    from gradweave.marl.training import train

__all__ = [
    "PPO",
    "Config",
    "Environment",
    "Family",
    "Learner",
    "Reading",
    "Trained",
    "View",
    "evaluate",
    "load_trained",
    "make",
    "train",
]

__getattr__, __dir__ = lazily(__name__, "marl")
