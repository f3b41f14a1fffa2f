"""Runs the blocks of one page, in order, in the current directory: python run_page.py PAGE.

Programs share one interpreter, and with commands the directory. So do commands of Gradweave's that
start no processes and use nothing of the shell's: starting each by itself takes longer than what it
does, and tests/cli/test_cli_process.py does so. Says each block's place and how
long it took; ends with 1 and what went wrong at the first that fails.
"""

import argparse
import contextlib
import doctest
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.docs.blocks import COMMANDS, PROGRAMS, Block, blocks_of

PATIENCE_S = 600
"""How long commands may take on a busy machine that are not as large as the page has them."""
HERE = ("solve", "compare", "verify", "show", "place", "export")
"""Verbs that start no processes."""
SHELL = frozenset("|&;<>$`*?!~{}")
"""Characters that mean something to bash."""
DOCTEST = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NUMBER = r"\d[\d.,]*(?: ?(?:[nµm]?s|[kMGT]?B(?:/s)?)\b)?"
"""A figure with its unit, if that depends on its size."""


class Failed(Exception):
    """A block that did not do what the page says."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--all", action="store_true", help="run what is slow, too")
    parser.add_argument(
        "--as-printed", action="store_true", help="run all, with nothing made smaller"
    )
    parser.add_argument("--without-root", action="store_true", help="leave out what needs root")
    arguments = parser.parse_args()
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(arguments.page):
        if arguments.as_printed:
            block.marks.pop("run with", None)
        patience_s = None if arguments.as_printed else PATIENCE_S
        started = time.monotonic()
        try:
            if "not run" in block.marks:
                done = f"not run: {block.marks['not run']}"
            elif "as root" in block.marks and arguments.without_root:
                done = "left out: needs root"
            elif "slow" in block.marks and not (arguments.all or arguments.as_printed):
                check(block)
                done = f"checked, not run: {block.marks['slow']}"
            else:
                run(block, names, patience_s)
                done = f"{time.monotonic() - started:.1f} s"
        except (Exception, SystemExit):
            sys.exit(f"{block.place}: failed\n{traceback.format_exc()}")
        print(f"{block.place}: {done}", flush=True)


def run(block: Block, names: dict[str, Any], patience_s: float | None) -> None:
    if block.title:
        Path(block.title).write_text(block.code)
    elif block.language in PROGRAMS and ">>>" in block.code:
        run_prompts(block, names)
    elif block.language in PROGRAMS:
        program = with_values(block.code, block.marks.get("run with", ""))
        # The lines before it make tracebacks name the page's lines.
        exec(compile("\n" * block.line + program, str(block.page), "exec"), names)
    elif block.language in COMMANDS:
        run_commands(block, patience_s)
    elif block.language == "json":
        json.loads(block.code)


def check(block: Block) -> None:
    """Refuses a program that does not compile, and commands with options that do not exist."""
    if block.language in PROGRAMS:
        compile(block.code, str(block.page), "exec")
        return
    from gradweave.cli.main import cli

    lines = block.code.replace("\\\n", " ").splitlines()
    for words in (shlex.split(line, comments=True) for line in lines):
        if "gradweave" in words:
            name, *arguments = words[words.index("gradweave") + 1 :]
            verb = cli.get_command(click.Context(cli), name)
            if verb is None:
                raise Failed(f"gradweave {name}: there is no such verb")
            verb.make_context(name, arguments)


def run_prompts(block: Block, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(
        block.code, names, block.place, str(block.page), block.line
    )
    test.globs = names
    said: list[str] = []
    doctest.DocTestRunner(optionflags=DOCTEST, verbose=False).run(
        test, out=said.append, clear_globs=False
    )
    if said:
        raise Failed("".join(said))


def run_commands(block: Block, patience_s: float | None) -> None:
    options = block.marks.get("run with", "")
    for option in shlex.split(options):
        old, replaced, _ = option.partition("->")
        if replaced and old not in block.code:
            raise Failed(f"run with {option}: there is no {old} in the block")
    if block.language == "bash":
        output_of(with_options(block.code, options), patience_s)
        return
    for command, expected in dialogue(block.code):
        output = output_of(with_options(command, options), patience_s)
        if expected.strip() and not re.fullmatch(pattern(expected), output.strip(), re.DOTALL):
            raise Failed(f"$ {command}\nprints\n{output}\nwhere the page has\n{expected}")


def with_values(program: str, values: str) -> str:
    """The program with other values of some keywords, which are given as NAME=VALUE."""
    for name, _, value in (each.partition("=") for each in values.split()):
        program, times = re.subn(rf"\b{name}=[^,)]+", f"{name}={value}", program)
        if not times:
            raise Failed(f"run with {name}={value}: there is no {name}= in the block")
    return program


def with_options(script: str, options: str) -> str:
    """The script with options added to each line that has a command of Gradweave's.

    OLD->NEW among them puts something else, such as a smaller network, in place of OLD.
    """
    added = []
    for option in shlex.split(options):
        old, replaced, new = option.partition("->")
        if not replaced:
            added.append(option)
        else:
            script = script.replace(old, new)
    if not added:
        return script
    return re.sub(
        r"^(.*\bgradweave .*?)(\s+#.*)?$", rf"\1 {shlex.join(added)}\2", script, flags=re.MULTILINE
    )


def dialogue(text: str) -> list[tuple[str, str]]:
    """Each command after a prompt, and what the page shows that it prints."""
    first, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    if first.strip() or not parts:
        raise Failed(f"expected a command after '$ ', got {text!r}")
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def pattern(expected: str) -> str:
    """Matches what has the same words: any figures, and anything in place of an ellipsis."""
    tokens = re.split(rf"({NUMBER}|…|\.\.\.|\s+)", expected.strip())
    parts = []
    for token in tokens:
        if token in ("…", "..."):
            parts.append(".*")
        elif token.isspace():
            parts.append(r"\s+")
        else:
            parts.append(NUMBER if re.fullmatch(NUMBER, token) else re.escape(token))
    return "".join(parts)


def output_of(script: str, patience_s: float | None) -> str:
    """What a script prints on standard output; it ends at its first command that fails."""
    ours = own_commands(script)
    return "".join(map(answer_of, ours)) if ours else output_of_bash(script, patience_s)


def own_commands(script: str) -> list[list[str]]:
    """The arguments of each command, if all are ones that can run in this process."""
    lines = script.replace("\\\n", " ").splitlines()
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    can = all(
        words[0] == "gradweave" and words[1] in HERE and SHELL.isdisjoint("".join(words))
        for words in commands
    )
    return [words[1:] for words in commands] if can else []


def answer_of(arguments: list[str]) -> str:
    from gradweave.cli.main import main as gradweave

    output, errors, status = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            gradweave(arguments)
        except SystemExit as ended:
            status = ended.code
    if status != 0:
        told = f"{output.getvalue()[-4000:]}{errors.getvalue()[-4000:]}"
        raise Failed(f"gradweave {shlex.join(arguments)}\nended with {status}\n{told}")
    return output.getvalue()


def output_of_bash(script: str, patience_s: float | None) -> str:
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=patience_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode:
        raise Failed(f"{script}\nended with {process.returncode}\n{output[-4000:]}{errors[-4000:]}")
    return output


if __name__ == "__main__":
    main()
