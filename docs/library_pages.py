"""Makes the library's pages while the site is built: a hook of MkDocs, named in mkdocs.yml.

The table of `library.md`, and a page for each kind of network with a section an instance, always
say what `benchmarks/library/index.json` says. Where that is not there, in an archive of the
sources, so are they not.
"""

import html
import itertools
from fractions import Fraction
from typing import Any

from mkdocs.structure.files import File

from gradweave.library.instance import ROUNDS, Instance, summary
from gradweave.library.store import INDEX, OWN, Library
from gradweave.topology.units import format_seconds, format_size
from gradweave.wording import counted

PLACE = "<!-- library: table -->"
FILTERS = ("kind", "collective", "model", "status")


def on_files(files: Any, config: Any) -> Any:
    """Adds a page for each kind of network."""
    if (OWN / INDEX).exists():
        for kind, some in _by_kind(Library(OWN)).items():
            page = File.generated(config, f"library/{kind}.md", content=kind_page(kind, some))
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills the table in."""
    if PLACE not in markdown or not (OWN / INDEX).exists():
        return markdown
    return markdown.replace(PLACE, table(Library(OWN)))


def _by_kind(library: Library) -> dict[str, list[Instance]]:
    each = sorted(library.instances.values(), key=lambda one: one.kind)
    return {kind: list(some) for kind, some in itertools.groupby(each, lambda one: one.kind)}


def table(library: Library) -> str:
    """All instances, a row each, and a list of values for each filter."""
    each = list(library.instances.values())
    counts = summary(library.instances)
    lines = [
        f"Release {library.release}: {counted(counts['instances'], 'instance')}, "
        f"{counts['closed']} closed ({counts['exact']} of them exactly), {counts['open']} open.",
        "",
        '<div class="library" markdown="0"><p>',
    ]
    for field in FILTERS:
        values = sorted({getattr(one, field) for one in each})
        options = "".join(f"<option>{html.escape(value)}</option>" for value in values)
        lines.append(
            f'<label>{field} <select data-field="{field}"><option value="">all</option>{options}'
            "</select></label>"
        )
    lines += [
        '<label>name <input type="search" data-field="name"></label> <output></output></p>',
        "<table><thead><tr><th>instance</th><th>servers</th><th>best known</th><th>bound</th>"
        "<th>above it</th><th>status</th><th>by</th></tr></thead><tbody>",
    ]
    lines += map(_row, each)
    return "\n".join([*lines, "</tbody></table></div>"])


def _row(one: Instance) -> str:
    data = " ".join(f'data-{field}="{html.escape(getattr(one, field))}"' for field in FILTERS)
    link = f'<a href="library/{one.kind}.html#{_anchor(one)}">{html.escape(one.id)}</a>'
    cells = [link, one.servers, *_figures(one), one.status, html.escape(one.record.by)]
    return f"<tr {data}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _figures(one: Instance) -> tuple[str, str, str]:
    gap = "0" if one.exact else f"{one.gap:.2%}"
    return _value(one, one.record.value), _value(one, float(Fraction(one.record.bound))), gap


def _value(one: Instance, value: float) -> str:
    return counted(round(value), "round") if one.model == ROUNDS else format_seconds(value)


def _anchor(one: Instance) -> str:
    return one.id.replace(".", "-").replace("_", "-")


def kind_page(kind: str, some: list[Instance]) -> str:
    """The instances on networks of a kind, a section each."""
    lines = [f"# Library: {kind}", "", "[All instances](../library.md).", ""]
    for one in some:
        best, bound, gap = _figures(one)
        size = "" if one.bytes is None else f" of {format_size(one.bytes)}"
        what = f"{one.collective.replace('_', '-')}{size}, {one.model.replace('_', ' ')}"
        network = (
            f"{one.name}: {counted(one.servers, 'server')}, "
            f"{counted(one.switches, 'switch', 'switches')}, {counted(one.links, 'link')}"
        )
        record = one.record
        lines += [
            f"## {one.id} {{ #{_anchor(one)} }}",
            "",
            f"{html.escape(what)}, on `{network}`",
            "",
            f"- {one.status}: {best}, at least {bound}, {gap} above it",
            f"- found by {html.escape(record.by)}, {record.date}: `{record.how}`",
            f"- why not less: {html.escape(record.reason)}",
            *(
                f"- before: {_value(one, was.value)} by {html.escape(was.by)}, {was.date}"
                for was in one.history
            ),
            "",
        ]
    return "\n".join(lines)
