"""MSCCL++'s execution plans, read as its executor reads them and run; for the tests alone.

Strict: unknown keys and operations are errors, and so are operations of one thread block that touch
the same memory, or signal and are signalled, without a ``nop`` between, which alone makes a thread
block's threads wait for each other. Every GPU runs the plan several times, each run as soon as its
own last one is over, as on a stream: nothing else keeps one GPU's run from another's last.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.export.contributions import Collective
from tests.export.interleaving import Outcome, interleave
from tests.export.races import Races

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
_PLAN = (
    "name collective protocol inplace reuse_resources gpus num_threads_per_block "
    "use_double_scratch_buffer buffer_alignment min_message_size max_message_size"
)
_GPU = (
    "id input_chunks output_chunks scratch_chunks threadblocks channels remote_buffers semaphores"
)
_OPERATIONS = {
    "nop": "",
    "put": "src_buff dst_buff channel_type",
    "copy": "src_buff dst_buff",
    "re": "src_buff dst_buff reduce_op",
    "signal": "channel_ids channel_type",
    "wait": "channel_ids channel_type",
    "sem_acquire": "semaphore_ids",
    "sem_release": "semaphore_ids",
}


@dataclasses.dataclass
class Plan:
    collective: Collective
    gpus: list[dict[str, Any]]
    in_place: bool


def read(content: bytes) -> Plan:
    """Reads a plan, and refuses what the executor would."""
    plan = json.loads(content)
    _keys(plan, _PLAN)
    assert plan["protocol"] == "Simple" and not plan["reuse_resources"]
    assert plan["buffer_alignment"] == 16 and 0 < plan["num_threads_per_block"] <= 1024
    assert 0 <= plan["min_message_size"] <= plan["max_message_size"] < 1 << 64
    gpus = plan["gpus"]
    name = _COLLECTIVES[plan["collective"]]
    chunks = max(gpus[0]["input_chunks"], gpus[0]["output_chunks"])
    collective = Collective(name, len(gpus), chunks)
    for rank, gpu in enumerate(gpus):
        _keys(gpu, _GPU)
        assert gpu["id"] == rank
        assert (gpu["input_chunks"], gpu["output_chunks"]) == collective.sizes
        assert [block["id"] for block in gpu["threadblocks"]] == list(
            range(len(gpu["threadblocks"]))
        )
        assert len(gpu["threadblocks"]) <= 108
        for each in gpu["remote_buffers"]:
            _keys(each, "rank type access_channel_types")
            assert each["rank"] != rank and each["access_channel_types"] == ["memory"]
        for each in gpu["semaphores"]:
            _keys(each, "init_value")
        for block in gpu["threadblocks"]:
            _check_block(gpu, block, gpus)
    for rank in range(len(gpus)):
        for other in range(len(gpus)):
            both = [_connected(gpus[a]).count(b) for a, b in ((rank, other), (other, rank))]
            assert both[0] == both[1], "a channel has two ends"
    return Plan(collective, gpus, plan["inplace"])


def _keys(value: dict[str, Any], keys: str) -> None:
    assert set(value) == set(keys.split()), set(value)


def _connected(gpu: dict[str, Any]) -> list[int]:
    peers = []
    for channel in gpu["channels"]:
        _keys(channel, "channel_type connected_to")
        assert channel["channel_type"] == "memory"
        peers += channel["connected_to"]
    return peers


def _check_block(gpu: dict[str, Any], block: dict[str, Any], gpus: list[dict[str, Any]]) -> None:
    _keys(block, "id ops channels remote_buffer_refs")
    assert len(block["ops"]) <= 64
    channels, buffers = _channels(block), _buffers(block)
    assert len(channels) <= 16 and len(buffers) <= 16
    assert all(0 <= each < len(_connected(gpu)) for each in channels)
    for operation in block["ops"]:
        _keys(operation, "name " + _OPERATIONS[operation["name"]])
        assert operation.get("channel_type", "memory") == "memory"
        ids = operation.get("channel_ids", [])
        assert len(set(ids)) == len(ids) <= 8 and all(0 <= each < len(channels) for each in ids)
        assert len(operation.get("semaphore_ids", [])) <= 16
        if "src_buff" in operation:
            _check_chunks(gpu, operation, [gpu["remote_buffers"][each] for each in buffers], gpus)


def _check_chunks(
    gpu: dict[str, Any],
    operation: dict[str, Any],
    remote: list[dict[str, Any]],
    gpus: list[dict[str, Any]],
) -> None:
    source, target = operation["src_buff"], operation["dst_buff"]
    assert len(source) <= 10 and len(target) <= 10
    if operation["name"] == "put":
        assert len(source) == len(target)
        assert len({each["type"] for each in source}) == 1, "one operation reads one buffer"
    else:
        assert len(target) == 1 and (operation["name"] == "re") == (len(source) > 1)
    for each in (*source, *target):
        away = each in target and operation["name"] == "put"
        _keys(each, "buffer_id index size" if away else "type index size")
        owner = gpus[remote[each["buffer_id"]]["rank"]] if away else gpu
        kind = remote[each["buffer_id"]]["type"] if away else each["type"]
        sizes = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
        assert each["size"] == 1 and 0 <= each["index"] < owner[sizes[kind]]


def _channels(block: dict[str, Any]) -> list[int]:
    ids = []
    for each in block["channels"]:
        _keys(each, "channel_type channel_ids")
        ids += each["channel_ids"]
    return ids


def _buffers(block: dict[str, Any]) -> list[int]:
    ids = []
    for each in block["remote_buffer_refs"]:
        _keys(each, "access_channel_type remote_buffer_ids")
        ids += each["remote_buffer_ids"]
    return ids


class _Run:
    """Several runs of a plan: memory and counters, and what each thread block does next."""

    def __init__(self, plan: Plan, in_place: bool, runs: int, races: bool) -> None:
        self.plan, self.in_place, self.runs = plan, in_place, runs
        gpus = plan.gpus
        self.memory = [
            plan.collective.memory(rank, gpu["scratch_chunks"], in_place)
            for rank, gpu in enumerate(gpus)
        ]
        blocks = [len(gpu["threadblocks"]) for gpu in gpus]
        self.first_thread = np.cumsum([0, *blocks])
        self.races = Races(self.first_thread[-1]) if races else None
        # By GPU and channel: signals that came, and how many were waited for.
        self.came: list[list[list[Any]]] = [[[] for _ in _connected(gpu)] for gpu in gpus]
        self.waited = [[0] * len(_connected(gpu)) for gpu in gpus]
        self.semaphores: list[list[list[Any]]] = [
            [[None] * each["init_value"] for each in gpu["semaphores"]] for gpu in gpus
        ]

    def other_end(self, rank: int, channel: int) -> tuple[int, int]:
        """The same connection at the other GPU: the k-th to a GPU is its k-th to this one."""
        peers = _connected(self.plan.gpus[rank])
        which = peers[: channel + 1].count(peers[channel]) - 1
        there = [
            n for n, peer in enumerate(_connected(self.plan.gpus[peers[channel]])) if peer == rank
        ]
        return peers[channel], there[which]

    def gpu(self, rank: int) -> Iterator[Outcome]:
        """What a GPU does, run after run."""
        gpu = self.plan.gpus[rank]
        threads = range(self.first_thread[rank], self.first_thread[rank + 1])
        for run in range(self.runs):
            if run:
                self._start_anew(rank, threads, run + 1)
            blocks = [
                self._block(gpu, block, thread)
                for block, thread in zip(gpu["threadblocks"], threads, strict=True)
            ]
            while blocks:
                ran = False
                for block in list(blocks):
                    outcome = next(block, "done")
                    if outcome == "done":
                        blocks.remove(block)
                    ran |= outcome != "blocked"
                    if outcome == "ran":
                        yield "ran"
                if not ran:
                    yield "blocked"
            self.plan.collective.check(rank, self.memory[rank], self.in_place, run + 1)
            yield "ran"  # Others go on before this one's memory is looked at again.
            self.plan.collective.check(rank, self.memory[rank], self.in_place, run + 1)
        assert self.waited[rank] == [len(came) for came in self.came[rank]], "a signal is left over"
        assert [len(each) for each in self.semaphores[rank]] == [
            each["init_value"] for each in gpu["semaphores"]
        ]

    def _start_anew(self, rank: int, threads: range, times: int) -> None:
        """What runs on the stream between two runs writes input and output, from the first on."""
        fresh = self.plan.collective.memory(rank, 0, self.in_place, times)
        for name in "oi":
            self.memory[rank][name][:] = fresh[name]
        if self.races:
            before = [self.races.snapshot(thread) for thread in threads]
            for thread in threads:
                self.races.tick(thread)
                for snapshot in before:
                    self.races.join(thread, snapshot)
            for name in "oi":
                for cell in self.memory[rank][name]:
                    self.races.write(threads[0], cell)
            after = self.races.snapshot(threads[0])
            for thread in threads:
                self.races.join(thread, after)

    def _block(self, gpu: dict[str, Any], block: dict[str, Any], thread: int) -> Iterator[Outcome]:
        threads = _Threads()
        for operation in block["ops"]:
            while not self._may(gpu, block, operation):
                yield "blocked"
            if self.races:
                self.races.tick(thread)
            self._do(gpu, block, operation, thread, threads)
            yield "ran"

    def _may(self, gpu: dict[str, Any], block: dict[str, Any], operation: dict[str, Any]) -> bool:
        rank = gpu["id"]
        if operation["name"] == "wait":
            ids = [_channels(block)[each] for each in operation["channel_ids"]]
            return all(len(self.came[rank][each]) > self.waited[rank][each] for each in ids)
        if operation["name"] == "sem_acquire":
            return all(self.semaphores[rank][each] for each in operation["semaphore_ids"])
        return True

    def _do(
        self,
        gpu: dict[str, Any],
        block: dict[str, Any],
        operation: dict[str, Any],
        thread: int,
        threads: "_Threads",
    ) -> None:
        rank, name, races = gpu["id"], operation["name"], self.races
        now = races.snapshot(thread) if races else None
        if name == "nop":
            threads.meet()
        elif name in ("signal", "sem_release"):
            threads.tell()
            for each in operation.get("semaphore_ids", []):
                self.semaphores[rank][each].append(now)
            for each in operation.get("channel_ids", []):
                other, channel = self.other_end(rank, _channels(block)[each])
                self.came[other][channel].append(now)
        elif name in ("wait", "sem_acquire"):
            threads.hear()
            said = [
                self.semaphores[rank][each].pop(0) for each in operation.get("semaphore_ids", [])
            ]
            for each in operation.get("channel_ids", []):
                channel = _channels(block)[each]
                said.append(self.came[rank][channel][self.waited[rank][channel]])
                self.waited[rank][channel] += 1
            for snapshot in said if races else []:
                races.join(thread, snapshot)
        else:
            self._move(gpu, block, operation, thread, threads)

    def _move(
        self,
        gpu: dict[str, Any],
        block: dict[str, Any],
        operation: dict[str, Any],
        thread: int,
        threads: "_Threads",
    ) -> None:
        mine = self.memory[gpu["id"]]
        source = [mine[each["type"]][each["index"]] for each in operation["src_buff"]]
        target = []
        for each in operation["dst_buff"]:
            if "buffer_id" in each:
                remote = gpu["remote_buffers"][_buffers(block)[each["buffer_id"]]]
                target.append(self.memory[remote["rank"]][remote["type"]][each["index"]])
            else:
                target.append(mine[each["type"]][each["index"]])
        # In place an all-gather copies a piece onto itself, which changes no byte.
        onto_itself = operation["name"] == "copy" and np.may_share_memory(source[0], target[0])
        threads.touch(source, [] if onto_itself else target)
        if self.races and not onto_itself:
            for cell in source:
                self.races.read(thread, cell)
            for cell in target:
                self.races.write(thread, cell)
        if operation["name"] == "re":
            target[0][:] = sum(source)
        else:
            for cell, value in zip(target, [each.copy() for each in source], strict=True):
                cell[:] = value


class _Threads:
    """What the threads of one thread block did since they last waited for each other."""

    def __init__(self) -> None:
        self.meet()

    def meet(self) -> None:
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._heard = False

    def touch(self, source: list[np.ndarray], target: list[np.ndarray]) -> None:
        assert not self._heard, "only some threads have waited: a nop is missing"
        read, written = ({_key(cell) for cell in cells} for cells in (source, target))
        assert not written & (self._read | self._written), "written before all threads have read"
        assert not read & self._written, "read before all threads have written"
        self._read |= read
        self._written |= written

    def tell(self) -> None:
        assert not self._read | self._written, "told before all threads are done: a nop is missing"

    def hear(self) -> None:
        self._heard = True


def _key(cell: np.ndarray) -> int:
    return cell.__array_interface__["data"][0]


def run(
    plan: Plan, seed: int, *, in_place: bool = True, runs: int = 2, races: bool = False
) -> None:
    """Runs a plan on all GPUs, some times in a row, and checks what each run comes to.

    Args:
        plan: what was read.
        seed: of the order in which GPUs do their operations.
        in_place: whether input and output are the same memory.
        runs: how often.
        races: whether to look for accesses that nothing orders, in whatever order they came here.
    """
    played = _Run(plan, in_place, runs, races)
    doing = [played.gpu(rank) for rank in range(len(plan.gpus))]
    interleave([lambda gpu=gpu: next(gpu, "done") for gpu in doing], seed)
