"""A family of games: how they are read and made, and which options they take."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gradweave import lazy
from gradweave.checks import expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.games.reading import Game, Reading

LEAST_JAXMARL = (0, 2)
MEAN = "mean over agents of an episode's reward"
TEAM = "an episode's reward, which all agents share"


def each(game: Any, by_agent: Mapping) -> list[Any]:
    """Each agent's entry of a dictionary, in the game's order."""
    return [by_agent[agent] for agent in game.agents]


def at_time_limit(game: Any, state: Any, info: Any, done: Any) -> Any:
    """Only a time limit ends these games."""
    return done


def no_time_limit(game: Any, state: Any, info: Any, done: Any) -> Any:
    """These end by their rules, the riddle's number of days among them."""
    return np.zeros((), bool)


def as_told(game: Any, state: Any, info: Any, done: Any) -> Any:
    """These games say so themselves."""
    return info["truncated"]


def one_team(game: Any, options: Mapping[str, Any]) -> list[int]:
    """All agents have common interests."""
    return [0 for _ in game.agents]


def team_per_agent(game: Any, options: Mapping[str, Any]) -> list[int]:
    """No two agents have common interests."""
    return list(range(len(game.agents)))


class Wrapper:
    """A game, parts of which a subclass replaces."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)


PLAIN = Reading(each, each, at_time_limit)
TOLD = Reading(each, each, as_told)


def from_jaxmarl(id: str, options: dict[str, Any]) -> Game:
    """A game of JaxMARL's.

    Raises:
        OptionError: its package cannot be used, or it refuses its options.
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
    """Refuses a JaxMARL from before 0.2, which its repository calls 2.0, by what is installed.

    Raises:
        OptionError: it is older. 0.1 asks for a JAX older than Gradweave's; beside a newer one its
            coin game and storm do not run.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # on a path, not installed
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
    """None for a game of others, which is read by what it has; see `own`."""
    meaning: str
    """Empty for a game of others, which says it itself."""
    options: tuple[str, ...] | None = ()
    """Names of the options that its games take: JaxMARL silently ignores others. None where what
    makes the game takes any."""
    arguments: Callable[[dict[str, Any]], dict[str, Any]] = lambda options: options
    """(options) -> the arguments of the game's constructor."""
    teams: Callable[[Any, Mapping[str, Any]], Sequence[int]] = one_team
    """(game, options) -> each agent's team, from 0 on: those with common interests."""
    make: Callable[[str, dict[str, Any]], Game] = from_jaxmarl
    """(id, arguments) -> the game; imports what it needs when it is called."""
    wrapper: Callable[[Any], Any] = lambda game: game
    """(game) -> the game that is played."""
    opposed: Callable[[str, Mapping[str, Any]], bool] = lambda id, options: False
    """(id, options) -> whether there are several `teams`, known without making the game."""
    continuous: Callable[[Mapping[str, Any]], bool] = lambda options: False
    """(options) -> whether actions are continuous, known without making the game."""


def always(*_: Any) -> bool:
    """Whatever the options are."""
    return True


def if_asked(options: Mapping[str, Any]) -> bool:
    """Games whose actions are discrete but with the option ``continuous``."""
    return bool(options.get("continuous", False))


def looked_up(option: str, module: str, table: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Replaces an option's value by what a table of JaxMARL has under that name."""

    def replaced(options: dict[str, Any]) -> dict[str, Any]:
        if option in options:
            known = getattr(importlib.import_module(f"jaxmarl.environments.{module}"), table)
            if options[option] not in known:
                raise OptionError(expected_one_of(option, known, options[option]))
            options[option] = known[options[option]]
        return options

    return replaced
