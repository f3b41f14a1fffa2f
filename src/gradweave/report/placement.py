"""The page of a placement: sites, stages and pipelines, a step's timeline, the group schedules."""

import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.placement import Placement
from gradweave.placement.placing import problem_for
from gradweave.placement.timeline.groups import GroupSchedule
from gradweave.placement.timeline.step import StepTime
from gradweave.report.document import static_page, template
from gradweave.report.page import write_page
from gradweave.report.placement_drawing import map_of, stage_colour, timeline_of
from gradweave.topology.units import format_size


def placement_page(
    placement: Placement, step: StepTime | None = None, links: Sequence[str | None] = ()
) -> str:
    """Makes a self-contained HTML page that shows which server computes what, and when.

    Args:
        placement: the placement to show.
        step: its step in time; left out if not given.
        links: [S] file names of the pages of the groups' schedules in the same folder, or None.
    """
    title = f"{placement.workload.name} on {placement.topology.name}"
    where = (
        "Sites, placed by their delays and bandwidths. A colour is a stage, so servers of the "
        "same colour average their gradients; lines are pipelines, dashed where they leave a "
        "site."
    )
    sections = [
        _section("Where", where, map_of(placement)),
        _section("Who", "A row is a pipeline, a column a stage.", _table(placement)),
    ]
    if step is not None:
        sections.append(_section("When", f"Passes by {step.order}: forward pale, backward full, "
            "averages of gradients grey. Links are shared fairly.", timeline_of(step)))  # fmt: skip
        sections.append(_section("Averages", "Each group's all-reduce, alone on its links: by the "
            "schedule made for them, at least, and sent directly.",
            _groups(placement, step, links)))  # fmt: skip
    return static_page(
        "placement",
        "Placement",
        title,
        f'<dl id="facts">{_facts(placement, step)}</dl>',
        "\n".join(sections),
        template("placement.css"),
    )


def write_placement_pages(
    placement: Placement, step: StepTime | None, path: str | Path
) -> list[Path]:
    """Writes the page, and a linked page that plays each group's schedule.

    Identical groups share a page; schedules that are too large for a page get none.

    Returns:
        The files written.

    Raises:
        FileError: a file cannot be written.
    """
    path = Path(path)
    links: list[str | None] = []
    by_schedule: dict[int, str | None] = {}
    for stage, group in enumerate(step.groups if step is not None else ()):
        if group is not None and id(group.schedule) not in by_schedule:
            page = path.with_name(f"{path.stem}-stage-{stage}.html")
            by_schedule[id(group.schedule)] = _schedule_page(group, page)
        links.append(None if group is None else by_schedule[id(group.schedule)])
    atomic_write(path, placement_page(placement, step, links).encode())
    return [path, *(path.with_name(name) for name in by_schedule.values() if name)]


def _schedule_page(group: GroupSchedule, page: Path) -> str | None:
    try:
        write_page(group.schedule, page, gradient_bytes=group.gradient_bytes, objective="seconds")
    except OptionError:  # too large for a page
        return None
    return page.name


def _section(head: str, hint: str, body: str) -> str:
    return (
        f'<section><h2>{head}</h2><p class="hint">{html.escape(hint)}</p>'
        f'<div class="card">{body}</div></section>'
    )


def _facts(placement: Placement, step: StepTime | None) -> str:
    stages, data = placement.servers.shape
    facts = [
        ("stages × pipelines", f"{stages} × {data}"),
        ("communication, sent directly", f"{placement.cost_s:.4g} s"),
        ("of it gradients", f"{placement.data_s:.4g} s"),
        ("activations", f"{placement.pipeline_s:.4g} s"),
    ]
    if placement.bound is not None:
        verdict = "optimal" if placement.optimal else f"{placement.gap or 0.0:.1%} above"
        facts.append(("least possible", f"{placement.bound.seconds:.4g} s ({verdict})"))
    if step is not None:
        facts += [
            ("a step", f"{step.seconds:.4g} s"),
            ("bubble", f"{step.bubble:.0%}"),
            ("devices compute", f"{step.utilisation:.0%}"),
        ]
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)


def _table(placement: Placement) -> str:
    topology, (stages, _) = placement.topology, placement.servers.shape
    head = "".join(
        f'<th><svg viewBox="0 0 10 10" width="10" height="10"><circle cx="5" cy="5" r="5" '
        f'fill="{stage_colour(stage, stages)}"/></svg> stage {stage}</th>'
        for stage in range(stages)
    )
    rows = [
        f"<tr><th>pipeline {number}</th>"
        + "".join(f"<td>{html.escape(topology.node_name(node))}</td>" for node in row)
        + "</tr>"
        for number, row in enumerate(placement.pipelines.tolist())
    ]
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _groups(placement: Placement, step: StepTime, links: Sequence[str | None]) -> str:
    problem = problem_for(placement)
    ranks = placement.topology.rank[placement.servers].astype(np.int64)
    heads = ("stage", "gradient", "by its schedule", "at least", "sent directly", "done at", "")
    rows = []
    for stage, group in enumerate(step.groups):
        if group is None:
            continue
        alone = exchange_cost(problem, ranks, as_placed=True, stage=stage).data_s
        link = links[stage] if stage < len(links) else None
        figures = (
            str(stage), format_size(group.gradient_bytes), f"{group.seconds:.4g} s",
            f"{group.bound_s:.4g} s", f"{alone:.4g} s", f"{step.reduced_s[stage]:.4g} s",
        )  # fmt: skip
        cells = "".join(f'<td class="number">{figure}</td>' for figure in figures)
        shown = f'<a href="{html.escape(link)}">its schedule</a>' if link else ""
        rows.append(f"<tr>{cells}<td>{shown}</td></tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else "<p>none</p>"
