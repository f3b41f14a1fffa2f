"""The command ``gradweave``: its commands, and how errors become exit statuses."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

import click

import gradweave
from gradweave.cli.console import spoken_warnings
from gradweave.cli.groups import Commands, deepest
from gradweave.errors import BAD_INPUT, INTERRUPTED, SUCCESS, GradweaveError, exit_status
from gradweave.printable import in_one_line
from gradweave.processes.ending import heard_again

SECTIONS = {
    "Plan and prove": {
        "solve": "solve",
        "compare": "compare",
        "bound": "bound",
        "verify": "verify",
        "show": "show",
        "place": "place_model",
        "ranks": "ranks",
        "library": "library",
    },
    "Run and measure": {
        "bench": "bench",
        "lab": "lab",
        "topology": "topology",
        "job": "job",
        "export": "export",
    },
    "Train": {
        "advise": "advise_aggregation",
        "train": "train",
        "evaluate": "evaluate",
        "plot": "plot",
        "machine": "machine",
        "learn": "learn",
    },
    "Extend": {"plugins": "plugins"},
}
"""By section of the help: each command, and its function in `gradweave.cli.commands`."""

COMMANDS = {name: function for section in SECTIONS.values() for name, function in section.items()}


_MEANT = {
    "schedule": "solve",
    "search": "solve",
    "run": "bench",
    "order": "ranks",
    "measure": "topology measure",
    "explain": "topology explain",
    "plan": "job plan",
    "watch": "job watch",
    "trace": "job trace",
    "list": "topology list",
    "check": "verify",
    "submit": "library submit",
}
"""The nearest command for other words."""


class Sections(Commands):
    """The commands, listed by section."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of a name, imported now; also ``help``.

        Raises:
            click.UsageError: there is none of this name.
        """
        if cmd_name == "help":
            return help_
        if cmd_name in _MEANT:
            ctx.fail(f"command: unknown, got {cmd_name!r}; did you mean {_MEANT[cmd_name]}?")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands by section, each with its summary."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(x, self.get_command(ctx, x).get_short_help_str(limit)) for x in names],
                    col_max=max(map(len, COMMANDS)),
                )


@click.group(
    "gradweave",
    cls=Sections,
    folder="gradweave.cli.commands",
    members=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(gradweave.__version__, prog_name="gradweave")
def cli() -> None:
    """Find, prove and show AllReduce schedules for any network."""


@click.command("help")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def help_(words: tuple[str, ...]) -> None:
    """Show the help of COMMAND."""
    context, rest = deepest(cli, words)
    if rest and isinstance(context.command, click.Group):
        context.command.get_command(context, rest[0])  # says what there is
    if rest:
        context.fail(f"{context.command_path} has no commands, got {rest[0]!r:.60}")
    click.echo(context.get_help())


def _with_dashes(message: str, command: click.Command, words: Sequence[str]) -> str:
    """A message, with the option's own spelling if it begins with the name of an option."""
    said = message.removeprefix("solve: ")
    field = re.match(r"([a-z][\w-]*)(?=: | ')", said)
    if field is None:
        return message
    for option in deepest(command, words)[0].command.params:
        named = {option.name, *(name.lstrip("-").replace("-", "_") for name in option.opts)}
        if isinstance(option, click.Option) and field[1].replace("-", "_") in named:
            return option.opts[0] + said[field.end() :]
    return message


def main(
    arguments: list[str] | None = None, *, command: click.Command = cli, name: str = "gradweave"
) -> None:
    """Runs the command line and exits.

    Exit status 0 is success; 1, the answer is no: an invalid schedule, or none in the time given;
    2, bad input, with one line on standard error that names the error and the remedy.

    Args:
        arguments: those of this process if none are given.
        command: what they are for.
        name: that of the program, for its help.
    """
    # An arrow or a ⌈ must not end the run where standard output goes to a file in another encoding.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    status = _status(arguments, command, name)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):  # closed before the start, or known to be full
            _silence(stream)
    sys.exit(status)


def _status(arguments: list[str] | None, command: click.Command, name: str) -> int:
    try:
        # Without standalone mode, click returns the status that a command exits with.
        with spoken_warnings(), heard_again():
            status = command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return BAD_INPUT
    except click.ClickException as error:
        return _say(error.format_message(), BAD_INPUT)
    except GradweaveError as error:
        for line in "\n".join(getattr(error, "__notes__", ())).splitlines():  # the user's code
            click.echo(in_one_line(line), err=True)
        words = sys.argv[1:] if arguments is None else arguments
        return _say(_with_dashes(str(error), command, words), exit_status(error))
    except MemoryError:
        return _say("out of memory; try a smaller network or file", BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != 1:
            raise
        # The reader of standard output closed it, as `head` does; click exits with 1 then.
        _silence(sys.stdout)
        return SUCCESS
    except OSError as error:  # such as a full disk
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror or error}", BAD_INPUT)
    return status if isinstance(status, int) else SUCCESS


def _say(message: str, status: int) -> int:
    try:
        click.echo(f"gradweave: {in_one_line(message)}", err=True)
    except OSError:  # nowhere to say it; the status does
        _silence(sys.stderr)
    return status


def _silence(stream: TextIO | None) -> None:
    """Discards what a stream could not write; Python would complain of it as it exits."""
    with contextlib.suppress(AttributeError, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]
