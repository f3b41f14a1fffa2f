"""``gradweave library``: best known schedules of frozen instances, and submissions."""

import datetime
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import needs
from gradweave.cli.console import Table, fields_of
from gradweave.cli.groups import Command
from gradweave.cli.options import FILE, option, written_option
from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import ANSWER_IS_NO, SUCCESS, FileError, OptionError
from gradweave.library.freezing import freeze as freeze_library
from gradweave.library.importers import imported, is_foreign
from gradweave.library.instance import MODELS, ROUNDS, STATUSES, Instance, fits, summary
from gradweave.library.store import MAX_BYTES, Library, content_of, open_library
from gradweave.library.submission import Outcome, accept, schedule_of, weigh
from gradweave.printable import in_one_line
from gradweave.schedules.file import to_bytes
from gradweave.topology.units import format_seconds, format_size

library_option = option(
    "--library where",
    "Take the library from here.  [default: $GRADWEAVE_LIBRARY, or the checkout's]",
    metavar="FOLDER|ARCHIVE",
)


@click.group()
def library() -> None:
    """Browse the best known schedules and submit better ones."""


@library.command("list", cls=Command, examples=["--kind torus --status open"])
@option("--kind", "Only networks of this kind, such as torus.")
@option("--collective", "Only this collective, such as all_reduce.")
@option("--model", "Only this model.", click.Choice(MODELS))
@option("--status", "Only these.", click.Choice(STATUSES))
@library_option
def list_(where: str | None, **wanted: str | None) -> Answer:
    """List instances: what is known best of each, its bound, and whether both meet."""
    opened = open_library(where)
    for field in ("kind", "collective"):
        there = sorted({getattr(one, field) for one in opened.instances.values()})
        if wanted[field] is not None and wanted[field] not in there:
            raise OptionError(
                f"--{field}: expected one of {', '.join(there)}, got {wanted[field]!r:.40}"
            )
    chosen = {name: one for name, one in opened.instances.items() if fits(one, **wanted)}
    counts = summary(chosen)
    note = (
        f"release {opened.release}: {counted(counts['instances'], 'instance')}, "
        f"{counts['closed']} closed ({counts['exact']} exactly), {counts['open']} open"
    )
    heads = ["instance", "servers", "best known", "bound", "above it", "status"]
    shown = Table(heads, notes=[note])
    for one in chosen.values():
        gap = "0" if one.exact else f"{one.gap:.2%}"
        shown.add_row(one.id, str(one.servers), _best(one), _bound(one), gap, one.status)
    objects = [one.as_object() for one in chosen.values()]
    return Answer({"release": opened.release, **counts, "library": objects}, [shown])


@library.command("show", cls=Command, examples=["ID --output best.json.gz"])
@click.argument("instance")
@written_option(
    "--output",
    "Write the best schedule, with its certificates, to this file, .json.gz.",
    (".json.gz",),
)
@library_option
def show(instance: str, output: Path | None, where: str | None) -> Answer:
    """Show INSTANCE: its network, best schedule and bound, who found them, and what came before."""
    opened = open_library(where)
    one = opened.instance(instance)
    opened.schedule(one)  # the file of the index, or an error
    if output is not None:
        atomic_write(output, opened.packed(one))
    record = one.record
    size = "" if one.bytes is None else f", {format_size(one.bytes)}"
    lines = [
        f"{one.id}: {one.collective}{size}, {one.model.replace('_', ' ')}",
        f"network {one.name}: {counted(one.servers, 'server')}, "
        f"{counted(one.switches, 'switch', 'switches')}, {counted(one.links, 'link')}",
        f"best known: {_best(one)}, by {record.by}, {record.date}",
        f"found by: {record.how}",
        f"bound: {_bound(one)} for {one.holds_for}: {record.reason}",
        f"{one.status}{' (exactly)' * (one.exact and one.status == 'closed')}: "
        f"{one.gap:.2%} above the bound",
        f"schedule: {opened.path}: schedules/{one.id}.json.gz, sha256 {record.sha256}",
    ]
    lines += [
        f"before: {_value(one, was.value)}, by {was.by}, {was.date}: {was.how}"
        for was in one.history
    ]
    return Answer(one.as_object(), lines).written_to(output)


@library.command("submit", cls=Command, examples=["plan.json"])
@click.argument("file", type=FILE)
@option("--instance", "Judge it for this instance alone; other tools' files need it.")
@option("--write", "Record it if it improves on the best known.", bool)
@option("--by", "Name who found it, in the record.")
@option("--how", "Say how, in the record.", default="", show_default=False)
@needs("--by", "--write")
@library_option
def submit(
    file: Path, instance: str | None, write: bool, by: str | None, how: str, where: str | None
) -> Answer:
    """Judge the schedule of FILE by gradweave-check, and say what it improves.

    FILE is a schedule's, or, with --instance, an algorithm of MSCCL (XML), a solution of TE-CCL
    (JSON) or trees of ForestColl (XML). Exit status 1 says that it is invalid or behind what is
    known.
    """
    opened = open_library(where)
    outcomes = weigh(opened, _content(opened, file, instance), instance)
    written = []
    if write:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        for one in outcomes:
            if one.improves or one.raises_bound:
                accept(opened, one, str(by), how or f"submitted as {file.name}", today)
                written.append(one.instance.id)
    return Answer(
        {"file": str(file), "written": written, "outcomes": list(map(_object, outcomes))},
        [*map(_line, outcomes), *(f"{one}: recorded" for one in written)],
        [
            f"gradweave: {one.instance.id}: {in_one_line(why)}"
            for one in outcomes
            for why in one.judged.refused
        ],
        ANSWER_IS_NO if all(one.verdict == "behind" for one in outcomes) else SUCCESS,
    )


@library.command("freeze", cls=Command, examples=["--output library.zip"])
@written_option("--output", "Write the archive to this file, .zip.", (".zip",), required=True)
@library_option
def freeze(output: Path, where: str | None) -> Answer:
    """Write index, schedules and checker into one archive, and say its SHA-256.

    Equal libraries make equal bytes, so that a paper can state the sum.
    """
    opened = open_library(where)
    checksum = freeze_library(opened, output)
    found = {"release": opened.release, "output": str(output), "sha256": checksum}
    return Answer(found, [f"{checksum}  {output}"])


def _content(opened: Library, file: Path, instance: str | None) -> dict[str, Any]:
    """A submission's file, decoded, and made a schedule where another tool wrote it."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(f"{file}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise FileError(f"{file}: larger than {MAX_BYTES:,} bytes, the most accepted")
    if not is_foreign(content, str(file)):
        return content_of(content, str(file))
    if instance is None:
        raise OptionError(f"{file}: of another tool; give --instance ID, whose network it is for")
    asked = opened.instance(instance)
    best = schedule_of(opened.schedule(asked), instance)
    size = math.inf if asked.bytes is None else asked.bytes
    made = imported(content, str(file), best.topology, asked.collective, best.demand, size)
    return json.loads(to_bytes(made))


def _line(one: Outcome) -> str:
    instance = one.instance
    taken, known = _value(instance, one.judged.value), _best(instance)
    text = f"{instance.id}: valid, {taken}; best known {known}: {one.verdict}"
    if one.raises_bound:
        least = _value(instance, float(one.judged.least))
        text += f"; it proves at least {least}, known {_bound(instance)}"
    return text


def _object(one: Outcome) -> dict[str, Any]:
    return {
        "instance": one.instance.id,
        "best": one.instance.record.value,
        "bound": one.instance.record.bound,
        "least": str(one.judged.least),
        "verdict": one.verdict,
        **fields_of(one.judged, "value", "refused"),
    }


def _best(one: Instance) -> str:
    return _value(one, one.record.value)


def _bound(one: Instance) -> str:
    return _value(one, float(Fraction(one.record.bound)))


def _value(one: Instance, value: float) -> str:
    return counted(round(value), "round") if one.model == ROUNDS else format_seconds(value)
