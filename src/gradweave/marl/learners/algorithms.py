"""The algorithms by name. The training loop knows an algorithm only by its row in this table.

JAX is imported when a learner is built, so names and settings can be checked without it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gradweave.common.checks import expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.config import PPO, PPO_DEFAULTS, Config, Settings, from_flat, settings_of
from gradweave.marl.fairness.settings import FEN, FEN_DEFAULTS, mixing_of
from gradweave.marl.games.families.resource_worlds import RESOURCES
from gradweave.marl.learners.q_settings import Q_DEFAULTS, QLearning

if TYPE_CHECKING:
    import optax

    from gradweave.marl.games.environment import Environment
    from gradweave.marl.learners.learner import Learner
    from gradweave.marl.learners.own_network import Factory
    from gradweave.marl.learners.q_learning import Kind

Aggregate = Callable[["optax.GradientTransformation"], "optax.GradientTransformation"]


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm: its settings, and how to build its learner."""

    summary: str
    """A description of one line."""
    settings: type
    """Class of the settings, a dataclass that is a `Settings`."""
    usual: Mapping[str, Mapping[str, Any]]
    """Changed defaults of the settings, by `Environment.family`."""
    build: Callable[..., "Learner"]
    """(environment, settings, devices, updates of the whole training, aggregation) -> the learner;
    also takes a factory of user networks, if any."""
    parted: bool = True
    """Whether its learner is a `PartedLearner`, as an asynchronous server requires."""
    discrete: bool = False
    """Whether it needs discrete actions."""
    one_team: bool = False
    """Whether it needs agents with common interests."""
    earned: bool = False
    """Whether it needs a game that computes the utility of each agent."""
    own_networks: bool = True
    """Whether user networks can replace Gradweave's."""


def _clip(norm: float, sets: int) -> "optax.GradientTransformation":
    """Clips gradients to a norm; if they have a leading axis of sets, each set separately."""
    import jax
    import optax

    whole = optax.clip_by_global_norm(norm)
    if sets == 1:
        return whole

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.vmap(lambda own: whole.update(own, state)[0])(updates), state

    return optax.GradientTransformation(whole.init, update)


def _adam(settings: PPO | FEN, steps: int, sets: int) -> "optax.GradientTransformation":
    """PPO's optimizer, for a given number of steps."""
    import optax

    rate = settings.learning_rate
    falling = optax.linear_schedule(rate, 0.0, steps) if settings.decay else rate
    return optax.chain(_clip(settings.max_gradient_norm, sets), optax.adam(falling, eps=1e-5))


def _ppo(central: bool) -> Callable[..., "Learner"]:
    def build(
        environment: "Environment",
        settings: PPO,
        devices: int,
        updates: int,
        aggregate: Aggregate,
        network: "Factory | None" = None,
    ) -> "Learner":
        from gradweave.marl.learners.actor_critic import Players
        from gradweave.marl.learners.ppo import PPOLearner
        from gradweave.marl.learners.sets import number, sets_of

        sets = sets_of(environment, settings.parameter_sharing)
        players = Players(
            environment,
            central,
            settings.hidden,
            settings.recurrent,
            settings.activation,
            settings.log_std,
            sets,
            network,
        )
        steps = updates * settings.epochs * settings.minibatches
        optimizer = _adam(settings, steps, number(sets))
        games = settings.environments // devices
        return PPOLearner(players, settings, aggregate(optimizer), devices, games, updates)

    return build


def _q_learning(kind: "Kind") -> Callable[..., "Learner"]:
    def build(
        environment: "Environment",
        settings: QLearning,
        devices: int,
        updates: int,
        aggregate: Aggregate,
        network: "Factory | None" = None,
    ) -> "Learner":
        import optax

        from gradweave.marl.learners.q_learning import QLearner
        from gradweave.marl.learners.sets import number, sets_of

        sets = number(sets_of(environment, settings.parameter_sharing)) if kind == "iql" else 1
        rate, steps = settings.learning_rate, updates * settings.epochs
        optimizer = optax.chain(
            _clip(settings.max_gradient_norm, sets),
            optax.adam(optax.linear_schedule(rate, 0.0, steps) if settings.decay else rate),
        )
        return QLearner(
            *(environment, kind, settings, aggregate(optimizer), devices, updates, network)
        )

    return build


def _fen(
    environment: "Environment",
    settings: FEN,
    devices: int,
    updates: int,
    aggregate: Aggregate,
    network: "Factory | None" = None,
) -> "Learner":
    from gradweave.marl.fairness.hierarchy import Hierarchy
    from gradweave.marl.fairness.learner import FENLearner
    from gradweave.marl.fairness.mean_utility import MeanUtility

    check_network("fen", network)
    check_suits("fen", environment.id, earned=environment.reading.utility is not None)
    steps = getattr(environment.game, "max_steps", 0)
    if steps % settings.choice_steps:
        raise OptionError(
            f"choice_steps: expected a divisor of the {steps} steps of an episode, got "
            f"{settings.choice_steps}"
        )
    mixing = mixing_of(settings.gossip, environment.num_agents)
    hierarchy = Hierarchy(environment, settings, MeanUtility(mixing, settings.exchanges))
    optimizer = _adam(settings, updates * settings.epochs * settings.minibatches, 1)
    games = settings.environments // devices
    return FENLearner(hierarchy, settings, aggregate(optimizer), games)


ALGORITHMS: dict[str, Algorithm] = {
    "ippo": Algorithm(
        "PPO, each agent with a critic of its own observation",
        PPO,
        PPO_DEFAULTS,
        _ppo(central=False),
    ),
    "mappo": Algorithm(
        "PPO with a critic of the whole state, used in training only",
        PPO,
        PPO_DEFAULTS,
        _ppo(central=True),
    ),
    "fen": Algorithm(
        "Fair-Efficient Network: a controller and sub-policies for agents that share resources",
        FEN,
        FEN_DEFAULTS,
        _fen,
        parted=False,
        earned=True,
        own_networks=False,
    ),
    "iql": Algorithm(
        "independent Q-learning, with a value function per agent",
        QLearning,
        Q_DEFAULTS,
        _q_learning("iql"),
        discrete=True,
    ),
    "vdn": Algorithm(
        "Q-learning of a team whose value is the sum of its agents' values",
        QLearning,
        Q_DEFAULTS,
        _q_learning("vdn"),
        discrete=True,
        one_team=True,
    ),
    "qmix": Algorithm(
        "Q-learning of a team whose value is a monotonic mix of its agents' values",
        QLearning,
        Q_DEFAULTS,
        _q_learning("qmix"),
        discrete=True,
        one_team=True,
    ),
}


def algorithm(name: str) -> Algorithm:
    """A row of the table.

    Raises:
        OptionError: there is no algorithm of this name.
    """
    if name not in ALGORITHMS:
        raise OptionError(expected_one_of("algorithm", ALGORITHMS, name))
    return ALGORITHMS[name]


def check_suits(
    name: str, id: str, *, continuous: bool = False, opposed: bool = False, earned: bool = False
) -> None:
    """Refuses an algorithm for a game that it cannot learn.

    Args:
        name: name of the algorithm.
        id: the game, for the message.
        continuous: whether its actions are continuous.
        opposed: whether its agents' interests are opposed.
        earned: whether it computes the utility of each agent.

    Raises:
        OptionError: the message names algorithms, or games, that fit.

    >>> check_suits("qmix", "SMAX", opposed=True)
    Traceback (most recent call last):
    gradweave.errors.OptionError: qmix: adds up the agents' values, but in SMAX their interests are
    opposed; use iql or ippo
    """
    row = algorithm(name)
    if row.discrete and continuous:
        raise OptionError(
            f"{name}: expected discrete actions, unlike those of {id}; use ippo or mappo"
        )
    if row.one_team and opposed:
        raise OptionError(
            f"{name}: adds up the agents' values, but in {id} their interests are opposed; "
            "use iql or ippo"
        )
    if row.earned and not earned:
        raise OptionError(
            f"{name}: {id} does not report the utility of each agent; use {', '.join(RESOURCES)}, "
            "or add utility(state) to the game"
        )


def check_network(name: str, network: Any) -> None:
    """Refuses a user network for an algorithm that does not take one.

    Raises:
        OptionError: the message names algorithms that do.
    """
    if network is not None and not algorithm(name).own_networks:
        known = [other for other, row in ALGORITHMS.items() if row.own_networks]
        raise OptionError(f"--network: {name} does not take one; use {', '.join(known)}")


def settings(name: str, family: str, given: Mapping[str, Any]) -> Settings:
    """An algorithm's settings for a family of games, with the user's values."""
    row = algorithm(name)
    return settings_of(row.settings, row.usual.get(family, {}), given)


def config_of(metadata: Mapping[str, Any]) -> Config:
    """The configuration of which `metadata` is the `Config.flat`.

    Raises:
        OptionError: a field is missing, unknown or out of range.
    """
    return from_flat(metadata, lambda name: algorithm(name).settings)


def build(
    config: Config,
    environment: "Environment",
    aggregate: Aggregate,
    network: "Factory | None" = None,
) -> "Learner":
    """The learner of a training.

    Args:
        config: configuration of the training.
        environment: the environment.
        aggregate: converts an optimizer to one that aggregates over all devices.
        network: the factory that `Config.network` names, if any.
    """
    row, settings = algorithm(config.algorithm), config.settings
    return row.build(
        *(environment, settings, config.devices, config.updates, aggregate), network=network
    )
