"""Checks what quantitative sentences rest on, or lists those of a page that have no entry."""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

from benchmarks.claims.entries import PAGES, Claim, faults, file_of, read
from benchmarks.claims.figures import figures_of
from benchmarks.claims.prose import sentences
from benchmarks.claims.query import ROOT, QueryError

NOT_YET = PAGES / "not-yet.txt"
"""Pages whose sentences have no entries yet, one a line; it is meant to become empty."""


def pages() -> list[Path]:
    """Every page that makes claims."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sections(text: str) -> dict[str, str]:
    """Of each sentence, the text of its section: that under one heading."""
    bare = re.sub(r"^( *)(`{3,}).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^(?=#+ )", bare, flags=re.MULTILINE)
    return {sentence: part for part in parts for sentence in sentences(part)}


def check(page: Path, claims: list[Claim]) -> list[str]:
    """What is wrong with a page: sentences without an entry, and entries that do not hold."""
    text = page.read_text()
    section, found = sections(text), []
    listed = {claim.text for claim in claims}
    for sentence in sentences(text):
        if sentence not in listed and (stated := figures_of(sentence)):
            found.append(f"{shown(sentence)}: no entry says what it rests on ({stated[0].strip()})")
    for claim in claims:
        if claim.text not in section:
            found.append(f"{shown(claim.text)}: listed, and not in the page any more")
        else:
            found += [f"{shown(claim.text)}: {x}" for x in faults(claim, section[claim.text])]
    twice = [text for text, times in Counter(claim.text for claim in claims).items() if times > 1]
    return found + [f"{shown(text)}: listed twice" for text in twice]


def shown(sentence: str) -> str:
    """The beginning of a sentence."""
    return f"“{sentence if len(sentence) < 75 else sentence[:72] + '…'}”"


def listed(page: Path) -> str:
    """Entries to fill in, for the sentences of a page that have none."""
    have = {claim.text for claim in read(page)}
    lines = []
    for sentence in sentences(page.read_text()):
        if sentence not in have and (stated := figures_of(sentence)):
            quoted = sentence.replace("\\", "\\\\").replace('"', '\\"')
            figures = ", ".join(f'"{x.strip()} = "' for x in stated)
            lines.append(f'[[claim]]\ntext = "{quoted}"\nfigures = [{figures}]\n')
    return "\n".join(lines)


def check_all() -> int:
    """Checks every page that is not left for later; the number of faults."""
    later = set(NOT_YET.read_text().split()) if NOT_YET.exists() else set()
    known, kinds, wrong = pages(), Counter(), []
    wrong += [f"{name}: no such page, in {NOT_YET.name}" for name in sorted(later)]
    for page in known:
        name = str(page.relative_to(ROOT))
        if name in later:
            wrong.remove(f"{name}: no such page, in {NOT_YET.name}")
            continue
        try:
            claims = read(page)
        except QueryError as error:
            wrong.append(str(error))
            continue
        kinds.update(kind for claim in claims for kind in claim.kinds())
        wrong += [f"{name}: {fault}" for fault in check(page, claims)]
    files = {file_of(page) for page in known}
    wrong += [f"{x.name}: of no page" for x in sorted(PAGES.glob("*.toml")) if x not in files]
    for fault in wrong:
        print(fault, file=sys.stderr)
    by_kind = ", ".join(f"{name} {number}" for name, number in kinds.most_common())
    print(f"{len(known) - len(later)} pages checked; sentences by what they rest on: {by_kind}")
    if later:
        print(f"{len(later)} pages not covered yet: {', '.join(sorted(later))}")
    return len(wrong)


def main() -> None:
    """Checks, or lists."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("verb", nargs="?", choices=["check", "list"], default="check")
    parser.add_argument("page", nargs="?", type=Path, help="of list: a page, such as README.md")
    options = parser.parse_args()
    if options.verb == "list":
        if options.page is None or not options.page.is_file():
            parser.error("list needs a page, such as docs/benchmarks.md")
        print(listed(options.page.resolve()))
    elif number := check_all():
        sys.exit(f"{number} faults; python -m benchmarks.claims list PAGE has entries to fill in")


if __name__ == "__main__":
    main()
