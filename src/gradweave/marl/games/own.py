"""Users' games: which interface an object has, how it is read, and which parts are missing.

An object is a game, or a class or function that makes one. A game has JaxMARL's interface, is a
`ResourceWorld`, a `World` of cells, or an environment with PettingZoo's parallel interface.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradweave.common import plugins
from gradweave.errors import OptionError
from gradweave.marl.games.family import MEAN, Family, each
from gradweave.marl.games.reading import Reading

JAXMARL = "JaxMARL's interface"
RESOURCES = "a ResourceWorld"
PETTINGZOO = "PettingZoo's parallel interface"
INTERFACES = {
    JAXMARL: ("agents", "reset", "step_env", "action_space"),
    RESOURCES: ("agents", "begin", "advance", "observe"),
    PETTINGZOO: ("possible_agents", "reset", "step", "observation_space", "action_space"),
}
"""The attributes of each kind of game."""
WITHOUT_ACTION = "steps_without_action"
"""A measure of users' games that report available actions: steps in which an agent had none."""
ADDED = ("max_steps", "machine")
"""Options that every user's game takes: the maximum number of steps per episode, for worlds and
PettingZoo's games; and the text of a reward machine's file."""


def seems_game(given: Any) -> bool:
    """Whether an object, or a class, has an attribute that only games have."""
    return any(hasattr(given, name) for name in ("step_env", "advance", "possible_agents")) or (
        type(given).__name__ == "World" and hasattr(given, "rules")
    )


def family(given: Any, label: str, name: str) -> Family:
    """The family of one game, whose kind is not known until the game is made.

    Args:
        given: the game, or a class or function that makes it, whose parameters are the options.
        label: name for messages.
        name: name of the game.
    """

    def make(id: str, options: dict[str, Any]) -> Any:
        return made(given, options, label)

    known = parameters(given)
    return Family(
        (name,),
        None,
        "",
        None if known is None else tuple(dict.fromkeys((*known, *ADDED))),
        make=make,
        teams=teams_of,
    )


def parameters(given: Any) -> tuple[str, ...] | None:
    """Names of the options of a game, or None if it takes any, for instance as ``**options``."""
    if not _makes(given):
        return ()
    try:
        signature = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):  # no signature, as for some built-ins written in C
        return None
    if any(each.kind is each.VAR_KEYWORD for each in signature):
        return None
    return tuple(each.name for each in signature if each.kind is not each.VAR_POSITIONAL)


def made(given: Any, options: Mapping[str, Any], label: str) -> Any:
    """Makes a game, checked without playing it, and adds a reward machine if requested.

    Args:
        given: see `family`.
        options: options of the class or function that makes the game, and those of `ADDED`.
        label: name for messages.

    Raises:
        OptionError: the game lacks a part of its interface, or an array has a wrong shape; one
            line.
        FileError: the machine cannot be read.
    """
    from gradweave.marl.games.checked_game import check_game
    from gradweave.marl.worlds.world import World

    own, known = dict(options), parameters(given)
    text = own.pop("machine", None)
    takes_steps = known is None or "max_steps" in known
    steps = {} if takes_steps or "max_steps" not in own else {"max_steps": own.pop("max_steps")}

    def make() -> Any:
        if not _makes(given):
            return copy.deepcopy(given)  # each of PettingZoo's games needs a copy
        return plugins.called(label, f"cannot be made with {own}", lambda: given(**own))

    game = make() if _makes(given) else given
    if isinstance(game, World):
        from gradweave.marl.games.worlds import of_world

        return of_world(game, steps | ({} if text is None else {"machine": text}))
    kind = interface_of(game, label)
    if kind == PETTINGZOO:
        if known is None:  # it takes any option, but hardly means this one
            steps |= {"max_steps": own.pop("max_steps")} if "max_steps" in own else {}
        from gradweave.marl.games.parallel import ParallelGame

        game = ParallelGame(make, game, label, **steps)
    elif kind == RESOURCES:
        from gradweave.marl.worlds.resources import ResourceGame

        world = game
        game = plugins.called(
            label, "agents, begin(key), observe(state)", lambda: ResourceGame(world, **steps)
        )
    elif steps:
        raise OptionError(f"{label}: unknown option 'max_steps'; it makes a game of {JAXMARL}")
    check_game(game, label)
    return game if text is None else _guided(game, str(text), label)


def interface_of(game: Any, label: str) -> str:
    """The key of `INTERFACES` that a game has.

    Raises:
        OptionError: the game has none of them; names the parts that are missing for the closest.
    """
    if hasattr(game, "agent_iter"):
        raise OptionError(
            f"{label}: its agents take turns (PettingZoo's AEC interface); pass the "
            "result of pettingzoo.utils.aec_to_parallel, or its parallel_env"
        )
    lacking = {
        kind: [name for name in names if not hasattr(game, name)]
        for kind, names in INTERFACES.items()
    }
    kind = min(lacking, key=lambda kind: len(lacking[kind]) / len(INTERFACES[kind]))
    if not lacking[kind]:
        return kind
    if len(lacking[kind]) == len(INTERFACES[kind]):
        raise OptionError(
            f"{label}: expected a game ({', '.join(INTERFACES)}), or a class or function that "
            f"makes one, got {game!r:.60}"
        )
    raise OptionError(
        f"{label}: lacks {' and '.join(lacking[kind])}; {kind} has {', '.join(INTERFACES[kind])}"
    )


def reading_of(game: Any) -> Reading:
    """How to read the dictionaries of a game, according to its optional parts.

    ``get_avail_actions(state)``, ``utility(state)``, ``info["truncated"]`` and an observation
    ``world_state`` are as in JaxMARL's games and in `ResourceGame`. ``measures`` are names, and
    ``info["measures"]`` has the contribution of each step to them.
    """
    from gradweave.marl.games.guided import Guided, reading_of_guided

    if isinstance(game, Guided):
        return reading_of_guided(reading_of(game.inner))
    shown = _shown(game)
    return Reading(
        each,
        each,
        lambda game, state, info, done: info.get("truncated", np.zeros((), bool)),
        available=(lambda game, state: each(game, game.get_avail_actions(state)))
        if _masks(game)
        else None,
        world=(lambda game, seen: seen["world_state"]) if "world_state" in shown else None,
        utility=(lambda game, state: game.utility(state)) if hasattr(game, "utility") else None,
        measures={
            **({WITHOUT_ACTION: _without_action} if _masks(game) else {}),
            **{
                name: lambda game, state, rewards, info, done, name=name: info["measures"][name]
                for name in getattr(game, "measures", ())
            },
        },
    )


def teams_of(game: Any, options: Mapping[str, Any]) -> Sequence[int]:
    """Each agent's team: the game's ``teams``, else one team; in resource games one per agent."""
    from gradweave.marl.worlds.resources import ResourceGame

    one_each = isinstance(game, ResourceGame)
    return getattr(game, "teams", None) or [
        number if one_each else 0 for number in range(len(game.agents))
    ]


def meaning_of(game: Any) -> str:
    """What a game's return measures, from its attribute ``meaning``."""
    if getattr(game, "guide", None) is not None:
        return "mean over agents of the reward of their machines in an episode"
    return str(getattr(game, "meaning", MEAN))


def _makes(given: Any) -> bool:
    """Whether an object makes games instead of being a game."""
    return isinstance(given, type) or (callable(given) and not seems_game(given))


def _shown(game: Any) -> Mapping[Any, Any]:
    import jax

    return jax.eval_shape(game.reset, jax.random.key(0))[0]


def _masks(game: Any) -> bool:
    """Whether a game reports available actions; JaxMARL's base class does not."""
    import jax

    if not hasattr(game, "get_avail_actions"):
        return False
    try:
        jax.eval_shape(game.get_avail_actions, jax.eval_shape(game.reset, jax.random.key(0))[1])
    except NotImplementedError:
        return False
    return True


def _without_action(game: Any, state: Any, rewards: Any, info: Any, done: Any) -> Any:
    """1 if an agent has no action although the episode continues, which is a fault of the game."""
    import jax.numpy as jnp

    masks = game.get_avail_actions(state)
    lacks = jnp.stack([~jnp.asarray(masks[agent], bool).any() for agent in game.agents]).any()
    return 1.0 * (lacks & ~done)


def check_actions(measures: Mapping[str, Any]) -> None:
    """Refuses a game that left agents without any action; learners would take the first action.

    Args:
        measures: sums by name over the episodes that were played.

    Raises:
        OptionError: the game did so.
    """
    steps = int(np.sum(measures.get(WITHOUT_ACTION, 0)))
    if steps:
        raise OptionError(
            f"get_avail_actions: leaves an agent without any action before {steps} steps of "
            "the episodes that ended; allow at least one, such as doing nothing"
        )


def _guided(game: Any, text: str, label: str) -> Any:
    """The game with a reward machine that reacts to the game's ``events``."""
    from gradweave.automata.files import read_text
    from gradweave.marl.games.guided import Guided, fitted, guide_of
    from gradweave.marl.worlds.catalogue import OWN_MACHINE

    if not getattr(game, "events", ()):
        raise OptionError(
            f"{label}: has no events for a machine; name them as `events`, and report in "
            'info["events"] which of them occurred'
        )
    if text == OWN_MACHINE:
        raise OptionError(f"{label}: has no built-in machine; give a file")
    agents = [str(agent) for agent in game.agents]
    events = tuple(game.events)
    doers: Callable[[str], Sequence[str]] = (
        (lambda event: [str(agent) for agent in game.events[event]])
        if isinstance(game.events, Mapping)
        else (lambda event: ())
    )
    rules = [(event, [agents.index(agent) for agent in doers(event)]) for event in events]
    task = fitted(label, agents, events, read_text(text))
    return Guided(game, reading_of(game), guide_of(task, events, rules))
