"""Solutions that TE-CCL writes as JSON: all-gathers and all-to-alls, epoch by epoch.

    "7-Flows": ["Chunk 0 from 6 traveled over 6->15 in epoch 0 via switches 0", …]
    "8-Chunk paths": {"Demand at 1 for chunk 0 from 18 met by epoch 87":
        [[[14, "18->19 with volume 0.1 in epoch 14 via switches 17"], …], …], …}

All-gathers are read from the flows, in which chunks move whole; all-to-alls from the paths, which
may carry fractions of a chunk. Numbers that a file uses as switches are the network's switches, in
order, and the others its servers. TE-CCL's switches copy; here each copy crosses the link to the
switch.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from gradweave.common.wording import listed
from gradweave.errors import FileError
from gradweave.library.importers.messages import MAX_MESSAGES, Asked, Message, as_schedule
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

TOOL = "TE-CCL"
_HOP = r"(\d{1,6})->(\d{1,6})(?: with volume ([\d.e-]{1,30}))? in epoch (\d{1,9})"
_VIA = r"(?: via switches (\d{1,6}(?:, ?\d{1,6})*))?"
_FLOW = re.compile(rf"Chunk (\d{{1,6}}) from (\d{{1,6}}) traveled over {_HOP}{_VIA}")
_STEP = re.compile(_HOP + _VIA)
_DEMAND = re.compile(r"Demand at (\d{1,6}) for chunk (\d{1,6}) from (\d{1,6}) met by epoch \d{1,9}")
_FINEST = 10**6
"""Volumes are rounded to multiples of a millionth of a chunk."""


def is_te_ccl(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a solution of TE-CCL."""
    return any(key.endswith("-Flows") for key in data)


def read_te_ccl(
    data: Mapping[str, Any], topology: Topology, demand: Demand | None = None
) -> Schedule:
    """A solution as a schedule.

    Args:
        data: the JSON object, not trusted.
        topology: the network.
        demand: the demand of an all-to-all, with one block per pair, or None for an all-gather.

    Raises:
        FileError: a flow or path is not understood, or moves data that its source does not have;
            the error names it.
    """
    flows = _flows(data)
    node = _numbering(flows, topology)
    if demand is None:
        return _all_gather(flows, topology, node)
    paths = next((data[key] for key in data if key.lower().endswith("-chunk paths")), None)
    if not isinstance(paths, dict):
        raise FileError("TE-CCL: expected chunk paths by demand")
    return _all_to_all(paths, topology, demand, node)


def _flows(data: Mapping[str, Any]) -> list[re.Match[str]]:
    flows = next((data[key] for key in data if key.endswith("-Flows")), None)
    if not isinstance(flows, list) or len(flows) > MAX_MESSAGES:
        raise FileError(f"TE-CCL: flows: expected a list of at most {MAX_MESSAGES:,}")
    read = [_matched(_FLOW, text, "flow") for text in flows]
    return sorted(read, key=lambda found: int(found[6]))


def _numbering(flows: list[re.Match[str]], topology: Topology) -> Callable[[int], int]:
    """A function from the file's node numbers to node ids."""
    switches = sorted({int(one) for found in flows for one in (found[7] or "").split(",") if one})
    ends = {int(found[k]) for found in flows for k in (2, 3, 4)}
    servers = sorted(ends - {*switches})
    if len(servers) != topology.num_servers or len(switches) > len(topology.switches):
        shown = f"numbers {listed([*map(str, switches)])} for switches" if switches else "no switch"
        raise FileError(
            f"TE-CCL: it moves data among {len(servers)} servers and takes {shown}; the network "
            f"has {topology.num_servers} servers and {len(topology.switches)} switches"
        )
    ids = dict(zip(servers, topology.servers.tolist(), strict=True))
    ids |= dict(zip(switches, topology.switches.tolist(), strict=False))

    def node(number: int) -> int:
        if number not in ids:
            raise FileError(f"TE-CCL: node {number} is in a path and in no flow")
        return ids[number]

    return node


def _matched(pattern: re.Pattern[str], text: Any, what: str) -> re.Match[str]:
    found = pattern.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise FileError(f"TE-CCL: {what}: not understood: {text!r:.80}")
    return found


def _through(text: str | None, node: Callable[[int], int]) -> tuple[int, ...] | None:
    return tuple(node(int(one)) for one in text.split(",")) if text else None


def _all_gather(
    read: list[re.Match[str]], topology: Topology, node: Callable[[int], int]
) -> Schedule:
    """Each chunk of each server is a piece; a hop follows the hop that brought the chunk."""
    chunks = 1 + max((int(found[1]) for found in read), default=0)
    rank = {int(server): at for at, server in enumerate(topology.servers)}
    brought: dict[tuple[int, int], int] = {}
    messages: list[Message] = []
    for found in read:
        owner, source, target = (node(int(found[k])) for k in (2, 3, 4))
        if not {owner, source, target} <= {*rank}:
            raise FileError(f"TE-CCL: {found[0]!r:.80}: not between servers of this network")
        piece = rank[owner] * chunks + int(found[1])
        if source != owner and (source, piece) not in brought:
            raise FileError(f"TE-CCL: {found[0]!r:.80}: the chunk is not there yet")
        after = (brought[source, piece],) if source != owner else ()
        brought.setdefault((target, piece), len(messages))
        order, through = int(found[6]), _through(found[7], node)
        messages.append(Message(source, target, piece, 1, after, (), through, order))
    root = [int(server) for server in topology.servers for _ in range(chunks)]
    return as_schedule(topology, messages, Asked("all_gather", root), TOOL, {})


def _all_to_all(
    paths: Mapping[str, Any], topology: Topology, demand: Demand, node: Callable[[int], int]
) -> Schedule:
    """Each path of a demand is a piece of its block, as large as its volume."""
    ends = [
        (int(demand.contributors[b][0]), int(demand.destinations[b][0])) for b in range(len(demand))
    ]
    of_block: dict[int, list[tuple[int, list[re.Match[str]]]]] = {}
    block = {pair: b for b, pair in enumerate(ends)}
    for text, ways in paths.items():
        found = _matched(_DEMAND, text, "demand")
        pair = node(int(found[3])), node(int(found[1]))
        if pair not in block:
            raise FileError(
                f"TE-CCL: {text!r:.80}: the demand has nothing from {pair[0]} to {pair[1]}"
            )
        for way in ways:
            steps = [_matched(_STEP, hop[1], "path") for hop in way]
            volume = round(Fraction(steps[0][3] or "1") * _FINEST) if steps else 0
            if volume:
                of_block.setdefault(block[pair], []).append((volume, steps))
    messages: list[Message] = []
    sizes, root, blocks = [], [], []
    for b in range(len(demand)):
        if b not in of_block:
            raise FileError(f"TE-CCL: nothing goes from {ends[b][0]} to {ends[b][1]}")
        for volume, steps in of_block[b]:
            for at, step in enumerate(steps):
                source, target = node(int(step[1])), node(int(step[2]))
                before = (len(messages) - 1,) if at else ()
                through = _through(step[5], node)
                order = int(step[4])
                messages.append(Message(source, target, len(root), 1, before, (), through, order))
            sizes.append(volume)
            root.append(ends[b][0])
            blocks.append(b)
    return as_schedule(topology, messages, Asked(None, root, sizes, demand, blocks), TOOL, {})
