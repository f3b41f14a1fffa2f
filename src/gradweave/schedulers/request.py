"""The request for a search in a separate process, which carries it out as ``python -m``."""

import dataclasses
import sys
from typing import cast

import msgspec

from gradweave.errors import GradweaveError, exit_status
from gradweave.printable import in_one_line
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.jobs import Job
from gradweave.schedules.schedule import COLLECTIVES, Collective


@dataclasses.dataclass(frozen=True)
class Request:
    """A collective of all servers, to be planned for the shortest time."""

    network: str
    """The network's file."""
    output: str
    """File for the plan, with its certificates."""
    collective: str
    gradient_bytes: int
    """Size of the collective, as in `Job`."""
    root: int | None
    """Node of the root, if the collective has one."""
    runtime: str
    """Name or file of the runtime to plan for."""
    time_limit: float
    """Seconds after which the search ends."""
    start_from: str | None
    """File of a plan to keep as much as possible of, if any."""

    @property
    def arguments(self) -> list[str]:
        """This module and its argument, which stands for the request."""
        return [__name__, msgspec.json.encode(self).decode()]

    def carry_out(self) -> None:
        """Searches for the plan and writes it.

        Raises:
            GradweaveError: a file cannot be read, or there is no plan.
        """
        if self.collective in COLLECTIVES:
            found = solve(
                self.network,
                collective=cast(Collective, self.collective),
                objective="seconds",
                gradient_bytes=self.gradient_bytes,
                runtime=self.runtime,
                start_from=self.start_from,
                time_limit=self.time_limit,
            )
        else:
            found = solve(
                self.network,
                jobs=Job(self.collective, self.gradient_bytes, root=self.root),
                runtime=self.runtime,
                start_from=self.start_from,
                time_limit=self.time_limit,
            )
        found.certified().save(self.output)


if __name__ == "__main__":
    try:
        msgspec.json.decode(sys.argv[1], type=Request).carry_out()
    except GradweaveError as error:
        print(f"gradweave: {in_one_line(str(error))}", file=sys.stderr)
        sys.exit(exit_status(error))
