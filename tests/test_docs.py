"""Examples run; the figures that the documentation quotes are the recorded ones."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
TESTED_ELSEWHERE = {"ippo_on_scheduling.py"}
"""Examples that need more than the core: tests/environment runs this one, for a shorter time."""
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if path.name not in TESTED_ELSEWHERE
)


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("example", EXAMPLES, ids=page_name)
def test_examples_run(example: Path, tmp_path: Path):
    run = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"},  # compiles sooner
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_figures_in_the_documentation_are_the_recorded_ones():
    render = ROOT / "benchmarks" / "render.py"
    run = subprocess.run(
        [sys.executable, str(render), "--check"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert run.returncode == 0, run.stderr


def test_the_front_page_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(re.sub("<!--.*?-->", "", text, flags=re.DOTALL).split()) < 700
    assert len(re.findall(r"(?<!!)\[[^]]*\]\(", text)) == 5


def named_in_the_code(page: str) -> list[tuple[str, str]]:
    """Files that a page names, each with what it says is defined there, if anything."""
    cells = re.findall(r"`([\w/]+\.py)`(?:: ((?:`\w+`(?:, )?)+))?", page)
    return [(path, name) for path, names in cells for name in re.findall(r"\w+", names) or [""]]


def test_the_walks_lead_where_they_say():
    page = (ROOT / "docs" / "design" / "layout.md").read_text()
    named = named_in_the_code(page.partition("\n## Four walks")[2])
    assert len(named) > 50
    for path, name in named:
        file = ROOT / "src" / "gradweave" / path
        assert file.is_file(), f"layout.md: there is no {path}"
        tree = ast.parse(file.read_text())
        defined = {getattr(node, "name", None) for node in tree.body}
        assert not name or name in defined, f"layout.md: {path} does not define {name}"
