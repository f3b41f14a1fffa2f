"""Help texts are whole sentences: of every verb and of every option."""

import inspect
import re
from collections.abc import Iterator

import click

from gradweave.cli.main import cli

DEFAULT = re.compile(r"  \[default: [^\]]*\]$")
"""What stands after the sentence where click does not know the default."""


Named = tuple[str, click.Command]


def commands(command: click.Command, name: str = "gradweave") -> Iterator[Named]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            found = command.get_command(context, verb)
            assert found is not None
            yield from commands(found, f"{name} {verb}")


def fault(text: str | None) -> str | None:
    """What is wrong with a help text; none if it is a sentence or several."""
    if not text:
        return "has no help"
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        sentence = DEFAULT.sub("", paragraph)
        if not sentence[0].isupper() or not sentence.endswith("."):
            return f"not a whole sentence: {sentence}"
    return None


def test_faults_are_found():
    assert fault("Write this file.  [default: a; b]") is None
    assert fault("Write this file.\n\n    It is small.") is None
    assert fault(None) and fault("Write this file") and fault("write this file.")
    assert fault("Write this file.\n\n    it is small.")


def test_help_is_in_whole_sentences():
    faults = []
    for name, command in commands(cli):
        texts = {"": command.help}
        texts |= {x.opts[0]: x.help for x in command.params if isinstance(x, click.Option)}
        faults += [f"{name} {x}: {wrong}" for x, text in texts.items() if (wrong := fault(text))]
    assert not faults, "\n".join(faults)
