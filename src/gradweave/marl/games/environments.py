"""Every game by its name: JaxMARL's families and Gradweave's own, and what is particular to each.

``MPE_simple_spread_v3``: 3 agents, each gets half of what the team gets (minus the distances from
each landmark to the nearest agent) and half of its own (−1 a collision). JaxMARL's and PettingZoo's
figures are often the sum over agents: 3 times this.
``MPE_simple_tag_v3``, ``MPE_simple_world_comm_v3``: pursuers, who all get +10 for each touch, and
prey, who get −10; the mean over both sides says little, each agent's own return does.
``MPE_simple_adversary_v3``: a spy gets minus its distance from a landmark that it has to guess; the
others get that distance, minus that of the nearest of them. See each agent's own here too.
``MPE_simple_push_v3``: one gets minus its distance from a landmark, the other that distance, minus
its own.
``MPE_simple_crypto_v3``: Eve guesses what Alice tells Bob. JaxMARL's colours are of 255: a step
pays Eve about −65,000, and Alice and Bob 510 where Bob alone is right, −510 where Eve alone is.
``MPE_simple_v3``: one agent, minus its squared distance from the landmark.
``MPE_simple_speaker_listener_v4``: minus the squared distance of the one that moves from the
landmark that the other one sees; both get it.
``MPE_simple_reference_v3``: 2 agents, minus distances from landmarks that the other one knows.
``MPE_simple_facmac_v1``, ``MPE_simple_facmac_3a_v1``, …: one team of pursuers, who all get +10 for
each touch; prey follow rules and are no agents here. Actions are continuous.
``switch_riddle``: the team's +1 or −1 for an announcement, else 0; only the agent in the room acts.
``coin_game``: 2 agents, +1 for a coin, −2 where the other takes one's own, so that at random both
get 0 or less; with ``shared_rewards`` each gets the sum of both.
``storm``: 2 agents, each one's payoffs of the matrix game.
``overcooked``, ``overcooked_v2``: 2 agents (of v2, as many as the layout has), the team's 20 for a
soup, in v2 of the recipe ordered. Shaped rewards are separate and in no return.
``jaxnav``: robots on a map: +4 for the goal, −4 for a crash, and little for each step; half of each
robot's reward is the mean over all.
``hanabi``: 2 agents, the team's score.
``SMAX``: both teams learn, 5 against 5: damage dealt, and 1 for a victory.
``HeuristicEnemySMAX``: one team learns, the other follows rules; 2 is the most.
MABrax, ``ant_4x2`` and others: one body, whose reward all limbs get.
``generator``, ``laboratory``, ``buttons``, ``rendezvous``: agents on a grid, who all get 1 once the
team's task is done; with a reward machine (``machine``), each gets 1 once its own part is.
``job_scheduling``, ``matthew_effect``, ``manufacturing_plant``: agents who share what there is, and
each get what they take.
``gradweave:NETWORK``: Gradweave's scheduling; minus the rounds, over the bound on them.
"""

import contextlib
import dataclasses
import importlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradweave import lazy
from gradweave.checks import did_you_mean, expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.games.reading import Game, Reading

if TYPE_CHECKING:
    from gradweave.marl.games.environment import Environment

OWN = "gradweave:"
"""Prefix of the ids of Gradweave's scheduling; a network's specification follows."""
WORLDS = "worlds"
"""The family of games whose events reward machines hear."""
RESOURCES = ("job_scheduling", "matthew_effect", "manufacturing_plant")
"""Families of games, of one each, in which agents share what there is."""
OWN_MACHINE = "own"
"""The value of a world's option ``machine`` that means its own."""
MABRAX = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")


def _each(game: Any, by_agent: Mapping) -> list[Any]:
    return [by_agent[agent] for agent in game.agents]


def _at_time_limit(game: Any, state: Any, info: Any, done: Any) -> Any:
    """Only a time limit ends these games."""
    return done


def _no_time_limit(game: Any, state: Any, info: Any, done: Any) -> Any:
    """These end by their rules, the riddle's number of days among them."""
    return np.zeros((), bool)


def _both_sides_alive(game: Any, state: Any, info: Any, done: Any) -> Any:
    alive = getattr(state, "state", state).unit_alive
    return alive[: game.num_allies].any() & alive[game.num_allies :].any()


def _noisy(game: Any) -> bool:
    """Steps draw noise for actions and messages and scale it by these, usually all 0."""
    return bool(np.any(game.u_noise) or np.any(game.c_noise))


def _available_in_room(game: Any, state: Any) -> list[Any]:
    """JaxMARL takes an action of every agent and ignores all but the one in the room."""
    import jax.numpy as jnp

    nothing = jnp.arange(len(game.game_actions)) == game.game_actions["NOTHING"]
    return [nothing | (state.agent_in_room == agent) for agent in range(game.num_agents)]


def _storm_observations(game: Any, seen: Mapping) -> list[Any]:
    """JaxMARL gives the view as [A, …] and the inventory as [5, A]."""
    import jax.numpy as jnp

    view, inventory = seen["observations"], seen["inventory"]
    agents = range(len(game.agents))
    return [jnp.concatenate([view[i].reshape(-1), inventory[:, i]]) for i in agents]


def _robots_under_way(game: Any, state: Any, info: Any, done: Any) -> Any:
    """Whether the time limit stopped a robot that had neither arrived nor crashed."""
    return (info["TimeO"] & ~(state.goal_reached | state.move_term)).any()


def _one_team(game: Any, options: Mapping[str, Any]) -> list[int]:
    return [0 for _ in game.agents]


def _team_per_agent(game: Any, options: Mapping[str, Any]) -> list[int]:
    return list(range(len(game.agents)))


def _teams_by_reward(game: Any, options: Mapping[str, Any]) -> list[int]:
    return (_one_team if options.get("shared_rewards") else _team_per_agent)(game, options)


def _teams_by_goodness(game: Any, options: Mapping[str, Any]) -> list[int]:
    return [int(agent in game.good_agents) for agent in game.agents]


def _teams_by_side(game: Any, options: Mapping[str, Any]) -> list[int]:
    return [int(agent.startswith("enemy")) for agent in game.agents]


class _Wrapper:
    """A game, parts of which a subclass replaces."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)


class _Pursuers(_Wrapper):
    """FACMAC's game without its prey, whose actions JaxMARL ignores: they follow rules."""

    @property
    def agents(self) -> list[str]:
        return self._game.adversaries

    def step_env(self, key: Any, state: Any, actions: Mapping) -> Any:
        ignored = {prey: np.zeros(5, np.float32) for prey in self._game.good_agents}
        return self._game.step_env(key, state, {**actions, **ignored})


class _WithoutPrints(_Wrapper):
    """A game that prints while it is traced."""

    def step_env(self, key: Any, state: Any, actions: Mapping) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return self._game.step_env(key, state, actions)


PLAIN = Reading(_each, _each, _at_time_limit)
MPE = dataclasses.replace(PLAIN, stochastic=_noisy)
SHAPED = dataclasses.replace(PLAIN, shaped=lambda game, info: _each(game, info["shaped_reward"]))


@dataclasses.dataclass(frozen=True)
class Family:
    """Games of one kind."""

    ids: tuple[str, ...]
    reading: Reading
    meaning: str
    options: tuple[str, ...] = ()
    """Names of the options that its games take: JaxMARL silently ignores others."""
    arguments: Callable[[dict[str, Any]], dict[str, Any]] = lambda options: options
    """(options) -> the arguments of the game's constructor."""
    teams: Callable[[Any, Mapping[str, Any]], Sequence[int]] = _one_team
    """(game, options) -> each agent's team, from 0 on: those with common interests."""
    wrapper: Callable[[Any], Any] = lambda game: game
    """(game) -> the game that is played."""
    opposed: Callable[[str, Mapping[str, Any]], bool] = lambda id, options: False
    """(id, options) -> whether there are several `teams`, known without making the game."""
    continuous: Callable[[Mapping[str, Any]], bool] = lambda options: False
    """(options) -> whether actions are continuous, known without making the game."""


def _always(*_: Any) -> bool:
    return True


def _if_asked(options: Mapping[str, Any]) -> bool:
    """Games whose actions are discrete but with the option ``continuous``."""
    return bool(options.get("continuous", False))


def _mpe(options: dict[str, Any]) -> dict[str, Any]:
    # simple_world_comm_v3 is continuous by default, the others are discrete.
    continuous = options.pop("continuous", False)
    return options | {"action_type": "Continuous" if continuous else "Discrete"}


def _looked_up(option: str, module: str, table: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Replaces an option's value by what a table of JaxMARL has under that name."""

    def replaced(options: dict[str, Any]) -> dict[str, Any]:
        if option in options:
            known = getattr(importlib.import_module(f"jaxmarl.environments.{module}"), table)
            if options[option] not in known:
                raise OptionError(expected_one_of(option, known, options[option]))
            options[option] = known[options[option]]
        return options

    return replaced


def _hanabi(options: dict[str, Any]) -> dict[str, Any]:
    # JaxMARL has the numbers of cards for 5 ranks only: many of the first, one of the last.
    if "num_ranks" in options:
        ranks = options["num_ranks"]
        options["num_cards_of_rank"] = np.array([3] + [2] * (ranks - 2) + [1])[:ranks]
    return options


def _jaxnav(options: dict[str, Any]) -> dict[str, Any]:
    # Its default is continuous, as that of simple_world_comm_v3.
    side, fill = options.pop("side", 11), options.pop("fill", 0.3)
    continuous = options.pop("continuous", False)
    return options | {
        "act_type": "Continuous" if continuous else "Discrete",
        "map_params": {"map_size": (side, side), "fill": fill},
    }


_MEAN = "mean over agents of an episode's reward"
_TEAM = "an episode's reward, which all agents share"
_SIDES = f"{_MEAN}, of both sides, whose interests are opposed: see each agent's own"
_TOUCHES = f"{_TEAM}: 10 for each touch of the prey"
_MPE_OPTIONS = ("continuous", "max_steps")
FAMILIES: dict[str, Family] = {
    "spread": Family(
        ("MPE_simple_spread_v3",),
        MPE,
        f"{_MEAN}; JaxMARL's sum over agents is as many times this",
        (*_MPE_OPTIONS, "num_agents", "num_landmarks", "local_ratio"),
        _mpe,
        continuous=_if_asked,
    ),
    "mpe": Family(
        ("MPE_simple_tag_v3", "MPE_simple_world_comm_v3", "MPE_simple_adversary_v3"),
        MPE,
        _SIDES,
        (*_MPE_OPTIONS, "num_good_agents", "num_adversaries", "num_obs"),
        _mpe,
        _teams_by_goodness,
        opposed=_always,
        continuous=_if_asked,
    ),
    "push": Family(
        ("MPE_simple_push_v3",),
        MPE,
        _SIDES,
        (*_MPE_OPTIONS, "num_good_agents", "num_adversaries"),
        _mpe,
        _teams_by_goodness,
        opposed=_always,
        continuous=_if_asked,
    ),
    "crypto": Family(
        ("MPE_simple_crypto_v3",),
        MPE,
        _SIDES,
        _MPE_OPTIONS,
        _mpe,
        _teams_by_goodness,
        opposed=_always,
        continuous=_if_asked,
    ),
    "simple": Family(
        ("MPE_simple_v3",),
        MPE,
        f"{_MEAN}: minus squared distances from the landmark",
        (*_MPE_OPTIONS, "num_agents", "num_landmarks"),
        _mpe,
        continuous=_if_asked,
    ),
    "speaker_listener": Family(
        ("MPE_simple_speaker_listener_v4",),
        MPE,
        f"{_TEAM}: minus the listener's squared distance from its landmark",
        _MPE_OPTIONS,
        _mpe,
        continuous=_if_asked,
    ),
    "reference": Family(
        ("MPE_simple_reference_v3",),
        MPE,
        f"{_MEAN}: minus distances from their landmarks",
        (*_MPE_OPTIONS, "local_ratio"),
        _mpe,
        continuous=_if_asked,
    ),
    "facmac": Family(
        ("MPE_simple_facmac_v1",),
        MPE,
        _TOUCHES,
        (
            *("num_good_agents", "num_adversaries", "num_landmarks", "view_radius"),
            *("score_function", "max_steps"),
        ),
        wrapper=_Pursuers,
        continuous=_always,
    ),
    "facmac_of_a_size": Family(
        tuple(f"MPE_simple_facmac_{number}a_v1" for number in (3, 6, 9)),
        MPE,
        _TOUCHES,
        wrapper=_Pursuers,
        continuous=_always,
    ),
    "switch_riddle": Family(
        ("switch_riddle",),
        Reading(_each, _each, _no_time_limit, available=_available_in_room),
        _TEAM,
        ("num_agents",),
    ),
    "coin_game": Family(
        ("coin_game",),
        PLAIN,
        f"{_MEAN}; with shared_rewards each gets the sum of both",
        ("num_inner_steps", "num_outer_steps", "egocentric", "shared_rewards"),
        teams=_teams_by_reward,
        opposed=lambda id, options: not options.get("shared_rewards"),
    ),
    "storm": Family(
        ("storm",),
        Reading(_storm_observations, lambda game, rewards: list(rewards), _at_time_limit),
        _MEAN,
        ("num_inner_steps", "num_outer_steps", "fixed_coin_location", "freeze_penalty"),
        teams=_team_per_agent,
        opposed=_always,
    ),
    "overcooked": Family(
        ("overcooked",),
        SHAPED,
        f"{_TEAM}: 20 for each soup delivered",
        ("layout", "max_steps", "random_reset"),
        _looked_up("layout", "overcooked", "overcooked_layouts"),
    ),
    "overcooked_v2": Family(
        ("overcooked_v2",),
        SHAPED,
        f"{_TEAM}: 20 for each soup delivered of the recipe that is asked for",
        (
            *("layout", "max_steps", "agent_view_size", "random_reset", "random_agent_positions"),
            *("start_cooking_interaction", "negative_rewards", "sample_recipe_on_delivery"),
            "indicate_successful_delivery",
        ),
        _looked_up("layout", "overcooked_v2.layouts", "overcooked_v2_layouts"),
    ),
    "jaxnav": Family(
        ("jaxnav",),
        Reading(_each, _each, _robots_under_way),
        f"{_MEAN}: 4 for a goal, −4 for a crash, little for each step",
        (
            *("continuous", "num_agents", "max_steps", "side", "fill", "lidar_num_beams"),
            *("rew_lambda", "evaporating"),
        ),
        _jaxnav,
        wrapper=_WithoutPrints,
        continuous=_if_asked,
    ),
    "hanabi": Family(
        ("hanabi",),
        Reading(
            _each,
            _each,
            _no_time_limit,
            available=lambda game, state: _each(game, game.get_legal_moves(state)),
        ),
        f"{_TEAM}: the score",
        ("num_agents", "num_colors", "num_ranks", "hand_size", "max_info_tokens"),
        _hanabi,
    ),
    "smax": Family(
        ("SMAX", "HeuristicEnemySMAX"),
        Reading(
            _each,
            _each,
            _both_sides_alive,
            available=lambda game, state: _each(game, game.get_avail_actions(state)),
            world=lambda game, seen: seen["world_state"],
        ),
        f"{_MEAN}: damage dealt and victories",
        ("scenario", "num_allies", "num_enemies", "max_steps", "see_enemy_actions"),
        _looked_up("scenario", "smax.smax_env", "MAP_NAME_TO_SCENARIO"),
        _teams_by_side,
        opposed=lambda id, options: id == "SMAX",
    ),
    "mabrax": Family(
        MABRAX,
        Reading(
            _each,
            _each,
            lambda game, state, info, done: info["truncation"] > 0,
            # Each observation is a part of the body's state, which the critic should see.
        ),
        _TEAM,
        ("backend", "episode_length"),
        continuous=_always,
    ),
    WORLDS: Family(
        ("generator", "laboratory", "buttons", "rendezvous"),
        Reading(_each, _each, lambda game, state, info, done: info["truncated"]),
        f"{_TEAM}: 1 once the task is done; with a machine, 1 to each agent whose part is done",
        ("agents", "max_steps", "machine"),
    ),
    **{
        name: Family(
            (name,),
            dataclasses.replace(PLAIN, utility=lambda game, state: game.utility(state)),
            f"{_MEAN}, who each get what they take",
            ("max_steps",),
            teams=_team_per_agent,
            opposed=_always,
        )
        for name in RESOURCES
    },
    "scheduling": Family(
        (f"{OWN}NETWORK",),
        Reading(
            _each,
            _each,
            lambda game, state, info, done: info["truncated"][0],
            available=lambda game, state: _each(game, game.get_avail_actions(state)),
        ),
        f"{_MEAN}: minus the rounds",
        ("collective", "trees", "team", "paper_rewards"),
    ),
}


def make(spec: str, **options: Any) -> "Environment":
    """Makes a game by its name.

    Args:
        spec: an id of the table above, with options as in ``overcooked:layout=coord_ring``; or
            ``gradweave:`` and a network, as in ``gradweave:bcube:n=3,k=1``.
        options: more of them, by name.

    Raises:
        OptionError: where the id or an option is unknown, or the game's package cannot be used.
        SpecError: where the network is not understood.

    >>> env = make("switch_riddle")
    >>> env.agents, env.observation, env.actions
    (('agent_0', 'agent_1', 'agent_2'), 2, 3)
    """
    from gradweave.marl.games.environment import wrap

    id, options = parse(spec, options)
    name = family_of(spec)
    family = FAMILIES[name]
    with _quiet():
        game: Any = _scheduling(spec, dict(options)) if id == OWN else None
        if game is None:
            own = {WORLDS: _world} | dict.fromkeys(RESOURCES, _resources)
            made = own.get(name, _jaxmarl)
            game = family.wrapper(made(id, family.arguments(dict(options))))
    written = ",".join(f"{option}={_formatted(value)}" for option, value in options.items())
    full = spec if id == OWN else id
    return wrap(
        game,
        family.reading,
        id=f"{full}:{written}" if written and id != OWN else full,
        family=name,
        meaning=family.meaning,
        teams=family.teams(game, options),
    )


def parse(spec: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A game's id and all its options, checked as far as possible without JAX.

    Raises:
        OptionError: where the id is unknown or an option's name is.
        SpecError: where the network is not understood.
    """
    from gradweave.topology.spec import from_spec

    id, _, written = (OWN, "", "") if spec.startswith(OWN) else spec.partition(":")
    family = FAMILIES[family_of(spec)]
    options = _parsed(spec, written) | dict(options)
    for option in options:
        if option not in family.options:
            raise OptionError(
                f"{id}: unknown option {option!r}; {did_you_mean(option, family.options)}"
                f"it takes {', '.join(family.options) or 'none'}"
            )
    if id == OWN:
        from_spec(spec.removeprefix(OWN))
    return id, options


def ids() -> list[str]:
    """All names that `make` knows."""
    return [id for family in FAMILIES.values() for id in family.ids]


def family_of(spec: str) -> str:
    """The family of a game, without making it.

    Raises:
        OptionError: where there is none.
    """
    id = f"{OWN}NETWORK" if spec.startswith(OWN) else spec.partition(":")[0]
    for name, family in FAMILIES.items():
        if id in family.ids:
            return name
    mpe = [known for known in ids() if known.startswith("MPE_")]
    robots = FAMILIES["mabrax"].ids
    others = [known for known in ids() if known not in mpe and known not in robots]
    shown = (
        f"{mpe[0]}, {len(mpe) - 1} more of MPE_",
        *others,
        f"{robots[0]}, {len(robots) - 1} more of MABrax",
    )
    raise OptionError(expected_one_of("environment", ids(), id, shown))


def _parsed(spec: str, written: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, written.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name in options:
            raise OptionError(f"environment: expected name=value once each, got {part!r} in {spec}")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _formatted(value: Any) -> str:
    if isinstance(value, str) and "\n" in value:  # a machine's file
        return "given"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _jaxmarl(id: str, options: dict[str, Any]) -> Game:
    lazy.require(id, "jaxmarl")
    import jaxmarl

    try:
        return jaxmarl.make(id, **options)
    except ImportError as missing:
        raise OptionError(f"{id} cannot be used: {missing}") from missing
    except (TypeError, ValueError, AssertionError) as error:
        raise OptionError(f"{id}: refused its options {options}: {error}") from error


def _world(id: str, options: dict[str, Any]) -> Game:
    from gradweave.marl.games.worlds import make

    return make(id, options)


def _resources(id: str, options: dict[str, Any]) -> Game:
    from gradweave.marl.games.worlds import make_resources

    return make_resources(id, options)


def _scheduling(spec: str, options: dict[str, Any]) -> Game:
    from gradweave.environment import Instance, Rewards
    from gradweave.environment.jaxmarl_adapter import JaxMARLScheduling
    from gradweave.topology.spec import from_spec

    rewards = Rewards() if options.pop("paper_rewards", False) else Rewards.ours()
    team = bool(options.pop("team", False))
    instance = Instance(from_spec(spec.removeprefix(OWN)), **options)
    return JaxMARLScheduling(instance, rewards=rewards, team=team)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards what JaxMARL prints and warns of while it is imported and makes a game.

    Its MABrax part sets `sys.stdout` back to `sys.__stdout__`, which is therefore replaced too.
    """
    kept = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    discarded = io.StringIO()
    sys.stdout = sys.stderr = discarded
    sys.__stdout__ = sys.__stderr__ = discarded  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = kept  # pyright: ignore[reportAttributeAccessIssue]
