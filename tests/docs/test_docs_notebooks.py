"""The notebooks of the three paths: short, with outputs, linked from the front page, and run."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NAMES = ("see", "run", "research")
MOST_CELLS = 25


def cells_of(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]


def test_the_front_page_has_them():
    front = (ROOT / "docs" / "index.md").read_text()
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)
    for name in NAMES:
        assert f"(notebooks/{name}.ipynb)" in front


@pytest.mark.parametrize("name", NAMES)
def test_it_is_short_and_has_its_outputs(name: str):
    cells = cells_of(name)
    assert len(cells) < MOST_CELLS
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert any("gw.show(" in "".join(cell["source"]) for cell in code)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    kinds = {kind for output in outputs for kind in output.get("data", {"text": ""})}
    assert {"text", "image/svg+xml"} <= kinds
    for cell in code:
        source = "".join(cell["source"])
        assert bool(cell["outputs"]) or not ("print(" in source or "gw.show(" in source)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_somewhere(name: str):
    for cell in cells_of(name):
        text = "".join(cell["source"])
        for target in re.findall(r"\]\(([\w./-]+\.md)", text):
            assert (FOLDER / target).resolve().is_file(), target


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path):
    runner = ROOT / "tests" / "docs" / "run_notebook.py"
    run = subprocess.run(
        [sys.executable, str(runner), str(FOLDER / f"{name}.ipynb")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stderr
    assert "characters drawn" in run.stdout
