"""Networks of ASTRA-sim's analytical back end: one building block per dimension.

    topology: [ Switch, Ring ]        Ring, FullyConnected or Switch
    npus_count: [ 8, 4 ]
    bandwidth: [ 400.0, 50.0 ]        GB/s of a link in each direction, of 2**30 bytes
    latency: [ 936.25, 1000 ]         ns

Source: astra-network-analytical, NetworkParser.cpp, NetworkFunction.cpp and basic-topology.
"""

import itertools
import math
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.cables import Cable, Cables
from gradweave.topology.topology import MAX_NODES

_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_BLOCKS = ("Ring", "FullyConnected", "Switch")


def is_astra(data: Any) -> bool:
    """Whether the content of a YAML file is a network of ASTRA-sim."""
    return isinstance(data, dict) and "npus_count" in data and "topology" in data


def astra_cables(data: Any) -> Cables:
    """Reads a network: NPUs are hosts, numbered with the first dimension fastest.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the key.
    """
    blocks, counts, speeds, latencies = (data.get(key) for key in _KEYS)
    for key in _KEYS:
        values = data.get(key)
        if not isinstance(values, list) or not values or len(values) != len(data["topology"]):
            raise FileError(f"{key}: expected a list with an entry per dimension")
    for block, count, speed, latency in zip(blocks, counts, speeds, latencies, strict=True):
        if block not in _BLOCKS:
            raise FileError(f"topology: expected {', '.join(_BLOCKS)}, got {block!r:.40}")
        if type(count) is not int or not 2 <= count <= MAX_NODES:
            raise FileError(f"npus_count: expected whole numbers from 2, got {count!r:.40}")
        if not _is_number(speed) or not 0 < speed < 1e9:
            raise FileError(f"bandwidth: expected GB/s above 0, got {speed!r:.40}")
        if not _is_number(latency) or not 0 <= latency < 1e12:
            raise FileError(f"latency: expected nanoseconds from 0, got {latency!r:.40}")
    if math.prod(counts) > MAX_NODES:
        raise FileError(f"npus_count: more than {MAX_NODES:,} NPUs")
    fabric = Cables()
    fabric.hosts = dict.fromkeys(map(str, range(math.prod(counts))))
    stride = 1
    for dimension, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        speed, latency = speeds[dimension] * 2**30, latencies[dimension] * 1e-9
        for first in range(math.prod(counts)):
            if first // stride % count:
                continue
            group = [str(first + place * stride) for place in range(count)]
            if block == "Switch":
                switch = f"switch{dimension}-{first}"
                fabric.switches[switch] = None
                pairs = [(npu, switch) for npu in group]
            elif block == "Ring":
                pairs = list(itertools.pairwise(group)) + [(group[-1], group[0])] * (count > 2)
            else:
                pairs = list(itertools.combinations(group, 2))
            for pair in pairs:
                fabric.add(Cable(pair, bytes_per_s=speed, latency_s=latency))
        stride *= count
    return fabric


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
