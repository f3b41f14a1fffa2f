"""The schedule file: columns in JSON, gzipped if the suffix says so.

The format is documented in docs/reference/schedule-file.md. Reading checks types and lengths while
parsing, rejects files that unpack to more than a stated limit, and executes nothing.
"""

import gc
import gzip
import itertools
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradweave.common.atomic import atomic_write
from gradweave.errors import FileError, GradweaveError
from gradweave.schedules import implicit_file
from gradweave.schedules.demand import Demand, Sets
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.implicit_file import FORMAT
from gradweave.schedules.schedule import DEMAND, OPS, Collective, Provenance, Schedule, StatedBound
from gradweave.topology.formats.object import topology_from_object, topology_to_object

MAX_BYTES = 1 << 30
"""Largest schedule file that is read, after unpacking: 1 GiB, about 20 million transfers."""

BYTES_PER_TRANSFER = 50
"""Approximate size of a transfer in such a file, to judge what an implicit schedule expands to."""
_HEAD_BYTES = 256
"""Beginning of a file in which its format is looked for."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Transfers(msgspec.Struct):
    round: list[int]
    piece: list[int]
    source: list[int]
    target: list[int]
    op: list[Literal["reduce", "copy"]]
    route: list[list[int]]


class _Scheduler(msgspec.Struct):
    name: str
    options: dict[str, Any] = {}
    seed: int | None = None


class _Bound(msgspec.Struct):
    rounds: Count
    kind: str


class _Shares(msgspec.Struct):
    numerators: list[Count]
    denominator: int


class _Blocks(msgspec.Struct):
    job: list[Count]
    bytes: list[int]
    contributors: list[list[int]]
    destinations: list[list[int]]


class _Demand(msgspec.Struct):
    jobs: list[str]
    blocks: _Blocks
    relays: list[int] = []
    ready_at_s: list[float] = []
    weights: list[float] = []


class _File(msgspec.Struct, omit_defaults=True):
    format: Literal["gradweave-schedule"]
    version: Literal[1, 2, 3]
    collective: Collective | Literal["demand"]
    topology: dict[str, Any]
    pieces: int
    root: list[int]
    rounds: Count
    transfers: _Transfers
    scheduler: _Scheduler = msgspec.field(default_factory=lambda: _Scheduler("unknown"))
    bound: _Bound | None = None
    shares: _Shares | None = None
    demand: _Demand | None = None
    block: list[int] | None = None
    certificates: list[dict[str, Any]] = []


def load(path: str | Path, *, max_bytes: int = MAX_BYTES) -> Schedule:
    """Reads a schedule file; an implicit schedule is expanded.

    The schedule is well-formed, not necessarily valid: `gradweave.verifier` checks that.

    Args:
        path: a ``.json`` or ``.json.gz`` file.
        max_bytes: largest size accepted, after unpacking and expansion.

    Raises:
        FileError: the file cannot be read, is too large, or is not a schedule; one line that names
            the field.
    """
    return from_bytes(_content(Path(path), max_bytes), str(path), max_bytes=max_bytes)


def load_implicit(path: str | Path, *, max_bytes: int = MAX_BYTES) -> ImplicitSchedule:
    """Reads an implicit schedule from its file, without expanding it.

    It is well-formed, not necessarily valid: `gradweave.verify` checks that.

    Args:
        path: a ``.json`` or ``.json.gz`` file.
        max_bytes: largest size accepted, after unpacking.

    Raises:
        FileError: the file cannot be read, is too large, or is not an implicit schedule; one line
            that names the field.
    """
    return implicit_file.from_bytes(_content(Path(path), max_bytes), str(path))


def _content(path: Path, max_bytes: int) -> bytes:
    try:
        return _read(path, max_bytes)
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def from_bytes(content: bytes, name: str, *, max_bytes: int = MAX_BYTES) -> Schedule:
    """Reads a schedule from the content of an unpacked file; an implicit schedule is expanded.

    Args:
        content: content in the format of `to_bytes`.
        name: name of the file for messages.
        max_bytes: size to which an implicit schedule may expand.

    Raises:
        FileError: it is not a schedule; one line that names the field.
    """
    if FORMAT.encode() in content[:_HEAD_BYTES]:
        plan = implicit_file.from_bytes(content, name)
        if plan.num_transfers * BYTES_PER_TRANSFER > max_bytes:
            raise FileError(
                f"{name}: an implicit schedule of {plan.num_transfers:,} transfers, too many to "
                "write out; verify and export --rank read it as it is"
            )
        return plan.expand()
    collecting = gc.isenabled()
    # A million small lists but no garbage: the collector would take longer than the parser.
    gc.disable()
    try:
        file = msgspec.json.decode(content, type=_File)
        del content
        return _to_schedule(file)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileError(f"{name}: not a schedule file: {error}") from error
    except RecursionError as error:
        raise FileError(f"{name}: not a schedule file: nested too deeply") from error
    except GradweaveError as error:
        raise FileError(f"{name}: {error}") from error
    finally:
        if collecting:
            gc.enable()


def save(schedule: Schedule | ImplicitSchedule, path: str | Path) -> None:
    """Writes a schedule file, completely or not at all; gzipped if the name ends in ``.gz``.

    Raises:
        FileError: the file cannot be written.
    """
    content = to_bytes(schedule)
    if str(path).endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    atomic_write(path, content)


def to_bytes(schedule: Schedule | ImplicitSchedule) -> bytes:
    """The content of an unpacked file: equal schedules have equal bytes."""
    if isinstance(schedule, ImplicitSchedule):
        return msgspec.json.encode(implicit_file.to_object(schedule))
    return msgspec.json.encode(_from_schedule(schedule))


def _read(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        packed = str(path).endswith(".gz")
        stream = gzip.GzipFile(fileobj=file) if packed else file
        try:
            content = stream.read(max_bytes + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{path}: not a whole gzip file: {error}") from error
    if len(content) > max_bytes:
        unpacked = " unpacked" if packed else ""
        raise FileError(f"{path}: larger than {max_bytes:,} bytes{unpacked}, the most that is read")
    return content


def _column(name: str, values: list[int]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise FileError(f"{name}: an integer does not fit in 64 bits") from error


def _routes(routes: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The nodes of the routes, and where each route starts."""
    lengths = np.fromiter(map(len, routes), np.int64, len(routes))
    try:
        nodes = np.fromiter(itertools.chain.from_iterable(routes), np.int64, int(lengths.sum()))
    except OverflowError as error:
        raise FileError("route: an integer does not fit in 64 bits") from error
    return nodes, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _to_schedule(file: _File) -> Schedule:
    transfers = file.transfers
    if file.pieces != len(file.root):
        raise FileError(
            f"pieces: is {file.pieces}, but root has {len(file.root)} entries; they must agree"
        )
    route_nodes, route_offsets = _routes(transfers.route)
    code = {name: number for number, name in enumerate(OPS)}
    schedule = Schedule(
        topology=topology_from_object(file.topology),
        collective=DEMAND if file.collective == "demand" else file.collective,
        root=_column("root", file.root),
        **{
            name: _column(name, getattr(transfers, name))
            for name in ("round", "piece", "source", "target")
        },
        op=np.fromiter(map(code.__getitem__, transfers.op), np.int8, len(transfers.op)),
        route_nodes=route_nodes,
        route_offsets=route_offsets,
        scheduler=Provenance(file.scheduler.name, file.scheduler.options, file.scheduler.seed),
        bound=StatedBound(file.bound.rounds, file.bound.kind) if file.bound else None,
        shares=_to_shares(file),
        demand=_to_demand(file),
        block=None if file.block is None else _column("block", file.block),
        certificates=tuple(file.certificates),
    )
    if schedule.rounds != file.rounds:
        raise FileError(
            f"rounds: is {file.rounds}, but the last transfer is in round {schedule.rounds - 1}"
        )
    return schedule


def _to_shares(file: _File) -> NDArray[np.int64] | None:
    """The shares as integers whose sum is the denominator, or None if all pieces are equal."""
    if file.shares is None:
        return None
    if file.version == 1:
        raise FileError("shares: not in version 1, whose pieces are equal; expected version 2")
    numerators, denominator = file.shares.numerators, file.shares.denominator
    column = _column("shares", numerators)
    if sum(numerators) != denominator:
        raise FileError(
            f"shares: the numerators sum to {sum(numerators)}, the denominator is {denominator}; "
            "they must agree"
        )
    return column


def _to_demand(file: _File) -> Demand | None:
    if (file.demand is None) != (file.version < 3):
        found = "none" if file.demand is None else "one"
        raise FileError(f"demand: expected one in version 3 alone, got {found} in {file.version}")
    if file.demand is None:
        return None
    blocks = file.demand.blocks
    return Demand(
        _column("bytes", blocks.bytes),
        Sets.of(blocks.contributors),
        Sets.of(blocks.destinations),
        _column("job", blocks.job),
        tuple(file.demand.jobs),
        _column("relays", file.demand.relays),
        np.array(file.demand.ready_at_s, np.float64),
        np.array(file.demand.weights, np.float64),
    )


def demand_to_object(demand: Demand) -> Mapping[str, Any]:
    """A demand as plain lists, ready for JSON: the ``demand`` object of the schedule file."""
    sets = {
        name: [each[block].tolist() for block in range(len(each))]
        for name, each in (
            ("contributors", demand.contributors),
            ("destinations", demand.destinations),
        )
    }
    blocks = {"job": demand.job.tolist(), "bytes": demand.bytes.tolist(), **sets}
    of_jobs = {
        name: column.tolist()
        for name, column, usual in (
            ("ready_at_s", demand.ready_at_s, 0.0),
            ("weights", demand.weight, 1.0),
        )
        if (column != usual).any()
    }
    return {
        "jobs": list(demand.jobs),
        "blocks": blocks,
        "relays": demand.relays.tolist(),
        **of_jobs,
    }


def _from_schedule(schedule: Schedule) -> Mapping[str, Any]:
    shares, demand = schedule.shares, schedule.demand
    version = 3 if demand is not None else 1 if shares is None else 2
    flat = schedule.route_nodes.tolist()
    offsets = schedule.route_offsets.tolist()
    scheduler = schedule.scheduler
    return (
        {
            "format": "gradweave-schedule",
            "version": version,
            "collective": schedule.kind,
            "topology": topology_to_object(schedule.topology),
            "pieces": schedule.pieces,
            "root": schedule.root.tolist(),
            "rounds": schedule.rounds,
            "transfers": {
                "round": schedule.round.tolist(),
                "piece": schedule.piece.tolist(),
                "source": schedule.source.tolist(),
                "target": schedule.target.tolist(),
                "op": [OPS[op] for op in schedule.op.tolist()],
                "route": [flat[start:end] for start, end in itertools.pairwise(offsets)],
            },
            "scheduler": {
                "name": scheduler.name,
                "options": dict(scheduler.options),
                "seed": scheduler.seed,
            },
            "bound": None
            if schedule.bound is None
            else {"rounds": schedule.bound.rounds, "kind": schedule.bound.kind},
        }
        | (
            {}
            if shares is None
            else {"shares": {"numerators": shares.tolist(), "denominator": int(shares.sum())}}
        )
        | (
            {}
            if demand is None or schedule.block is None
            else {"demand": demand_to_object(demand), "block": schedule.block.tolist()}
        )
        | ({"certificates": schedule.certificates} if schedule.certificates else {})
    )
