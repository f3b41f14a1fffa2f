"""Chakra's execution traces, decoded byte by byte and run on contribution counts; for tests alone.

Knows the schema's field numbers by itself, so that a wrong one in the export does not go unseen.
"""

import collections
import dataclasses

import numpy as np

from tests.export.contributions import GARBAGE, WrongCountError
from tests.export.interleaving import Outcome, interleave

COMPUTE, SEND, RECEIVE = 4, 5, 6
_VARINT, _BYTES = 0, 2
_VALUES = {7: "int32", 9: "int64", 27: "bool", 29: "string"}
_ATTRIBUTES = {
    COMPUTE: {"is_cpu_op", "piece", "place", "num_ops", "tensor_size"},
    SEND: {"is_cpu_op", "piece", "comm_src", "comm_dst", "comm_tag", "comm_size"},
    RECEIVE: {"is_cpu_op", "piece", "place", "comm_src", "comm_dst", "comm_tag", "comm_size"},
}
_KINDS = {
    "is_cpu_op": "bool",
    **dict.fromkeys(("comm_size", "num_ops", "tensor_size"), "int64"),
    **dict.fromkeys(("piece", "place", "comm_src", "comm_dst", "comm_tag"), "int32"),
}
Wanted = dict[tuple[int, int], list[int]]
"""By rank and piece of a demand's destinations, the ranks that contribute."""


@dataclasses.dataclass
class Node:
    id: int
    type: int
    after: list[int]
    at: dict[str, int | str]


@dataclasses.dataclass
class Trace:
    metadata: dict[str, int | str]
    nodes: list[Node]


def read(content: bytes) -> Trace:
    """Decodes one file, and refuses what Chakra's readers would."""
    messages, at = [], 0
    while at < len(content):
        length, at = _varint(content, at)
        assert at + length <= len(content), "the last message is cut short"
        messages.append(content[at : at + length])
        at += length
    metadata: dict[str, int | str] = {}
    for number, value in _fields(messages[0]):
        assert number in (1, 2)
        if number == 1:
            metadata["version"] = value.decode()
        else:
            metadata.update([_attribute(value)[:2]])
    return Trace(metadata, [_node(message) for message in messages[1:]])


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 0x80:
            return value, at


def _fields(content: bytes) -> list[tuple[int, int | bytes]]:
    fields, at = [], 0
    while at < len(content):
        key, at = _varint(content, at)
        if key & 7 == _VARINT:
            value, at = _varint(content, at)
        else:
            assert key & 7 == _BYTES
            length, at = _varint(content, at)
            value, at = content[at : at + length], at + length
        fields.append((key >> 3, value))
    return fields


def _attribute(content: bytes) -> tuple[str, int | str, str]:
    fields = dict(_fields(content))
    name = fields.pop(1).decode()
    ((number, value),) = fields.items()
    kind = _VALUES[number]
    return name, value.decode() if kind == "string" else value, kind


def _node(content: bytes) -> Node:
    node = Node(0, 0, [], {})
    for number, value in _fields(content):
        if number == 1:
            node.id = value
        elif number == 3:
            node.type = value
        elif number == 5:  # packed
            at = 0
            while at < len(value):
                other, at = _varint(value, at)
                node.after.append(other)
        elif number == 10:
            name, held, kind = _attribute(value)
            assert _KINDS[name] == kind, name
            node.at[name] = held
        else:
            assert number == 2
    assert node.at.keys() | {"place"} == _ATTRIBUTES[node.type] | {"place"}, node
    assert not node.at["is_cpu_op"]
    return node


def run(traces: list[Trace], roots: list[int], seed: int, wanted: Wanted | None = None) -> None:
    """Runs all ranks' nodes, each as soon as it may, and checks what they come to.

    Args:
        traces: by rank.
        roots: rank of each piece's root.
        seed: of the order among nodes that may run.
        wanted: of a demand, what it wants.
    """
    played = _Run(traces, roots)
    nodes = [(rank, node) for rank, trace in enumerate(traces) for node in trace.nodes]
    done: set[tuple[int, int]] = set()

    def task(rank: int, node: Node) -> Outcome:
        if (rank, node.id) in done:
            return "done"
        if any((rank, other) not in done for other in node.after) or not played.may(rank, node):
            return "blocked"
        played.do(rank, node)
        done.add((rank, node.id))
        return "ran"

    interleave([lambda each=each: task(*each) for each in nodes], seed)
    if wanted is None:
        played.check()
    else:
        played.check_demand(wanted)


class _Run:
    def __init__(self, traces: list[Trace], roots: list[int]) -> None:
        self._ranks, self._roots = len(traces), roots
        self._collective = traces[0].metadata["collective"]
        pieces = len(roots)
        # A count for each rank and piece, so that no piece can pass for another.
        width = self._ranks * pieces
        self._held = np.zeros((self._ranks, pieces, width), np.int64)
        for rank in range(self._ranks):
            for piece in range(pieces):
                self._held[rank, piece, rank * pieces + piece] = 1
                if self._collective == "all_gather":
                    is_root = roots[piece] == rank
                    self._held[rank, piece] = self._all(piece) if is_root else GARBAGE
        self._places: dict[tuple[int, int], np.ndarray] = {}
        self._messages: dict[tuple[int, int, int], collections.deque] = collections.defaultdict(
            collections.deque
        )

    def _all(self, piece: int) -> np.ndarray:
        pieces = len(self._roots)
        return (np.arange(self._ranks * pieces) % pieces == piece).astype(np.int64)

    def may(self, rank: int, node: Node) -> bool:
        return node.type != RECEIVE or bool(self._messages[self._way(rank, node)])

    def do(self, rank: int, node: Node) -> None:
        piece = self._held[rank, node.at["piece"]]
        if node.type == SEND:
            queue = self._messages[self._way(rank, node)]
            assert not queue, "two messages of one tag under way"
            queue.append((node.at["comm_size"], piece.copy()))
        elif node.type == RECEIVE:
            size, came = self._messages[self._way(rank, node)].popleft()
            assert size == node.at["comm_size"]
            if "place" in node.at:
                self._places[rank, node.at["place"]] = came
            else:
                piece[:] = came
        elif (rank, node.at["place"]) in self._places:
            piece += self._places[rank, node.at["place"]]
        else:
            raise WrongCountError(f"rank {rank}, node {node.id}: a place that nobody has written")

    def _way(self, rank: int, node: Node) -> tuple[int, int, int]:
        source, target, tag = (node.at[key] for key in ("comm_src", "comm_dst", "comm_tag"))
        assert rank == (source if node.type == SEND else target) and source != target
        return source, target, tag

    def check_demand(self, wanted: Wanted) -> None:
        assert not any(self._messages.values()), "messages that nobody received"
        for (rank, piece), contributors in wanted.items():
            right = np.zeros_like(self._held[rank, piece])
            right[np.array(contributors) * len(self._roots) + piece] = 1
            if (self._held[rank, piece] != right).any():
                raise WrongCountError(f"rank {rank}, piece {piece}: {self._held[rank, piece]}")

    def check(self) -> None:
        assert not any(self._messages.values()), "messages that nobody received"
        for rank in range(self._ranks):
            for piece, root in enumerate(self._roots):
                if self._collective == "reduce_scatter" and root != rank:
                    continue
                if (self._held[rank, piece] != self._all(piece)).any():
                    raise WrongCountError(f"rank {rank}, piece {piece}: {self._held[rank, piece]}")


def unordered(trace: Trace) -> list[tuple[int, int]]:
    """Pairs of one rank's nodes that use a piece or a place, one of them writing, in no order."""
    before: dict[int, int] = {}  # by node: all that is complete when it starts, as bits
    used: dict[tuple[str, int], list[tuple[int, bool]]] = {}
    found = []
    for node in trace.nodes:
        before[node.id] = 0
        for other in node.after:
            before[node.id] |= before[other] | 1 << other
        for cell, writes in _cells(node):
            for other, wrote in used.setdefault(cell, []):
                if (writes or wrote) and not before[node.id] >> other & 1:
                    found.append((other, node.id))
            used[cell].append((node.id, writes))
    return found


def _cells(node: Node) -> list[tuple[tuple[str, int], bool]]:
    """What a node uses, and whether it writes it."""
    piece = ("piece", node.at["piece"])
    if node.type == SEND:
        return [(piece, False)]
    if node.type == COMPUTE:
        return [(piece, True), (("place", node.at["place"]), False)]
    return [(("place", node.at["place"]) if "place" in node.at else piece, True)]
