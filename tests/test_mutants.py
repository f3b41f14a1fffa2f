"""What `make mutants` changes in the sources, and what it leaves alone."""

import sys
from pathlib import Path

import pytest

from benchmarks.mutant_edits import edits_of, sample
from benchmarks.mutant_trials import COPIED, Trials

SOURCE = '''"""A docstring with 1 < 2."""

LIMIT = 5  # constants of modules are tuned

def first(rows: list[int], least: int = 3) -> int:
    """Not 7 - 1."""
    if not rows:
        raise ValueError("none of 4")
    total = 0
    for row in rows:
        if row < least and row != 0:
            total += 2 * row  # é: columns are bytes, places are characters
    return max(total, -1)
'''


def changes(source: str) -> set[tuple[int, str, str]]:
    return {(edit.line, edit.old, edit.new) for edit in edits_of("one.py", source)}


def test_each_kind_of_fault_is_found_and_nothing_else() -> None:
    assert changes(SOURCE) == {
        (5, "3", "4"),
        (7, "not rows", "(rows)"),
        (7, "not rows", "False"),
        (9, "0", "1"),
        (11, "<", "<="),
        (11, "!=", "=="),
        (11, "and", "or"),
        (11, "0", "1"),
        (11, "row < least and row != 0", "False"),
        (12, "total += 2 * row", "pass"),
        (12, "+=", "-="),
        (12, "*", "/"),
        (12, "2", "3"),
        (13, "max", "min"),
        (13, "-1", "(1)"),
        (13, "1", "2"),
    }


def test_an_edit_changes_its_place_alone_and_the_result_is_a_program() -> None:
    for edit in edits_of("one.py", SOURCE):
        changed = edit.applied(SOURCE)
        compile(changed, "one.py", "exec")
        assert changed != SOURCE
        assert changed[: edit.start] == SOURCE[: edit.start]
        assert changed.endswith(SOURCE[edit.end :])
    with pytest.raises(ValueError, match="no longer has"):
        edits_of("one.py", SOURCE)[0].applied("\n" + SOURCE)


def test_samples_are_of_different_lines_and_the_same_for_a_seed(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    drawn = sample(tmp_path, ["."], 4, seed=1)
    assert drawn == sample(tmp_path, ["."], 4, seed=1)
    assert len({edit.line for edit in drawn}) == 4
    assert len(sample(tmp_path, ["one.py"], 99, seed=1)) == 6  # lines that can be changed


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, if a test has started it
def test_a_trial_runs_on_the_copy_whatever_its_parent_has_imported(tmp_path: Path) -> None:
    import gradweave as imported

    root, package = tmp_path / "root", tmp_path / "root" / "src" / "gradweave"
    for name in COPIED:
        one = root / name
        one.write_text("") if "." in name else one.mkdir(parents=True, exist_ok=True)
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("def double(x):\n    return 2 * x\n")
    test = "from gradweave.one import double\n\ndef test_double():\n    assert double(3) == 6\n"
    (root / "tests" / "test_one.py").write_text(test)
    run = Trials(root, ["tests"], tmp_path / "work", 60.0)
    sound = run.without_fault()
    assert sound.wrong is None and not run.unsound and len(sound.durations) == 1, run.log()
    (edit,) = [
        one
        for one in edits_of("src/gradweave/one.py", (package / "one.py").read_text())
        if one.new == "/"
    ]
    assert run.with_fault(edit).failed == "tests/test_one.py::test_double"
    assert sys.modules["gradweave"] is imported
