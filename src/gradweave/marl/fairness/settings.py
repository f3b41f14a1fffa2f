"""Settings of a hierarchy that learns to be fair, and its gossip's specification; without JAX."""

import dataclasses
from typing import Any, Literal, get_args

from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.spec import GossipSpec, parse
from gradweave.common.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)
from gradweave.errors import OptionError
from gradweave.marl.config import OnPolicy

Objective = Literal[
    "fair_efficient", "own", "average", "minimum", "inequity_aversion", "alpha_fair", "jain"
]
"""What agents maximise; see `gradweave.marl.fairness.objectives`."""
FirstObjective = Literal["own", "alpha_fair"]
MEANS = ("average", "alpha_fair")
"""Objectives that are a mean of contributions of the agents' steps."""
EXACT, COMPLETE, RING = "exact", "complete", "ring"


@dataclasses.dataclass(frozen=True)
class FEN(OnPolicy):
    """Settings of a controller and its sub-policies, or of one policy without a hierarchy.

    Source: Jiang and Lu 2019 (1910.14472). Numbers of games, learning rates and widths are
    Gradweave's. `rollout` is a multiple of `choice_steps`.
    """

    environments: int = 32
    rollout: int = 250
    epochs: int = 2
    learning_rate: float = 2e-3
    objective: Objective = "fair_efficient"
    """What the controller maximises, or the single policy without a hierarchy."""
    hierarchy: bool = True
    """Whether a controller chooses among sub-policies."""
    sub_policies: int = 4
    """Number of sub-policies. The first maximises `first_objective`; the others maximise the
    probability that the controller chooses them."""
    first_objective: FirstObjective = "own"
    """``own``: the agent's reward, as in FEN. ``alpha_fair``: the mean contribution of the agents'
    steps, which needs a second number in each message."""
    choice_steps: int = 25
    """T, the number of steps between choices."""
    capacity: float = 0.25
    """c, the capacity: a mean utility of c counts as 1, and so does any larger mean."""
    epsilon: float = 0.1
    """ε, the unfairness at which the fair-efficient reward is half of its maximum."""
    gossip: str = RING
    """The messages with which agents find the mean utility, and the objective if it is the mean
    reward or α-fair: ``exact`` (no messages), ``ring``, ``complete``, a network, or options of
    ``d_psgd`` (``mixing=matchings,network=torus:2x2``)."""
    exchanges: int = 1
    """k, the number of messages to each neighbour per step."""
    alpha: float = 1.0
    """α of the objective ``alpha_fair``: 0 is efficient, 1 proportionally fair, larger values
    fairer."""
    goal: float = 0.95
    """Jain's index below which the objective ``jain`` is penalised."""
    penalty: float = 10.0
    """Penalty per unit by which the index is below the goal."""
    information: float = 1.0
    """Weight of the log-probability of being chosen."""
    discount: float = 0.98
    """γ for the steps of the policies."""
    choice_discount: float = 0.98
    """γ for the choices of the controller."""
    entropy_coefficient: float = 0.03
    """Weight of the entropy bonus of the policies."""
    choice_entropy_coefficient: float = 0.03
    """Weight of the entropy bonus of the controller."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above_zero(self, "capacity", "epsilon")
        check_at_least_one(self, "sub_policies", "choice_steps", "exchanges")
        check_not_below_zero(self, "choice_entropy_coefficient", "information", "alpha", "penalty")
        check_share(self, "choice_discount", "goal")
        known = get_args(Objective)
        if self.objective not in known:
            raise OptionError(f"objective: expected {', '.join(known)}, got {self.objective!r}")
        known = get_args(FirstObjective)
        if self.first_objective not in known:
            raise OptionError(
                f"first_objective: expected {' or '.join(known)}, got {self.first_objective!r}"
            )
        if self.first_objective != "own" and (not self.hierarchy or self.objective == "average"):
            raise OptionError(
                "first_objective: expected own without a hierarchy, or if the objective is "
                f"average; got {self.first_objective!r}"
            )
        if self.rollout % self.choice_steps:
            raise OptionError(
                f"rollout: expected a multiple of choice_steps, {self.choice_steps}, "
                f"got {self.rollout}"
            )
        network_of(self.gossip)

    @property
    def worth(self) -> str | None:
        """The member of `MEANS` whose mean agents estimate, or None if no objective needs it."""
        maximised = (self.objective, self.first_objective)
        return next((name for name in MEANS if name in maximised), None)

    @property
    def informed(self) -> bool:
        """Whether learning depends on the mean utility."""
        return self.hierarchy or self.objective != "own"

    def parts(self, games: int) -> tuple[int, str]:
        """See `OnPolicy.parts`; choices are the samples."""
        return games * (self.rollout // self.choice_steps), "choices of an agent"


def network_of(gossip: str) -> GossipSpec | None:
    """The parsed gossip of a specification, or None for ``exact``, ``complete`` and ``ring``.

    Raises:
        SpecError: the specification cannot be parsed.
        OptionError: a value is out of its range.
    """
    if gossip in (EXACT, COMPLETE, RING):
        return None
    spec = parse(f"d_psgd:{gossip if '=' in gossip.partition(':')[0] else f'network={gossip}'}")
    assert isinstance(spec, GossipSpec)
    return spec


def mixing_of(gossip: str, agents: int) -> MixingMatrix | None:
    """The averaging weights of a specification for a number of agents, or None for the exact mean.

    Raises:
        OptionError: the network has another number of servers.
    """
    if gossip == EXACT:
        return None
    if gossip == COMPLETE:
        return MixingMatrix.complete(agents)
    spec = network_of(gossip)
    if spec is None:
        return MixingMatrix.ring(agents)
    spec.check_workers(agents)
    return spec.mixing_matrix(agents)


FEN_DEFAULTS: dict[str, dict[str, Any]] = {
    "matthew_effect": {
        "environments": 16,
        "capacity": 0.15,
        "discount": 0.9,
        "entropy_coefficient": 0.01,
    },
    "manufacturing_plant": {"choice_steps": 50, "capacity": 0.05},
}
"""Defaults that differ from those of `FEN`, per family of games."""
