"""``gradweave topology``: list, describe, measure and design networks, and explain times."""

import click

from gradweave.cli.groups import Commands


@click.group(
    cls=Commands,
    folder=__name__,
    members={
        "list": "list_",
        "show": "show",
        "measure": "measure",
        "explain": "explain_",
        "design": "design",
    },
)
def topology() -> None:
    """List, describe, measure and design networks; explain times."""
