"""Files of a measurement: the topology with spreads and date, and intermediate results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.atomic import atomic_write
from gradweave.probe.infer import Measured
from gradweave.probe.traffic import Rate, Slot
from gradweave.topology.formats.attributes import SPREADS
from gradweave.topology.formats.files import save_graph
from gradweave.topology.formats.graph import to_networkx


class Record:
    """The measurements so far, written after each batch; `discard` it once they are complete.

    Args:
        path: path of the file, JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content: dict[str, Any] = {"format": "gradweave-measurements", "slots": []}

    def latencies(
        self,
        hosts: Sequence[str],
        least_s: NDArray[np.float64],
        spread_s: NDArray[np.float64],
        overhead_s: float,
    ) -> None:
        """Records half of the round trips between servers, in seconds, [N, N]."""
        self._content |= {
            "hosts": list(hosts),
            "latency_s": least_s.tolist(),
            "latency_spread_s": spread_s.tolist(),
            "overhead_s": overhead_s,
        }
        self._write()

    def slots(self, slots: Sequence[Slot], rates: Sequence[Sequence[Rate]]) -> None:
        """Records the rates of slots, flow by flow."""
        self._content["slots"] += [
            [
                {"flow": list(flow), "bytes_per_s": rate.bytes_per_s, "parts": rate.parts}
                for flow, rate in zip(slot, some, strict=True)
            ]
            for slot, some in zip(slots, rates, strict=True)
        ]
        self._write()

    def discard(self) -> None:
        """Removes the file."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        atomic_write(self.path, json.dumps(self._content).encode())


def save(measured: Measured, path: Path, how: dict[str, Any]) -> None:
    """Writes a measured network like any other, as JSON or YAML, with additional fields.

    Links also have ``bandwidth_spread_bytes_per_s`` and ``latency_spread_s``, and the graph has
    ``measured``. Readers of networks ignore these fields.

    Args:
        measured: the network.
        path: path of the file.
        how: when and how it was measured.

    Raises:
        FileError: the file cannot be written.
    """
    topology = measured.topology
    graph = to_networkx(topology)
    graph.graph["measured"] = how
    columns = (measured.bandwidth_spread_bytes_per_s, measured.latency_spread_s)
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    for link, (source, target) in enumerate(ends):
        spreads = {name: float(column[link]) for name, column in zip(SPREADS, columns, strict=True)}
        graph.edges[source, target].update(spreads)
    save_graph(graph, topology, path)
