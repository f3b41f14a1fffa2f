"""The plans of one group: read from files, kept by an earlier job, or searched for."""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from gradweave.common.atomic import make_folder
from gradweave.errors import (
    FileError,
    GradweaveError,
    InvalidScheduleError,
    OptionError,
    ScheduleError,
)
from gradweave.execute.program import check_plan, check_servers
from gradweave.execute.running.hosts import order_by_hosts, server_names
from gradweave.execute.torch_distributed.shards import sharded
from gradweave.probe.calibration import write
from gradweave.processes.cleared import cleared_folder
from gradweave.processes.owned import temporary_folder
from gradweave.schedulers.request import Request
from gradweave.schedules.demand import ROOTED, collective
from gradweave.schedules.file import load
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import COLLECTIVES, Schedule
from gradweave.simulator.runtime import Runtime, runtime_of
from gradweave.topology.formats.files import save
from gradweave.topology.spec import as_topology
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import LINK_COLUMNS, Topology
from gradweave.topology.units import format_seconds
from gradweave.torch.cache import check_regular, set_aside
from gradweave.torch.calls import DEMANDED, NO_ROOT, Planned, SizeClass
from gradweave.torch.child import run_command
from gradweave.torch.predicted import (
    LOSES,
    costlier,
    message_cost,
    own_seconds,
    plan_seconds,
)
from gradweave.torch.settings import Settings

SEARCH_S, FIRST_S, AGAIN_S = 60, 5, 10
"""Timeouts of searches in seconds: for a plan; for a first plan, if plans may change during the
job; and after a change, for which the plan from before is repaired first."""
MOST_BYTES = 1 << 26
"""Largest plan file that is read, in bytes after unpacking: 64 MiB."""
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
    """The plans and the network named in an environment, read from their files."""

    settings: Settings
    plans: tuple[Schedule, ...]
    network: Topology | None

    @classmethod
    def read(cls, settings: Settings) -> "Sources":
        """Reads the plan files and the network; a network to be measured is left out.

        Raises:
            GradweaveError: a file cannot be read, or `check_plan` refuses a plan.
        """
        try:
            runtime_of(settings.runtime)
        except GradweaveError as error:
            raise OptionError(f"GRADWEAVE_RUNTIME: {error}") from error
        plans = tuple(map(read_plan, settings.plans))
        if settings.topology is not None:
            check_cache(settings.cache)
        named = None if settings.measures else settings.topology
        return cls(settings, plans, None if named is None else as_topology(named))

    def with_network(self, text: str) -> "Sources":
        """A copy with a measured network.

        Args:
            text: the network, in the format of its file.

        Raises:
            GradweaveError: the text is not a network.
        """
        with temporary_folder() as folder:
            path = Path(folder, "measured.json")
            path.write_text(text)
            return dataclasses.replace(self, network=as_topology(str(path)))

    def order(self, hosts: Sequence[str]) -> list[int] | None:
        """The servers of a job's ranks, by their hosts; None if ranks follow the order of ids.

        Args:
            hosts: the host of each rank.

        Raises:
            OptionError: no server is left for the host of some rank.
        """
        networks = [self.network, *(plan.topology for plan in self.plans)]
        named = next((network for network in networks if network and network.labels), None)
        return None if named is None else order_by_hosts(server_names(named), hosts)

    def of_group(
        self, servers: int, ranks: Sequence[int] = (), order: Sequence[int] | None = None
    ) -> "Plans":
        """The plans of a group of a job's ranks.

        Args:
            servers: number of processes in the job.
            ranks: the job's ranks that form the group; all if not given.
            order: the server of each rank of the job, see `order`; in the order of ids if not
                given.

        Raises:
            GradweaveError: the network or a plan is for another number of servers.
        """
        plans, network = () if ranks else self.plans, self.network
        for plan in plans:
            check_servers(plan, servers, what="processes in the job")
        if order is not None:
            plans = tuple(plan.with_server_order(order) for plan in plans)
        if network is not None:
            if order is None and network.num_servers != servers:
                raise OptionError(
                    f"GRADWEAVE_TOPOLOGY: {network.name} has {network.num_servers} servers, but "
                    f"the job has {servers} processes; use equal numbers, or name the servers "
                    "after hosts"
                )
            places = range(servers) if order is None else order
            network = _part(network, [places[rank] for rank in ranks or range(servers)])
        given: Sequence[tuple[Planned, Schedule]] = [(planned(one), _to_run(one)) for one in plans]
        found = Plans(self.settings, given, network)
        if self.settings.replan:
            found = dataclasses.replace(found, search_s=FIRST_S, first=True)
        return found


def _part(network: Topology, places: list[int]) -> Topology:
    """The network of some of its servers, in the given order."""
    ascending = sorted(places)
    if len(places) < network.num_servers:
        network, _ = subnetwork(network, network.servers[ascending])
    if places == ascending:
        return network
    return network.with_server_order([ascending.index(place) for place in places])


@dataclasses.dataclass(frozen=True, eq=False)
class Plans:
    """The source of a group's plans."""

    settings: Settings
    given: Sequence[tuple[Planned, Schedule]]
    """Plans read from files, each with its collective; they apply to all sizes."""
    network: Topology | None
    """The network of the group's servers, for which further plans are searched."""
    search_s: float = SEARCH_S
    """Timeout of a search, in seconds."""
    first: bool = False
    """Whether searches are short, and longer ones follow, whose plans are kept."""
    cost: int = 1
    """Cost of messages in proportion to the runtime's profile; see `message_cost`."""
    before: "Plans | None" = None
    """The plans of the network before it changed, from which searches start."""

    @property
    def any(self) -> bool:
        """Whether the group has a source of plans."""
        return bool(self.given) or self.network is not None

    @property
    def runtime(self) -> Runtime:
        """The profile with the measured cost of messages."""
        return costlier(runtime_of(self.settings.runtime), self.cost)

    def on(self, network: Topology, *, cost: int) -> "Plans":
        """The source of plans for the same group on a network with other bandwidths."""
        changed = self.costing(cost)
        return dataclasses.replace(changed, network=network, search_s=AGAIN_S, before=self)

    def costing(self, cost: int) -> "Plans":
        """The source of plans for the same group if messages cost more, or as much as known."""
        search_s = SEARCH_S if self.first else AGAIN_S
        return dataclasses.replace(
            self, given=(), cost=cost, search_s=search_s, first=False, before=None
        )

    def is_first(self, of: SizeClass) -> bool:
        """Whether a longer search should follow for some calls."""
        searched = self.network is not None and not self.given
        return self.first and searched and not self.file(of).exists()

    def measured_cost(
        self, plan: Schedule | None, of: SizeClass, timed: tuple[float, int] | None
    ) -> int:
        """The cost of messages that explains the time of a plan that was searched for.

        Args:
            plan: the plan.
            of: its calls.
            timed: its time in seconds and the size of the calls in bytes, if known.
        """
        if plan is None or timed is None or self.network is None or self.given:
            return self.cost
        on_it, of = plan.replace(topology=self.network), of._replace(size=timed[1])
        return message_cost(on_it, runtime_of(self.settings.runtime), of, timed[0])

    def find(
        self, of: SizeClass, given_up: Callable[[], str | None] = lambda: None
    ) -> Schedule | None:
        """The plan for a collective and size, or None if no plan is wanted for it.

        Args:
            of: the calls that the plan is for.
            given_up: returns a reason to stop the search, or None to continue.

        Raises:
            GradweaveError: no plan was found.
        """
        given = [plan for name, plan in self.given if name == of.collective]
        if given:
            fitting = [plan for plan in given if _is_for(plan, of)]
            return min(fitting, key=lambda plan: self.seconds(plan, of), default=None)
        if self.network is None:
            return None
        return self.kept(of) or self.searched(of, given_up)

    def seconds(self, plan: Schedule, of: SizeClass) -> float:
        """The predicted time of a call by a plan."""
        return plan_seconds(plan, self.runtime, of)

    def hopeless(self, plan: Schedule, of: SizeClass) -> str | None:
        """Reason why a plan is not worth a trial, or None if it may beat the backend's own."""
        own_s = own_seconds(plan.topology, self.runtime, of)
        if own_s is None or (plan_s := self.seconds(plan, of)) <= LOSES * own_s:
            return None
        return (
            f"predicted to take {format_seconds(plan_s)}, gloo's own {format_seconds(own_s)} "
            f"(runtime {self.settings.runtime})"
        )

    def file(self, of: SizeClass) -> Path:
        """The file that keeps a plan, named by its collective, network, runtime and size."""
        assert self.network is not None
        runtime = self.settings.runtime
        if Path(runtime).suffix == ".toml":
            with contextlib.suppress(OSError):
                runtime = Path(runtime).read_text()
        runtime += f" × {self.cost}" if self.cost > 1 else ""
        key = hashlib.blake2b(digest(self.network).encode() + runtime.encode(), digest_size=12)
        root = "" if of.root == NO_ROOT else f"-{of.root}"
        return self.settings.cache / f"{of.collective}-{key.hexdigest()}-{of.size}{root}.json"

    def kept(self, of: SizeClass) -> Schedule | None:
        """The plan kept by an earlier job, if any; an unusable plan is set aside."""
        path = self.file(of)
        if not os.path.lexists(path):
            return None
        try:
            return self._checked(read_plan(path), of)
        except GradweaveError as error:
            set_aside(path, str(error).removeprefix(f"{path}: "))
        return None

    def _checked(self, plan: Schedule, of: SizeClass) -> Schedule:
        """A kept plan, in the form in which groups run it.

        Raises:
            ScheduleError: the plan is for a different call or network.
        """
        assert self.network is not None
        if digest(plan.topology) != digest(self.network):
            raise ScheduleError("it is the plan of another network")
        if planned(plan) != of.collective or not _is_for(plan, of):
            raise ScheduleError("it is the plan of another collective or root")
        size, wanted = _planned_bytes(plan), self._bytes(of)
        if size not in (None, wanted):
            raise ScheduleError(f"it was planned for {size:,} bytes, not {wanted:,}")
        return _to_run(plan)

    def searched(
        self, of: SizeClass, given_up: Callable[[], str | None] = lambda: None
    ) -> Schedule:
        """Searches for a new plan, and keeps it unless a longer search follows.

        Raises:
            GradweaveError: no plan was found.
        """
        assert self.network is not None
        with cleared_folder("gradweave-") as folder:  # even if this process is killed
            network, found, said = folder / "network.json", folder / "plan.json", folder / "said"
            save(self.network, network)
            runtime = self.settings.runtime
            if self.cost > 1:
                runtime = str(folder / "runtime.toml")
                write(self.runtime, Path(runtime))
            request = self._request(of, network, found, runtime)
            run_command(request.arguments, said, given_up, patient=True)
            plan = read_plan(found).replace(topology=self.network)  # restores its name
        if not self.first:
            self.keep(plan, of)
        return _to_run(plan)

    def _request(self, of: SizeClass, network: Path, output: Path, runtime: str) -> Request:
        """The search for a plan, on the network of a file."""
        assert self.network is not None
        earlier = None if self.before is None else self.before.file(of)
        return Request(
            network=str(network),
            output=str(output),
            collective=of.collective,
            gradient_bytes=self._bytes(of),
            root=None if of.root == NO_ROOT else int(self.network.servers[of.root]),
            runtime=runtime,
            time_limit=self.search_s,
            start_from=str(earlier) if earlier is not None and earlier.is_file() else None,
        )

    def _bytes(self, of: SizeClass) -> int:
        """The size to search a plan for, rounded up for an all-to-all, which needs equal parts."""
        if of.collective != "all_to_all" or self.network is None:
            return of.size
        servers = self.network.num_servers
        return -(-of.size // servers) * servers

    def keep(self, plan: Schedule, of: SizeClass) -> None:
        """Keeps a plan for later jobs."""
        path = self.file(of)
        try:
            make_folder(self.settings.cache)
            if os.path.lexists(path):  # written since the look-up, or could not be set aside
                check_regular(path)
            plan.save(path)
        except FileError as error:
            if check_cache(self.settings.cache):  # else a warning was logged when the job began
                _log.warning("GRADWEAVE_CACHE: the plan is not kept: %s", error)


@functools.cache
def check_cache(folder: Path) -> bool:
    """Whether plans can be kept in a folder; if not, logs a warning once per process."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except (FileError, OSError) as error:
        _log.warning("GRADWEAVE_CACHE: plans are not kept: %s", error)
        return False


def read_plan(path: Path) -> Schedule:
    """Reads a plan of unknown origin and checks it.

    Raises:
        GradweaveError: it cannot be read, or `check_plan` refuses it; the message names the file.
    """
    check_regular(path)
    plan = load(path, max_bytes=MOST_BYTES)
    try:
        check_plan(plan)
    except (InvalidScheduleError, ScheduleError) as error:
        raise type(error)(f"{path}: {error}") from error
    return plan


def planned(plan: Schedule) -> Planned:
    """The collective that a plan carries out.

    Raises:
        ScheduleError: it is not a collective that a call can ask for.
    """
    if plan.demand is None:
        return plan.collective
    demand, servers = plan.demand, plan.topology.servers
    for name in DEMANDED:
        if demand.jobs != (name,) or not (demand.bytes == demand.bytes[0]).all():
            continue
        ends = (demand.contributors, demand.destinations)
        root = int(ends[name == "reduce"][0][0]) if name in ROOTED else None
        asked = collective(name, servers, int(demand.bytes[0]) * len(servers), root=root)
        theirs = (asked.contributors, asked.destinations)
        if all(mine.same(other) for mine, other in zip(ends, theirs, strict=True)):
            return name
    raise ScheduleError(
        f"{demand.name}: expected a plan of one of {', '.join([*COLLECTIVES, *DEMANDED])} among "
        "all servers, in equal parts; run others by gradweave.torch.exchange"
    )


def _planned_bytes(plan: Schedule) -> float | None:
    """The size that a plan was searched for, if its file states it."""
    if plan.demand is None:
        return planned_for(plan).gradient_bytes
    blocks = plan.topology.num_servers if plan.demand.unicast and len(plan.demand.bytes) > 1 else 1
    return int(plan.demand.bytes[0]) * blocks


def _is_for(plan: Schedule, of: SizeClass) -> bool:
    """Whether a plan of the same collective has the same root."""
    if of.root == NO_ROOT:
        return True
    ends = plan.destinations if of.collective == "reduce" else plan.contributors
    return int(ends[0][0]) == int(plan.topology.servers[of.root])


def _to_run(plan: Schedule) -> Schedule:
    """A plan in the form in which groups run it: for one stage, rank r holds the r-th part."""
    return sharded(plan) if plan.kind in ("reduce_scatter", "all_gather") else plan


def digest(topology: Topology) -> str:
    """A hash of the nodes and links, independent of the network's name."""
    made = hashlib.blake2b(topology.is_server.tobytes(), digest_size=16)
    for column in LINK_COLUMNS:
        made.update(getattr(topology, column).tobytes())
    return made.hexdigest()
