"""What the documentation says, runs; the figures that it quotes are the recorded ones."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TESTED_ELSEWHERE = {"ippo_on_scheduling.py"}
"""Examples that need more than the core: tests/environment runs this one, for a shorter time."""
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if path.name not in TESTED_ELSEWHERE
)


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_prompts_in_the_documentation_answer_as_shown(page: Path):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(
        str(page), module_relative=False, optionflags=flags, parser=OutsideFences()
    )
    assert result.failed == 0


class OutsideFences(doctest.DocTestParser):
    """A fence that closes a block of code is no part of what the code prints."""

    def parse(self, string: str, name: str = "<string>"):
        return super().parse(re.sub(r"^```.*$", "", string, flags=re.MULTILINE), name)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/guides/choose-a-scheduler.md"]
)
def test_programs_in_the_documentation_run(page: str, tmp_path: Path):
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE
    )
    program = "\n".join(block for block in blocks if ">>>" not in block)
    assert "gradweave" in program
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=page_name)
def test_examples_run(example: Path, tmp_path: Path):
    run = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_figures_in_the_documentation_are_the_recorded_ones():
    render = ROOT / "benchmarks" / "render.py"
    run = subprocess.run(
        [sys.executable, str(render), "--check"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
