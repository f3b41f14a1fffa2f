"""Shows the examples of docstrings as code: an extension of Griffe, named in mkdocs.yml.

Google's style has a heading for examples; ours begin with their prompt, which Markdown takes for a
quotation in a quotation in a quotation, and brackets in what they print for links.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:\1\S.*\n?)*", re.MULTILINE)
"""A line with a prompt and all lines up to the next blank one, as doctest has it."""


def fenced(docstring: str) -> str:
    """The docstring with each example in a fence of its own."""

    def fence(example: re.Match[str]) -> str:
        indent = example[1]
        return f"{indent}```pycon\n{example[0].rstrip()}\n{indent}```\n"

    return EXAMPLE.sub(fence, docstring)


class ExamplesAsCode(griffe.Extension):
    """Fences the examples of every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute as it is read."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
