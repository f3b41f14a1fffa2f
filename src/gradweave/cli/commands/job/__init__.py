"""``gradweave job``: plan, watch and trace PyTorch jobs."""

import click

from gradweave.cli.groups import Commands


@click.group(
    cls=Commands, folder=__name__, members={"plan": "plan", "watch": "watch", "trace": "trace"}
)
def job() -> None:
    """Plan, watch and trace PyTorch jobs."""
