"""Blocks of a page in Markdown (paragraphs, items of lists, rows of hand-written tables).

Code, headings, pictures, drawings and the tables that `benchmarks/render.py` writes between its
markers are left out. Line breaks are spaces; emphasis, links and code stay as they are written. A
comment that begins behind text belongs to the block of that text; other comments are left out.
"""

import re
from dataclasses import dataclass

_LEFT_OUT = re.compile(
    r"<!-- (?P<name>\w+): begin -->.*?<!-- (?P=name): end -->"
    r"|<!--.*?-->"
    r"|<(?P<drawn>figure|svg)\b.*?</(?P=drawn)>"
    r"|^(?P<indent> *)(?P<fence>`{3,})[^\n]*\n.*?^(?P=indent)(?P=fence) *$"
    r"|^#[^\n]*$"
    r"|!\[[^\]]*\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
_RULE = re.compile(r"^\|[-:| ]+\|$")
_END = re.compile(r"(?<=[.?!])[)”\"*]*(?= +[(“\"*`\[]*[A-Z0-9`])")
_SHORT = re.compile(r"\b(?:e\.g|i\.e|cf|vs|resp|al)\.$")
_CODE = re.compile(r"`[^`]*`")


_NOTE = re.compile("\0(?P<index>\\d+)\0")


@dataclass(frozen=True)
class Block:
    """One paragraph, item or row, as one line."""

    text: str
    notes: list[str]
    """The lines of the comments that stand in it."""


def blocks(text: str) -> list[Block]:
    """All blocks of a page, from its top."""
    comments: list[str] = []

    def left_out(match: re.Match[str]) -> str:
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not match[0].startswith("<!--") or not line.strip() or match["name"]:
            return "\n"
        comments.append(match[0])
        return f"\0{len(comments) - 1}\0"

    found: list[list[str]] = [[]]
    for line in _LEFT_OUT.sub(left_out, text).splitlines():
        row = line.lstrip().startswith("|")
        if not line.strip() or row or _ITEM.match(line) or line.lstrip().startswith("!!!"):
            found.append([])
        if not _RULE.match(line.strip()):
            found[-1].append(_ITEM.sub("", line).strip())
        if row:
            found.append([])
    return [_block(" ".join(block), comments) for block in found if any(block)]


def _block(text: str, comments: list[str]) -> Block:
    notes = [
        line.strip()
        for note in _NOTE.finditer(text)
        for line in comments[int(note["index"])][4:-3].splitlines()
        if line.strip()
    ]
    return Block(re.sub(r" *" + _NOTE.pattern, "", text).strip(), notes)


def _split(block: str) -> list[str]:
    """The sentences of one block; a row of a table is one."""
    if block.startswith("|"):
        return [block]
    found, begin = [], 0
    for end in _END.finditer(_CODE.sub(lambda match: "`" * len(match[0]), block)):
        if not _SHORT.search(block[: end.start()]):
            found.append(block[begin : end.end()].strip())
            begin = end.end()
    return [*found, block[begin:].strip()]


def sentences(text: str) -> list[str]:
    """All sentences of a page, from its top."""
    return [sentence for block in blocks(text) for sentence in _split(block.text) if sentence]
