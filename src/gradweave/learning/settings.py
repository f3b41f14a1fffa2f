"""The agents' learning settings, which are available without JAX."""

import dataclasses

from gradweave.training.proximal import Proximal


@dataclasses.dataclass(frozen=True)
class PPO(Proximal):
    """Settings of an agent's learning."""

    learning_rate: float = 3e-3
    epochs: int = 2
    entropy_coefficient: float = 1e-3
    discount: float = 1.0
    """Discount per round. With 0, an episode of the agent is one round, as for workload scheduling
    in the paper."""
