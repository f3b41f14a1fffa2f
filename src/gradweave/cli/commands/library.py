"""``gradweave library``: best known schedules of frozen instances, and submissions."""

import datetime
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from gradweave.cli.console import print_json, print_lines, print_table, table
from gradweave.cli.groups import Command
from gradweave.cli.options import json_option, writable
from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import ANSWER_IS_NO, FileError, OptionError
from gradweave.library.freezing import freeze as freeze_library
from gradweave.library.importers import imported, is_foreign
from gradweave.library.instance import MODELS, ROUNDS, STATUSES, Instance, fits, summary
from gradweave.library.store import MAX_BYTES, Library, content_of, open_library
from gradweave.library.submission import Outcome, accept, schedule_of, weigh
from gradweave.printable import in_one_line
from gradweave.schedules.file import to_bytes
from gradweave.topology.units import format_seconds, format_size

library_option = click.option(
    "--library",
    "where",
    metavar="FOLDER|ARCHIVE",
    help="Take the library from here.  [default: $GRADWEAVE_LIBRARY, or the checkout's]",
)


@click.group()
def library() -> None:
    """Browse the best known schedules and submit better ones."""


@library.command("list", cls=Command, examples=["--kind torus --status open"])
@click.option("--kind", help="Only networks of this kind, such as torus.")
@click.option("--collective", help="Only this collective, such as all_reduce.")
@click.option("--model", type=click.Choice(MODELS), help="Only this model.")
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@library_option
@json_option
def list_(
    kind: str | None,
    collective: str | None,
    model: str | None,
    status: str | None,
    where: str | None,
    as_json: bool,
) -> None:
    """List instances: what is known best of each, its bound, and whether both meet."""
    opened = open_library(where)
    wanted = {"kind": kind, "collective": collective, "model": model, "status": status}
    for field in ("kind", "collective"):
        there = sorted({getattr(one, field) for one in opened.instances.values()})
        if wanted[field] is not None and wanted[field] not in there:
            raise OptionError(
                f"--{field}: expected one of {', '.join(there)}, got {wanted[field]!r:.40}"
            )
    chosen = {name: one for name, one in opened.instances.items() if fits(one, **wanted)}
    counts = summary(chosen)
    if as_json:
        shown = [one.as_object() for one in chosen.values()]
        print_json({"release": opened.release, **counts, "library": shown})
        return
    shown = table(["instance", "servers", "best known", "bound", "above it", "status"])
    for one in chosen.values():
        gap = "0" if one.exact else f"{one.gap:.2%}"
        shown.add_row(one.id, str(one.servers), _best(one), _bound(one), gap, one.status)
    print_table(
        shown,
        f"release {opened.release}: {counted(counts['instances'], 'instance')}, "
        f"{counts['closed']} closed ({counts['exact']} exactly), {counts['open']} open",
    )


@library.command("show", cls=Command, examples=["ID --output best.json.gz"])
@click.argument("instance")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the best schedule, with its certificates, to this file, .json.gz.",
)
@library_option
@json_option
def show(instance: str, output: Path | None, where: str | None, as_json: bool) -> None:
    """Show INSTANCE: its network, best schedule and bound, who found them, and what came before."""
    writable(output, ".json.gz")
    opened = open_library(where)
    one = opened.instance(instance)
    opened.schedule(one)  # the file of the index, or an error
    if output is not None:
        atomic_write(output, opened.packed(one))
    if as_json:
        print_json(one.as_object() | {"output": output and str(output)})
        return
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
    print_lines(*lines, *([] if output is None else [f"written to {output}"]))


@library.command("submit", cls=Command, examples=["plan.json"])
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--instance", help="Judge it for this instance alone; other tools' files need it.")
@click.option("--write", is_flag=True, help="Record it if it improves on the best known.")
@click.option("--by", help="Name who found it, in the record.")
@click.option("--how", default="", help="Say how, in the record.")
@library_option
@json_option
@click.pass_context
def submit(
    context: click.Context,
    file: Path,
    instance: str | None,
    write: bool,
    by: str | None,
    how: str,
    where: str | None,
    as_json: bool,
) -> None:
    """Judge the schedule of FILE by gradweave-check, and say what it improves.

    FILE is a schedule's, or, with --instance, an algorithm of MSCCL (XML), a solution of TE-CCL
    (JSON) or trees of ForestColl (XML). Exit status 1 says that it is invalid or behind what is
    known.
    """
    if write and not by:
        raise OptionError("--write: expected --by NAME with it, for the record")
    opened = open_library(where)
    outcomes = weigh(opened, _content(opened, file, instance), instance)
    written = []
    if write:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        for one in outcomes:
            if one.improves or one.raises_bound:
                accept(opened, one, str(by), how or f"submitted as {file.name}", today)
                written.append(one.instance.id)
    if as_json:
        print_json(
            {"file": str(file), "written": written, "outcomes": list(map(_object, outcomes))}
        )
    else:
        print_lines(*(_line(one) for one in outcomes), *(f"{one}: recorded" for one in written))
        for one in outcomes:
            for why in one.judged.refused:
                click.echo(f"gradweave: {one.instance.id}: {in_one_line(why)}", err=True)
    if all(one.verdict == "behind" for one in outcomes):
        context.exit(ANSWER_IS_NO)


@library.command("freeze", cls=Command, examples=["--output library.zip"])
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Write the archive to this file, .zip.",
)
@library_option
@json_option
def freeze(output: Path, where: str | None, as_json: bool) -> None:
    """Write index, schedules and checker into one archive, and say its SHA-256.

    Equal libraries make equal bytes, so that a paper can state the sum.
    """
    writable(output, ".zip")
    opened = open_library(where)
    checksum = freeze_library(opened, output)
    if as_json:
        print_json({"release": opened.release, "output": str(output), "sha256": checksum})
    else:
        print_lines(f"{checksum}  {output}")


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
        "value": one.judged.value,
        "best": one.instance.record.value,
        "least": str(one.judged.least),
        "bound": one.instance.record.bound,
        "verdict": one.verdict,
        "refused": list(one.judged.refused),
    }


def _best(one: Instance) -> str:
    return _value(one, one.record.value)


def _bound(one: Instance) -> str:
    return _value(one, float(Fraction(one.record.bound)))


def _value(one: Instance, value: float) -> str:
    return counted(round(value), "round") if one.model == ROUNDS else format_seconds(value)
