"""The entries of `pages/`, and whether each still holds."""

import re
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

from benchmarks.claims.figures import agrees, figures_of, numbers_in, says_about
from benchmarks.claims.query import ROOT, QueryError, evaluate

PAGES = Path(__file__).parent / "pages"
_FIGURE = re.compile(r"(?P<figure>.+?) (?P<sign>[=<>~]) (?P<query>.+)", re.DOTALL)
REASONS = ("test", "set", "published", "unrecorded")


@dataclass(frozen=True)
class Claim:
    """One sentence and what it rests on; the package says what the fields are."""

    text: str
    figures: list[str] = field(default_factory=list)
    test: str | list[str] = ""
    set: str = ""
    published: str = ""
    unrecorded: str = ""

    def kinds(self) -> list[str]:
        """On what it rests, by the names of the fields."""
        return [x.name for x in fields(self)[1:] if getattr(self, x.name)]


def file_of(page: Path) -> Path:
    """Where the entries of a page are: docs/guides/lab.md in docs-guides-lab.toml."""
    return PAGES / ("-".join(page.relative_to(ROOT).with_suffix("").parts) + ".toml")


def read(page: Path) -> list[Claim]:
    """The entries of a page, in the order of their file; none without one.

    Raises:
        QueryError: if the file has something else than entries.
    """
    path = file_of(page)
    if not path.exists():
        return []
    try:
        content = tomllib.loads(path.read_text())
        return [Claim(**entry) for entry in content.pop("claim", [])]
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise QueryError(f"{path.name}: {error}") from error


@cache
def _tests_of(path: str) -> set[str]:
    return set(re.findall(r"^ *(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))


def _fault_of_test(name: str) -> str | None:
    path, _, test = name.partition("::")
    if not (ROOT / path).is_file():
        return f"there is no {path}"
    if test not in _tests_of(path):
        return f"{path} has no {test or 'test named'}"
    return None


def _fault_of_figure(claim: Claim, line: str) -> str | None:
    match = _FIGURE.fullmatch(line)
    if match is None:
        return f"expected “figure = query”, found {line!r}"
    figure, sign, query = match["figure"], match["sign"], match["query"]
    if not _spans(figure, claim.text):
        return f"{figure!r} is not in the sentence"
    if sign == "~" and not says_about(claim.text):
        return f"{figure!r} is compared roughly (~), but the sentence does not say “about”"
    number = evaluate(query)
    if not agrees(figure, sign, number):
        return f"it says {figure}, and {query} is {number:.6g}"
    return None


def _uncovered(claim: Claim) -> list[str]:
    """Figures that the sentence states and no query is for."""
    printed = [match["figure"] for x in claim.figures if (match := _FIGURE.fullmatch(x))]
    covered = [span for x in printed for span in _spans(x, claim.text)]
    return [
        part
        for found in figures_of(claim.text)
        for part in numbers_in(found) or [found.strip()]
        if not any(a < d and c < b for a, b in _spans(part, claim.text) for c, d in covered)
    ]


def _spans(part: str, text: str) -> list[tuple[int, int]]:
    """Where a figure stands in a text, not as a part of a longer number."""
    whole = rf"(?<![\d.])(?<!\d,){re.escape(part)}(?![\d]|[.,]\d)"
    return [match.span() for match in re.finditer(whole, text)]


def faults(claim: Claim, section: str) -> list[str]:
    """What is wrong with an entry, given the text of the section that its sentence stands in."""
    found: list[str | None] = []
    for line in claim.figures:
        try:
            found.append(_fault_of_figure(claim, line))
        except (QueryError, ValueError) as error:
            found.append(str(error))
    tests = [claim.test] if isinstance(claim.test, str) else claim.test
    found += [_fault_of_test(name) for name in tests if name]
    reasons = [kind for kind in claim.kinds() if kind in REASONS]
    if not reasons and (missing := _uncovered(claim)):
        found.append(f"nothing says what {', '.join(missing)} rests on")
    if claim.unrecorded and "not recorded" not in section:
        found.append("its section does not say “not recorded”")
    return [x for x in found if x]


__all__ = ["PAGES", "Claim", "faults", "file_of", "read"]
