"""How a hierarchy learns to be fair, and the specification of its gossip; without JAX."""

import dataclasses
from typing import Any, Literal, get_args

from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.spec import GossipSpec, parse
from gradweave.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)
from gradweave.errors import OptionError
from gradweave.marl.config import Activation, check_network

Objective = Literal[
    "fair_efficient", "own", "average", "minimum", "inequity_aversion", "alpha_fair", "jain"
]
"""What agents maximise; see `gradweave.marl.fairness.objectives`."""
FirstObjective = Literal["own", "alpha_fair"]
MEANS = ("average", "alpha_fair")
"""Objectives that are the mean of what each agent's step is worth."""
EXACT, COMPLETE, RING = "exact", "complete", "ring"


@dataclasses.dataclass(frozen=True)
class FEN:
    """How a controller and its sub-policies learn; or one policy, without a hierarchy.

    Source: Jiang and Lu 2019 (1910.14472). Numbers of games, rates and widths are our own.
    """

    environments: int = 32
    """Games side by side, of all devices together."""
    rollout: int = 250
    """Steps of each game in an update: a multiple of `choice_steps`."""
    epochs: int = 2
    """Times that an update goes over its steps."""
    minibatches: int = 4
    """Parts of an epoch, each a step of the optimizer, on every device."""
    learning_rate: float = 2e-3
    decay: bool = True
    """Whether the learning rate falls to 0, by as much with each step of the optimizer."""
    objective: Objective = "fair_efficient"
    """What the controller maximises; the policy itself, where there is no hierarchy."""
    hierarchy: bool = True
    """Whether a controller picks among sub-policies."""
    sub_policies: int = 4
    """Of which the first one maximises `first_objective`, the others its being chosen."""
    first_objective: FirstObjective = "own"
    """``own``: its own reward, as in FEN. ``alpha_fair``: the mean of what agents' steps are worth,
    which takes a second number in each message."""
    choice_steps: int = 25
    """T: steps between choices."""
    capacity: float = 0.25
    """c: the mean utility that counts as 1; more of it counts no more."""
    epsilon: float = 0.1
    """ε: the unfairness at which the fair-efficient reward is half of the greatest."""
    gossip: str = RING
    """By which messages agents find the mean utility, and the objective if it is the mean reward or
    α-fair: ``exact`` (none), ``ring``, ``complete``, a
    network, or options of ``d_psgd`` (``mixing=matchings,network=torus:2x2``)."""
    exchanges: int = 1
    """k: messages to each neighbour in a step."""
    alpha: float = 1.0
    """α of the objective ``alpha_fair``: 0 is efficient, 1 proportionally fair, more is fairer."""
    goal: float = 0.95
    """Jain's index below which the objective ``jain`` is penalised."""
    penalty: float = 10.0
    """By how much for each 1 that the index is below."""
    information: float = 1.0
    """Weight of the logarithm of the probability of being chosen."""
    discount: float = 0.98
    """γ of the policies' steps."""
    choice_discount: float = 0.98
    """γ of the controller's choices."""
    gae_lambda: float = 0.95
    """λ of the generalised advantage estimate."""
    clip_ratio: float = 0.2
    """How far the ratio of an action's probabilities may move from 1 in one update."""
    entropy_coefficient: float = 0.03
    """Weight of the policies' entropy bonus."""
    choice_entropy_coefficient: float = 0.03
    """Weight of the controller's."""
    value_coefficient: float = 0.5
    """Weight of the critics' loss."""
    max_gradient_norm: float = 0.5
    """Norm to which gradients are clipped, after devices have combined them."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of every actor and critic."""
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "clip_ratio", "max_gradient_norm")
        check_above_zero(self, "capacity", "epsilon")
        check_at_least_one(self, "environments", "rollout", "epochs", "minibatches")
        check_at_least_one(self, "sub_policies", "choice_steps", "exchanges")
        check_not_below_zero(self, "entropy_coefficient", "choice_entropy_coefficient")
        check_not_below_zero(self, "value_coefficient", "information", "alpha", "penalty")
        check_share(self, "discount", "choice_discount", "gae_lambda", "goal")
        check_network(self.hidden, self.activation, "shared")
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
                "first_objective: expected own where there is no hierarchy, or the objective is "
                f"average; got {self.first_objective!r}"
            )
        if self.rollout % self.choice_steps:
            raise OptionError(
                f"rollout: expected a multiple of choice_steps, {self.choice_steps}, "
                f"got {self.rollout}"
            )
        network_of(self.gossip)

    @property
    def steps(self) -> int:
        """Steps of an update, of all games on all devices together."""
        return self.environments * self.rollout

    @property
    def worth(self) -> str | None:
        """By which of `MEANS` a step counts whose mean agents find; none where they need not."""
        maximised = (self.objective, self.first_objective)
        return next((name for name in MEANS if name in maximised), None)

    @property
    def informed(self) -> bool:
        """Whether anything that is learned depends on the mean utility."""
        return self.hierarchy or self.objective != "own"

    def check_devices(self, devices: int) -> None:
        """Refuses settings that cannot be divided among devices.

        Raises:
            OptionError: where games or minibatches do not come out even.
        """
        if self.environments % devices:
            raise OptionError(
                f"environments: expected a multiple of the {devices} devices, "
                f"got {self.environments}"
            )
        parts = self.environments // devices * (self.rollout // self.choice_steps)
        if parts % self.minibatches:
            raise OptionError(
                f"minibatches: expected a divisor of the {parts} choices of an agent in an update "
                f"on each device, got {self.minibatches}"
            )


def network_of(gossip: str) -> GossipSpec | None:
    """The gossip of a specification; None for what needs none to be read.

    Raises:
        SpecError: it is not understood.
        OptionError: it has a value out of its range.
    """
    if gossip in (EXACT, COMPLETE, RING):
        return None
    spec = parse(f"d_psgd:{gossip if '=' in gossip.partition(':')[0] else f'network={gossip}'}")
    assert isinstance(spec, GossipSpec)
    return spec


def mixing_of(gossip: str, agents: int) -> MixingMatrix | None:
    """The weights of a specification for so many agents; None for the exact mean.

    Raises:
        OptionError: its network has another number of servers.
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
"""What differs from `FEN`'s own defaults, by family of games."""
