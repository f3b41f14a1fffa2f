"""``gradweave plugins``: list and check strategies, games and algorithms."""

import click

from gradweave.cli.groups import Commands


@click.group(cls=Commands, folder=__name__, members={"list": "list_", "check": "check"})
def plugins() -> None:
    """List and check strategies, games and algorithms."""
