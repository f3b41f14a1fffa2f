"""``gradweave topology``: list, describe and measure networks."""

import click

from gradweave.cli.groups import Commands


@click.group(
    cls=Commands, folder=__name__, members={"list": "list_", "show": "show", "measure": "measure"}
)
def topology() -> None:
    """List, describe and measure networks."""
