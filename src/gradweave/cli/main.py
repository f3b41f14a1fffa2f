"""The command ``gradweave``: verbs, and how errors become exit statuses."""

import contextlib
import importlib
import io
import os
import sys
from typing import TextIO

import click

import gradweave
from gradweave.checks import expected_one_of
from gradweave.cli.console import spoken_warnings
from gradweave.errors import BAD_INPUT, INTERRUPTED, SUCCESS, GradweaveError, exit_status
from gradweave.printable import in_one_line
from gradweave.processes.ending import heard_again

VERBS = {
    "schedule": "schedule",
    "compare": "compare",
    "bound": "bound",
    "verify": "verify",
    "show": "show",
    "place": "place_verb",
    "order": "order",
    "plan": "plan",
    "run": "run",
    "watch": "watch",
    "trace": "trace",
    "measure": "measure",
    "lab": "lab",
    "export": "export",
    "learn": "learn",
    "train": "train",
    "train-pipeline": "train_pipeline",
    "evaluate": "evaluate",
    "plot": "plot",
    "machine": "machine",
    "library": "library",
    "list": "list_",
    "conformance": "conformance",
}
"""Each verb's name in its module of `gradweave.cli.verbs`, in the order of the help."""


class Verbs(click.Group):
    """The verbs, of which only the one that is used is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The verb of a name, imported now.

        Raises:
            click.UsageError: where there is none.
        """
        if cmd_name not in VERBS:
            ctx.fail(expected_one_of("verb", VERBS, cmd_name))
        module = importlib.import_module(f"gradweave.cli.verbs.{cmd_name.replace('-', '_')}")
        return getattr(module, VERBS[cmd_name])


@click.group(
    cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(gradweave.__version__, prog_name="gradweave")
def cli() -> None:
    """Find, prove and show AllReduce schedules for any network."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits.

    Exit status 0 is success; 1, the answer is no: an invalid schedule, or none in the time given;
    2, bad input, with one line on standard error that names the error and the remedy.
    """
    # An arrow or a ⌈ must not end the run where standard output goes to a file in another encoding.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    status = _status(arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):  # closed before the start, or known to be full
            _silence(stream)
    sys.exit(status)


def _status(arguments: list[str] | None) -> int:
    try:
        # Without standalone mode, click returns the status that a verb exits with.
        with spoken_warnings(), heard_again():
            status = cli.main(args=arguments, prog_name="gradweave", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return BAD_INPUT
    except click.ClickException as error:
        return _say(error.format_message(), BAD_INPUT)
    except GradweaveError as error:
        return _say(str(error), exit_status(error))
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
