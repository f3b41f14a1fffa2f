"""MSCCL's algorithm files: XML with a list of steps for each thread block.

Legacy versions of RCCL also read them; RCCL 2.28.3, in ROCm 7.13, removed MSCCL and MSCCL++.

    <algo name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes …>
      <gpu id i_chunks o_chunks s_chunks>
        <tb id send recv chan>
          <step s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep/>

The parsers are written by hand: they accept neither an XML declaration nor single quotes, and do
not decode escapes in names.
"""

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError, ScheduleError
from gradweave.export.buffers import Buffers, Place, check_equal_pieces, plain_name
from gradweave.export.msccl_blocks import Block, blocks_of
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule
from gradweave.topology.units import as_size


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Limits and names of one executor."""

    collectives: dict[str, str]
    """Its names of the collectives."""
    protocols: tuple[str, ...]
    steps: int
    """Most steps of a thread block."""


DIALECTS = {
    "msccl": Dialect(
        {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reduce_scatter"},
        protocols=("Simple", "LL", "LL128"),
        steps=256,
    ),
    # RCCL's threads do not synchronize at the end of a send by LL, so that a step that waits for
    # the send could overwrite data still being read. Its older versions take 256 steps.
    "rccl": Dialect(
        {"all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter"},
        protocols=("Simple", "LL128"),
        steps=64,
    ),
}

MAX_CHANNELS = 32
MAX_BLOCKS = 128
"""Maximum number of thread blocks per GPU. Their numbers may go up to 215, but a step's dependency
is a signed 8-bit number."""
MAX_PEERS = 32
"""Maximum number of servers that a server sends to, or receives from, on a channel."""
MAX_ELEMENTS = 4095
"""Maximum number of XML elements that a parser stores for a GPU: itself, its thread blocks and
steps, the other GPUs and the root."""
MAX_CHUNKS = 1 << 15
"""Maximum number of chunks in a buffer; their numbers are signed 16-bit integers."""


def to_msccl_xml(
    schedule: ScheduleLike,
    *,
    name: str | None = None,
    protocol: str = "Simple",
    instances: int = 1,
    in_place: bool = True,
    dialect: str = "msccl",
    min_bytes: int | str = 0,
    max_bytes: int | str = 1 << 40,
) -> bytes:
    """Writes a schedule as an algorithm of MSCCL or RCCL.

    Each pair of servers has one thread block at either end and its messages in one order; a step
    waits for its data, and for its turn on the link at its server's end, as in
    `gradweave.execute.Program`. There are no rounds: a step starts when its dependencies are
    complete. Receives are not fused with the sends that follow. Routes are left to the hardware.

    Args:
        schedule: a valid schedule of any collective in which no switch adds.
        name: name of the algorithm; by default collective and topology. Characters other than
            letters, digits and ``_-.:=,+`` become underscores.
        protocol: ``"Simple"``, ``"LL128"`` or, for MSCCL, ``"LL"``.
        instances: number of parallel instances of the algorithm, each with a separate channel and a
            part of every piece.
        in_place: whether MSCCL should use it for in-place or for out-of-place calls. RCCL uses it
            for both unless this is False. The steps are correct for both.
        dialect: ``"msccl"``, or ``"rccl"`` for RCCL before 2.28.3, which removed MSCCL.
        min_bytes: size of the smallest message that uses the algorithm.
        max_bytes: size of the largest message that uses it.

    Raises:
        OptionError: an option is out of range.
        InvalidScheduleError: the schedule is invalid, or switches add in it.
        ScheduleError: the schedule exceeds a limit of the format; names the limit and a remedy.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(2))
    >>> print(to_msccl_xml(schedule, name="ring").decode())
    <algo name="ring" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" ...
      <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
        <tb id="0" send="1" recv="-1" chan="0">
          <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" ...
    """
    schedule = as_schedule(schedule)
    min_bytes, max_bytes = as_size(min_bytes), as_size(max_bytes)
    _check_options(protocol, instances, dialect, min_bytes, max_bytes)
    check_equal_pieces(schedule, dialect.upper())
    executor = DIALECTS[dialect]
    servers = schedule.topology.num_servers
    algorithm = ET.Element(
        "algo",
        name=plain_name(schedule, name),
        proto=protocol,
        nchannels=str(instances),
        nchunksperloop=str(schedule.pieces * instances),
        ngpus=str(servers),
        coll=executor.collectives[schedule.collective],
        inplace=str(int(in_place)),
        outofplace="1",
        minBytes=str(min_bytes),
        maxBytes=str(max_bytes),
        nthreads="0",  # as many as MSCCL sees fit
    )
    for rank in range(servers):
        blocks, buffers = blocks_of(schedule, rank)
        _check_limits(schedule, rank, blocks, buffers, instances, executor)
        algorithm.append(_gpu(rank, blocks, buffers, instances))
    ET.indent(algorithm)
    return ET.tostring(algorithm, encoding="us-ascii", xml_declaration=False) + b"\n"


def save_msccl_xml(schedule: ScheduleLike, path: str | Path, **options: Any) -> None:
    """Writes the file of `to_msccl_xml`, whole or not at all.

    Raises:
        FileError: the file cannot be written.
    """
    atomic_write(path, to_msccl_xml(schedule, **options))


def _gpu(rank: int, blocks: list[Block], buffers: Buffers, instances: int) -> ET.Element:
    element = ET.Element(
        "gpu",
        id=str(rank),
        i_chunks=str(buffers.input_chunks * instances),
        o_chunks=str(buffers.output_chunks * instances),
        s_chunks=str(buffers.scratch_chunks * instances),
    )
    for instance in range(instances):
        first = instance * len(blocks)
        for number, block in enumerate(blocks):
            of_block = ET.SubElement(
                element,
                "tb",
                id=str(first + number),
                send=str(block.send),
                recv=str(block.receive),
                chan=str(instance),
            )
            _add_steps(of_block, block, first, instances, instance)
    return element


def _add_steps(
    element: ET.Element, block: Block, first: int, instances: int, instance: int
) -> None:
    def chunk(place: Place) -> str:
        return str(place[1] * instances + instance if place[1] >= 0 else -1)

    for number, step in enumerate(block.steps):
        other, awaited = step.waits_for or (-1 - first, -1)
        ET.SubElement(
            element,
            "step",
            s=str(number),
            type=step.type,
            srcbuf=step.read[0],
            srcoff=chunk(step.read),
            dstbuf=step.written[0],
            dstoff=chunk(step.written),
            cnt=str(int(step.type != "nop")),
            depid=str(first + other),
            deps=str(awaited),
            hasdep=str(int(step.awaited)),
        )


def _check_options(
    protocol: str, instances: int, dialect: str, min_bytes: int, max_bytes: int
) -> None:
    if dialect not in DIALECTS:
        raise OptionError(f"dialect: expected one of {', '.join(DIALECTS)}, got {dialect!r}")
    if protocol not in DIALECTS[dialect].protocols:
        raise OptionError(
            f"protocol: expected one of {', '.join(DIALECTS[dialect].protocols)} for {dialect}, "
            f"got {protocol!r}"
        )
    if not 1 <= instances <= MAX_CHANNELS:
        raise OptionError(
            f"instances: expected 1 to {MAX_CHANNELS}, the most channels, got {instances}"
        )
    if not 0 <= min_bytes <= max_bytes < 1 << 63:
        raise OptionError(
            f"expected 0 ≤ min_bytes ≤ max_bytes < 2^63, got {min_bytes} and {max_bytes}"
        )


def _check_limits(
    schedule: Schedule,
    rank: int,
    blocks: list[Block],
    buffers: Buffers,
    instances: int,
    dialect: Dialect,
) -> None:
    steps = [len(block.steps) for block in blocks]
    peers = max(
        sum(block.send >= 0 for block in blocks), sum(block.receive >= 0 for block in blocks)
    )
    elements = 1 + schedule.topology.num_servers + instances * (len(blocks) + sum(steps))
    chunks = instances * max(schedule.pieces, buffers.scratch_chunks)
    fewer_peers = "take a schedule in which a server exchanges data with fewer others"
    fewer_pieces = "take a schedule of fewer pieces or transfers"
    fewer_instances = "take fewer instances" if instances > 1 else fewer_peers
    for name, number, limit, remedy in (
        ("servers that it sends to or receives from", peers, MAX_PEERS, fewer_peers),
        ("thread blocks", instances * len(blocks), MAX_BLOCKS, fewer_instances),
        ("steps in one thread block", max(steps, default=0), dialect.steps, fewer_pieces),
        (
            "elements of the file for one GPU",
            elements,
            MAX_ELEMENTS,
            "take fewer instances" if instances > 1 else fewer_pieces,
        ),
        ("chunks of one buffer", chunks, MAX_CHUNKS, "take fewer pieces or instances"),
    ):
        if number > limit:
            server = schedule.topology.node_name(int(schedule.topology.servers[rank]))
            raise ScheduleError(
                f"{server}: expected at most {limit:,} {name}, got {number:,}; {remedy}"
            )
