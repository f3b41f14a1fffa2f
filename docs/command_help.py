"""Fills the help texts into the page of the command line: a hook of MkDocs, named in mkdocs.yml.

A line ``<!-- help of gradweave solve -->`` becomes the help of that command, as it is today.
"""

import re
from typing import Any

from gradweave.cli.groups import deepest
from gradweave.cli.main import cli

PLACE = re.compile(r"^<!-- help of (.*) -->$", re.MULTILINE)
WIDTH = 100


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces each place by a help text."""
    return PLACE.sub(lambda place: f"```text\n{help_of(place[1])}\n```", markdown)


def help_of(name: str) -> str:
    """The help of a command, such as ``gradweave job plan``.

    Raises:
        ValueError: there is no such command.
    """
    context, rest = deepest(cli, name.split()[1:])
    if rest or context.command_path != name:
        raise ValueError(f"there is no command {name!r}")
    context.terminal_width = WIDTH
    return context.get_help()
