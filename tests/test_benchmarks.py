"""What benchmarks/ says of its own results: sources of rows, pictures, commands, `make bench`."""

import json
import os
import statistics
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    checks,
    commands,
    experiment,
    markdown_table,
    pictures,
    record,
    run_all,
    table_templates,
    unfinished,
)
from benchmarks.claims import query
from benchmarks.experiments import same_schedules
from gradweave.schedulers.spec import DEMAND_STRATEGIES, STRATEGIES


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results, written at a commit of its own."""
    for module in (record, pictures, checks, unfinished):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "commit", lambda: "first")
    return tmp_path


def machine(cpu: str) -> dict[str, Any]:
    return {"cpu": cpu, "cores": 2, "memory_gib": 8.0}


def test_rows_that_are_kept_keep_their_source(results: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "hardware", lambda: machine("one"))
    record.record("case", rows=[{"seed": 0}, {"seed": 1}], checker={"agree": 3}, seeds=[0, 1])
    monkeypatch.setattr(record, "commit", lambda: "second")
    monkeypatch.setattr(record, "hardware", lambda: machine("other"))
    parts, kept = record.recorded("case", ["rows", "checker", "absent"])
    record.record("case", kept=kept, **parts | {"rows": [parts["rows"][0], {"seed": 2}]})
    result = record.load("case")
    commits = [source["commit"] for source in result["sources"]]
    assert [commits[row["source"]] for row in result["rows"]] == ["first", "second"]
    assert commits[result["kept"]["checker"]] == "first"
    assert commits[result["source"]] == "second"
    assert not list(checks.without_source(result))
    where = markdown_table.source(result)
    assert "2 cores of one, 8.0 GiB (1 of 2 rows)" in where
    assert "2 cores of other, 8.0 GiB (1 of 2 rows)" in where
    assert "of other" not in markdown_table.source(result, result["rows"][:1])


def test_rows_of_another_file_are_not_taken_for_new(results: Path):
    record.record("case", rows=[{"seed": 0}])
    with pytest.raises(ValueError, match="source 0 is a place in another file"):
        record.record("case", rows=record.load("case")["rows"])


def test_the_command_is_the_one_that_the_experiment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(record, "EXPERIMENTS", tmp_path)
    plain = "python benchmarks/experiments/case.py"
    assert record.command_of("case") == plain  # there is no such file
    (tmp_path / "case.py").write_text(f'"""A case.\n\n    taskset -c 0 {plain} [--only PART]\n"""')
    assert record.command_of("case") == f"taskset -c 0 {plain}"
    (tmp_path / "case.py").write_text('"""As other_case.py does it."""')
    assert record.command_of("case") == plain


def test_an_unfinished_run_goes_on_only_if_asked_to(results: Path):
    unfinished.Unfinished("case", resume=False).add({"seed": 0})
    again = unfinished.Unfinished("case", resume=True)
    assert [(row["seed"], row["source"]["commit"]) for row in again.rows()] == [(0, "first")]
    assert unfinished.Unfinished("case", resume=False).rows() == []
    assert (results / "case.aside.partial.jsonl").exists()


def run_experiment(monkeypatch: pytest.MonkeyPatch, *options: str, least: int = 0) -> list[int]:
    """Runs an experiment of two parts with some options; the numbers that it measured."""
    measured: list[int] = []

    def squared(number: int) -> dict[str, int]:
        if number < least:
            raise KeyboardInterrupt
        measured.append(number)
        return {"square": number**2, "when": len(measured)}

    def twice(number: int) -> list[dict[str, int]]:
        measured.append(number)
        return [{"times": times, "value": times * number} for times in (1, 2)]

    monkeypatch.setattr(sys, "argv", ["case.py", *options])
    experiment.run(
        "Squares.",
        experiment.Rows(experiment.grid(number=(3, 2)), squared),
        experiment.Rows([{"number": 5}], twice, "multiples"),
        finish=lambda rows, multiples: {"sum": sum(row["square"] for row in rows)},
        seeds=[7],
    )
    return measured


def test_an_experiment_measures_what_is_asked(results: Path, monkeypatch: pytest.MonkeyPatch):
    assert run_experiment(monkeypatch, "--dry") == [3, 2, 5]
    assert not list(results.iterdir())
    with pytest.raises(KeyboardInterrupt):
        run_experiment(monkeypatch, least=3)
    assert run_experiment(monkeypatch, "--resume") == [2, 5]
    before = record.load("case")
    assert [row["number"] for row in before["rows"]] == [3, 2]
    assert [row["value"] for row in before["multiples"]] == [5, 10]
    assert (before["sum"], before["seeds"]) == (13, [7])
    assert not list(checks.without_source(before))
    monkeypatch.setattr(record, "commit", lambda: "second")
    assert run_experiment(monkeypatch, "--only", "2") == [2]
    after = record.load("case")
    commits = [source["commit"] for source in after["sources"]]
    assert [commits[row["source"]] for row in after["rows"]] == ["first", "second"]
    assert [path.name for path in results.iterdir()] == ["case.json"]


def test_cases_of_an_experiment_in_processes_of_their_own(results: Path, tmp_path: Path):
    """One of them fails: the others are kept, and the record is not written."""
    script = tmp_path / "case.py"
    script.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\n"
        "from benchmarks import record, unfinished\n"
        "record.RESULTS = unfinished.RESULTS = Path(__file__).parent\n"
        "from benchmarks.experiment import Rows, grid, run\n"
        "def measure(number):\n"
        "    print('shown, not read')\n"
        "    if number == 2 and len(sys.argv) == 4 and not os.environ.get('AGAIN'):\n"
        "        sys.exit('no root')\n"
        "    return {'process': os.getpid()}\n"
        "run(__doc__, Rows(grid(number=(1, 2, 3)), measure), alone=True)\n"
    )
    again = os.environ | {"AGAIN": "1"}
    failed = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert "not recorded; --resume measures what is missing: [{'number': 2}]" in failed.stderr
    subprocess.run([sys.executable, script, "--resume"], check=True, env=again)
    rows = json.loads((tmp_path / "case.json").read_text())["rows"]
    assert [row["number"] for row in rows] == [1, 2, 3]
    assert len({row["process"] for row in rows}) == 3


def test_what_does_not_say_where_it_was_measured(results: Path):
    record.record("case", "make test", rows=[{"seed": 0}])
    result = record.load("case")
    result["rows"].append({"seed": 1})
    del result["sources"][0]["hardware"]
    (results / "case.json").write_text(json.dumps(result))
    assert list(checks.problems()) == [
        "case.json: source 0 lacks hardware",
        "case.json: 1 rows name no source",
    ]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def draw(result: dict[str, Any], path: Path) -> None:
    """One white pixel."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0\xff"))
    path.write_bytes(pictures.START + header + data + chunk(b"IEND", b""))


def test_a_picture_is_stale_once_its_data_change(results: Path):
    path, picture = results / "case.png", pictures.Picture("case", draw, ("rows",))
    record.record("case", rows=[{"time": 1.0}], others=[1])
    draw({}, path)
    assert "does not say what it was drawn from" in pictures.stale(path)
    picture.redraw()
    picture.redraw()  # in place of what it said before
    assert path.read_bytes().count(pictures.KEYWORD) == 1
    assert not pictures.stale(path)
    record.record("case", rows=[{"time": 1.0}], others=[2])
    assert not pictures.stale(path)  # neither shown, nor is a new source
    record.record("case", rows=[{"time": 1.5}], others=[2])
    assert "is older than rows of its data" in pictures.stale(path)


def test_a_picture_of_samples_is_stale_once_its_runs_are_gone(results: Path):
    path = results / "case.png"
    record.record("case", rows=[{"seed": 0}, {"seed": 1}])
    draw({}, path)
    pictures.stamp_samples(path, record.load("case")["rows"][:1])
    assert not pictures.stale(path)
    record.record("case", rows=[{"seed": 1}])
    assert "1 of the runs that it shows are not recorded" in pictures.stale(path)


ROWS = [
    {
        "name": "a_b",
        "kind": "far",
        "seconds": [2.0, 0.5],
        "gap": None,
        "servers": 4096,
        "done": True,
    },
    {"name": "c", "kind": "near", "seconds": [1.0], "gap": 0.25, "servers": 8, "done": False},
    {"name": "d", "kind": "near", "seconds": [3.0], "gap": 0.5, "servers": 8, "done": True},
]


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("`{name:words}` of {servers:,}", ["`a b` of 4,096", "`c` of 8", "`d` of 8"]),
        ("{gap:.0%}", ["–", "25%", "50%"]),
        ("{seconds:each .1f}; {seconds:range .1f}; {1e3 * seconds[0]:g} ms",
         ["2.0, 0.5; 0.5 to 2.0; 2000 ms", "1.0; 1.0 to 1.0; 1000 ms", "3.0; 3.0 to 3.0; 3000 ms"]),
        ("{done:?yes/**no**}", ["yes", "**no**", "yes"]),
        ("{gap / servers:.3f}, {kind:named}", ["–, wide", "0.031, close", "0.062, close"]),
    ],
)  # fmt: skip
def test_a_template_says_each_row(template: str, texts: list[str]):
    assert table_templates.filled(template, ROWS, {"far": "wide", "near": "close"}) == texts


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{gaps:.0%}", r"no row has anything for \{gaps:.0%\}"),
        ("{seconds:.1f}", "2 values where one is shown"),
        ("{servers 8}", "expected the end after 'servers'"),
    ],
)
def test_a_template_that_cannot_be_filled(template: str, why: str):
    with pytest.raises(query.QueryError, match=why):
        table_templates.filled(template, ROWS)


TEMPLATES = """
[by_kind]
rows = "case:rows"
by = ["kind"]
head = "kind, of {seed} | done"
line = "{[0].kind} | {sum(done)} of {count(done)}, {mean(gap):.1f}"
last = "all | {sum(done)}"

[across]
rows = "case:rows[servers=8]"
by = ["servers"]
across = "name"
head = "servers | {name}"
line = "{servers} | {gap:.2f}"
last = "kind | {kind}"
source = false
"""


def test_tables_as_data(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(query, "_result", lambda name: record.load(name))
    record.record("case", "make test", rows=ROWS, seed=5)
    (tmp_path / "tables.toml").write_text(TEMPLATES)
    tables = table_templates.read(tmp_path / "tables.toml")
    text, _, where = tables["by_kind"]().partition("\n\n")
    assert text.splitlines()[::2] == ["| kind, of 5 | done |", "| far | 1 of 1, – |", "| all | 2 |"]
    assert text.splitlines()[3] == "| near | 1 of 2, 0.4 |"
    assert where.startswith("`make test`, ")
    lines = ["| servers | c | d |", "| --- | ---: | ---: |", "| 8 | 0.25 | 0.50 |"]
    assert tables["across"]().splitlines() == [*lines, "| kind | near | near |"]


SCRIPT = """
from benchmarks.command_line import parser_of
def main():
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("folder", type=Path, nargs="?")
"""

RUN = """
from benchmarks.experiment import Rows, grid, run
if __name__ == "__main__":
    run(__doc__, Rows(grid(seed=(0, 1)), measure))
"""


@pytest.mark.parametrize(
    ("script", "arguments", "why"),
    [
        (SCRIPT, "", ""),
        (SCRIPT, "--kills 3", ""),
        (SCRIPT, "--kills many", "invalid int value"),
        (SCRIPT, "--turns 3", "unrecognized arguments"),
        (SCRIPT, "../before", "a fresh clone does not have"),
        (RUN, "", ""),
        (RUN, "--only ring:4", "--only measures less than all"),
        (RUN, "--count 3", "unrecognized arguments"),
        (SCRIPT, "--resume", "--resume measures less than all"),
        (SCRIPT.replace(', nargs="?"', ""), "", "required: folder"),
        ("rows = 1", "", "does not read its arguments"),
        ("parser_of(__doc__)\nrecorded('case', ['rows'])", "", "without an option to ask for it"),
    ],
)
def test_a_command_measures_again(
    script: str, arguments: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    (tmp_path / "case.py").write_text(script)
    commands.options_of.cache_clear()
    found = commands.unfit(f"taskset -c 0 python case.py {arguments}")
    assert why in found if why else not found
    assert commands.unfit("python lost.py") == "there is no lost.py"


def test_bench_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "a.py").write_text("import sys\nif __name__ == '__main__': sys.exit('no root')")
    (tmp_path / "b.py").write_text("if __name__ == '__main__': print('b was measured')")
    (tmp_path / "helper.py").write_text("")
    monkeypatch.setattr(run_all, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_all.py"])
    with pytest.raises(SystemExit, match=r"^failed: a \(exit status 1\)$"):
        run_all.main()
    assert "b was measured" in capfd.readouterr().out


def test_ratios_are_to_the_variant_of_rllib_that_is_sooner():
    """Of recorded rows, by hand: the one with the higher rate is later at the return."""
    result = record.load("rllib")
    rows, key = result["rows"], "wall_s_to_target"

    def of(case: str) -> list[float]:
        return [row[key] for row in rows if row["case"] == case]

    one, two = of("RLlib, one learner"), of("RLlib, two learners")
    ours = of(result["fastest"]["first_run"])
    sooner = min(one, two, key=statistics.median)
    assert sooner == one
    expected = [their / own for their, own in zip(sooner, ours, strict=True)]
    assert result["times_rllib"]["first_run"][key] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        ("1f; seconds 0.5 aa", "1f; seconds 0.5 aa", ""),
        ("2e; seconds 0.5 aa", "1f; seconds 0.5 aa", "schedule 2e, was 1f"),
        ("1f; seconds 0.25 bb", "1f; seconds 0.5 aa", "bound SMALLER: seconds 0.25, was 0.5"),
        ("1f; seconds 0.75 bb", "1f; seconds 0.5 aa", "bound larger: seconds 0.75, was 0.5"),
        ("1f; seconds 0.5 bb", "1f; seconds 0.5 aa", "another proof of seconds 0.5"),
        ("1f", "1f; seconds 0.5 aa", "0 bounds, was 1"),
        ("NoScheduleError", "1f", "schedule NoScheduleError, was 1f"),
        ("1f", None, "not recorded"),
    ],
)
def test_each_difference_from_the_record_is_reported(now: str, before: str | None, said: str):
    assert same_schedules.difference(now, before) == said


def test_every_strategy_is_a_case_of_same_schedules():
    words = {
        word.partition(":")[0] for case in same_schedules.cases() for word in case.name.split()
    }
    assert {*STRATEGIES, *DEMAND_STRATEGIES} <= words
