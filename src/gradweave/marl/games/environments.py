"""Every game by its name: JaxMARL's families and Gradweave's own.

The specifics of each family, such as its rewards, are documented in `families`.
"""

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gradweave.common import plugins
from gradweave.common.checks import did_you_mean, expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.games import own
from gradweave.marl.games.families import (
    coin_game,
    grid_worlds,
    hanabi,
    jaxnav,
    mabrax,
    mpe,
    overcooked,
    resource_worlds,
    scheduling,
    smax,
    storm,
    switch_riddle,
)
from gradweave.marl.games.families.scheduling import OWN
from gradweave.marl.games.family import Family

if TYPE_CHECKING:
    from gradweave.marl.games.environment import Environment

FAMILIES: dict[str, Family] = {
    **mpe.FAMILIES,
    **switch_riddle.FAMILIES,
    **coin_game.FAMILIES,
    **storm.FAMILIES,
    **overcooked.FAMILIES,
    **jaxnav.FAMILIES,
    **hanabi.FAMILIES,
    **smax.FAMILIES,
    **mabrax.FAMILIES,
    **grid_worlds.FAMILIES,
    **resource_worlds.FAMILIES,
    **scheduling.FAMILIES,
}
"""Gradweave's and JaxMARL's families. `family_named` also finds those of installed packages."""


def make(spec: Any, **options: Any) -> "Environment":
    """Makes a game by its name, or from the user's own object.

    Args:
        spec: an id that `ids` lists, with options as in ``overcooked:layout=coord_ring``;
            ``gradweave:`` and a network, as in ``gradweave:bcube:n=3,k=1``; ``module:object``, as
            in ``my.games:Corridor:length=5``; or the object itself: a game with one of
            `gradweave.marl.games.own.INTERFACES`, or a class or function that makes one.
        options: further options by name; for a user's game, the parameters of its class or
            function, and `gradweave.marl.games.own.ADDED`.

    Raises:
        OptionError: the id or an option is unknown, the game's package cannot be used, or a user's
            game lacks a part, which the message names.
        SpecError: the network cannot be parsed.

    >>> env = make("switch_riddle")
    >>> env.agents, env.observation, env.actions
    (('agent_0', 'agent_1', 'agent_2'), 2, 3)
    """
    if not isinstance(spec, str):
        id = plugins.name_of(spec)
        family = checked(spec, f"environment {id}", id)
        check_options(id, family, options)
        return made(id, family, id, options)
    id, options = parse(spec, options)
    name = family_of(spec)
    return made(name, family_named(name), spec if id == OWN else id, options)


def made(name: str, family: Family, full: str, options: Mapping[str, Any]) -> "Environment":
    """Makes a game of a family.

    Args:
        name: name of the family.
        family: the family.
        full: the game's id, including the network for games of scheduling.
        options: options as `parse` returns them.
    """
    from gradweave.marl.games.environment import wrap

    with _quiet():
        game = family.wrapper(family.make(full, family.arguments(dict(options))))
    written = ",".join(f"{option}={_formatted(value)}" for option, value in options.items())
    return wrap(
        game,
        family.reading or own.reading_of(game),
        id=f"{full}:{written}" if written and not full.startswith(OWN) else full,
        family=name,
        meaning=family.meaning or own.meaning_of(game),
        teams=family.teams(game, options),
    )


def parse(spec: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A game's id and all its options, checked as far as possible without JAX.

    Raises:
        OptionError: the id, or the name of an option, is unknown.
        SpecError: the network cannot be parsed.
    """
    from gradweave.topology.spec import from_spec

    id, written = (OWN, "") if spec.startswith(OWN) else _divided(spec)
    family = family_named(family_of(spec))
    options = written_options(spec, written) | dict(options)
    check_options(id, family, options)
    if id == OWN:
        from_spec(spec.removeprefix(OWN))
    return id, options


def check_options(id: str, family: Family, options: Mapping[str, Any]) -> None:
    """Refuses options that a game does not take.

    Raises:
        OptionError: names the most similar option that the game takes.
    """
    known = family.options
    for option in options:
        if known is not None and option not in known:
            raise OptionError(
                f"{id}: unknown option {option!r}; {did_you_mean(option, known)}"
                f"it takes {', '.join(known) or 'none'}"
            )


def is_object(spec: str) -> bool:
    """Whether a game is named as ``module:object``, which only commands and calls may import.

    >>> is_object("my.games:Corridor:length=5"), is_object("overcooked:layout=coord_ring")
    (True, False)
    """
    return plugins.names_object(id_of(spec))


def id_of(spec: str) -> str:
    """A game's id, or ``module:object``, without options."""
    return OWN if spec.startswith(OWN) else _divided(spec)[0]


def ids() -> list[str]:
    """All names that `make` knows."""
    return [id for family in FAMILIES.values() for id in family.ids]


def family_of(spec: str) -> str:
    """The name of a game's family, without making the game.

    Raises:
        OptionError: no family has the game.
    """
    id = f"{OWN}NETWORK" if spec.startswith(OWN) else _divided(spec)[0]
    for name, family in FAMILIES.items():
        if id in family.ids:
            return name
    if plugins.names_object(id):
        return id
    if plugins.find(plugins.ENVIRONMENT, id):
        return id
    others = plugins.names(plugins.ENVIRONMENT)
    particles = [known for known in ids() if known.startswith("MPE_")]
    robots = FAMILIES["mabrax"].ids
    others += [known for known in ids() if known not in particles and known not in robots]
    shown = (
        f"{particles[0]}, {len(particles) - 1} more of MPE_",
        *others,
        f"{robots[0]}, {len(robots) - 1} more of MABrax",
    )
    raise OptionError(expected_one_of("environment", [*ids(), *others], id, shown))


def family_named(name: str) -> Family:
    """The family with a name that `family_of` returned; imports it if a package installed it.

    Raises:
        OptionError: there is no such family, or it cannot be imported or is refused.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    if plugins.names_object(name):
        label = f"environment {name}"
        return checked(plugins.imported(name, "environment"), label, name)
    plugin = plugins.find(plugins.ENVIRONMENT, name)
    if plugin is None:
        raise OptionError(expected_one_of("family of environments", FAMILIES, name))
    return read_plugin(plugin)


def read_plugin(plugin: plugins.Plugin) -> Family:
    """Imports the family of an installed package's games.

    Raises:
        OptionError: the family cannot be imported or is refused.
    """
    family = checked(plugin.load(), plugin.label, plugin.name)
    if plugin.name not in family.ids:
        raise OptionError(
            f"{plugin.label}: its ids are {', '.join(family.ids)}; give one of them the name of "
            "the entry point"
        )
    return family


def checked(given: Any, label: str, name: str) -> Family:
    """A plugin's family, checked; for a game, or a function that makes one, a family of that game.

    Args:
        given: the family, game or function.
        label: name for messages.
        name: name of the game, if `given` is a game.

    Raises:
        OptionError: `given` is none of these, has no game, or has a game with a name of
            Gradweave's.
    """
    if not isinstance(given, Family):
        if not (own.seems_game(given) or callable(given)):
            raise OptionError(
                f"{label}: expected a game, a class or function that makes one, or a "
                f"gradweave.marl.Family, got {given!r:.60}"
            )
        return own.family(given, label, name)
    if not given.ids:
        raise OptionError(f"{label}: has no ids of games")
    if not any(given is known for known in FAMILIES.values()):
        for id in given.ids:
            plugins.check_name(label, id, [*ids(), *FAMILIES])
    return given


def _divided(spec: str) -> tuple[str, str]:
    """Splits a specification into a game's id, or ``module:object``, and the options after it."""
    id, _, rest = spec.partition(":")
    named, _, options = rest.partition(":")
    known = any(id in family.ids for family in FAMILIES.values())
    if not known and plugins.names_object(f"{id}:{named}"):
        return f"{id}:{named}", options
    return id, rest


def written_options(spec: str, written: str) -> dict[str, Any]:
    """Parses options written as ``name=value,…``.

    Args:
        spec: the whole specification, for messages.
        written: the options.

    Raises:
        OptionError: the options have another form.

    >>> written_options("soup:side=5,slow=true", "side=5,slow=true")
    {'side': 5, 'slow': True}
    """
    options: dict[str, Any] = {}
    for part in filter(None, written.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name in options:
            raise OptionError(f"expected name=value once each, got {part!r} in {spec}")
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
    if isinstance(value, str) and "\n" in value:  # text of a machine's file
        return "given"
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses JaxMARL's output and warnings while it is imported and makes a game.

    JaxMARL's MABrax part resets `sys.stdout` to `sys.__stdout__`, so this replaces both.
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
