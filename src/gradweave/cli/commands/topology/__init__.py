"""``gradweave topology``: list, describe, measure and design networks."""

import click

from gradweave.cli.groups import Commands


@click.group(
    cls=Commands,
    folder=__name__,
    members={"list": "list_", "show": "show", "measure": "measure", "design": "design"},
)
def topology() -> None:
    """List, describe, measure and design networks."""
