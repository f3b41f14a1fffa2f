"""``gradweave show``: write the page that plays a schedule."""

from pathlib import Path

import click

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import json_option, writable
from gradweave.report import write_page
from gradweave.schedule import load
from gradweave.verify import verify


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Page to write.  [default: FILE with .html in place of .json]",
)
@click.option("--title", help="Heading of the page.  [default: the network's name]")
@json_option
def show(file: Path, output: Path | None, title: str | None, as_json: bool) -> None:
    """Write one HTML page that plays the schedule in FILE; it needs no network access."""
    if output is None:
        stem = file.name.removesuffix(".gz").removesuffix(".json")
        output = file.with_name(f"{stem}.html")
    writable(output, ".html", ".htm")
    with Progress(f"reading {file}") as progress:
        schedule = load(file)
        progress("verifying")
        switches = bool(schedule.scheduler.options.get("aggregating_switches"))
        verify(schedule, aggregating_switches=switches).raise_if_invalid()
        progress(f"drawing {schedule.topology.name}")
        write_page(schedule, output, title=title)
    if as_json:
        print_json({"file": str(file), "output": str(output), "rounds": schedule.rounds})
    else:
        print_lines(f"{output}: {schedule.rounds} rounds; open it in a browser")
