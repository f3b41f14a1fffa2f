"""Games of others: which interface an object has, how it is read, and what it lacks.

An object is a game, or a class or function that makes one. A game has JaxMARL's interface, is a
`ResourceWorld`, a `World` of cells, or an environment of PettingZoo's parallel interface.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradweave import plugins
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
"""What a game of each kind has."""
ADDED = ("max_steps", "machine")
"""Options that every game of others takes: of worlds and PettingZoo's games, the steps after which
an episode is cut off; the text of a reward machine's file."""


def seems_game(given: Any) -> bool:
    """Whether an object, or what a class makes, has a part that only games have."""
    return any(hasattr(given, name) for name in ("step_env", "advance", "possible_agents")) or (
        type(given).__name__ == "World" and hasattr(given, "rules")
    )


def family(given: Any, label: str, name: str) -> Family:
    """The family of one game: what it is, is known once it is made.

    Args:
        given: the game, or what makes it; its options are the parameters.
        label: for messages.
        name: of the game.
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
    """Names of the options that a game is made with; None for any, as of ``**options``."""
    if not _makes(given):
        return ()
    try:
        signature = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):  # of some built in C
        return None
    if any(each.kind is each.VAR_KEYWORD for each in signature):
        return None
    return tuple(each.name for each in signature if each.kind is not each.VAR_POSITIONAL)


def made(given: Any, options: Mapping[str, Any], label: str) -> Any:
    """A game, checked as far as can be without playing it, with a machine beside it if asked for.

    Args:
        given: see `family`.
        options: of what makes it, and `ADDED`.
        label: for messages.

    Raises:
        OptionError: it lacks a part of its interface, or an array has another shape; one line.
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
            return copy.deepcopy(given)  # each game of PettingZoo's needs its own
        return plugins.called(label, f"cannot be made with {own}", lambda: given(**own))

    game = make() if _makes(given) else given
    if isinstance(game, World):
        from gradweave.marl.games.worlds import of_world

        return of_world(game, steps | ({} if text is None else {"machine": text}))
    kind = interface_of(game, label)
    if kind == PETTINGZOO:
        if known is None:  # takes anything, but hardly this
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
        OptionError: it has none; names what it lacks of the one it is nearest to.
    """
    if hasattr(game, "agent_iter"):
        raise OptionError(
            f"{label}: its agents take turns (PettingZoo's AEC interface); give what "
            "pettingzoo.utils.aec_to_parallel makes of it, or its parallel_env"
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
            f"{label}: expected a game ({', '.join(INTERFACES)}) or what makes one, got "
            f"{game!r:.60}"
        )
    raise OptionError(
        f"{label}: lacks {' and '.join(lacking[kind])}; {kind} is {', '.join(INTERFACES[kind])}"
    )


def reading_of(game: Any) -> Reading:
    """How the dictionaries of a game are read, by what it has beside its interface.

    ``get_avail_actions(state)``, ``utility(state)``, ``info["truncated"]`` and an observation
    ``world_state`` are as in JaxMARL's games and in `ResourceGame`. ``measures`` are names, and
    ``info["measures"]`` has what each step adds to them.
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
            name: lambda game, state, rewards, info, done, name=name: info["measures"][name]
            for name in getattr(game, "measures", ())
        },
    )


def teams_of(game: Any, options: Mapping[str, Any]) -> Sequence[int]:
    """Each agent's team: the game's own ``teams``; none in common where they share resources."""
    from gradweave.marl.worlds.resources import ResourceGame

    one_each = isinstance(game, ResourceGame)
    return getattr(game, "teams", None) or [
        number if one_each else 0 for number in range(len(game.agents))
    ]


def meaning_of(game: Any) -> str:
    """What its return measures: the game's own ``meaning``."""
    if getattr(game, "guide", None) is not None:
        return "mean over agents of what their machines give in an episode"
    return str(getattr(game, "meaning", MEAN))


def _makes(given: Any) -> bool:
    """Whether an object makes games, rather than being one."""
    return isinstance(given, type) or (callable(given) and not seems_game(given))


def _shown(game: Any) -> Mapping[Any, Any]:
    import jax

    return jax.eval_shape(game.reset, jax.random.key(0))[0]


def _masks(game: Any) -> bool:
    """Whether a game says which actions are available; JaxMARL's base class does not."""
    import jax

    if not hasattr(game, "get_avail_actions"):
        return False
    try:
        jax.eval_shape(game.get_avail_actions, jax.eval_shape(game.reset, jax.random.key(0))[1])
    except NotImplementedError:
        return False
    return True


def _guided(game: Any, text: str, label: str) -> Any:
    """The game with a machine beside its agents, which hears the game's own ``events``."""
    from gradweave.automata.files import read_text
    from gradweave.marl.games.guided import Guided, fitted, guide_of
    from gradweave.marl.worlds.catalogue import OWN_MACHINE

    if not getattr(game, "events", ()):
        raise OptionError(
            f"{label}: has no events for a machine to hear; name them as `events`, and say in "
            'info["events"] which of them happened'
        )
    if text == OWN_MACHINE:
        raise OptionError(f"{label}: has no machine of its own; give a file")
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
