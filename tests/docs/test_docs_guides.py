"""Guides are short and explain how to use a thing; the documentation as a whole keeps its size."""

import re
from pathlib import Path

import pytest

from benchmarks.claims.prose import sentences

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
MOST_WORDS = 900
MOST_PAGES = 45
"""Pages in the menu."""
MOST_WORDS_OF_ALL = {"concepts": 9_450, "experiments": 14_700, "design": 4_000, "": 45_000}
"""By folder of docs/, and of all."""


def words_of(text: str) -> int:
    """Words of prose: of paragraphs and lists, not of code, tables, headings and pictures."""
    prose = [sentence for sentence in sentences(text) if not sentence.startswith("|")]
    bare = (re.sub("<[^>]*>", "", sentence) for sentence in prose)
    return sum(any(map(str.isalnum, word)) for sentence in bare for word in sentence.split())


def test_words_are_those_of_prose():
    text = "# A title\n\nOne, two – three.\n\n| four |\n| --- |\n\n```bash\nfive\n```\n\n- Six.\n"
    assert words_of(text) == 4
    assert words_of('<details markdown="1">\n<summary>Seven</summary>\n') == 1


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_guide_is_short(page: Path):
    words = words_of(page.read_text())
    assert words <= MOST_WORDS, f"{words} words; what was measured belongs in docs/experiments"


def test_figures_stand_in_experiments():
    rendered = re.compile(r"<!-- \w+: begin -->")
    assert not [page.name for page in GUIDES if rendered.search(page.read_text())]


@pytest.mark.parametrize("folder", MOST_WORDS_OF_ALL)
def test_the_documentation_keeps_its_size(folder: str):
    pages = sorted((ROOT / "docs" / folder).rglob("*.md"))
    assert pages
    words = sum(words_of(page.read_text()) for page in pages)
    assert words <= MOST_WORDS_OF_ALL[folder], f"{words} words of prose in docs/{folder}"


def test_the_menu_keeps_its_size():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\nplugins:\n")[0]
    pages = re.findall(r": \S+\.md$", menu, re.MULTILINE)
    assert 0 < len(pages) <= MOST_PAGES, f"{len(pages)} pages in the menu"
