"""The check that figures in the documentation agree with their evidence: `benchmarks/claims`."""

import json
from pathlib import Path

import pytest

from benchmarks.claims import __main__ as command
from benchmarks.claims import constants, entries, query
from benchmarks.claims.entries import faults
from benchmarks.claims.figures import agrees, figures_of
from benchmarks.claims.prose import Block, blocks, sentences

ROWS = [
    {"kind": "ring", "size": 8, "gap": 0.01, "seconds": {"cpu": 2.0}},
    {"kind": "ring", "size": 16, "gap": 0.04, "seconds": {"cpu": 6.0}},
    {"kind": "two stars", "size": 16, "gap": 0.1, "seconds": {"cpu": None}},
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one result, one test and one module."""
    for folder in ("benchmarks/results", "docs", "tests", "src"):
        (tmp_path / folder).mkdir(parents=True)
    result = {"rows": ROWS, "mean gap": {"two stars": 0.1}}
    (tmp_path / "benchmarks/results/gaps.json").write_text(json.dumps(result))
    (tmp_path / "tests/test_it.py").write_text("def test_it():\n    assert True\n")
    (tmp_path / "src/it.py").write_text(SOURCE)
    (tmp_path / "README.md").write_text("# It\n\nNothing.\n")
    for module in (query, constants, entries, command):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(query, "RESULTS", tmp_path / "benchmarks/results")
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
        ("gaps:rows.[-1].gap", 0.1),
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
        ("`gradweave bench --timeout 300 s` with Python 3.11 on 8 servers.", []),
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


def test_notes_that_agree_hold(root: Path):
    assert faults(Block(TEXT, list(QUERIES.values())), TEXT, strict=True) == []


@pytest.mark.parametrize("left_out", QUERIES)
def test_every_figure_of_a_strict_page_needs_a_note(root: Path, left_out: str):
    others = [x for figure, x in QUERIES.items() if figure != left_out]
    [fault] = faults(Block(TEXT, others), TEXT, strict=True)
    assert fault == f"no note says where {left_out.split()[0].rstrip('%')} comes from"
    assert faults(Block(TEXT, others), TEXT, strict=False) == []
    published = Block(TEXT, [*others, "published: A paper, Table 1"])
    assert faults(published, TEXT, strict=True) == []


@pytest.mark.parametrize(
    ("text", "note", "message"),
    [
        ("Of 6.0%.", "6.0% = 100 * mean(gaps:rows.gap)", "it says 6.0%, and"),
        ("Of 5%.", "5% ~ 100 * mean(gaps:rows.gap)", "does not say “about”"),
        ("Of 15%.", "5% = 100 * mean(gaps:rows.gap)", "'5%' is not in the text"),
        ("Of 5%.", "5% = mean(lost:rows.gap)", "no benchmarks/results/lost.json"),
        ("Of 5%.", "5% 100", "expected “figure = query”"),
        ("Of 5%.", "test: tests/test_it.py::test_that", "has no test_that"),
        ("Of 5%.", "test: tests/test_that.py::test_it", "there is no tests/test_that.py"),
        ("Of 5%.", "unrecorded: by hand", "does not say “not recorded”"),
    ],
)
def test_notes_that_do_not_hold(root: Path, text: str, note: str, message: str):
    assert any(message in fault for fault in faults(Block(text, [note]), text, strict=False))


def test_reasons_instead_of_queries(root: Path):
    for note in ("test: tests/test_it.py::test_it", "set: a definition"):
        assert faults(Block("Of 5%.", [note]), "", strict=True) == []
    by_hand = Block("Of 5%.", ["unrecorded: by hand"])
    assert faults(by_hand, "Tried, and not recorded: of 5%.", strict=True) == []


def test_a_comment_belongs_to_the_block_that_it_ends():
    text = """First, of 3 s. <!-- 3 s = 3 -->

- an item of 4 s
  and 5 s <!--
  4 s = 4
  test: tests/test_it.py::test_it -->
- another

| 6 <!-- 6 = 6 --> |
<!-- not run: a drawing -->
"""
    assert blocks(text) == [
        Block("First, of 3 s.", ["3 s = 3"]),
        Block("an item of 4 s and 5 s", ["4 s = 4", "test: tests/test_it.py::test_it"]),
        Block("another", []),
        Block("| 6 |", ["6 = 6"]),
    ]


def test_pages_are_compared_with_their_notes(root: Path, capsys: pytest.CaptureFixture[str]):
    page = root / "docs/it.md"
    right = "# It\n\nThe mean is 5.0%. <!-- 5.0% = 100 * mean(gaps:rows.gap) -->\n\nIt takes 7 s.\n"
    page.write_text(right)
    assert command.main() == 0
    assert "2 pages: 1 by figure" in capsys.readouterr().out

    page.write_text(right.replace("is 5.0%", "is 6.0%"))
    assert command.main() == 1
    assert "docs/it.md: “The mean is 6.0%.”: '5.0%' is not in the text" in capsys.readouterr().err

    (root / "README.md").write_text(right)
    page.write_text(right)
    assert command.main() == 1  # 7 s has no note, and README needs one
    assert "README.md: “It takes 7 s.”: no note says where 7 comes from" in capsys.readouterr().err
