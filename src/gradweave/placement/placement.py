"""The result: the servers of each stage and pipeline, their cost, and the bound."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradweave.common.atomic import atomic_write
from gradweave.common.drawn import Drawn
from gradweave.errors import FileError, OptionError
from gradweave.placement.bound.search import PlacementBound
from gradweave.placement.strategies.strategy import Stopped
from gradweave.placement.workload import Stage, Workload
from gradweave.topology.formats.object import topology_from_object, topology_to_object
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Integers, Topology

if TYPE_CHECKING:
    from gradweave.placement.timeline.groups import GroupSchedule

T = TypeVar("T")

FORMAT, VERSION = "gradweave-placement", 1
MAX_BYTES = 64 << 20
"""Largest placement or workload file that is read: 64 MiB."""
_ROUNDING = 1e-7
"""Relative tolerance: the bound's duals are whole nanoseconds, one for each device."""


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduledCost:
    """A placement's communication time with our schedules, with links shared fairly."""

    data_s: float
    """All groups' all-reduces concurrently, each by a schedule for its links."""
    pipeline_s: float
    """All pipelines concurrently: activations from first stage to last, and gradients back."""
    groups: "tuple[GroupSchedule | None, ...]"
    """[S] the schedules."""

    @property
    def seconds(self) -> float:
        """Data plus pipeline seconds."""
        return self.data_s + self.pipeline_s


@dataclasses.dataclass(frozen=True, eq=False)
class Placement(Drawn):
    """Servers for the stages of each pipeline, and their communication cost."""

    topology: Topology
    workload: Workload
    servers: Integers
    """[S, D] node ids: row s is the data-parallel group of stage s, column p is pipeline p."""
    data_s: float
    """DataP of the exchange model: gradients, sent directly within each group."""
    pipeline_s: float
    """PipelineP of the exchange model: activations and their gradients along the pipelines."""
    strategy: str
    options: dict[str, Any]
    seed: int
    bound: PlacementBound | None = None
    """A lower bound on the cost of any placement, or None if it was not requested."""
    wall_s: float = 0.0
    scheduled: ScheduledCost | None = None
    """The cost with our schedules, if that was minimised."""
    stopped: Stopped = "tried"
    """Why the search ended: ``time`` if the time limit was used up, ``tried`` if the strategy
    finished. For several searches, ``time`` if any was cut short."""

    def __post_init__(self) -> None:
        servers = np.array(self.servers)
        stages = len(self.workload.stages)
        if servers.ndim != 2 or len(servers) != stages or not servers.size:
            raise OptionError(
                f"servers: expected a row of servers for each of {stages} stages, got "
                f"{servers.shape}"
            )
        if servers.dtype.kind not in "iu":
            raise OptionError(f"servers: expected node ids, got {servers.dtype} values")
        inside = (servers >= 0) & (servers < self.topology.num_nodes)
        if not inside.all() or not self.topology.is_server[servers].all():
            raise OptionError("servers: expected node ids of servers of the network")
        if len(np.unique(servers)) < servers.size:
            raise OptionError("servers: expected each server once")
        servers = servers.astype(np.int32)
        servers.flags.writeable = False
        object.__setattr__(self, "servers", servers)

    @property
    def cost_s(self) -> float:
        """The exchange model's cost: DataP plus PipelineP."""
        return self.data_s + self.pipeline_s

    @property
    def gap(self) -> float | None:
        """Relative distance of the cost from the bound: cost over bound, less one."""
        if self.bound is None or self.bound.seconds <= 0:
            return None
        return max(0.0, self.cost_s / self.bound.seconds - 1)

    @property
    def optimal(self) -> bool:
        """Whether the cost meets the bound, up to rounding."""
        return self.gap is not None and self.gap < _ROUNDING

    @property
    def pipelines(self) -> Integers:
        """[D, S] the servers of each pipeline, in the order of stages."""
        return self.servers.T

    @property
    def idle(self) -> Integers:
        """Servers that compute nothing, in ascending order."""
        return np.setdiff1d(self.topology.servers, self.servers)

    def ranks(self) -> NDArray[np.int64]:
        """[S·D] node ids by rank, for a launcher that numbers one pipeline after the other."""
        return self.pipelines.ravel().astype(np.int64)

    def save(self, path: str | Path) -> None:
        """Writes the placement as JSON, with its network and its bound's certificate.

        The file is written completely or not at all. `gradweave.placement.recounted` reads and
        checks it.

        Raises:
            FileError: the file cannot be written.
        """
        whole = self.as_object() | {"topology": topology_to_object(self.topology)}
        if self.bound is not None:
            whole["certificate"] = self.bound.certificate.as_object()
        text = json.dumps(whole, indent=1, ensure_ascii=False)
        atomic_write(path, (text + "\n").encode())

    def as_object(self) -> dict[str, Any]:
        """The file's content without the network and the certificate."""
        name = self.topology.label
        return {
            "format": FORMAT,
            "version": VERSION,
            "network": self.topology.name,
            "workload": dataclasses.asdict(self.workload),
            "servers": self.servers.tolist(),
            "names": [[name(one) for one in row] for row in self.servers.tolist()]
            if self.topology.labels
            else None,
            "idle": self.idle.tolist(),
            "data_s": self.data_s,
            "pipeline_s": self.pipeline_s,
            "cost_s": self.cost_s,
            "scheduled_s": None if self.scheduled is None else self.scheduled.seconds,
            "bound_s": None if self.bound is None else self.bound.seconds,
            "strategy": {"name": self.strategy, "options": self.options, "seed": self.seed},
        }


class _Strategy(msgspec.Struct):
    """The strategy that found the placement."""

    name: str = "unknown"
    options: dict[str, Any] = {}
    seed: int = 0


class Certificate(msgspec.Struct):
    """A bound's certificate as stored in a file: `Sequences` with a goal, or `GroupDuals`."""

    classes: list[int]
    """[N] class of each device."""
    since_ns: list[int] = []
    """[W] DataP from which on each window holds."""
    duals_ns: list[list[int]] = []
    """[W][Q]."""
    goal_ns: int | None = None
    """No sequence of groups costs less than this."""


class PlacementFile(msgspec.Struct):
    """The fields that are read from a placement's file."""

    format: str
    version: int
    network: str
    workload: Workload
    servers: list[list[int]]
    data_s: float
    pipeline_s: float
    strategy: _Strategy
    bound_s: float | None = None
    topology: dict[str, Any] | None = None
    certificate: Certificate | None = None


_UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
"""Errors of files that are not JSON or contain something else."""


def _why(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _read(path: str | Path, kind: type[T]) -> T:
    with Path(path).open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(f"larger than {MAX_BYTES >> 20} MiB, the most that is read")
    return msgspec.json.decode(content, type=kind)


def load_placement(path: str | Path, topology: TopologyLike) -> Placement:
    """Reads a placement that `Placement.save` wrote.

    Args:
        path: path of the file.
        topology: the network that the placement must belong to.

    Raises:
        FileError: it cannot be read, or is not a placement of this network.
    """
    topology = as_topology(topology)
    return read_placement(path, topology)[0]


def read_placement(
    path: str | Path, topology: Topology | None = None
) -> tuple[Placement, PlacementFile]:
    """The placement in a file, and the file's content.

    Args:
        path: path of the file.
        topology: the network; the network in the file if not given.

    Raises:
        FileError: it cannot be read, or is not a placement of this network.
    """
    try:
        read = _read(path, PlacementFile)
        if read.format != FORMAT or read.version != VERSION:
            raise FileError(f"expected {FORMAT} version {VERSION}, got {read.format!r:.40}")
        if topology is None:
            if read.topology is None:
                raise FileError("it has no network; 'gradweave place' of this version writes one")
            topology = topology_from_object(read.topology)
        strategy = read.strategy
        placement = Placement(
            topology,
            read.workload,
            np.array(read.servers, np.int64),
            read.data_s,
            read.pipeline_s,
            strategy.name,
            strategy.options,
            strategy.seed,
        )
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise FileError(f"{path}: is not a placement of this network: {_why(error)}") from error
    return placement, read


def load_workload(path: str | Path) -> Workload:
    """Reads a workload from JSON: ``{"stages": [{"forward_s": …, …}, …], "microbatches": 8}``.

    Raises:
        FileError: it cannot be read, or a field is missing or invalid.
    """
    try:
        read = _read(path, Workload)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        fields = ", ".join(field.name for field in dataclasses.fields(Stage))
        raise FileError(f"{path}: {_why(error)}; a stage has {fields}") from error
    return dataclasses.replace(read, name=Path(path).stem) if read.name == "workload" else read
