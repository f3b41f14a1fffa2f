"""Results of other tools as schedules: read, never executed; `judge` evaluates them."""

import math
from typing import Any

from gradweave.errors import FileError
from gradweave.library.importers.forest_coll import is_forest_coll, read_forest_coll
from gradweave.library.importers.msccl import is_msccl, read_msccl
from gradweave.library.importers.te_ccl import is_te_ccl, read_te_ccl
from gradweave.library.store import MAX_BYTES, content_of
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.topology.formats.nccl_xml import parse_xml
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.units import as_size

__all__ = ["imported", "is_foreign"]


def is_foreign(content: bytes, name: str) -> bool:
    """Whether a file comes from another tool: XML, or JSON that is not one of our schedules.

    Raises:
        FileError: it is neither XML nor JSON.
    """
    return _is_xml(content) or is_te_ccl(content_of(content, name))


def imported(
    content: bytes,
    name: str,
    topology: TopologyLike,
    collective: Any,
    demand: Demand | None = None,
    gradient_bytes: float | str = math.inf,
) -> Schedule:
    """Another tool's result as a schedule, not yet judged.

    Args:
        content: content of the file, not trusted.
        name: name of the file for messages.
        topology: the network that it is for.
        collective: the collective, for trees, which do not state it.
        demand: the demand, if the result is for one, such as an all-to-all.
        gradient_bytes: size of the whole gradient, for which trees are cut into pieces; by default
            latencies are neglected.

    Raises:
        FileError: says in one line what is not understood.
    """
    topology = as_topology(topology)
    gradient_bytes = as_size(gradient_bytes)
    try:
        if not _is_xml(content):
            return read_te_ccl(content_of(content, name), topology, demand)
        root = _parsed(content)
        if is_msccl(root):
            return read_msccl(root, topology, demand)
        if is_forest_coll(root):
            return read_forest_coll(root, topology, collective, gradient_bytes)
        raise FileError(f"neither an algorithm of MSCCL nor trees of ForestColl: {root.tag!r:.40}")
    except FileError as error:
        raise FileError(f"{name}: {error}") from error


def _is_xml(content: bytes) -> bool:
    return content.lstrip()[:1] == b"<"


def _parsed(content: bytes) -> Any:
    if len(content) > MAX_BYTES:
        raise FileError(f"larger than {MAX_BYTES:,} bytes, the most accepted")
    return parse_xml(content)
