"""The fenced blocks of a page of documentation, and what the comments above them say of them.

A block is run, in the order of the page, unless a comment right above it says otherwise; neither
GitHub nor the site shows it:

    <!-- not run: starts on two machines -->      nothing is done; the reason is for readers of this
    <!-- slow: starts eighteen processes -->      run with DOCS=all, else options are checked
    <!-- run with: --steps 4096 -->               added to each `gradweave` command, but with
                                                  DOCS=printed
    <!-- run with: n=9->n=4 -->                   something else in place of what the block has
    <!-- run with: steps=4_096 -->                other values of a program's keywords
    <!-- as root: makes network namespaces -->    left out where that is not possible

A title, as in ```json title="cluster.json", is the name of a file that later blocks may read.
"""

import re
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("python", "py", "pycon")
COMMANDS = ("bash", "console")
MARKS = ("not run", "slow", "run with", "as root")

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- *([a-z ]+): *((?:(?!-->).)+?) *-->\s*\Z", re.DOTALL)
_TITLE = re.compile(r'title="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Of the page, from 1: that of the fence."""
    language: str
    """As the fence says; empty if it says nothing."""
    title: str | None
    code: str
    marks: dict[str, str]
    """What the comments above say, by their first words."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def fault(self) -> str | None:
        """Why it is neither run nor has a reason not to be; none if all is well."""
        if unknown := set(self.marks) - set(MARKS):
            return f"mark {', '.join(unknown)}: expected one of {', '.join(MARKS)}"
        if not self.language:
            return "expected a language after the fence, such as bash, python or text"
        if "not run" in self.marks:
            return None
        if self.language in (*PROGRAMS, *COMMANDS, "json") or self.title:
            return None
        return (
            f"a block of {self.language} is not run; give it the title of a file that a later "
            "block reads, or a comment above: <!-- not run: why -->"
        )


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, from its top."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        marks, before = {}, text[: match.start()]
        while mark := _MARK.search(before):
            if mark[1] not in MARKS and mark[1].split()[-1] in ("begin", "end"):
                break  # of figures that benchmarks/render.py writes
            marks[mark[1]] = mark[2]
            before = before[: mark.start()]
        language, _, options = match["info"].strip().partition(" ")
        title = _TITLE.search(options)
        indent = len(match["indent"])
        found.append(
            Block(
                page,
                text.count("\n", 0, match.start()) + 1,
                language,
                title[1] if title else None,
                "".join(line[indent:] or "\n" for line in match["code"].splitlines(True)),
                marks,
            )
        )
    return found
