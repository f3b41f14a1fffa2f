"""Runs a trial in one JAX process with some or all of the devices; each device is a server."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from gradweave.execute.axis import AXIS
from gradweave.execute.jax_mesh.backend import row_length, server_mesh
from gradweave.execute.jax_mesh.collective import Collective
from gradweave.execute.jax_mesh.permutations import steps
from gradweave.execute.running.trial import Trial, itemsize
from gradweave.processes.jax_start import bind_address
from gradweave.schedules.schedule import Schedule

_NATIVE = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}


def connect(address: str, processes: int, number: int, timeout_s: float) -> None:
    """Connects the processes by `jax.distributed`.

    Args:
        address: host and port on which process 0 listens.
        processes: number of processes.
        number: number of this process.
        timeout_s: how long to wait for the other processes.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address,
        num_processes=processes,
        process_id=number,
        initialization_timeout=max(int(timeout_s), 1),
        coordinator_bind_address=bind_address(address),
    )
    jax.devices()  # all processes must do this together


class JaxRunner:
    """`gradweave.jax.Collective` next to ``jax.lax.psum``; see `timing.Runner`.

    Args:
        schedule: the schedule, for at most as many servers as there are devices.
        trial: the trial to run.
        spare: whether process 0 has no servers.
    """

    def __init__(self, schedule: Schedule, trial: Trial, *, spare: bool) -> None:
        self._schedule, self._trial = schedule, trial
        devices = [each for each in jax.devices() if not (spare and each.process_index == 0)]
        devices_mesh = server_mesh(schedule, devices)
        used = devices[: schedule.topology.num_servers]
        kinds = sorted({each.device_kind for each in used})
        self.library = f"JAX {jax.__version__} on {', '.join(kinds)}"
        mine = jax.process_index()
        self._owners: list[int] = [each.process_index for each in used]
        self.ranks = [rank for rank, owner in enumerate(self._owners) if owner == mine]
        self._alone = set(self._owners) == {mine}
        self.has_native = schedule.collective == "all_reduce"
        self._mesh = devices_mesh
        self._sharding = NamedSharding(devices_mesh, P(AXIS))
        native, axis = _NATIVE[trial.reduction], AXIS
        self._run = self._compiled(Collective(schedule, reduction=trial.reduction))
        self._native = self._compiled(lambda row: native(row, axis))
        self._gather = self._compiled(lambda row: lax.all_gather(row, axis))
        self._placed = self._result = jax.numpy.empty(0)
        self._runs: dict[int, int] = {}

    def use(self, schedule: Schedule) -> None:
        """Compiles another schedule for the same devices; programs for other sizes are dropped."""
        self._schedule = schedule
        self._run = self._compiled(Collective(schedule, reduction=self._trial.reduction))

    def place(self, contributions: Sequence[NDArray]) -> None:
        """Puts one row on each device."""
        self._placed = self._result = self._on_devices(contributions)

    def restore(self) -> None:
        """Does nothing: no run overwrites the contributions."""

    def run(self) -> None:
        """Runs the schedule's compiled program."""
        self._result = self._run(self._placed).block_until_ready()
        length = self._placed.shape[1]
        self._runs[length] = self._runs.get(length, 0) + 1

    def run_native(self) -> None:
        """Runs ``jax.lax.psum`` or its counterpart for the reduction."""
        self._native(self._placed).block_until_ready()

    def results(self) -> Sequence[NDArray]:
        """The row of each of this process's devices."""
        return self._rows(self._result)

    def sent_bytes(self) -> NDArray[np.int64]:
        """Bytes of the program's ppermutes, in which all pieces are padded to equal length."""
        sent = np.zeros(self._schedule.topology.num_servers, np.int64)
        for length, runs in self._runs.items():
            sent += runs * permuted_bytes(self._schedule, length, itemsize(self._trial.dtype))
        others = np.setdiff1d(np.arange(len(sent)), self.ranks)
        sent[others] = 0
        return sent

    def barrier(self) -> None:
        """All-gathers one number, unless this is the only process."""
        if not self._alone:
            self.gathered(np.zeros(1))

    def gathered(self, numbers: NDArray) -> NDArray:
        """All-gathers over the devices as bytes; JAX would round 64-bit numbers to 32 bits."""
        if self._alone:
            return numbers[None]
        mine = np.frombuffer(np.ascontiguousarray(numbers).tobytes(), np.uint8)
        rows = self._rows(self._gather(self._on_devices([mine] * len(self.ranks))))[0]
        firsts = [self._owners.index(owner) for owner in sorted(set(self._owners))]
        return np.stack(
            [np.frombuffer(rows[rank].tobytes(), numbers.dtype) for rank in firsts]
        ).reshape(-1, *numbers.shape)

    def _on_devices(self, rows: Sequence[NDArray]) -> jax.Array:
        """An array whose row r is on device r; this process provides some of the rows."""
        row = dict(zip(self.ranks, rows, strict=True))
        shape = (self._schedule.topology.num_servers, len(rows[0]))
        return jax.make_array_from_callback(
            shape, self._sharding, lambda index: row[_first(index)][None]
        )

    def _rows(self, array: jax.Array) -> list[NDArray]:
        """The rows on this process's devices, by rank."""
        if not array.size:  # JAX cannot shard an empty array
            return [np.empty(0, array.dtype) for _ in self.ranks]
        held = {_first(shard.index): shard for shard in array.addressable_shards}
        return [np.asarray(held[rank].data)[0] for rank in self.ranks]

    def _compiled(self, run: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        """Compiles a function of one server's row to run on all servers."""
        mapped = jax.shard_map(
            lambda rows: run(rows[0])[None],
            mesh=self._mesh,
            in_specs=P(AXIS),
            out_specs=P(AXIS),
            check_vma=False,
        )
        return jax.jit(mapped)


def _first(index: tuple[slice, ...] | None) -> int:
    """Index of the first row of a part of an array."""
    return index[0].start or 0 if index else 0


def permuted_bytes(schedule: Schedule, elements: int, itemsize: int) -> NDArray[np.int64]:
    """[N] bytes that each server sends in the ppermutes of a `Collective`.

    Args:
        schedule: the schedule.
        elements: length of the gradient.
        itemsize: bytes per element.
    """
    row_bytes = row_length(schedule, elements) * itemsize
    sent = np.zeros(schedule.topology.num_servers, np.int64)
    for loop in steps(schedule).loops:
        for form in loop.form:
            for permutation in loop.forms[form].permutations:
                for source, _ in permutation:
                    sent[source] += row_bytes
    return sent
