"""MSCCL++'s execution plans: JSON with the operations of each thread block.

The executor reads at most 64 operations and 16 channels per thread block. Longer sequences continue
in another thread block, which waits for a semaphore of the GPU.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError, ScheduleError
from gradweave.execute.program import check_runs
from gradweave.export.buffers import check_equal_pieces, plain_name
from gradweave.export.mscclpp_rounds import NOP, Operation, Sequence, sequences_of
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule
from gradweave.topology.units import as_size

MAX_OPERATIONS = 64
"""Maximum number of operations in a thread block."""
MAX_CHANNELS = 16
"""Maximum number of channels, and of remote buffers, of a thread block."""
MAX_BLOCKS = 108
"""Maximum number of thread blocks per GPU. They wait for each other, so all must run concurrently;
an A100 runs one on each of its 108 multiprocessors."""
_SEMAPHORE_OPERATIONS = 4
"""Operations that acquiring and releasing semaphores may take."""

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
}
"""MSCCL++'s names of the collectives."""


def to_mscclpp_json(
    schedule: ScheduleLike,
    *,
    name: str | None = None,
    instances: int = 1,
    in_place: bool = True,
    min_bytes: int | str = 0,
    max_bytes: int | str = (1 << 64) - 1,
) -> bytes:
    """Writes a schedule as an execution plan of MSCCL++.

    Memory channels, protocol ``Simple``, sums; see `sequences_of` for the order of operations.
    A message must be a multiple of 16 bytes times pieces times instances. Routes are left to the
    hardware.

    Args:
        schedule: a valid schedule of any collective in which no switch adds.
        name: name of the plan; by default collective and topology. Characters other than letters,
            digits and ``_-.:=,+`` become underscores.
        instances: number of parallel instances of the plan, each with separate thread blocks and a
            part of every piece.
        in_place: whether the plan is declared for in-place calls. It is correct for both.
        min_bytes: size of the smallest message that may use the plan.
        max_bytes: size of the largest message that may use it.

    Raises:
        OptionError: an option is out of range.
        InvalidScheduleError: the schedule is invalid, or switches add in it.
        ScheduleError: the schedule exceeds a limit of the executor; names the limit and a remedy.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(2))
    >>> plan = json.loads(to_mscclpp_json(schedule))
    >>> [operation["name"] for operation in plan["gpus"][0]["threadblocks"][0]["ops"]]
    ['signal', 'wait', 'nop', 'put', 'nop', 'signal', 'wait', 'nop', 're', 'nop', 'put', ...]
    """
    schedule = as_schedule(schedule)
    min_bytes, max_bytes = as_size(min_bytes), as_size(max_bytes)
    if not 1 <= instances <= MAX_BLOCKS:
        raise OptionError(f"instances: expected 1 to {MAX_BLOCKS}, got {instances}")
    if not 0 <= min_bytes <= max_bytes < 1 << 64:
        raise OptionError(
            f"expected 0 ≤ min_bytes ≤ max_bytes < 2^64, got {min_bytes} and {max_bytes}"
        )
    check_runs(schedule)
    check_equal_pieces(schedule, "MSCCL++")
    plan = {
        "name": plain_name(schedule, name),
        "collective": COLLECTIVES[schedule.collective],
        "protocol": "Simple",
        "inplace": in_place,
        "reuse_resources": False,
        "gpus": [
            _gpu(schedule, rank, sequence, instances)
            for rank, sequence in enumerate(sequences_of(schedule))
        ],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": min_bytes,
        "max_message_size": max_bytes,
    }
    return json.dumps(plan, indent=1).encode() + b"\n"


def save_mscclpp_json(schedule: ScheduleLike, path: str | Path, **options: Any) -> None:
    """Writes the file of `to_mscclpp_json`, whole or not at all.

    Raises:
        FileError: the file cannot be written.
    """
    atomic_write(path, to_mscclpp_json(schedule, **options))


def _gpu(schedule: Schedule, rank: int, sequence: Sequence, instances: int) -> dict[str, Any]:
    parts = _parts(sequence.operations)
    if instances * len(parts) > MAX_BLOCKS:
        remedy = "fewer instances" if instances > 1 else "a schedule of fewer rounds or pieces"
        server = schedule.topology.node_name(int(schedule.topology.servers[rank]))
        raise ScheduleError(
            f"{server}: expected at most {MAX_BLOCKS} thread blocks, got "
            f"{instances * len(parts)}; take {remedy}"
        )
    remote = sorted({put[:2] for operation in sequence.operations for put in operation.put})
    buffers = sequence.buffers
    return {
        "id": rank,
        "input_chunks": buffers.input_chunks * instances,
        "output_chunks": buffers.output_chunks * instances,
        "scratch_chunks": sequence.scratch_chunks * instances,
        "threadblocks": [
            _ThreadBlock(sequence.peers, remote, instance, instances, number, len(parts)).of(part)
            for instance in range(instances)
            for number, part in enumerate(parts)
        ],
        "channels": [{"channel_type": "memory", "connected_to": sequence.peers * instances}],
        "remote_buffers": [
            {"rank": other, "type": buffer, "access_channel_types": ["memory"]}
            for other, buffer in remote
        ],
        "semaphores": [{"init_value": 0} for _ in range(instances * (len(parts) - 1))],
    }


def _parts(operations: list[Operation]) -> list[list[Operation]]:
    """Divides operations into runs that fit in a thread block each."""
    parts: list[list[Operation]] = [[]]
    peers: set[int] = set()
    remote: set[tuple[int, str]] = set()
    for operation in operations:
        peers |= set(operation.peers)
        remote |= {put[:2] for put in operation.put}
        full = len(parts[-1]) == MAX_OPERATIONS - _SEMAPHORE_OPERATIONS
        if full or max(len(peers), len(remote)) > MAX_CHANNELS:
            parts.append([])
            peers, remote = set(operation.peers), {put[:2] for put in operation.put}
        parts[-1].append(operation)
    return parts


@dataclasses.dataclass(frozen=True)
class _ThreadBlock:
    """Writes one thread block; ids in operations count within it."""

    peers: list[int]
    remote: list[tuple[int, str]]
    instance: int
    instances: int
    number: int
    parts: int

    def of(self, operations: list[Operation]) -> dict[str, Any]:
        peers = sorted({peer for operation in operations for peer in operation.peers})
        remote = sorted({put[:2] for operation in operations for put in operation.put})
        written = [self._operation(operation, peers, remote) for operation in operations]
        first_semaphore = self.instance * (self.parts - 1) + self.number
        nop = {"name": NOP.name}
        if self.number:
            acquire = {"name": "sem_acquire", "semaphore_ids": [first_semaphore - 1]}
            written = [acquire, nop, *written]
        if self.number < self.parts - 1:
            written += [nop, {"name": "sem_release", "semaphore_ids": [first_semaphore]}]
        first_channel = self.instance * len(self.peers)
        channels = [first_channel + self.peers.index(peer) for peer in peers]
        buffers = [self.remote.index(each) for each in remote]
        return {
            "id": self.instance * self.parts + self.number,
            "ops": written,
            "channels": [{"channel_type": "memory", "channel_ids": channels}] if channels else [],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": buffers}]
            if buffers
            else [],
        }

    def _operation(
        self, operation: Operation, peers: list[int], remote: list[tuple[int, str]]
    ) -> dict[str, Any]:
        written: dict[str, Any] = {"name": operation.name}
        if operation.read:
            written["src_buff"] = [
                {"type": buffer, "index": self._chunk(chunk), "size": 1}
                for buffer, chunk in operation.read
            ]
            written["dst_buff"] = [
                {"type": buffer, "index": self._chunk(chunk), "size": 1}
                for buffer, chunk in operation.written
            ] + [
                {"buffer_id": remote.index((other, buffer)), "index": self._chunk(chunk), "size": 1}
                for other, buffer, chunk in operation.put
            ]
        if operation.peers:
            written["channel_ids"] = [peers.index(peer) for peer in operation.peers]
        if operation.peers or operation.put:
            written["channel_type"] = "memory"
        if operation.name == "re":
            written["reduce_op"] = "sum"
        return written

    def _chunk(self, chunk: int) -> int:
        return chunk * self.instances + self.instance
