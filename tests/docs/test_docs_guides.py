"""Guides are short and say how to use a thing; what was measured stands in docs/experiments."""

import re
from pathlib import Path

import pytest

from benchmarks.claims.prose import sentences

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
MOST_WORDS = 900


def words_of(text: str) -> int:
    """Words of prose: of paragraphs and lists, not of code, tables, headings and pictures."""
    prose = [sentence for sentence in sentences(text) if not sentence.startswith("|")]
    return sum(any(map(str.isalnum, word)) for sentence in prose for word in sentence.split())


def test_words_are_those_of_prose():
    text = "# A title\n\nOne, two – three.\n\n| four |\n| --- |\n\n```bash\nfive\n```\n\n- Six.\n"
    assert words_of(text) == 4


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_guide_is_short(page: Path):
    words = words_of(page.read_text())
    assert words <= MOST_WORDS, f"{words} words; what was measured belongs in docs/experiments"


def test_figures_stand_in_experiments():
    rendered = re.compile(r"<!-- \w+: begin -->")
    assert not [page.name for page in GUIDES if rendered.search(page.read_text())]
