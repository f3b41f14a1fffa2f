"""Comments that say where the figures of a block come from, and whether they still agree."""

import re
from functools import cache

from benchmarks.claims.figures import agrees, figures_of, numbers_in, says_about
from benchmarks.claims.prose import Block
from benchmarks.claims.query import ROOT, QueryError, evaluate

_FIGURE = re.compile(r"(?P<figure>.+?) (?P<sign>[=<>~]) (?P<query>.+)", re.DOTALL)
_REASON = re.compile(r"(?P<kind>test|set|published|unrecorded): (?P<text>.+)")


def kinds(block: Block) -> list[str]:
    """What each note of a block is: ``figure`` or the name of a reason."""
    return [match["kind"] if (match := _REASON.match(x)) else "figure" for x in block.notes]


def faults(block: Block, section: str, *, strict: bool) -> list[str]:
    """Which notes of a block do not hold, given the text of its section.

    Args:
        block: a paragraph, item or row.
        section: the text under its heading.
        strict: whether every figure of the block needs a note.
    """
    found: list[str | None] = []
    for note in block.notes:
        if reason := _REASON.match(note):
            found.append(_fault_of_reason(reason["kind"], reason["text"], section))
        else:
            try:
                found.append(_fault_of_figure(block.text, note))
            except (QueryError, ValueError) as error:
                found.append(str(error))
    if strict and set(kinds(block)) <= {"figure"} and (missing := _uncovered(block)):
        found.append(f"no note says where {', '.join(missing)} comes from")
    return [x for x in found if x]


@cache
def _tests_of(path: str) -> set[str]:
    return set(re.findall(r"^ *(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))


def _fault_of_reason(kind: str, text: str, section: str) -> str | None:
    if kind == "unrecorded" and "not recorded" not in section:
        return "its section does not say “not recorded”"
    if kind != "test":
        return None
    path, _, test = text.partition("::")
    if not (ROOT / path).is_file():
        return f"there is no {path}"
    if test not in _tests_of(path):
        return f"{path} has no {test or 'test named'}"
    return None


def _fault_of_figure(text: str, note: str) -> str | None:
    match = _FIGURE.fullmatch(note)
    if match is None:
        return f"expected “figure = query” or “test: …”, found {note!r}"
    figure, sign, query = match["figure"], match["sign"], match["query"]
    if not _spans(figure, text):
        return f"{figure!r} is not in the text"
    if sign == "~" and not says_about(text):
        return f"{figure!r} is compared roughly (~), but the text does not say “about”"
    number = evaluate(query)
    if not agrees(figure, sign, number):
        return f"it says {figure}, and {query} is {number:.6g}"
    return None


def _uncovered(block: Block) -> list[str]:
    """Figures that a block states and no query is for."""
    printed = [match["figure"] for x in block.notes if (match := _FIGURE.fullmatch(x))]
    covered = [span for x in printed for span in _spans(x, block.text)]
    return [
        part
        for found in figures_of(block.text)
        for part in numbers_in(found) or [found.strip()]
        if not any(a < d and c < b for a, b in _spans(part, block.text) for c, d in covered)
    ]


def _spans(part: str, text: str) -> list[tuple[int, int]]:
    """Where a figure stands in a text, not as a part of a longer number."""
    whole = rf"(?<![\d.])(?<!\d,){re.escape(part)}(?![\d]|[.,]\d)"
    return [match.span() for match in re.finditer(whole, text)]
