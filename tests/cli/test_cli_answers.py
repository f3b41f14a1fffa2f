"""What all commands share: one place prints answers, and illegal combinations are data."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes, needs
from gradweave.cli.console import Table
from gradweave.cli.groups import command
from gradweave.cli.options import SECONDS, option, written_option
from gradweave.errors import ANSWER_IS_NO, OptionError


@command("tell")
@click.argument("words", nargs=-1)
@option("--size", "A size.", int, default=3)
@option("--kind", "A kind.", click.Choice(["red", "blue"]), default="red")
@option("--every", "A time.", SECONDS)
@option("--fast", "A flag.", bool)
@option("--part", "A part. Repeatable.", multiple=True)
@written_option("--output", "A file.", (".json",))
@needs("--fast", "--every", more=", such as so")
@needs("--kind blue", "--size")
@excludes("--part", "--fast", "--kind blue")
@excludes("--fast", "--json")
def tell(words: tuple[str, ...], output: Path | None, **_: object) -> Answer:
    """Tell."""
    table = Table(["word", "letters"], [[word, str(len(word))] for word in words], ["a note"])
    status = ANSWER_IS_NO if "no" in words else 0
    held = {"words": words, "sizes": np.arange(2), "where": Path("a")}
    return Answer(held, ["said:", table], ["aside"], status).written_to(output)


def test_an_answer_is_text_with_asides_or_one_object(gradweave, here):
    answer = gradweave("no", "yes", "--output", "a.json", command=tell)
    assert (answer.status, answer.stderr) == (1, "aside\n")
    lines = [line.rstrip() for line in answer.stdout.splitlines()]
    assert lines == [
        *("said:", "word  letters", "no          2", "yes         3", "a note"),
        "written to a.json",
    ]
    answer = gradweave("yes", "--json", command=tell)
    assert (answer.status, answer.stderr) == (0, "")
    assert answer.json == {"words": ["yes"], "sizes": [0, 1], "where": "a", "output": None}


def test_only_what_is_printed_is_made(gradweave):
    made = []

    def text() -> Iterator[str]:
        made.append("text")
        yield "a line"

    def held() -> dict[str, int]:
        made.append("object")
        return {"a": 1}

    @command("two")
    def two() -> Iterator[Answer]:
        yield Answer(held, text())
        made.append("between")
        yield Answer(held, text())
        raise OptionError("after two answers")

    answer = gradweave(command=two)
    assert (answer.stdout, answer.status) == ("a line\na line\n", 2)
    assert "after two answers" in answer.stderr and made == ["text", "between", "text"]
    del made[:]
    answer = gradweave("--json", command=two)
    assert [json.loads(line) for line in answer.stdout.splitlines()] == [{"a": 1}] * 2
    assert made == ["object", "between", "object"]


ALLOWED = ["--fast --every 2", "--kind blue --size 4", "--part a --kind red"]
REFUSED = {
    "--every 2": "--every: expected --fast with it, such as so",
    "--size 3": "--size: expected --kind blue with it",
    "--size 4 --kind red": "--size: expected --kind blue with it",
    "--part a --fast": "--fast: expected no --part with it",
    "--part a --kind blue": "--kind blue: expected no --part with it",
    "--fast --json": "--json: expected no --fast with it",
    "--every 0": "Invalid value for '--every': expected a float above 0, got 0.0",
    "--output a.txt": "a.txt: expected a name ending in .json",
    "--output no/a.json": "no/a.json: there is no directory no; make it first",
}


@pytest.mark.parametrize("line", ALLOWED)
def test_a_combination_that_no_rule_names_is_taken(gradweave, line):
    assert gradweave(*line.split(), command=tell).status == 0


@pytest.mark.parametrize("line", REFUSED)
def test_a_combination_is_refused_by_the_rule_next_to_the_options(refused, line):
    assert refused(*line.split(), command=tell) == f"gradweave: {REFUSED[line]}"


def test_a_rule_names_options_of_its_command():
    """A misspelt one would never be refused; all rules of all commands are looked at."""
    from gradweave.cli.combinations import rules_of
    from tests.cli.test_cli_help import LEAVES

    found = 0
    for name, leaf in LEAVES:
        options = {spelling for each in leaf.params for spelling in each.opts}
        for rule in rules_of(leaf.callback):
            found += 1
            for text in (rule.other, *rule.options):
                assert text.split()[0] in options, (name, text)
    assert found > 15
