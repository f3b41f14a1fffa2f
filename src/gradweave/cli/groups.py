"""Commands with examples in their help, and groups that import the command that is used."""

import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import rules_of
from gradweave.common.checks import expected_one_of
from gradweave.errors import SUCCESS


class Command(click.Command):
    """A command that returns an `Answer`, or several one by one; its help ends with examples.

    It has the option ``--json``, and refuses what `needs` and `excludes` declare.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **given: Any):
        """A command.

        Args:
            *arguments: for `click.Command`.
            examples: arguments of the command, as a shell reads them.
            **given: for `click.Command`.
        """
        super().__init__(*arguments, **given)
        self.examples = tuple(examples)
        self.context_settings.setdefault("show_default", True)
        meaning = "Print one JSON object and nothing else."
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help=meaning))

    def invoke(self, ctx: click.Context) -> None:
        """Runs the command and prints its answers."""
        for rule in rules_of(self.callback):
            rule.check(ctx)
        as_json = ctx.params.pop("as_json")
        made: Answer | Iterable[Answer] | None = super().invoke(ctx)
        status = SUCCESS
        for answer in [made] if isinstance(made, Answer) else made or ():
            answer.show(as_json)
            status = answer.status
        if status != SUCCESS:
            ctx.exit(status)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples, one per line."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"  {ctx.command_path} {example}".rstrip() + "\n")


command = functools.partial(click.command, cls=Command)
"""Makes a function a `Command`; takes the arguments of `click.command`."""


class Commands(click.Group):
    """A group whose commands are imported when they are used."""

    def __init__(self, *arguments: Any, folder: str, members: Mapping[str, str], **given: Any):
        """A group without loading its members.

        Args:
            *arguments: for `click.Group`.
            folder: package with a module per command, named after it.
            members: name of each command, and of its function in its module.
            **given: for `click.Group`.
        """
        super().__init__(*arguments, **given)
        self._folder, self._members = folder, members

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return list(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of a name, imported now.

        Raises:
            click.UsageError: there is none of this name.
        """
        if cmd_name not in self._members:
            ctx.fail(expected_one_of("command", self._members, cmd_name))
        module = importlib.import_module(f"{self._folder}.{cmd_name}")
        return getattr(module, self._members[cmd_name])


def deepest(command: click.Command, words: Sequence[str]) -> tuple[click.Context, list[str]]:
    """The context of the command that words name, and the words that name none.

    Args:
        command: the outermost group.
        words: names of a command in a group, that of its command, …; others follow.
    """
    context = click.Context(command, info_name=command.name, **command.context_settings)
    rest = list(words)
    while rest and isinstance(context.command, click.Group):
        found = None
        if rest[0] in context.command.list_commands(context):
            found = context.command.get_command(context, rest[0])
        if found is None:
            break
        more = found.context_settings
        context = click.Context(found, parent=context, info_name=rest.pop(0), **more)
    return context, rest
