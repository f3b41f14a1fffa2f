"""The site: its build is strict and heard, and examples of docstrings are shown as code."""

import importlib.util
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.patience import PATIENCE_S
from tests.report.browser import chromium, missing

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", ["check", "docs"])
def test_a_dead_link_is_printed_and_fails(target: str, tmp_path: Path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("See [there](nowhere.md).\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: one page\n")
    recipe = subprocess.run(
        ["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (command,) = [line for line in recipe.stdout.splitlines() if "mkdocs build" in line]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    build = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert build.returncode == 1
    assert "nowhere.md" in build.stdout + build.stderr


def module_of(name: str) -> ModuleType:
    path = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_layout_names_every_package():
    layout = module_of("layout_page")
    text = (ROOT / "docs" / "design" / "layout.md").read_text()
    page = SimpleNamespace(file=SimpleNamespace(src_uri="design/layout.md"))
    filled = layout.on_page_markdown(text, page)
    sources = ROOT / "src" / "gradweave"
    for init in sources.glob("*/**/__init__.py"):
        folder = f"| `{init.parent.relative_to(sources)}/` | "
        row = filled.partition(folder)[2].partition("\n")[0]
        assert row.removesuffix("|").strip(), f"{folder} is missing, or has no docstring"
    purposes = text.partition("| to | look in |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", purposes)
    tops = {path.stem for path in sources.glob("*") if not path.name.startswith((".", "_"))}
    assert sorted(named) == sorted(tops - {"py"}), "each package serves one purpose"


def test_examples_of_docstrings_are_fenced():
    extension = module_of("examples_as_code")
    docstring = "Adds.\n\n>>> add(\n...     [1]\n... )\n[1]\n\nSource: a book.\n"
    shown = "Adds.\n\n```pycon\n>>> add(\n...     [1]\n... )\n[1]\n```\n\nSource: a book.\n"
    assert extension.fenced(docstring) == shown
    assert extension.fenced("No example here.\n") == "No example here.\n"


SITE = """site_name: one page
use_directory_urls: false
theme: {name: material, font: false}
extra: {polyfills: [javascripts/iframe-worker.js]}
plugins: [search, offline]
"""


def test_the_site_is_set_up_for_a_disk():
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "\n  - offline" in settings
    assert "polyfills: [javascripts/iframe-worker.js]" in settings  # else `offline` names a host


@pytest.mark.slow
@pytest.mark.browser
def test_search_works_from_a_disk(tmp_path: Path):
    if reason := missing():
        pytest.skip(reason)
    (tmp_path / "docs" / "javascripts").mkdir(parents=True)
    shim = Path("docs", "javascripts", "iframe-worker.js")
    shutil.copy(ROOT / shim, tmp_path / shim)
    (tmp_path / "docs" / "index.md").write_text("# One\n\nAbout trees and rings.\n")
    (tmp_path / "mkdocs.yml").write_text(SITE)
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet"], cwd=tmp_path, check=True)
    assert "https://unpkg" not in (tmp_path / "site" / "index.html").read_text()
    with chromium(tmp_path / "profile") as browser:
        browser.get((tmp_path / "site" / "index.html").as_uri())
        browser.execute_script("document.querySelector('[data-md-toggle=search]').click()")
        browser.find_element("css selector", ".md-search__input").send_keys("rings")
        deadline = time.monotonic() + PATIENCE_S
        while not (found := browser.find_elements("css selector", ".md-search-result__link")):
            assert time.monotonic() < deadline, browser.get_log("browser")
            time.sleep(0.1)
        assert found[0].get_attribute("href").startswith("file://")
