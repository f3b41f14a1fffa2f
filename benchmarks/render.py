"""Writes the recorded figures into README.md and docs/, between their markers.

python benchmarks/render.py            write
python benchmarks/render.py --check    report what is out of date, and exit with 1

The check also fails where a row does not say where it was measured, where a picture is older than
its data, and where a recorded command cannot measure again in a fresh clone.

Tables are data, in `tables/*.toml`, which `table_templates.py` renders; those that need more than a
template are public functions without parameters in `tables/*.py`. Each is named as the marker whose
text it is. They stand apart from the experiments so that this script need not import what those do
(JAX, PyTorch, Ray).
"""

import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.checks import problems
from benchmarks.record import RESULTS
from benchmarks.table_templates import read

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
MARKED = re.compile(r"(<!-- (\w+): begin -->).*?(<!-- \2: end -->)", re.DOTALL)


def tables() -> dict[str, Callable[[], str]]:
    """Every table of `tables/`, by its marker."""
    found: dict[str, Callable[[], str]] = {}
    for file in sorted((Path(__file__).parent / "tables").iterdir()):
        there = read(file) if file.suffix == ".toml" else {}
        if file.suffix == ".py":
            module = importlib.import_module(f"benchmarks.tables.{file.stem}")
            there = {
                name: function
                for name, function in inspect.getmembers(module, inspect.isfunction)
                if function.__module__ == module.__name__ and not name.startswith("_")
            }
        if twice := there.keys() & found.keys():
            sys.exit(f"{file.name}: {', '.join(sorted(twice))} is in another file, too")
        found |= there
    return found


def rendered(text: str, by_marker: dict[str, Callable[[], str]]) -> str:
    """The text with new contents between its markers."""

    def contents(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        return f"{begin}\n\n{by_marker[name]()}\n\n{end}"

    return MARKED.sub(contents, text)


def pictures(text: str) -> list[Path]:
    """Recorded pictures that a page shows."""
    shown = re.findall(r"images/(\w+\.png)", text)
    return [RESULTS / name for name in shown if (RESULTS / name).exists()]


def main() -> None:
    """Writes what is out of date, or reports it."""
    check = "--check" in sys.argv
    if check and (wrong := list(problems())):
        sys.exit("\n".join(wrong))
    by_marker = tables()
    stale: list[Path] = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        fresh = rendered(text, by_marker)
        if fresh != text:
            stale.append(page)
            if not check:
                page.write_text(fresh)
        for picture in pictures(text):
            copy = IMAGES / picture.name  # the site has only what lies in docs/
            if not copy.exists() or copy.read_bytes() != picture.read_bytes():
                stale.append(copy)
                if not check:
                    shutil.copyfile(picture, copy)
    names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
    if check and stale:
        sys.exit(f"out of date, run python benchmarks/render.py: {names}")
    print(f"{'checked' if check else 'written'}: {names or 'all up to date'}")


if __name__ == "__main__":
    main()
