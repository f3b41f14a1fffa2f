"""Help: whole sentences, short summaries, examples that parse, and the nearest of wrong names."""

import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gradweave.cli.groups import Command
from gradweave.cli.main import COMMANDS, cli

DEFAULT = re.compile(r"  \[default: [^\]]*\]$")
"""What stands after the sentence where click does not know the default."""


Named = tuple[str, click.Command]


def commands(command: click.Command, name: str = "gradweave") -> Iterator[Named]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for member in command.list_commands(context):
            found = command.get_command(context, member)
            assert found is not None
            yield from commands(found, f"{name} {member}")


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


def test_summaries_fit_a_terminal():
    with click.Context(cli) as context:
        summaries = {x: cli.get_command(context, x).get_short_help_str(200) for x in COMMANDS}
    assert {x: text for x, text in summaries.items() if len(text) > 60} == {}
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    assert "..." not in listed.partition("COMMAND [ARGS]...")[2]
    for summary in summaries.values():
        assert summary in listed


SOURCES = Path(__file__).parents[2] / "src"
LEAVES = [(name, one) for name, one in commands(cli) if not isinstance(one, click.Group)]


def test_there_are_fifteen_commands_and_five_groups():
    with click.Context(cli) as context:
        found = {name: cli.get_command(context, name) for name in COMMANDS}
    groups = [name for name, one in found.items() if isinstance(one, click.Group)]
    assert sorted(groups) == ["job", "library", "machine", "plugins", "topology"]
    assert len(COMMANDS) - len(groups) == 15


@pytest.mark.parametrize(
    ("name", "command"),
    LEAVES,
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_examples_parse_and_are_shown(name, command):
    assert isinstance(command, Command) and command.examples, name
    context = click.Context(command, info_name=name, **cli.context_settings)
    for example in command.examples:
        command.make_context(command.name, shlex.split(example), **cli.context_settings)
        assert f"  {name} {example}\n" in command.get_help(context) + "\n"


def test_options_mean_the_same_everywhere():
    forbidden = {"--gradient-bytes", "--schedulers", "--strategy", "--against", "--beside"}
    forbidden |= {"--order", "--bytes", "-b", "-e", "-f"}
    for name, command in LEAVES:
        options = {x: one for one in command.params for x in one.opts}
        assert not options.keys() & forbidden, name
        assert "--scheduler" not in options or options["--scheduler"].multiple, name
        for option in options.values():
            limited = re.search(r"--time-limit", getattr(option, "help", "") or "")
            assert not limited or "--time-limit" in options, (name, option.name)


def test_help_is_a_command(gradweave):
    assert gradweave("help").stdout == gradweave("--help").stdout
    assert (
        gradweave("help", "topology", "show").stdout == gradweave("topology", "show", "-h").stdout
    )
    assert gradweave("help", "solve").stdout.startswith("Usage: gradweave solve ")
    assert "no commands, got 'x'" in gradweave("help", "solve", "x").stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["slove", "ring:4"], "did you mean solve?"),
        (["run", "plan.json"], "did you mean bench?"),
        (["help", "measure"], "did you mean topology measure?"),
        (["topology", "lst"], "did you mean list?"),
        (["solve", "ring:4", "--scheduler", "tree"], "did you mean double_tree?"),
        (["solve", "ring:4", "--scheduler", "double tree"], "did you mean double_tree?"),
        (["solve", "bcube:4,1"], "write it as in bcube:n="),
        (["solve", "leaf spine:2"], "did you mean leaf_spine?"),
        (["show", "ring:4", "--objective", "fair"], "'fair' is not one of 'rounds', 'seconds'"),
        (["solve", "ring:4", "--objective", "fair"], "gradweave: --objective: expected"),
        (["solve", "ring:4", "--runtime", "glo"], "gradweave: --runtime: expected"),
        (["solve", "ring:4", "--ready-at", "0"], "gradweave: --ready-at '0': expected"),
        (["place", "ring:4", "--model", "gpt", "--lab"], "--lab: expected --train with it"),
        (["place", "ring:4", "--model", "gpt"], "gradweave: --model: expected transformer"),
    ],
)
def test_a_wrong_name_is_answered_by_the_nearest(refused, arguments, meant):
    assert meant in refused(*arguments)


@pytest.mark.parametrize("file", ["gradweave_check.py", "gradweave_refute.py"])
def test_the_checkers_have_help(file):
    done = subprocess.run(
        [sys.executable, SOURCES / file, "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and f"python {file} FILE.json" in done.stdout


def test_the_page_has_the_help_of_each_command_once():
    root = SOURCES.parent
    spec = importlib.util.spec_from_file_location("hook", root / "docs" / "command_help.py")
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    page = (root / "docs" / "reference" / "command-line.md").read_text()
    named = hook.PLACE.findall(page)
    assert sorted(named) == sorted(["gradweave", *(name for name, _ in LEAVES)])
    shown = hook.on_page_markdown("<!-- help of gradweave job plan -->")
    assert shown.startswith("```text\nUsage: gradweave job plan [OPTIONS] [NETWORK]\n")
    assert "--size" in shown and shown.endswith("\n```")
    with pytest.raises(ValueError, match="no command"):
        hook.help_of("gradweave job plans")
