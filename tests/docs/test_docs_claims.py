"""The check of what quantitative sentences rest on: `benchmarks/claims`."""

import json
from pathlib import Path

import pytest

from benchmarks.claims import __main__ as command
from benchmarks.claims import constants, entries, query
from benchmarks.claims.entries import Claim, faults
from benchmarks.claims.figures import agrees, figures_of
from benchmarks.claims.prose import sentences

ROWS = [
    {"kind": "ring", "size": 8, "gap": 0.01, "seconds": {"cpu": 2.0}},
    {"kind": "ring", "size": 16, "gap": 0.04, "seconds": {"cpu": 6.0}},
    {"kind": "two stars", "size": 16, "gap": 0.1, "seconds": {"cpu": None}},
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one result, one test and one module."""
    for folder in ("benchmarks/results", "benchmarks/claims/pages", "docs", "tests", "src"):
        (tmp_path / folder).mkdir(parents=True)
    result = {"rows": ROWS, "mean gap": {"two stars": 0.1}}
    (tmp_path / "benchmarks/results/gaps.json").write_text(json.dumps(result))
    (tmp_path / "tests/test_it.py").write_text("def test_it():\n    assert True\n")
    (tmp_path / "src/it.py").write_text(SOURCE)
    (tmp_path / "README.md").write_text("# It\n\nNothing.\n")
    pages = tmp_path / "benchmarks/claims/pages"
    for module in (query, constants, entries, command):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(query, "RESULTS", tmp_path / "benchmarks/results")
    for module in (entries, command):
        monkeypatch.setattr(module, "PAGES", pages)
    monkeypatch.setattr(command, "NOT_YET", pages / "not-yet.txt")
    caches = (query._result, constants.constant, entries._tests_of)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("100 * mean(gaps:rows.gap)", 5.0),
        ("count(gaps:rows[kind=ring, size>8])", 1),
        ("count(gaps:rows[kind!=ring])", 1),
        ("count(gaps:rows[kind~star])", 1),
        ("count(gaps:rows[gap>1])", 0),
        ("max(gaps:rows[kind=ring].gap / gaps:rows[kind=ring].seconds.cpu)", 0.04 / 6),
        ("sum(gaps:rows.gap > 0.02)", 2),
        ("gaps:rows[-1].gap - gaps:rows[0].gap", 0.09),
        ("gaps:'mean gap'.'two stars' * (2 - 1.5)", 0.05),
        ("min(gaps:'mean gap'.*)", 0.1),
        ("mean(gaps:rows.seconds.cpu)", 4.0),
        ("distinct(gaps:rows.size)", 2),
        ("-log10(.001) / 3", 1.0),
        ("median(gaps:rows.size)", 16),
        ("code(src/it.py, BLOCKS)", 128),
        ("code(src/it.py, LIMITS, nodes, at) * code(src/it.py, LIMITS, links, 1)", 45),
        ("code(src/it.py, ask.often) + code(src/it.py, ask.timeout_s)", 23),
        ("code(src/it.py, SLOT_S) + code(src/it.py, Box.most)", 1024.2),
    ],
)
def test_queries(root: Path, text: str, number: float):
    assert query.evaluate(text) == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean(nothing:rows.gap)", "no benchmarks/results/nothing.json"),
        ("mean(gaps:rows.gaps)", "no 'gaps' there"),
        ("count(gaps:rows[kinds=ring])", "no row has 'kinds'"),
        ("mean(gaps:rows[size>99].gap)", "found nothing|data point"),
        ("gaps:rows.gap", "3 values where one number"),
        ("gaps:rows[7].gap", "no item 7"),
        ("gaps:rows[0].kind", "one number is expected"),
        ("average(gaps:rows.gap)", "unknown function average"),
        ("mean(gaps:rows.gap", "expected '\\)'"),
        ("1 / 0", "zero"),
        ("mean(gaps:rows.gap) mean", "expected the end"),
        ("code(src/it.py, SLOT)", "does not define SLOT"),
        ("code(src/it.py, LIMITS, pieces)", "LIMITS.pieces of src/it.py is not a number"),
        ("code(src/other.py, SLOT)", "there is no src/other.py"),
        ("__import__('os')", "unknown function|expected"),
    ],
)
def test_queries_that_cannot_be_answered(root: Path, text: str, message: str):
    with pytest.raises(query.QueryError, match=message):
        query.evaluate(text)


@pytest.mark.parametrize(
    ("sentence", "figures"),
    [
        ("The mean is 3.7%, at most 58.5 %.", ["3.7%", "58.5 %"]),
        (
            "It takes 35 s, or 2 to 3 minutes, twice as long.",
            ["35 s", "2 to 3 minutes", "twice as"],
        ),
        ("195 of 200 are met, 65 of the 72 kept.", ["195 of 200", "65 of the 72"]),
        ("Three times sooner, a third less.", ["Three times", "a third"]),
        ("A message takes 1,024 bytes and .85 of it.", ["1,024 bytes", ".85"]),
        ("195 are proved optimal.", ["195 are"]),
        ("At 20,344 a second.", ["20,344 a second"]),
        ("BCube(4,1) has sixteen servers; see section 4.2, Table 2, of 2019.", []),
        ("`gradweave run --timeout 300 s` with Python 3.11 on 8 servers.", []),
        ("See [10 % more](page.md#20-%-less).", ["10 %"]),
    ],
)
def test_what_is_a_figure(sentence: str, figures: list[str]):
    assert [x.strip() for x in figures_of(sentence)] == figures


@pytest.mark.parametrize(
    ("figure", "sign", "number", "right"),
    [
        ("3.7%", "=", 3.749, True),
        ("3.7%", "=", 3.751, False),
        ("1,024", "=", 1024.4, True),
        ("1,024", "=", 1025, False),
        (".85", "=", 0.8449, False),
        ("1e-5", "=", 1.4e-5, True),
        ("1e-5", "=", 1.6e-5, False),
        ("twice", "=", 2.2, True),
        ("twice", "=", 2.3, False),
        ("a third", "=", 0.3, True),
        ("a third", "=", 0.25, False),
        ("three quarters", "=", 0.76, True),
        ("a second", ">", 0.9, True),
        ("a second", ">", 1.1, False),
        ("10⁻⁸", ">", 9e-9, True),
        ("10⁻⁸", ">", 2e-8, False),
        ("10⁸", "<", 3e8, True),
        ("400", "~", 430, True),
        ("400", "~", 450, False),
        ("3 s", ">", 2.9, True),
        ("3 s", ">", 3.1, False),
        ("2 times", "<", 2.1, True),
        ("2 times", "<", 1.9, False),
    ],
)
def test_a_figure_is_compared_as_printed(figure: str, sign: str, number: float, right: bool):
    assert agrees(figure, sign, number) is right


def test_sentences_are_those_of_prose_and_hand_written_tables():
    text = """# 5 % heading

First, over
two lines. Second: `a. B`, e.g. This one?

<!-- table: begin -->
| 10 % | generated |
<!-- table: end -->
- an item of 3 s
  that goes on

| name | value |
| --- | ---: |
| it | 4 s |

```text
7 s
```
![alt 8 s](x.png)
<!-- 9 s -->
"""
    assert sentences(text) == [
        "First, over two lines.",
        "Second: `a. B`, e.g. This one?",
        "an item of 3 s that goes on",
        "| name | value |",
        "| it | 4 s |",
    ]


SOURCE = """
SLOT_S, BLOCKS = 0.2, 1 << 7

LIMITS = {"nodes": Most(at=5), "links": (7, 9)}

class Box:
    most: int = 1 << 10

def ask(whom, often=3, *, timeout_s: float = 20.0): ...
"""
TEXT = "The mean is 5.0%, at most about 11 %, in 2 to 6 s."
QUERIES = {
    "5.0%": "5.0% = 100 * mean(gaps:rows.gap)",
    "11 %": "11 % ~ 100 * max(gaps:rows.gap)",
    "2": "2 = min(gaps:rows.seconds.cpu)",
    "6 s": "6 s = max(gaps:rows.seconds.cpu)",
}


def test_an_entry_whose_figures_agree_holds(root: Path):
    assert faults(Claim(TEXT, figures=list(QUERIES.values())), TEXT) == []


@pytest.mark.parametrize("left_out", QUERIES)
def test_every_figure_of_a_sentence_needs_something(root: Path, left_out: str):
    others = [x for figure, x in QUERIES.items() if figure != left_out]
    [fault] = faults(Claim(TEXT, figures=others), TEXT)
    assert fault == f"nothing says what {left_out.split()[0].rstrip('%')} rests on"
    assert faults(Claim(TEXT, figures=others, published="A paper, Table 1"), TEXT) == []


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Claim("Of 6.0%.", ["6.0% = 100 * mean(gaps:rows.gap)"]), "it says 6.0%, and"),
        (Claim("Of 5%.", ["5% ~ 100 * mean(gaps:rows.gap)"]), "does not say “about”"),
        (Claim("Of 15%.", ["5% = 100 * mean(gaps:rows.gap)"]), "'5%' is not in the sentence"),
        (Claim("Of 5%.", ["5% = mean(lost:rows.gap)"]), "no benchmarks/results/lost.json"),
        (Claim("Of 5%.", ["5% 100"]), "expected “figure = query”"),
        (Claim("Of 5%.", test="tests/test_it.py::test_that"), "has no test_that"),
        (Claim("Of 5%.", test="tests/test_that.py::test_it"), "there is no tests/test_that.py"),
        (Claim("Of 5%.", unrecorded="by hand"), "does not say “not recorded”"),
    ],
)
def test_entries_that_do_not_hold(root: Path, claim: Claim, message: str):
    assert any(message in fault for fault in faults(claim, claim.text))


def test_the_other_ways_to_rest(root: Path):
    assert faults(Claim("Of 5%.", test="tests/test_it.py::test_it"), "") == []
    assert faults(Claim("Of 5%.", set="a definition"), "") == []
    assert faults(Claim("Of 5%.", unrecorded="by hand"), "Tried, and not recorded: of 5%.") == []


def test_a_page_is_compared_with_its_entries(root: Path, capsys: pytest.CaptureFixture[str]):
    page, listed = root / "docs/it.md", root / "benchmarks/claims/pages/docs-it.toml"
    page.write_text("# It\n\nThe mean is 5.0%. The rest takes 7 s.\n")
    listed.write_text(
        '[[claim]]\ntext = "The mean is 5.0%."\nfigures = ["5.0% = 100 * mean(gaps:rows.gap)"]\n'
        '[[claim]]\ntext = "The rest takes 8 s."\nset = "it"\n'
    )
    assert command.check_all() == 2
    errors = capsys.readouterr().err
    assert "docs/it.md: “The rest takes 7 s.”: no entry says what it rests on (7 s)" in errors
    assert "docs/it.md: “The rest takes 8 s.”: listed, and not in the page any more" in errors

    assert 'text = "The rest takes 7 s."' in command.listed(page)
    listed.write_text(listed.read_text().replace("8 s", "7 s"))
    assert command.check_all() == 0

    listed.write_text(listed.read_text() * 2)
    assert command.check_all() == 2  # each is listed twice


def test_pages_left_for_later_are_named(root: Path, capsys: pytest.CaptureFixture[str]):
    (root / "docs/it.md").write_text("It takes 7 s.\n")
    command.NOT_YET.write_text("docs/it.md\ndocs/gone.md\n")
    assert command.check_all() == 1
    told = capsys.readouterr()
    assert "docs/gone.md: no such page" in told.err
    assert "not covered yet: docs/gone.md, docs/it.md" in told.out
