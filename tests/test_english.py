"""Prose in README, docs and src stays plain: constructions that read like a translation are rare.

Each pattern is a hint; natural sentences match some of them, so that a rate is allowed. A paragraph
that must be read twice is not found by patterns, and a reader is still needed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_PER_1000 = 2.0
PATTERNS = {
    r"\bbesides?\b": "next to, compared with, in addition to",
    r"\bin place of\b": "instead of",
    r"\bas [\w.'`-]+(?: [\w.'`-]+)? (?:has|have) (?:it|them)\b": "as in X",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\banew\b": "again, from scratch",
    r"\b(?:whoever|whom|whomever)\b": "the rank that",
    r"\bthe least\b(?! squares)": "the minimum, the lower bound",
    r"\b(?:is|are|be|was|were) (?:told|said)\b": "reported, distinguished",
    r"(?:^|[.:;!?] )Of (?!course\b)\w+": "the subject first",
    r"(?:^|: )(?:That|Those|(?:By|With|In|For|From) which) [a-z]": "a noun first",
    r", (?:too|alone|also|mostly|at once|as well|beforehand|alike)[.;:)]": "the adverb inside",
    r"\b\d[\d,.]* (?:\w+ )?a (?:round|second|server|step|link|stage|piece)\b": "per round",
    r"\b[Ww]here (?:no|none|nothing|nobody|they|it|that|there|this|all|both|neither)\b": "if, when",
    r"\b(?:is|are|was|were) to (?!the\b|a\b|an\b)[a-z]+\b": "must, will, should",
    r"\bso (?:many|much|few|long|little) (?!as\b|that\b)\w+": "that many, or the number",
    r"(?:^|[.;] )(?:None|Nobody|Nothing|Neither) (?!of\b)[a-z]+": "say what happens",
    r"\bmostly\b": "usually",
    r"\bverbs?\b": "command",
}
RULES = {re.compile(pattern, re.MULTILINE): better for pattern, better in PATTERNS.items()}


def prose_of_page(text: str) -> Iterator[str]:
    text = re.sub(r"<!--.*?-->|^```.*?^```|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.sub(r"`[^`]*`|\]\([^)]*\)", "x", text).splitlines()


def prose_of_module(text: str) -> Iterator[str]:
    """Lines of strings with at least three words, and comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if len(node.value.split()) >= 3:
                lines = map(str.strip, node.value.splitlines())
                yield from (line for line in lines if not line.startswith((">>>", "...")))
    yield from re.findall(r"(?:^|  )# ?(.*)$", text, re.MULTILINE)


def hits_in(lines: Iterator[str]) -> tuple[int, list[str]]:
    """The number of words, and each match with its line and what to write instead."""
    words, hits = 0, []
    for line in lines:
        line = re.sub(r"`[^`]*`", "x", line)
        words += len(line.split())
        hits += [
            f"{line.strip()!r}: {better}" for rule, better in RULES.items() if rule.search(line)
        ]
    return words, hits


def folders() -> list[Path]:
    source = sorted(path for path in (ROOT / "src/gradweave").iterdir() if path.is_dir())
    docs = sorted(path for path in (ROOT / "docs").iterdir() if list(path.glob("*.md")))
    return [path for path in source if list(path.rglob("*.py"))] + docs


def test_a_translated_sentence_is_found():
    lines = iter(
        ["Of several sizes the largest is ordered for, 5 a round.", "It is plain.", "Dear."]
    )
    words, hits = hits_in(lines)
    assert words == 15 and len(hits) == 2
    assert list(prose_of_module('"""One two three."""\nx = 1  # Four five.\n')) == [
        "One two three.",
        "Four five.",
    ]
    assert list(filter(None, prose_of_page("One.\n<!-- two\nthree -->\n| four |\n"))) == ["One."]


@pytest.mark.parametrize("folder", folders(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_prose_of_a_folder_is_plain(folder: Path):
    words, hits = 0, list[str]()
    for path in sorted([*folder.rglob("*.md"), *folder.rglob("*.py")]):
        read = prose_of_page if path.suffix == ".md" else prose_of_module
        more, found = hits_in(read(path.read_text()))
        words += more
        hits += [f"{path.relative_to(ROOT)}: {hit}" for hit in found]
    allowed = max(2, int(MOST_PER_1000 * words / 1000))
    assert len(hits) <= allowed, "\n".join([f"{len(hits)} in {words} words", *hits])


def test_the_front_page_is_plain():
    _, hits = hits_in(prose_of_page((ROOT / "README.md").read_text()))
    assert len(hits) <= 1, "\n".join(hits)
