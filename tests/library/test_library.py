"""Records change only for the better, keep their history, and are judged by the checker alone."""

import dataclasses
import hashlib
import importlib.util
import json
import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

import gradweave as gw
from gradweave.bounds import with_certificates
from gradweave.errors import FileError, InvalidScheduleError
from gradweave.library import Library, freeze, judge, open_library
from gradweave.library import store as where
from gradweave.library.freezing import freeze as frozen
from gradweave.library.instance import EXACT_WITHIN
from gradweave.library.judging import Judged, _by_the_rules, _not_for
from gradweave.library.submission import Outcome, accept, first_record, weigh
from tests.library.conftest import SIZE, data_of, instance_of

TURN = 6
"""Files of the shipped library that a run of the tests checks: others another day."""


def test_a_better_schedule_becomes_the_record_and_the_old_one_history(library, fast, slow):
    outcome = next(one for one in weigh(library, data_of(fast)) if one.instance.model == "rounds")
    assert outcome.improves and outcome.verdict == "improves"
    made = accept(library, outcome, "me", "by luck", "2026-11-28")
    again = Library(library.path).instance("ring-4.rounds")
    assert again == made and (made.record.value, made.status) == (fast.rounds, "closed")
    assert made.record.by == "me" and made.history[0].value == slow.rounds
    assert "2 per round" in made.record.reason
    assert judge(Library(library.path).schedule(made), made).least == made.record.value
    with pytest.raises(InvalidScheduleError, match="improves nothing"):
        accept(library, weigh(library, data_of(slow), made.id)[0], "me", "", "2026-11-28")


def test_only_what_an_instance_asks_for_counts(library, slow):
    data = data_of(slow)
    with pytest.raises(InvalidScheduleError, match="no instance of the library"):
        weigh(library, data_of(gw.schedulers.Ring().schedule(gw.topology.ring(5))))
    gathered = gw.solve("ring:4", collective="all_gather", schedulers=["merged"]).schedule
    with pytest.raises(InvalidScheduleError, match="collective or demand is not that of"):
        weigh(library, data_of(gathered), "ring-4.rounds")
    doubled = gw.schedulers.HalvingDoubling().schedule(gw.topology.complete(4))
    moved = {**data_of(doubled), "topology": data["topology"]}
    with pytest.raises(InvalidScheduleError, match="link that is not there"):
        weigh(library, moved, "ring-4.rounds")
    data["transfers"]["op"][-1] = "reduce"
    with pytest.raises(InvalidScheduleError, match="each contribution"):
        weigh(library, data, "ring-4.rounds")


def test_a_forged_certificate_proves_nothing(library, fast):
    data = data_of(fast)
    for one in data["certificates"]:
        one["claim"]["least"] = "1000000"
    judged = judge(data, library.instance("ring-4.rounds"))
    assert judged.least == 0 and len(judged.refused) == 2
    assert all("it proves" in why for why in judged.refused)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"[" * 100_000, b"\x1f\x8b\x00", b'{"a":1}', b'{"topology": {}}', b"\xff{}"],
)
def test_hostile_submissions_are_one_line(content, library):
    with pytest.raises((FileError, InvalidScheduleError)) as error:
        weigh(library, where.content_of(content, "x.json"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def outcome(library, value, least):
    """The outcome of a submission with this value and bound, if 6 rounds and 3 are known."""
    one = library.instance("ring-4.rounds")
    one = dataclasses.replace(one, record=dataclasses.replace(one.record, value=6.0, bound="3"))
    return Outcome(one, Judged(value, Fraction(least), None, ()), {})


NEARLY = 1e-10
"""Relative difference up to which two values count as equal."""


@pytest.mark.parametrize(
    "value, least, verdict",
    [
        (5.0, 0, "improves"),
        (5.0, 4, "improves"),
        (6.0, 3, "equals"),
        (6.0 * (1 - NEARLY), 3, "equals"),
        (6.0 * (1 + NEARLY), 3, "equals"),
        (6.0 * (1 - 20 * NEARLY), 3, "improves"),
        (6.0 * (1 + 20 * NEARLY), 3, "behind"),
        (6.0, 4, "raises the bound"),
        (7.0, Fraction(31, 10), "raises the bound"),
        (7.0, 3, "behind"),
        (7.0, 2, "behind"),
    ],
)
def test_the_verdict_on_a_submission(library, value, least, verdict):
    found = outcome(library, value, least)
    assert found.verdict == verdict
    assert found.improves == (verdict == "improves") and found.raises_bound == (least > 3)


def test_exactly_as_near_as_counts_for_equal_is_not_better(library):
    """Where 1 is known, 1 - 2^-30 is 9.3e-10 less, and the value at the limit itself is exact."""
    one = library.instance("ring-4.rounds")
    one = dataclasses.replace(one, record=dataclasses.replace(one.record, value=1.0, bound="0"))
    limit = Judged(Fraction(1) - EXACT_WITHIN, Fraction(0), None, ())  # type: ignore[arg-type]
    assert Outcome(one, limit, {}).verdict == "equals"
    assert Outcome(one, Judged(1 - 2**-30, Fraction(0), None, ()), {}).verdict == "equals"
    assert Outcome(one, Judged(1 - 2**-29, Fraction(0), None, ()), {}).verdict == "improves"


def test_a_bound_alone_is_kept_with_the_best_schedule(library, fast, slow):
    """A worse schedule with a stronger proof: the proof joins the file of the best schedule."""
    without = {**data_of(fast), "certificates": []}
    unproved = instance_of("ring-4.rounds", without, "rounds", None)
    library.keep(*first_record({**data_of(slow), "certificates": []}, unproved))
    first = accept(library, weigh(library, without, "ring-4.rounds")[0], "me", "", "2026-11-28")
    assert (first.record.value, first.record.bound, first.status) == (fast.rounds, "0", "open")
    behind = weigh(library, data_of(with_certificates(slow, SIZE)), "ring-4.rounds")[0]
    assert behind.verdict == "raises the bound" and behind.judged.value == slow.rounds
    made = accept(library, behind, "you", "longer", "2026-11-29")
    assert (made.record.value, made.record.bound) == (fast.rounds, "4")
    assert (made.record.by, made.record.date) == ("me", "2026-11-28")
    assert [one.bound for one in made.history] == ["0", "0"]
    kept = library.schedule(made)
    assert kept["transfers"] == without["transfers"] and len(kept["certificates"]) == 1
    assert judge(kept, made).least == 4 and "2 per round" in made.record.reason


def proof(**other):
    """A certificate's claim, that holds for ring-4.cost."""
    return SimpleNamespace(**{"unit": "seconds", "bytes": SIZE, "ready": [0, 0, 0, 0],
                              "forbids": set(), "pieces": [1, 1, 1, 1]} | other)  # fmt: skip


@pytest.mark.parametrize(
    "name, other, why",
    [
        ("ring-4.cost", {}, None),
        ("ring-4.cost", {"unit": "rounds"}, "of rounds"),
        ("ring-4.cost", {"bytes": SIZE + 1}, "for 1e+06 bytes, not 1,000,000"),
        ("ring-4.cost", {"ready": [0, 0, 5, 0]}, "for servers that are late"),
        ("ring-4.cost", {"forbids": {"switches add"}}, None),
        ("ring-4.cost", {"forbids": {"moons align"}}, "it does not hold where moons align"),
        ("ring-4.cost", {"pieces": [2, 1, 1, 1]}, None),
        ("ring-4.rounds", {"unit": "rounds", "bytes": 1}, None),
        ("ring-4.rounds", {"unit": "rounds", "pieces": [1, 2, 1, 1]}, "for more pieces than one"),
        ("ring-4.rounds", {"unit": "rounds", "pieces": [0, 1, 1, 1]}, None),
    ],
)
def test_which_bounds_say_something_of_an_instance(library, name, other, why):
    found = _not_for(proof(**other), None, library.instance(name))
    assert found is None if why is None else found is not None and found.startswith(why)


def test_in_rounds_every_server_roots_a_piece_and_in_seconds_it_need_not(library):
    one = SimpleNamespace(liberties=set(), pieces=[2, 0, 1, 1])
    with pytest.raises(InvalidScheduleError, match="some servers root no piece"):
        _by_the_rules(one, library.instance("ring-4.rounds"))
    _by_the_rules(one, library.instance("ring-4.cost"))
    one.pieces = [1, 1, 1, 1]
    _by_the_rules(one, library.instance("ring-4.rounds"))
    one.liberties = {"switches add"}
    with pytest.raises(InvalidScheduleError, match="against the instance's rules: switches add"):
        _by_the_rules(one, library.instance("ring-4.cost"))


@pytest.mark.parametrize("content", [b"[]", b"[1]", b'"a"', b"null", b"3"])
def test_a_file_of_something_else_than_an_object_is_refused_as_such(content):
    with pytest.raises(FileError, match=r"^x.json: expected a JSON object$"):
        where.content_of(content, "x.json")


def test_a_frozen_release_has_the_same_bytes_and_is_read_in_place(library, tmp_path):
    sums = [frozen(library, tmp_path / f"{k}.zip") for k in range(2)]
    content = (tmp_path / "0.zip").read_bytes()
    assert sums == [hashlib.sha256(content).hexdigest()] * 2
    archive = open_library(tmp_path / "0.zip")
    assert archive.instances == library.instances
    one = archive.instance("ring-4.cost")
    assert archive.schedule(one) == library.schedule(one)
    with pytest.raises(FileError, match="frozen"):
        archive.keep(one, b"")


def test_an_index_that_says_something_else_is_refused(library, tmp_path):
    one = library.instance("ring-4.cost")
    kept = tmp_path / "schedules" / "ring-4.cost.json.gz"
    kept.write_bytes(kept.read_bytes() + b"\0")
    with pytest.raises(FileError, match="does not match the index"):
        library.schedule(one)
    with pytest.raises(FileError, match="does not match the index"):
        freeze(library, tmp_path / "x.zip")
    index = json.loads((tmp_path / "index.json").read_bytes())
    index["instances"][0]["id"] = "../../etc/passwd"
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(FileError, match="no id"):
        _ = Library(tmp_path).instances
    with pytest.raises(FileError, match="no library; give --library"):
        open_library(tmp_path / "nowhere")


SHIPPED = Path(where.OWN)


@pytest.mark.skipif(not (SHIPPED / "index.json").exists(), reason="no checkout")
def test_the_shipped_records_are_what_their_files_prove():
    """The index is that of the files; a sample of them is judged, another one each day."""
    shipped = Library(SHIPPED)
    there = {path.name for path in (SHIPPED / "schedules").iterdir()}
    assert there == {f"{name}.json.gz" for name in shipped.instances}
    assert len(there) >= 300
    small = [one for one in shipped.instances.values() if len(shipped.packed(one)) < 5_000]
    day = int(hashlib.sha256((SHIPPED / "index.json").read_bytes()).hexdigest(), 16)
    for one in random.Random(day).sample(small, TURN):
        judged = judge(shipped.schedule(one), one)
        assert judged.value == pytest.approx(one.record.value, rel=1e-12), one.id
        assert str(judged.least) == one.record.bound, one.id


def test_an_instances_page_shows_what_a_stranger_wrote_as_text(library, fast):
    pytest.importorskip("mkdocs")
    path = Path(__file__).parents[2] / "docs" / "library_pages.py"
    spec = importlib.util.spec_from_file_location("library_pages", path)
    assert spec is not None and spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    outcome = weigh(library, data_of(fast), "ring-4.rounds")[0]
    made = accept(library, outcome, "<script>me|</script>", "a `b` | c", "2026-11-28")
    page = pages.instance_page(made, list(library.instances.values()))
    rows = dict(line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| "))
    assert rows["status"].startswith("**closed**") and rows["best schedule"] == "4 rounds"
    assert rows["found by"] == "&lt;script&gt;me&#124;&lt;/script&gt;, 2026-11-28"
    assert rows["how"] == "`a 'b' &#124; c`" and rows["before"].startswith("6 rounds, at least")
    assert made.record.sha256 in rows["file"] and "[ring-4.cost](ring-4.cost.md), open" in page
