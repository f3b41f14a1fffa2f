"""Sentences of a page in Markdown: of paragraphs, items of lists and rows of hand-written tables.

Left out are code, comments, headings, pictures, drawings and what `benchmarks/render.py` writes
between its markers. Line breaks are spaces; emphasis, links and code stay as they are written.
"""

import re

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


def _blocks(text: str) -> list[str]:
    """Paragraphs, items and rows, each as one line."""
    found: list[list[str]] = [[]]
    for line in _LEFT_OUT.sub("\n", text).splitlines():
        row = line.lstrip().startswith("|")
        if not line.strip() or row or _ITEM.match(line) or line.lstrip().startswith("!!!"):
            found.append([])
        if not _RULE.match(line.strip()):
            found[-1].append(_ITEM.sub("", line).strip())
        if row:
            found.append([])
    return [" ".join(block) for block in found if any(block)]


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
    return [sentence for block in _blocks(text) for sentence in _split(block) if sentence]
