"""``gradweave job plan``: precomputed plans for the PyTorch backend."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, warn
from gradweave.cli.groups import command
from gradweave.cli.meshes import mesh_axes
from gradweave.cli.options import FILE, SECONDS, option, sizes_option
from gradweave.cli.solving import CollectiveType
from gradweave.common.lazy import require
from gradweave.common.wording import counted
from gradweave.errors import GradweaveError, OptionError
from gradweave.execute.program import is_own
from gradweave.ranks.mesh import Mesh
from gradweave.schedulers.solving.own import own_schedule
from gradweave.schedules.demand import NAMES as NAMES_OF_COLLECTIVES
from gradweave.schedules.demand import ROOTED
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.ready import planned_ready_times
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import NAMES, runtime_of
from gradweave.topology.units import format_seconds, format_size

if TYPE_CHECKING:
    from gradweave.torch.calls import Planned
    from gradweave.torch.plans import Plans

_PLANNED = tuple(name for name in NAMES_OF_COLLECTIVES if name not in ("scatter", "gather"))
"""Collectives that the backend runs by plans."""


@command(
    examples=[
        "cluster.json --size 1MB,25MB",
        "cluster.json --collective all_gather --mesh replicate=2,shard=4",
        "--list",
    ]
)
@click.argument("network", required=False)
@option(
    "--collective collectives",
    "Plan this collective. Repeatable. FSDP needs all_gather and reduce_scatter, experts need "
    "all_to_all; broadcast and reduce are planned with rank 0 as the root.",
    CollectiveType(_PLANNED),
    multiple=True,
    default=("all_reduce",),
)
@sizes_option(
    "25MB",
    "Plan for tensors of this size, which is the sum of all ranks' parts.",
    more="A list (1MB,8MB) or a range (1MB..64MB, doubling; 1KB..1GB*10) makes several plans.",
)
@option(
    "--mesh",
    "Plan for the groups along each axis, such as replicate=2,shard=4; ranks along the last "
    "axis are consecutive.  [default: all ranks are one group]",
    metavar="AXIS=N,…",
)
@option(
    "--runtime",
    f"Plan with the message costs of {', '.join(NAMES)}, or of a TOML file.  "
    "[default: GRADWEAVE_RUNTIME, else gloo]",
    metavar="NAME|FILE",
)
@option("--time-limit", "End the search for each plan after this time.", SECONDS, default=60.0)
@option(
    "--cache",
    "Keep plans in this folder.  [default: GRADWEAVE_CACHE, else ~/.cache/gradweave/plans]",
    FILE,
)
@option("--list list_all", "List the cached plans.", bool)
def plan(
    network: str | None,
    collectives: tuple["Planned", ...],
    gradient_bytes: tuple[int, ...],
    mesh: str | None,
    runtime: str | None,
    time_limit: float,
    cache: Path | None,
    list_all: bool,
) -> Answer:
    """Precompute schedules for the PyTorch backend.

    Schedules that are in the cache already are not computed again. A job tries each schedule
    against gloo and keeps the faster.
    """
    require("gradweave job plan", "torch", extra="torch")
    from gradweave.torch.settings import Settings

    settings = Settings.of()
    settings = dataclasses.replace(
        settings,
        plans=(),
        topology=network,
        runtime=runtime or settings.runtime,
        cache=cache or settings.cache,
    )
    if list_all:
        if network is not None:
            raise OptionError("--list lists the plans for all networks; leave out the network")
        return _answer(list(_kept(settings.cache)), settings.cache)
    if network is None:
        raise OptionError("expected a network to plan for, or --list")
    runtime_of(settings.runtime)  # refused before a search
    rows = list[dict[str, Any]]()
    with Progress(f"planning for {network}") as progress:
        for plans in _groups(settings, mesh, time_limit):
            for collective in collectives:
                for size in gradient_bytes:
                    progress(f"{collective} of {format_size(size)}")
                    rows.append(_made(plans, collective, size))
    return _answer([*{row["file"]: row for row in rows}.values()], settings.cache)


def _groups(settings: Any, mesh: str | None, time_limit: float) -> Iterator["Plans"]:
    """The plans of each group; groups whose networks are alike share files."""
    from gradweave.torch.plans import Sources

    sources = Sources.read(settings)
    assert sources.network is not None
    servers = sources.network.num_servers
    groups: list[list[int]] = [[]]
    if mesh is not None:
        axes = mesh_axes(mesh)
        laid = Mesh(axes, dict.fromkeys(axes, 1.0))
        if laid.size != servers:
            raise OptionError(
                f"--mesh: {mesh} has {counted(laid.size, 'rank')}, the network "
                f"{counted(servers, 'server')}; they must agree"
            )
        groups = [row.tolist() for axis in laid.used for row in laid.groups(axis)]
    for ranks in groups:
        group = sources.of_group(servers, ranks)
        yield dataclasses.replace(group, search_s=time_limit, first=False)


def _made(plans: "Plans", collective: "Planned", size: int) -> dict[str, Any]:
    """A cached plan, or a new one."""
    from gradweave.torch.calls import NO_ROOT, SizeClass

    root = 0 if collective in ROOTED else NO_ROOT
    of = SizeClass.of_bytes(collective, size, root)
    found = plans.find(of)
    assert found is not None  # a network is given
    return _row(plans.file(of), found)


def _kept(cache: Path) -> Iterator[dict[str, Any]]:
    """The plans of a folder."""
    from gradweave.torch.plans import read_plan

    for path in sorted(cache.glob("*.json")):
        try:
            yield _row(path, read_plan(path))
        except GradweaveError as error:
            warn(f"no plan: {error}")


def _row(path: Path, schedule: Schedule) -> dict[str, Any]:
    """A plan as a row: network, collective, size and predicted time."""
    asked, demand = planned_for(schedule), schedule.demand
    if demand is not None:  # an all-to-all has the size of one rank's parts
        size = int(demand.bytes[0]) * (schedule.topology.num_servers if demand.unicast else 1)
        asked = asked._replace(gradient_bytes=size)
    row: dict[str, Any] = {
        "file": str(path),
        "network": schedule.topology.name,
        "servers": schedule.topology.num_servers,
        "collective": schedule.name,
        "bytes": asked.gradient_bytes,
        "runtime": asked.runtime,
        "scheduler": schedule.scheduler.name,
        "seconds": None,
        "own_seconds": None,
        "is_own": is_own(schedule, "gloo"),
    }
    if asked.gradient_bytes is None or asked.runtime is None:
        return row
    try:
        runtime = runtime_of(asked.runtime)
    except GradweaveError:  # of a file that is gone
        return row
    row["seconds"] = runtime.seconds(schedule, asked.gradient_bytes)
    if row["collective"] == "all_reduce":
        own = own_schedule(schedule.topology, runtime, asked.gradient_bytes)
        row["own_seconds"] = own and runtime.own_seconds(
            own, asked.gradient_bytes, planned_ready_times(schedule)
        )
        if row["is_own"]:
            row["seconds"] = row["own_seconds"]
    return row


def _answer(rows: list[dict[str, Any]], cache: Path) -> Answer:
    found = {"cache": str(cache), "plans": rows}
    if not rows:
        return Answer(found, [], [f"no plans in {cache}"])
    ordered = sorted(rows, key=lambda row: (row["network"], row["collective"], row["bytes"] or 0))
    heads = ["network", "servers", "collective", "size", "found by", "predicted", "gloo's own"]
    return Answer(found, [Table(heads, map(_cells, ordered), [f"in {cache}"])])


def _cells(row: dict[str, Any]) -> list[str]:
    def shown(seconds: float | None) -> str:
        return "" if seconds is None else format_seconds(seconds)

    return [
        row["network"],
        str(row["servers"]),
        row["collective"].replace("_", "-"),
        "" if row["bytes"] is None else format_size(cast(float, row["bytes"])),
        "gloo's own" if row["is_own"] else row["scheduler"],
        shown(row["seconds"]),
        shown(row["own_seconds"]),
    ]
