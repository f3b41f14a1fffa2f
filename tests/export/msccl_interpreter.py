"""MSCCL's XML, read as its executors read it and run on contribution counts; for the tests alone.

Strict: any element, attribute or value that the parsers do not know is an error, as are the limits
of the executors and what their hand-written parser trips over.
"""

import collections
import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np

from tests.export.contributions import Collective
from tests.export.interleaving import Outcome, interleave
from tests.export.races import Races

_ALGO = "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes"
_ATTRIBUTES = {
    "algo": {*_ALGO.split(), "nthreads"},
    "gpu": {"id", "i_chunks", "o_chunks", "s_chunks"},
    "tb": {"id", "send", "recv", "chan"},
    "step": set("s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep".split()),
}
_CHILD = {"algo": "gpu", "gpu": "tb", "tb": "step", "step": None}
_COLLECTIVES = {
    "msccl": {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reduce_scatter": "reduce_scatter",
    },
    "rccl": {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
    },
}


@dataclasses.dataclass
class Step:
    type: str
    read: tuple[str, int]
    written: tuple[str, int]
    waits_for: list[tuple[int, int]]
    """Thread blocks of the same GPU, and steps."""
    number: int
    awaited: bool


@dataclasses.dataclass
class Block:
    gpu: int
    id: int
    send: int
    receive: int
    channel: int
    steps: list[Step]


@dataclasses.dataclass
class Algorithm:
    collective: Collective
    blocks: list[Block]
    scratch: list[int]
    in_place: bool
    out_of_place: bool
    root: ET.Element


def read(content: bytes, *, dialect: str = "msccl", max_steps: int = 256) -> Algorithm:
    """Reads a file, and refuses what the executors would."""
    _check_text(content.decode("ascii"))
    root = ET.fromstring(content)
    _check_element(root, "algo")
    ranks = int(root.attrib["ngpus"])
    name = _COLLECTIVES[dialect][root.attrib["coll"]]
    collective = Collective(name, ranks, int(root.attrib["nchunksperloop"]))
    assert root.attrib["proto"] in ("Simple", "LL", "LL128")
    assert int(root.attrib["nthreads"]) % 32 == 0
    assert 0 <= int(root.attrib["minBytes"]) <= int(root.attrib["maxBytes"])
    assert [int(gpu.attrib["id"]) for gpu in root] == list(range(ranks))
    blocks, scratch = [], []
    for gpu in root:
        sizes = [int(gpu.attrib[key]) for key in ("i_chunks", "o_chunks", "s_chunks")]
        assert tuple(sizes[:2]) == collective.sizes
        scratch.append(sizes[2])
        assert 1 + ranks + sum(1 for _ in gpu.iter()) - 1 <= 4095
        of_gpu = [_block(tb, dict(zip("ios", sizes, strict=True)), gpu, max_steps) for tb in gpu]
        _check_gpu(of_gpu, int(root.attrib["nchannels"]))
        blocks += of_gpu
    return Algorithm(
        collective,
        blocks,
        scratch,
        root.attrib["inplace"] == "1",
        root.attrib["outofplace"] == "1",
        root,
    )


def _check_text(text: str) -> None:
    """What the hand-written parser needs."""
    assert text.startswith("<algo "), "the first element must be algo, without a declaration"
    assert "'" not in text and "\t" not in text and "<!--" not in text and "&" not in text
    for tag in re.findall(r"<[^>]*>", text):
        values = re.findall(r'"([^"]*)"', tag)
        assert len(values) + 1 <= 16 and all(len(value) <= 255 for value in values)
    assert len(re.search(r'name="([^"]*)"', text)[1]) <= 63


def _check_element(element: ET.Element, tag: str) -> None:
    assert element.tag == tag
    assert set(element.attrib) == _ATTRIBUTES[tag], f"{tag}: {set(element.attrib)}"
    child = _CHILD[tag]
    for each in element:
        assert child is not None
        _check_element(each, child)


def _block(tb: ET.Element, sizes: dict[str, int], gpu: ET.Element, max_steps: int) -> Block:
    block = Block(
        int(gpu.attrib["id"]), *(int(tb.attrib[key]) for key in ("id", "send", "recv", "chan")), []
    )
    waits: list[tuple[int, int]] = []
    assert len(tb) <= max_steps
    for number, step in enumerate(tb):
        at = step.attrib
        kind = at["type"]
        assert int(at["s"]) == number and at["hasdep"] in ("0", "1")
        dependence = int(at["depid"]), int(at["deps"])
        assert (dependence[0] < 0) == (dependence[1] < 0) and max(dependence) < 256
        if dependence[0] >= 0:
            waits.append(dependence)
        if kind == "nop":
            assert dependence[0] >= 0 and at["cnt"] == "0" and at["hasdep"] == "0"
            continue
        assert not waits or dependence[0] >= 0, "the last of a chain must be the step itself"
        assert at["cnt"] == "1"
        assert kind in ("s", "r", "rrc", "cpy"), kind
        assert (kind != "s" or block.send >= 0) and (kind not in ("r", "rrc") or block.receive >= 0)
        places = (at["srcbuf"], int(at["srcoff"])), (at["dstbuf"], int(at["dstoff"]))
        assert all(0 <= chunk < sizes[buffer] for buffer, chunk in places)
        block.steps.append(Step(kind, *places, waits, number, at["hasdep"] == "1"))
        waits = []
    assert not waits, "a nop that nothing follows"
    return block


def _check_gpu(blocks: list[Block], channels: int) -> None:
    assert [block.id for block in blocks] == list(range(len(blocks))) and len(blocks) <= 128
    for way in ("send", "receive"):
        ends = [(getattr(each, way), each.channel) for each in blocks if getattr(each, way) >= 0]
        assert len(set(ends)) == len(ends), "two thread blocks on one connection"
        assert all(0 <= channel < channels for _, channel in ends)
        assert all(count <= 32 for count in collections.Counter(c for _, c in ends).values())
    for block in blocks:
        assert block.gpu not in (block.send, block.receive)
        for step in block.steps:
            for other, number in step.waits_for:
                assert other != block.id
                named = [each for each in blocks[other].steps if each.number == number]
                assert len(named) == 1 and named[0].awaited, "waits for what never says so"


class _Run:
    """One run, of which one thread block after the other does a step."""

    def __init__(
        self, algorithm: Algorithm, in_place: bool, room: int, races: Races | None
    ) -> None:
        self.algorithm, self._room, self._races = algorithm, room, races
        self.memory = [
            algorithm.collective.memory(rank, scratch, in_place)
            for rank, scratch in enumerate(algorithm.scratch)
        ]
        self._fifo: dict[tuple[int, int, int], collections.deque] = collections.defaultdict(
            collections.deque
        )
        # By GPU and thread block: the number of the last step that said it is complete.
        self._flag: dict[tuple[int, int], int] = {}
        self._said: dict[tuple[int, int, int], np.ndarray] = {}
        self._next = [0] * len(algorithm.blocks)

    def task(self, thread: int) -> Outcome:
        block = self.algorithm.blocks[thread]
        if self._next[thread] == len(block.steps):
            return "done"
        step = block.steps[self._next[thread]]
        if not self._may(block, step):
            return "blocked"
        self._next[thread] += 1
        self._do(thread, block, step)
        return "ran"

    def _may(self, block: Block, step: Step) -> bool:
        if any(self._flag.get((block.gpu, other), -1) < number for other, number in step.waits_for):
            return False
        if step.type == "s":
            return len(self._fifo[block.gpu, block.send, block.channel]) < self._room
        if step.type == "cpy":
            return True
        return bool(self._fifo[block.receive, block.gpu, block.channel])

    def _do(self, thread: int, block: Block, step: Step) -> None:
        memory, races = self.memory[block.gpu], self._races
        source, target = (memory[buffer][chunk] for buffer, chunk in (step.read, step.written))
        came, said = None, None
        if step.type in ("r", "rrc"):
            came, said = self._fifo[block.receive, block.gpu, block.channel].popleft()
        if races:
            races.tick(thread)
            for other, number in step.waits_for:
                races.join(thread, self._said[block.gpu, other, number])
            if said is not None:
                races.join(thread, said)
            if step.type != "r":
                races.read(thread, source)
            # In place an all-gather copies a piece onto itself, which changes no byte.
            if step.type != "s" and not (
                step.type == "cpy" and np.may_share_memory(source, target)
            ):
                races.write(thread, target)
        said = races.snapshot(thread) if races else None
        if step.type == "s":
            self._fifo[block.gpu, block.send, block.channel].append((source.copy(), said))
        elif step.type == "cpy":
            target[:] = source.copy()
        else:
            target[:] = came + source if step.type == "rrc" else came
        if step.awaited:
            self._flag[block.gpu, block.id] = step.number
            self._said[block.gpu, block.id, step.number] = said

    def left(self) -> int:
        return sum(map(len, self._fifo.values()))


def run(
    algorithm: Algorithm, seed: int, *, in_place: bool = True, room: int = 2, races: bool = False
) -> None:
    """Runs all thread blocks of all GPUs to their ends and checks what they come to.

    Args:
        algorithm: what was read.
        seed: of the order in which thread blocks do their steps.
        in_place: whether input and output are the same memory.
        room: messages that a connection holds before a send must wait.
        races: whether to look for accesses that nothing orders, in whatever order they came here.
    """
    check = Races(len(algorithm.blocks)) if races else None
    played = _Run(algorithm, in_place, room, check)
    tasks = [lambda thread=thread: played.task(thread) for thread in range(len(algorithm.blocks))]
    interleave(tasks, seed)
    assert played.left() == 0, "messages that nobody received"
    for rank, memory in enumerate(played.memory):
        algorithm.collective.check(rank, memory, in_place)


def dependences(algorithm: Algorithm) -> list[tuple[int, int, int]]:
    """All waits: thread block's place in the list, step's place in it, place in the step's list."""
    return list(
        itertools.chain.from_iterable(
            ((number, place, which) for which in range(len(step.waits_for)))
            for number, block in enumerate(algorithm.blocks)
            for place, step in enumerate(block.steps)
        )
    )
