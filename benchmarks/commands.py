"""Whether a recorded command can measure again, in a fresh clone, without running it.

Importing all experiments takes minutes, so their options are read from their source: each calls
`experiment.run`, or builds one parser by `command_line.parser_of` and adds to it what has literal
names.
"""

import argparse
import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
TYPES = {"int": int, "float": float, "Path": Path}
KEEPS = ("--resume", "--finish", "--redraw", "--only", "--dry")
"""Options by which an experiment measures less than all, or nothing."""
READS = ("recorded", "Unfinished")
"""What an experiment calls to go on with what it measured before."""


class Unfit(Exception):
    """Why a command does not measure again."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unfit(message)


def unfit(command: str) -> str:
    """Why a recorded command does not measure again; empty if it does."""
    try:
        _check(shlex.split(command))
    except Unfit as why:
        return str(why)
    return ""


def _check(words: list[str]) -> None:
    if words[:2] == ["taskset", "-c"]:
        words = words[3:]
    match words:
        case ["python", script, *arguments]:
            path = ROOT / script
            if not path.is_file():
                raise Unfit(f"there is no {script}")
            asked = vars(options_of(path).parse_args(arguments))
            for name, value in asked.items():
                named = isinstance(value, Path) and str(value) in arguments
                if named and not (ROOT / value).exists():
                    raise Unfit(f"{name} is {value}, which a fresh clone does not have")
            if less := [word for word in arguments if word in KEEPS]:
                raise Unfit(f"{less[0]} measures less than all")
        case ["make", target, *_]:
            if not re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
                raise Unfit(f"the Makefile has no target {target}")
        case _:
            raise Unfit(f"{shlex.join(words)!r} runs neither an experiment nor a target of make")


@cache
def options_of(script: Path) -> argparse.ArgumentParser:
    """The parser of an experiment, as its source builds it.

    Raises:
        Unfit: it has none, or goes on with earlier rows without being asked to.
    """
    calls = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.Call)]
    by_name: dict[str, list[ast.Call]] = {}
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        name = call.func.id if isinstance(call.func, ast.Name) else name
        by_name.setdefault(name or "", []).append(call)
    made = by_name.get("parser_of", [])
    run = [call for call in by_name.get("run", []) if _takes_doc(call)]
    if not made and not run and not by_name.get("ArgumentParser"):
        raise Unfit(f"{script.name} does not read its arguments: see experiment.run")
    parser = _Parser(add_help=False)
    keywords = {keyword.arg for call in [*made, *run] for keyword in call.keywords}
    if "picture" in keywords or any(len(call.args) > 1 for call in made):
        parser.add_argument("--redraw", action="store_true")
    if run or "resumes" in keywords:
        parser.add_argument("--resume", action="store_true")
    if run:
        parser.add_argument("--only", nargs="+")
        parser.add_argument("--dry", action="store_true")
    for call in by_name.get("add_argument", []):
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        if len(names) == len(call.args):
            parser.add_argument(*names, **_settings(call))
    optional = any(action.option_strings for action in parser._actions)
    if any(by_name.get(name) for name in READS) and not optional:
        raise Unfit(f"{script.name} keeps what it measured before, without an option to ask for it")
    return parser


def _takes_doc(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Name) and call.args[0].id == "__doc__"


def _settings(call: ast.Call) -> dict[str, object]:
    """Of an option: those that decide what it takes, if they are literal."""
    settings: dict[str, object] = {}
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg == "type" and isinstance(value, ast.Name):
            settings["type"] = TYPES.get(value.id, str)
        elif keyword.arg in ("action", "nargs", "choices", "required"):
            try:
                settings[keyword.arg] = ast.literal_eval(value)
            except ValueError:
                continue  # choices that the program has by name
    return settings
