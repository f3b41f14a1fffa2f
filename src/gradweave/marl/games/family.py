"""A family of games: how its games are made and read, and which options they take."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradweave.common import lazy
from gradweave.common.checks import expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.games.reading import Game, Reading

LEAST_JAXMARL = (0, 2)
MEAN = "mean over agents of an episode's reward"
TEAM = "an episode's reward, which all agents share"


def each(game: Any, by_agent: Mapping) -> list[Any]:
    """The entries of a dictionary by agent, in the game's order."""
    return [by_agent[agent] for agent in game.agents]


def at_time_limit(game: Any, state: Any, info: Any, done: Any) -> Any:
    """For games that end only by a time limit."""
    return done


def no_time_limit(game: Any, state: Any, info: Any, done: Any) -> Any:
    """For games that end by their rules, which include the number of days in the switch riddle."""
    return np.zeros((), bool)


def as_told(game: Any, state: Any, info: Any, done: Any) -> Any:
    """For games that report truncation themselves."""
    return info["truncated"]


def one_team(game: Any, options: Mapping[str, Any]) -> list[int]:
    """For games in which all agents have common interests."""
    return [0 for _ in game.agents]


def team_per_agent(game: Any, options: Mapping[str, Any]) -> list[int]:
    """For games in which no two agents have common interests."""
    return list(range(len(game.agents)))


class Wrapper:
    """A game of which a subclass replaces parts."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)


PLAIN = Reading(each, each, at_time_limit)
TOLD = Reading(each, each, as_told)


def from_jaxmarl(id: str, options: dict[str, Any]) -> Game:
    """Makes a game of JaxMARL.

    Raises:
        OptionError: its package cannot be used, or the game refuses its options.
    """
    lazy.require(id, "jaxmarl")
    check_version(id)
    import jaxmarl

    try:
        return jaxmarl.make(id, **options)
    except ImportError as missing:
        raise OptionError(f"{id} cannot be used: {missing}") from missing
    except (TypeError, ValueError, AssertionError) as error:
        raise OptionError(f"{id}: refused its options {options}: {error}") from error


def check_version(id: str) -> None:
    """Refuses an installed JaxMARL older than 0.2, which its repository calls 2.0.

    Raises:
        OptionError: the version is older. 0.1 requires a JAX older than Gradweave's; with a newer
            JAX its coin game and storm fail.
    """
    # JaxMARL is on the path but not installed
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.version("jaxmarl")
        if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < LEAST_JAXMARL:
            raise OptionError(
                f"{id}: expected JaxMARL 0.2 or later, whose games have other interfaces, got "
                f"{found}: pip install 'gradweave[marl]'"
            )


@dataclasses.dataclass(frozen=True)
class Family:
    """Games of one kind."""

    ids: tuple[str, ...]
    reading: Reading | None
    """How to read the games, or None for a user's game, which is read by the parts it has; see
    `own`.
    """
    meaning: str
    """What the return measures; empty for a user's game, which states it itself."""
    options: tuple[str, ...] | None = ()
    """Names of the options that the games take; without this check JaxMARL silently ignores unknown
    options. None if the game's class or function takes any option."""
    arguments: Callable[[dict[str, Any]], dict[str, Any]] = lambda options: options
    """(options) -> the arguments of the game's constructor."""
    teams: Callable[[Any, Mapping[str, Any]], Sequence[int]] = one_team
    """(game, options) -> the team of each agent, counted from 0; teams have common interests."""
    make: Callable[[str, dict[str, Any]], Game] = from_jaxmarl
    """(id, arguments) -> the game; imports the packages it needs when it is called."""
    wrapper: Callable[[Any], Any] = lambda game: game
    """(game) -> the game that is played."""
    opposed: Callable[[str, Mapping[str, Any]], bool] = lambda id, options: False
    """(id, options) -> whether there are several `teams`, known without making the game."""
    continuous: Callable[[Mapping[str, Any]], bool] = lambda options: False
    """(options) -> whether actions are continuous, known without making the game."""


def always(*_: Any) -> bool:
    """For games with continuous actions under all options."""
    return True


def if_asked(options: Mapping[str, Any]) -> bool:
    """For games with discrete actions unless the option ``continuous`` is set."""
    return bool(options.get("continuous", False))


def looked_up(option: str, module: str, table: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Replaces an option's value by the entry of that name in a table of JaxMARL's."""

    def replaced(options: dict[str, Any]) -> dict[str, Any]:
        if option in options:
            known = getattr(importlib.import_module(f"jaxmarl.environments.{module}"), table)
            if options[option] not in known:
                raise OptionError(expected_one_of(option, known, options[option]))
            options[option] = known[options[option]]
        return options

    return replaced
