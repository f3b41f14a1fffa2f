"""Makes the library's pages while the site is built: a hook of MkDocs, named in mkdocs.yml.

The table of `library.md`, and a page for each instance with its schedule's file and the checker
beside it, always say what `benchmarks/library/index.json` says. Where that is not there, in an
archive of the sources, so are they not.
"""

import html
from collections import defaultdict
from fractions import Fraction
from typing import Any

from mkdocs.structure.files import File

import gradweave_check
from gradweave.common.wording import counted
from gradweave.library.instance import ROUNDS, Instance, Record, summary
from gradweave.library.store import INDEX, OWN, SCHEDULES, Library
from gradweave.topology.units import format_seconds, format_size

PLACE = "<!-- library: table -->"
CHECKER = "gradweave_check.py"
FILTERS = ("kind", "collective", "model", "status")
MODELS = {
    "rounds": "Rounds: in each, a link carries as many pieces as it has capacity.",
    "seconds": "Seconds of the event model: bytes and latency count, messages cost nothing beside.",
    "message_cost": "Seconds of the event model: each message also occupies its links for a while.",
}


def on_files(files: Any, config: Any) -> Any:
    """Adds a page for each instance, and the file that it is about."""
    if not (OWN / INDEX).exists():
        return files
    instances = Library(OWN).instances.values()
    of_network: dict[str, list[Instance]] = defaultdict(list)
    for one in instances:
        of_network[_network_of(one)].append(one)
    for one in instances:
        page = instance_page(one, of_network[_network_of(one)])
        files.append(File.generated(config, f"library/{one.id}.md", content=page))
        name = f"{one.id}.json.gz"
        path = str(OWN / SCHEDULES / name)
        files.append(File.generated(config, f"library/{name}", abs_src_path=path))
    there = gradweave_check.__file__
    files.append(File.generated(config, f"library/{CHECKER}", abs_src_path=there))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills the table in."""
    if PLACE not in markdown or not (OWN / INDEX).exists():
        return markdown
    return markdown.replace(PLACE, table(Library(OWN)))


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
    link = f'<a href="library/{one.id}.html">{html.escape(one.id)}</a>'
    cells = [link, one.servers, *_figures(one), one.status, html.escape(one.record.by)]
    return f"<tr {data}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _figures(one: Instance) -> tuple[str, str, str]:
    gap = "0" if one.exact else f"{one.gap:.2%}"
    return _value(one, one.record.value), _value(one, float(Fraction(one.record.bound))), gap


def _value(one: Instance, value: float) -> str:
    return counted(round(value), "round") if one.model == ROUNDS else format_seconds(value)


def _network_of(one: Instance) -> str:
    """The part of its id that names the network."""
    return one.id.partition(".")[0]


def instance_page(one: Instance, same_network: list[Instance]) -> str:
    """What is known of an instance.

    Args:
        one: the instance.
        same_network: those on its network, which the page links to.
    """
    best, bound, gap = _figures(one)
    record, file = one.record, f"{one.id}.json.gz"
    size = "" if one.bytes is None else f" of {format_size(one.bytes)}"
    network = (
        f"{_code(one.name)}, {counted(one.servers, 'server')}, "
        f"{counted(one.switches, 'switch', 'switches')}, {counted(one.links, 'link')}"
    )
    exactly = " exactly" if one.exact else ""
    status = f"**closed**, the bound is met{exactly}" if one.status == "closed" else "**open**"
    rows = [
        ("best schedule", best if one.exact else f"{best}, {gap} above the bound"),
        ("bound", bound),
        ("why not less", html.escape(record.reason)),
        ("network", network),
        ("what is moved", f"{one.collective.replace('_', '-')}{size}"),
        ("model", MODELS[one.model]),
        ("found by", f"{html.escape(record.by)}, {record.date}"),
        ("how", _code(record.how)),
        *(("before", _before(one, was)) for was in one.history),
        ("file", f"[{file}]({file}), SHA-256 `{record.sha256}`"),
        ("hash of the network", f"`{one.network}`"),
        *([("hash of the demand", f"`{one.demand}`")] if one.demand else []),
    ]
    others = [f"- [{each.id}]({each.id}.md), {each.status}" for each in same_network if each != one]
    return "\n".join(
        [
            "---",
            "search: { exclude: true }",
            "hide: [toc]",
            "---",
            "",
            f"# {one.id}",
            "",
            "[All instances](../library.md). [How to read this](../guides/extend.md#the-library).",
            "",
            f"| status | {status} |",
            "| --- | --- |",
            *(f"| {name} | {text.replace('|', '&#124;')} |" for name, text in rows),
            "",
            "```bash",
            f"python {CHECKER} {file}",
            "```",
            "",
            f"The [checker]({CHECKER}) is one file and needs Python alone. With Gradweave "
            "installed it is called `gradweave-check`; "
            "[another](../concepts/certificates.md#a-second-checker) is written in Rust.",
            "",
            *(["## On the same network", "", *others, ""] if others else []),
        ]
    )


def _code(text: str) -> str:
    """Somebody's text as it is."""
    return "`" + text.replace("`", "'") + "`"


def _before(one: Instance, was: Record) -> str:
    value, bound = _value(one, was.value), _value(one, float(Fraction(was.bound)))
    return f"{value}, at least {bound}, by {html.escape(was.by)}, {was.date}"
