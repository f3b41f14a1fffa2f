"""Algorithms in MSCCL's XML: the data sent between GPUs, and the dependencies of steps.

The file is simulated. Each thread block runs its steps in order, a step waits for the named step of
another block, and sends and receives are matched first-in first-out by source, target and channel.
The data is tracked as the set of contributions that are summed in it. A value that a step adds or
forwards becomes one of our transfers; data that stays in a scratch buffer takes effect when it is
used. In our schedules a server has one partial sum per piece, so an algorithm whose GPU sends one
partial sum of a chunk while it keeps another has no counterpart and is rejected.

Chunks are pieces of equal size; channels, protocols and instances are ignored.
"""

import dataclasses
import re
from collections import defaultdict, deque
from typing import Any

from gradweave.errors import FileError
from gradweave.library.importers.messages import MAX_MESSAGES, Asked, Message, as_schedule
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import COPY, REDUCE, Schedule
from gradweave.topology.topology import Topology

TOOL = "MSCCL"
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
_SENDS = ("s", "rcs", "rrs", "rrcs")
_ADDS = ("rrc", "rrs", "rrcs")
_TYPES = {*_RECEIVES, *_SENDS, "cpy", "re", "nop"}
MAX_CHUNKS = 1 << 15
_NUMBER = re.compile(r"-?\d{1,9}")

Cell = tuple[int, str, int]
"""GPU, buffer and offset."""


def is_msccl(root: Any) -> bool:
    """Whether an XML element is an algorithm of MSCCL."""
    return root.tag == "algo"


@dataclasses.dataclass
class _Value:
    """The content of one chunk of a buffer."""

    piece: int
    once: int
    """Bit mask of the GPUs whose contribution is in it."""
    twice: int = 0
    pending: tuple[int, ...] = ()
    """Messages that brought it and have not taken effect yet."""

    def plus(self, other: "_Value") -> "_Value":
        again = self.twice | other.twice | self.once & other.once
        both = self.pending + other.pending
        return _Value(self.piece, self.once | other.once, again, both)


@dataclasses.dataclass
class _Step:
    type: str
    read: tuple[str, int]
    written: tuple[str, int]
    count: int
    waits: tuple[int, int] | None


@dataclasses.dataclass
class _Block:
    gpu: int
    id: int
    send: int
    receive: int
    channel: int
    steps: list[_Step]
    done: int = 0


class _Sent:
    """A message in flight or delivered."""

    def __init__(self, source: int, target: int, value: _Value, after: tuple[int, ...]) -> None:
        self.source, self.target, self.piece = source, target, value.piece
        self.once, self.twice, self.after = value.once, value.twice, after
        self.op, self.taken = COPY, False
        self.beside: tuple[int, ...] = ()


class _Held:
    """A GPU's data for one piece, by the rules of our schedules."""

    def __init__(self, once: int) -> None:
        self.once, self.twice = once, 0
        self.came: list[int] = []
        """Messages that took effect since the last copy."""
        self.copied = -1
        self.left: list[int] = []
        """Messages that were sent from here."""


def read_msccl(root: Any, topology: Topology, demand: Demand | None = None) -> Schedule:
    """An algorithm as a schedule.

    Args:
        root: the XML's root element, not trusted.
        topology: the network; GPU i is its i-th server.
        demand: the demand, if the algorithm is an all-to-all.

    Raises:
        FileError: names the GPU, thread block and step at fault, or the part without counterpart.
    """
    return _Player(root, topology, demand).schedule()


class _Player:
    """Simulates one file."""

    def __init__(self, root: Any, topology: Topology, demand: Demand | None) -> None:
        self.topology, self.demand = topology, demand
        name = root.get("coll", "")
        if name not in COLLECTIVES:
            raise FileError(f"{TOOL}: coll: expected one of {', '.join(COLLECTIVES)}, got {name!r}")
        self.collective = COLLECTIVES[name]
        if (self.collective == "all_to_all") != (demand is not None):
            raise FileError(f"{TOOL}: it is an {self.collective.replace('_', '-')}")
        if demand is not None and not demand.unicast:
            raise FileError(f"{TOOL}: an all-to-all, where the demand is another")
        self.gpus = _whole(root, "ngpus", 2, 4096)
        if self.gpus != topology.num_servers:
            raise FileError(
                f"{TOOL}: it has {self.gpus} GPUs; the network has {topology.num_servers} servers"
            )
        self.chunks = _whole(root, "nchunksperloop", 1, MAX_CHUNKS)
        if self.collective != "all_reduce" and self.chunks % self.gpus:
            raise FileError(f"{TOOL}: nchunksperloop: expected a multiple of {self.gpus}")
        self.each = self.chunks // self.gpus
        self.in_place = root.get("inplace") == "1"
        self.blocks = [block for gpu in root.iterfind("gpu") for block in self._blocks(gpu)]
        self.at = {(block.gpu, block.id): block for block in self.blocks}
        if len(self.at) != len(self.blocks):
            raise FileError(f"{TOOL}: a thread block is there twice")
        self.cells: dict[Cell, _Value] = {}
        self.held: dict[tuple[int, int], _Held] = {}
        self.sent: list[_Sent] = []
        self.complete: dict[int, int] = {}
        """By piece, the first GPU that has its complete sum."""
        self.wires: dict[tuple[int, int, int], deque[list[_Value]]] = defaultdict(deque)
        for gpu in range(self.gpus):
            for offset in range(self._inputs()):
                piece = self._piece_of_input(gpu, offset)
                self.cells[self._cell(gpu, "i", offset)] = _Value(piece, 1 << gpu)
        self._first_copies(root)

    def _inputs(self) -> int:
        return self.each if self.collective == "all_gather" else self.chunks

    def _pieces(self) -> int:
        return self.chunks * (self.gpus if self.collective == "all_to_all" else 1)

    def _piece_of_input(self, gpu: int, offset: int) -> int:
        if self.collective == "all_gather":
            return gpu * self.each + offset
        return gpu * self.chunks + offset if self.collective == "all_to_all" else offset

    def _cell(self, gpu: int, buffer: str, offset: int) -> Cell:
        """The cell of a buffer; in place, the input is part of the output, or the reverse."""
        if buffer == "i" and self.in_place:
            shift = gpu * self.each if self.collective == "all_gather" else 0
            return gpu, "o", offset + shift
        if buffer == "o" and self.in_place and self.collective == "reduce_scatter":
            return gpu, "o", offset + gpu * self.each
        return gpu, buffer, offset

    def _blocks(self, element: Any) -> list[_Block]:
        gpu = _whole(element, "id", 0, self.gpus - 1)
        found = []
        for block in element.iterfind("tb"):
            send, receive = (_whole(block, name, -1, self.gpus - 1) for name in ("send", "recv"))
            number, channel = _whole(block, "id", 0, 9999), _whole(block, "chan", -1, 9999)
            steps = [self._step(step) for step in block.iterfind("step")]
            found.append(_Block(gpu, number, send, receive, channel, steps))
        return found

    def _step(self, step: Any) -> _Step:
        kind = step.get("type", "")
        if kind not in _TYPES:
            raise FileError(f"{TOOL}: step: unknown type {kind!r:.20}")
        places = []
        for side in ("src", "dst"):
            buffer = step.get(f"{side}buf", "")
            if buffer not in ("i", "o", "s"):
                raise FileError(f"{TOOL}: step: unknown buffer {buffer!r:.20}")
            places.append((buffer, _whole(step, f"{side}off", -1, MAX_CHUNKS)))
        count = _whole(step, "cnt", 0, MAX_CHUNKS)
        other, awaited = _whole(step, "depid", -1, 9999), _whole(step, "deps", -1, 9999)
        waits = (other, awaited) if other >= 0 else None
        return _Step(kind, places[0], places[1], count, waits)

    def _first_copies(self, root: Any) -> None:
        """Applies copies within GPUs before the first step, which some generators write."""
        for element in root.iterfind("gpu"):
            gpu = _whole(element, "id", 0, self.gpus - 1)
            for copy in element.iterfind("copy"):
                source = self._cell(gpu, "i", _whole(copy, "i_off", 0, MAX_CHUNKS))
                target = self._cell(gpu, "o", _whole(copy, "o_off", 0, MAX_CHUNKS))
                if source in self.cells:
                    self.cells[target] = self.cells[source]

    def schedule(self) -> Schedule:
        """Simulates all steps, and checks the final outputs."""
        left = True
        while left:
            left = False
            for block in self.blocks:
                while block.done < len(block.steps) and self._does(block):
                    block.done += 1
                    left = True
        for block in self.blocks:
            if block.done < len(block.steps):
                waits = f"GPU {block.gpu}, thread block {block.id}, step {block.done}"
                raise FileError(f"{TOOL}: {waits}: waits forever")
        self._check_outputs()
        messages = [
            Message(
                int(self.topology.servers[one.source]),
                int(self.topology.servers[one.target]),
                self._numbered(one.piece),
                one.op,
                one.after,
                one.beside,
                None,
                number,
            )
            for number, one in enumerate(self.sent)
        ]
        return as_schedule(self.topology, messages, self._asked(), TOOL, {})

    def _does(self, block: _Block) -> bool:
        """Runs the next step of a block if it can run."""
        step = block.steps[block.done]
        if step.waits is not None:
            other = self.at.get((block.gpu, step.waits[0]))
            if other is None or step.waits[1] >= len(other.steps):
                self._fault(block, "waits for a step that is not there")
            elif other.done <= step.waits[1]:
                return False
        values: list[_Value] = []
        if step.type in _RECEIVES:
            wire = self.wires[block.receive, block.gpu, block.channel]
            if not wire:
                return False
            values = wire.popleft()
            if len(values) != step.count:
                self._fault(block, f"receives {step.count} chunks where {len(values)} are sent")
        elif step.type in ("s", "cpy", "re"):
            values = [self._read(block, step.read, k) for k in range(step.count)]
        if step.type in _ADDS or step.type == "re":
            own = step.read if step.type in _ADDS else step.written
            mine = [self._read(block, own, k) for k in range(step.count)]
            values = [self._sum(block, a, b) for a, b in zip(mine, values, strict=True)]
        elif step.type == "cpy":
            values = [self._used(block.gpu, value) for value in values]
        if step.type in _SENDS:
            values = self._send(block, values)
        if step.type not in ("s", "rrs", "nop"):
            for k, value in enumerate(values):
                cell = self._cell(block.gpu, step.written[0], step.written[1] + k)
                keeps = step.written[0] == "s" and step.type == "r"
                self.cells[cell] = value if keeps else self._used(block.gpu, value)
        return True

    def _read(self, block: _Block, place: tuple[str, int], further: int) -> _Value:
        cell = self._cell(block.gpu, place[0], place[1] + further)
        if cell not in self.cells:
            self._fault(block, f"reads {place[0]} {place[1] + further}, which is empty")
        return self.cells[cell]

    def _sum(self, block: _Block, one: _Value, other: _Value) -> _Value:
        if one.piece != other.piece:
            self._fault(block, f"adds chunk {other.piece} to chunk {one.piece}")
        return self._used(block.gpu, one.plus(other), REDUCE)

    def _holds(self, gpu: int, piece: int) -> _Held:
        if (gpu, piece) not in self.held:
            self.held[gpu, piece] = _Held(1 << gpu)
        return self.held[gpu, piece]

    def _used(self, gpu: int, value: _Value, op: int | None = None) -> _Value:
        """The value after the messages that brought it have taken effect on the GPU's data."""
        here = self._holds(gpu, value.piece)
        for number in value.pending:
            one = self.sent[number]
            if one.taken:
                continue
            adds = op == REDUCE or (
                self.collective in ("all_reduce", "reduce_scatter")
                and not here.once & one.once
                and one.once.bit_count() < self.gpus
            )
            one.taken, one.op = True, REDUCE if adds else COPY
            if adds:
                here.twice |= one.twice | here.once & one.once
                here.once |= one.once
                one.after += (here.copied,) if here.copied >= 0 else ()
                here.came.append(number)
                if here.once == (1 << self.gpus) - 1:
                    self.complete.setdefault(value.piece, gpu)
            else:
                here.once, here.twice = one.once, one.twice
                one.after += tuple(here.came)
                here.came, here.copied = [number], number
            one.beside = tuple(k for k in here.left if k not in one.after and k != number)
        return dataclasses.replace(value, pending=())

    def _send(self, block: _Block, values: list[_Value]) -> list[_Value]:
        if block.send < 0:
            self._fault(block, "sends to no GPU")
        if len(self.sent) + len(values) > MAX_MESSAGES:
            raise FileError(f"{TOOL}: more than {MAX_MESSAGES:,} messages, the most that are read")
        values = [self._used(block.gpu, value) for value in values]
        out = []
        for value in values:
            here = self._holds(block.gpu, value.piece)
            if (here.once, here.twice) != (value.once, value.twice):
                self._fault(
                    block,
                    f"sends one partial sum of chunk {value.piece} and keeps another, which has no "
                    "counterpart here",
                )
            number = len(self.sent)
            self.sent.append(_Sent(block.gpu, block.send, value, tuple(here.came)))
            here.left.append(number)
            out.append(dataclasses.replace(value, pending=(number,)))
        self.wires[block.gpu, block.send, block.channel].append(out)
        return values

    def _fault(self, block: _Block, why: str) -> None:
        where = f"GPU {block.gpu}, thread block {block.id}, step {block.done}"
        raise FileError(f"{TOOL}: {where}: {why}")

    def _check_outputs(self) -> None:
        everyone = (1 << self.gpus) - 1
        for gpu in range(self.gpus):
            count = self.each if self.collective == "reduce_scatter" else self.chunks
            for offset in range(count):
                owner, part = divmod(offset, self.each) if self.each else (0, 0)
                wanted = offset, everyone
                if self.collective == "all_gather":
                    wanted = offset, 1 << owner
                elif self.collective == "reduce_scatter":
                    wanted = gpu * self.each + offset, everyone
                elif self.collective == "all_to_all":
                    wanted = owner * self.chunks + gpu * self.each + part, 1 << owner
                    if owner == gpu:
                        continue
                found = self.cells.get(self._cell(gpu, "o", offset))
                found = found or (self.cells.get((gpu, "i", offset)) if self.in_place else None)
                if found is None or (found.piece, found.once, found.twice) != (*wanted, 0):
                    raise FileError(
                        f"{TOOL}: in the end output {offset} of GPU {gpu} is not what the "
                        "collective asks for"
                    )

    def _numbered(self, piece: int) -> int:
        """Our number of a piece: in an all-to-all by block, without the GPUs' data for itself."""
        if self.collective != "all_to_all":
            return piece
        source, offset = divmod(piece, self.chunks)
        target, part = divmod(offset, self.each)
        return self._block[source, target] * self.each + part

    @property
    def _block(self) -> dict[tuple[int, int], int]:
        assert self.demand is not None
        rank = self.topology.rank
        pairs = zip(self.demand.contributors.servers, self.demand.destinations.servers, strict=True)
        return {(int(rank[a]), int(rank[b])): k for k, (a, b) in enumerate(pairs)}

    def _asked(self) -> Asked:
        servers = self.topology.servers.tolist()
        if self.demand is not None:
            sources = self.demand.contributors.servers.tolist()
            blocks = [k for k in range(len(self.demand)) for _ in range(self.each)]
            return Asked(None, [sources[k] for k in blocks], None, self.demand, blocks)
        if self.collective != "all_reduce":
            root = [servers[piece // self.each] for piece in range(self.chunks)]
            return Asked(self.collective, root)
        root = [servers[self.complete.get(piece, 0)] for piece in range(self.chunks)]
        return Asked(self.collective, root)


def _whole(element: Any, name: str, least: int, most: int) -> int:
    """An integer attribute in a range."""
    text = element.get(name, "")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise FileError(
            f"{TOOL}: {element.tag}: {name}: expected {least} to {most}, got {text!r:.40}"
        )
    return int(text)
