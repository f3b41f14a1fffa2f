"""Illegal combinations of options, declared next to the options as data.

``--name value`` stands for an option with this value, ``--name`` for one with any.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from gradweave.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Rule:
    """Options that need another option, or exclude it."""

    other: str
    options: tuple[str, ...]
    together: bool
    """Whether the options need the other one."""
    more: str = ""
    """What the message adds on the other option, such as an example."""

    def check(self, context: click.Context) -> None:
        """Refuses a command line that breaks the rule.

        Raises:
            OptionError: naming the option that is given, and the other one.
        """
        _, value = _parts(context, self.other)
        if (value is not None and value not in ((), False)) == self.together:
            return
        for option in self.options:
            given, value = _parts(context, option)
            source = context.get_parameter_source(str(given.name))
            if source is ParameterSource.COMMANDLINE and value is not None:
                wanted = self.other if self.together else f"no {self.other}"
                raise OptionError(f"{option}: expected {wanted} with it{self.more}")


def _parts(context: click.Context, text: str) -> tuple[click.Parameter, Any]:
    """An option, and its value; None if it has another value than the text says."""
    name, _, wanted = text.partition(" ")
    option = next(each for each in context.command.params if name in each.opts)
    value = context.params.get(str(option.name))
    return option, None if wanted and value != wanted else value


def needs(other: str, *options: str, more: str = "") -> Callable[[Any], Any]:
    """Refuses options without another option.

    Args:
        other: the option that is needed.
        options: those that are refused without it.
        more: what the message adds on the other option.
    """
    return _declared(Rule(other, options, True, more))


def excludes(other: str, *options: str) -> Callable[[Any], Any]:
    """Refuses options together with another option.

    Args:
        other: the option that excludes them.
        options: those that are refused with it.
    """
    return _declared(Rule(other, options, False))


def _declared(rule: Rule) -> Callable[[Any], Any]:
    def add(command: Any) -> Any:
        command.rules = [rule, *rules_of(command)]
        return command

    return add


def rules_of(command: Any) -> list[Rule]:
    """The rules that were declared for a command, in their order."""
    return getattr(command, "rules", [])
