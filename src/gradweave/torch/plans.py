"""The plans of one group: given, kept by an earlier job, or searched for."""

import contextlib
import dataclasses
import hashlib
import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gradweave.atomic import make_folder
from gradweave.errors import FileError, GradweaveError, OptionError, ScheduleError
from gradweave.execute.program import check_servers, same_bits
from gradweave.execute.running.hosts import order_by_hosts, server_names
from gradweave.execute.torch_distributed.shards import sharded
from gradweave.schedule.demand import ROOTED, collective
from gradweave.schedule.file import load
from gradweave.schedule.schedule import COLLECTIVES, Schedule
from gradweave.topology.formats.files import save
from gradweave.topology.spec import as_topology
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import LINK_COLUMNS, Topology
from gradweave.torch.calls import DEMANDED, NO_ROOT, Planned, SizeClass
from gradweave.torch.child import run_verb
from gradweave.torch.settings import Settings

SEARCH_S = 60
"""Longest search for a plan."""
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True, eq=False)
class Sources:
    """What an environment names, read: plans, and the network that others are made for."""

    settings: Settings
    plans: tuple[Schedule, ...]
    network: Topology | None

    @classmethod
    def read(cls, settings: Settings) -> "Sources":
        """Reads them; without a network that is to be measured.

        Raises:
            GradweaveError: something cannot be read, or a plan would end with different bits.
        """
        plans = tuple(load(path) for path in settings.plans)
        for path, plan in zip(settings.plans, plans, strict=True):
            if not same_bits(plan):
                raise ScheduleError(
                    f"{path}: servers add in different orders and would end with different bits; "
                    "take another strategy"
                )
        named = None if settings.measures else settings.topology
        return cls(settings, plans, None if named is None else as_topology(named))

    def with_network(self, text: str) -> "Sources":
        """With a network that was measured.

        Args:
            text: as it stands in a file.

        Raises:
            GradweaveError: it is not a network.
        """
        with tempfile.TemporaryDirectory(prefix="gradweave-") as folder:
            path = Path(folder, "measured.json")
            path.write_text(text)
            return dataclasses.replace(self, network=as_topology(str(path)))

    def order(self, hosts: Sequence[str]) -> list[int] | None:
        """The servers that a job's ranks are, by their hosts; None where that is the order of ids.

        Args:
            hosts: of each rank.

        Raises:
            OptionError: some rank's host has no server left for it.
        """
        networks = [self.network, *(plan.topology for plan in self.plans)]
        named = next((network for network in networks if network and network.labels), None)
        return None if named is None else order_by_hosts(server_names(named), hosts)

    def of_group(
        self, servers: int, ranks: Sequence[int] = (), order: Sequence[int] | None = None
    ) -> "Plans":
        """The plans of a group of a job's ranks.

        Args:
            servers: processes in the job.
            ranks: those of them that are the group; all if not given.
            order: the servers that they are, see `order`; by id if not given.

        Raises:
            GradweaveError: the network or a plan is of other servers.
        """
        plans, network = () if ranks else self.plans, self.network
        for plan in plans:
            check_servers(plan, servers, what="processes in the job")
        if order is not None:
            plans = tuple(plan.with_server_order(order) for plan in plans)
        if network is not None:
            if order is None and network.num_servers != servers:
                raise OptionError(
                    f"GRADWEAVE_TOPOLOGY: {network.name} has {network.num_servers} servers, the "
                    f"job {servers} processes; they must agree, or servers be named after hosts"
                )
            places = range(servers) if order is None else order
            network = _part(network, [places[rank] for rank in ranks or range(servers)])
        return Plans(self.settings, {planned(one): _to_run(one) for one in plans}, network)


def _part(network: Topology, places: list[int]) -> Topology:
    """The network of some of its servers, in an order."""
    ascending = sorted(places)
    if len(places) < network.num_servers:
        network, _ = subnetwork(network, network.servers[ascending])
    if places == ascending:
        return network
    return network.with_server_order([ascending.index(place) for place in places])


@dataclasses.dataclass(frozen=True, eq=False)
class Plans:
    """Where the plans of a group come from."""

    settings: Settings
    given: Mapping[str, Schedule]
    """Those of files, for all sizes."""
    network: Topology | None
    """That of the group's servers, for which others are made."""
    search_s: float = SEARCH_S
    """Longest search for one."""

    @property
    def any(self) -> bool:
        """Whether there are to be some."""
        return bool(self.given) or self.network is not None

    def find(self, of: SizeClass, ended: threading.Event) -> Schedule | None:
        """The plan for a collective and size; None where none is wanted.

        Args:
            of: what it is for.
            ended: set when the plan is of no use any more.

        Raises:
            GradweaveError: none was found.
        """
        if of.collective in self.given:
            given = self.given[of.collective]
            return given if _is_for(given, of) else None
        if self.network is None:
            return None
        return _to_run(self.kept(of) or self.searched(of, ended))

    def file(self, of: SizeClass) -> Path:
        """Where a plan is kept: by collective, network, runtime and size."""
        assert self.network is not None
        runtime = self.settings.runtime
        if Path(runtime).suffix == ".toml":
            with contextlib.suppress(OSError):
                runtime = Path(runtime).read_text()
        key = hashlib.blake2b(digest(self.network).encode() + runtime.encode(), digest_size=12)
        root = "" if of.root == NO_ROOT else f"-{of.root}"
        return self.settings.cache / f"{of.collective}-{key.hexdigest()}-{of.size}{root}.json"

    def kept(self, of: SizeClass) -> Schedule | None:
        """A plan that an earlier job has left."""
        path = self.file(of)
        if not path.exists():
            return None
        try:
            plan = load(path)
        except GradweaveError as error:
            _log.warning("%s is made anew: %s", path, error)
            return None
        assert self.network is not None
        same = digest(plan.topology) == digest(self.network)
        if same and planned(plan) == of.collective and _is_for(plan, of):
            return plan
        _log.warning("%s is made anew: it is the plan of another network", path)
        return None

    def searched(self, of: SizeClass, ended: threading.Event) -> Schedule:
        """A new plan, which is kept.

        Raises:
            GradweaveError: none was found.
        """
        assert self.network is not None
        with tempfile.TemporaryDirectory(prefix="gradweave-") as folder:
            network, found = Path(folder, "network.json"), Path(folder, "plan.json")
            said = Path(folder, "said")
            save(self.network, network)
            arguments = ["schedule", str(network), "--output", str(found)]
            arguments += self._asked(of)
            arguments += ["--time-limit", str(self.search_s)]
            run_verb(arguments, said, lambda: "the group has ended" if ended.is_set() else None)
            plan = load(found).replace(topology=self.network)  # by its name
        self.keep(plan, of)
        return plan

    def _asked(self, of: SizeClass) -> list[str]:
        """Options of the verb that searches."""
        if of.collective in COLLECTIVES:
            asked = ["--collective", of.collective, "--objective", "seconds"]
            asked += ["--runtime", self.settings.runtime]
            return [*asked, "--gradient-bytes", str(of.size)]
        assert self.network is not None
        servers = self.network.servers
        size = -(-of.size // len(servers)) * len(servers)  # an all-to-all has equal parts
        root = "" if of.root == NO_ROOT else f",root={servers[of.root]}"
        job = f"{of.collective}:bytes={size}{root}"
        return ["--job", job, "--runtime", self.settings.runtime]

    def keep(self, plan: Schedule, of: SizeClass) -> None:
        """Keeps a plan for later jobs."""
        try:
            make_folder(self.settings.cache)
            plan.save(self.file(of))
        except FileError as error:
            _log.warning("GRADWEAVE_CACHE: the plan is not kept: %s", error)


def planned(plan: Schedule) -> Planned:
    """The collective that a plan is of.

    Raises:
        ScheduleError: something that no call asks for.
    """
    if plan.demand is None:
        return plan.collective
    demand, servers = plan.demand, plan.topology.servers
    for name in DEMANDED:
        if demand.jobs != (name,) or not (demand.bytes == demand.bytes[0]).all():
            continue
        ends = (demand.contributors, demand.destinations)
        root = int(ends[name == "reduce"].servers[0]) if name in ROOTED else None
        asked = collective(name, servers, int(demand.bytes[0]) * len(servers), root=root)
        theirs = (asked.contributors, asked.destinations)
        if all(
            np.array_equal(mine.servers, other.servers)
            and np.array_equal(mine.offsets, other.offsets)
            for mine, other in zip(ends, theirs, strict=True)
        ):
            return name
    raise ScheduleError(
        f"{demand.name}: expected a plan of one of {', '.join([*COLLECTIVES, *DEMANDED])} among "
        "all servers, in equal parts; run others by gradweave.execute.torch_distributed.exchange"
    )


def _is_for(plan: Schedule, of: SizeClass) -> bool:
    """Whether a plan of the same collective has the same root."""
    if of.root == NO_ROOT:
        return True
    ends = plan.destinations if of.collective == "reduce" else plan.contributors
    return int(ends.servers[0]) == int(plan.topology.servers[of.root])


def _to_run(plan: Schedule) -> Schedule:
    """A plan as groups run it: of a stage, rank r has the r-th part."""
    if plan.demand is not None or plan.collective == "all_reduce":
        return plan
    return sharded(plan)


def digest(topology: Topology) -> str:
    """Of nodes and links, whatever their network is called."""
    made = hashlib.blake2b(topology.is_server.tobytes(), digest_size=16)
    for column in LINK_COLUMNS:
        made.update(getattr(topology, column).tobytes())
    return made.hexdigest()
