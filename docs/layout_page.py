"""Fills the tables of design/layout.md in while the site is built: a hook of MkDocs.

Floors come from the import contracts in pyproject.toml, contents from docstrings.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "gradweave"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills the tables in."""
    if page.file.src_uri != "design/layout.md":
        return markdown
    markdown = markdown.replace("<!-- layout: packages -->", packages())
    return markdown.replace("<!-- layout: folders -->", folders())


def packages() -> str:
    """Packages and modules at the top, by the floors between which imports may only go down."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [x["layers"] for x in settings["contracts"] if x["id"] == "direction"]
    lines = ["| floor | package or module | contents |", "| ---: | --- | --- |"]
    for floor, layer in enumerate(reversed(layers)):
        for name in sorted(re.findall(r"\w+", layer)):
            path = SOURCES / name
            shown = f"{path.name}/" if path.is_dir() else f"{path.name}.py"
            lines.append(f"| {floor} | `{shown}` | {_summary(path)} |")
    return "\n".join(lines)


def folders() -> str:
    """Packages inside packages."""
    found = sorted(path.parent for path in SOURCES.glob("*/**/__init__.py"))
    inner = [path for path in found if path.parent != SOURCES]
    return "\n".join(
        ["| folder | contents |", "| --- | --- |"]
        + [f"| `{path.relative_to(SOURCES)}/` | {_summary(path)} |" for path in inner]
    )


def _summary(path: Path) -> str:
    """The first paragraph of the docstring of a package or module."""
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.split("\n\n")[0].replace("``", "`").split()).replace("|", "\\|")
