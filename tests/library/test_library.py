"""Records change only for the better, keep their history, and are judged by the checker alone."""

import hashlib
import importlib.util
import json
import random
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.errors import FileError, InvalidScheduleError
from gradweave.library import Library, accept, freeze, judge, open_library, weigh
from gradweave.library import store as where
from gradweave.library.freezing import freeze as frozen
from tests.library.conftest import data_of

TURN = 6
"""Files of the shipped library that a run of the tests checks: others another day."""


def test_a_better_schedule_becomes_the_record_and_the_old_one_history(library, fast, slow):
    outcome = next(one for one in weigh(library, data_of(fast)) if one.instance.model == "rounds")
    assert outcome.improves and outcome.verdict == "improves"
    made = accept(library, outcome, "me", "by luck", "2026-11-28")
    again = Library(library.path).instance("ring-4.rounds")
    assert again == made and (made.record.value, made.status) == (fast.rounds, "closed")
    assert made.record.by == "me" and made.history[0].value == slow.rounds
    assert "2 a round" in made.record.reason
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
    with pytest.raises(FileError, match="not the one of the index"):
        library.schedule(one)
    with pytest.raises(FileError, match="not the one of the index"):
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
