"""Checks that figures in README.md and docs/ agree with their evidence."""

import re
import sys
from collections import Counter
from pathlib import Path

from benchmarks.claims.entries import faults, kinds
from benchmarks.claims.prose import blocks
from benchmarks.claims.query import ROOT

STRICT = ("README.md", "docs/index.md")
"""Pages that may not state a figure without its evidence."""


def pages() -> list[Path]:
    """Every page that may state figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def check(page: Path) -> tuple[Counter[str], list[str]]:
    """How many notes of each kind a page has, and what is wrong with them."""
    text = page.read_text()
    strict = str(page.relative_to(ROOT)) in STRICT
    found: list[str] = []
    counts: Counter[str] = Counter()
    bare = re.sub(r"^( *)(`{3,}).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    for section in re.split(r"^(?=#+ )", bare, flags=re.MULTILINE):
        for block in blocks(section):
            counts.update(kinds(block))
            wrong = faults(block, section, strict=strict)
            found += [f"{_shown(block.text)}: {x}" for x in wrong]
    return counts, found


def _shown(text: str) -> str:
    """The beginning of a text."""
    return f"“{text if len(text) < 75 else text[:72] + '…'}”"


def main() -> int:
    """Checks every page and prints what is wrong; the number of faults."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for page in pages():
        more, found = check(page)
        counts += more
        wrong += [f"{page.relative_to(ROOT)}: {x}" for x in found]
    for fault in wrong:
        print(fault, file=sys.stderr)
    print(
        f"{len(pages())} pages: {', '.join(f'{n} by {kind}' for kind, n in counts.most_common())}"
    )
    return len(wrong)


if __name__ == "__main__":
    if number := main():
        sys.exit(f"{number} faults")
