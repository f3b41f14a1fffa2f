"""The result: which server computes which stage of which pipeline, its cost, and the bound."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradweave.atomic import atomic_write
from gradweave.drawn import Drawn
from gradweave.errors import FileError, OptionError
from gradweave.placement.bound.search import PlacementBound
from gradweave.placement.strategies.strategy import Stopped
from gradweave.placement.workload import Stage, Workload
from gradweave.topology.formats.object import topology_from_object, topology_to_object
from gradweave.topology.topology import Integers, Topology

if TYPE_CHECKING:
    from gradweave.placement.timeline.groups import GroupSchedule

T = TypeVar("T")

FORMAT, VERSION = "gradweave-placement", 1
MAX_BYTES = 64 << 20
"""Largest file of a placement or a workload that is read: 64 MiB."""
_ROUNDING = 1e-7
"""Relative: the bound's duals are whole nanoseconds, one for each device."""


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduledCost:
    """What a placement's communication takes with our schedules, links shared fairly."""

    data_s: float
    """All groups' all-reduces at once, each by a schedule for its links."""
    pipeline_s: float
    """All pipelines at once: the activations from first stage to last, and their gradients back."""
    groups: "tuple[GroupSchedule | None, ...]"
    """[S] the schedules."""

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.data_s + self.pipeline_s


@dataclasses.dataclass(frozen=True, eq=False)
class Placement(Drawn):
    """Servers for the stages of each pipeline, and what their communication costs."""

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
    """The least that any placement costs; None where it was not asked for."""
    wall_s: float = 0.0
    scheduled: ScheduledCost | None = None
    """What it takes with our schedules, where that was minimised."""
    stopped: Stopped = "tried"
    """Why the search ended: the ``time`` limit is used up, or the strategy has ``tried`` all that
    it tries. Of several searches, ``time`` where one was cut short."""

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
        """Both parts of the exchange model's cost."""
        return self.data_s + self.pipeline_s

    @property
    def gap(self) -> float | None:
        """How far the cost may be from the least: it over the bound, less one."""
        if self.bound is None or self.bound.seconds <= 0:
            return None
        return max(0.0, self.cost_s / self.bound.seconds - 1)

    @property
    def optimal(self) -> bool:
        """Whether the cost is the least, but for rounding."""
        return self.gap is not None and self.gap < _ROUNDING

    @property
    def pipelines(self) -> Integers:
        """[D, S] the servers of each pipeline, in the order of stages."""
        return self.servers.T

    @property
    def idle(self) -> Integers:
        """Servers that compute nothing, ascending."""
        return np.setdiff1d(self.topology.servers, self.servers)

    def ranks(self) -> NDArray[np.int64]:
        """[S·D] node ids by rank of a launcher that numbers pipeline after pipeline."""
        return self.pipelines.ravel().astype(np.int64)

    def save(self, path: str | Path) -> None:
        """Writes the placement as JSON, with its network and its bound's certificate.

        Whole or not at all. `gradweave.placement.recounted` reads and checks it.

        Raises:
            FileError: the file cannot be written.
        """
        whole = self.as_object() | {"topology": topology_to_object(self.topology)}
        if self.bound is not None:
            whole["certificate"] = self.bound.certificate.as_object()
        text = json.dumps(whole, indent=1, ensure_ascii=False)
        atomic_write(path, (text + "\n").encode())

    def as_object(self) -> dict[str, Any]:
        """What the file holds, but for the network and the certificate."""
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
    """Who placed."""

    name: str = "unknown"
    options: dict[str, Any] = {}
    seed: int = 0


class Certificate(msgspec.Struct):
    """A bound's certificate as a file has it: `Sequences` with a goal, or `GroupDuals`."""

    classes: list[int]
    """[N] class of each device."""
    since_ns: list[int] = []
    """[W] DataP from which each window holds."""
    duals_ns: list[list[int]] = []
    """[W][Q]."""
    goal_ns: int | None = None
    """Below which no sequence of groups is."""


class PlacementFile(msgspec.Struct):
    """What is read of a placement's file."""

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
"""What comes of files that are not JSON, or hold something else."""


def _why(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _read(path: str | Path, kind: type[T]) -> T:
    with Path(path).open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(f"larger than {MAX_BYTES >> 20} MiB, the most that is read")
    return msgspec.json.decode(content, type=kind)


def load_placement(path: str | Path, topology: Topology) -> Placement:
    """Reads a placement that `Placement.save` wrote.

    Args:
        path: of the file.
        topology: the network that it is of.

    Raises:
        FileError: it cannot be read, or is no placement of this network.
    """
    return read_placement(path, topology)[0]


def read_placement(
    path: str | Path, topology: Topology | None = None
) -> tuple[Placement, PlacementFile]:
    """The placement of a file, and the file.

    Args:
        path: of the file.
        topology: the network; that of the file if not given.

    Raises:
        FileError: it cannot be read, or is no placement of this network.
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
        FileError: it cannot be read, or a field is missing or makes no sense.
    """
    try:
        read = _read(path, Workload)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        fields = ", ".join(field.name for field in dataclasses.fields(Stage))
        raise FileError(f"{path}: {_why(error)}; a stage has {fields}") from error
    return dataclasses.replace(read, name=Path(path).stem) if read.name == "workload" else read
