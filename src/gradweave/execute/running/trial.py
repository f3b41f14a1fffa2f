"""A run on real processes: its parameters and its report."""

import dataclasses
import os
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradweave.errors import OptionError
from gradweave.execute.program import is_own
from gradweave.execute.reduction import Reduction, check_reduction
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.bandwidths import bus_bandwidth

DTYPES = {
    "mpi": ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"),
    "torch": ("bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
              "uint8"),
    "jax": ("bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
            "uint8"),
}  # fmt: skip
"""For each backend, the types that a gradient can have."""
RUNTIMES = {"torch": "gloo", "mpi": "mpi", "jax": "jax"}
"""For each backend, the runtime whose messages carry a schedule."""
_NATIVE = {"mpi": "MPI_Allreduce", "torch": "dist.all_reduce", "jax": "jax.lax.psum"}
_BFLOAT16_BYTES = 2


@dataclasses.dataclass(frozen=True)
class Trial:
    """A collective to check and time.

    Raises:
        OptionError: a value is out of range, or the reduction is the mean of integers.
    """

    backend: str
    """``mpi``, ``torch`` or ``jax``."""
    elements: int
    """Length of the gradient."""
    dtype: str = "float32"
    """Type of its elements; one of `DTYPES`."""
    reduction: Reduction = "sum"
    """How contributions are combined."""
    repetitions: int = 20
    """Number of timed runs."""
    warm_up: int = 3
    """Number of runs before the timed runs."""
    sweep: tuple[int, ...] = ()
    """Further lengths of the gradient to time; their results are not checked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sweep", tuple(self.sweep))  # a list in JSON
        if self.backend not in DTYPES:
            raise OptionError(f"backend: expected one of {', '.join(DTYPES)}, got {self.backend!r}")
        if self.dtype not in DTYPES[self.backend]:
            known = ", ".join(DTYPES[self.backend])
            raise OptionError(f"dtype: {self.backend} has {known}; got {self.dtype!r}")
        for name, least in (("elements", 0), ("repetitions", 1), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        check_reduction(self.reduction, floating="float" in self.dtype, dtype=self.dtype)

    @property
    def gradient_bytes(self) -> int:
        """Size of the gradient."""
        return self.elements * itemsize(self.dtype)

    @property
    def numpy_dtype(self) -> np.dtype:
        """The type in NumPy; bfloat16 comes from the package ml_dtypes."""
        if self.dtype != "bfloat16":
            return np.dtype(self.dtype)
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise OptionError("dtype: bfloat16 needs ml_dtypes; pip install ml_dtypes") from error
        return np.dtype(ml_dtypes.bfloat16)


def itemsize(dtype: str) -> int:
    """Bytes per element of a type, by its name."""
    return _BFLOAT16_BYTES if dtype == "bfloat16" else np.dtype(dtype).itemsize


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """The times of several runs.

    All servers start together, after a barrier, and each measures the time of its part. The time of
    a run is that of the slowest server.
    """

    seconds: tuple[float, ...]
    """The time of each repetition."""
    sent_bytes: tuple[int, ...] | None
    """Bytes that each server sends in one run, by rank; None if they are not counted."""

    @property
    def median(self) -> float:
        """The median time."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """A quarter of the runs took no longer than the first, a quarter no less than the second.

        >>> RunTimes((4.0, 1.0, 3.0, 2.0, 5.0), None).quartiles
        (2.0, 4.0)
        """
        first, third = np.percentile(self.seconds, (25, 75)).tolist()
        return first, third


NATIVE = -1
"""Stands for the backend's native all-reduce instead of a schedule's number."""


@dataclasses.dataclass(frozen=True)
class CalibrationTime:
    """The time of one schedule of a calibration, or of the backend's native all-reduce."""

    schedule: int
    """Number of the schedule, or `NATIVE`."""
    gradient_bytes: int
    seconds: float
    """Median over runs of the slowest server's time."""


@dataclasses.dataclass(frozen=True)
class SizeTimes:
    """The times for one length of a sweep."""

    elements: int
    schedule: RunTimes
    native: RunTimes | None


@dataclasses.dataclass(frozen=True)
class RunReport:
    """A run's measurements; they exist only if every result was right."""

    library: str
    """Name and version of the communication library."""
    processes: int
    oracle_elements: int
    """Length of the random gradients whose result matched the oracle's bit for bit."""
    pattern_elements: int
    """Length of the integer gradients whose result was exact; 0 if the type cannot hold their
    sum."""
    schedule: RunTimes
    native: RunTimes | None
    """Times of the backend's native all-reduce, or None if it has none for this run."""
    calibration: tuple[CalibrationTime, ...] = ()
    """The calibration, if requested."""
    sweep: tuple[SizeTimes, ...] = ()
    """The times for each length of the trial's sweep."""

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "RunReport":
        """Rebuilds a report from its fields as JSON."""
        calibration = tuple(CalibrationTime(**each) for each in fields["calibration"])
        sweep = tuple(SizeTimes(**{**each, **_both(each)}) for each in fields["sweep"])
        return RunReport(**{**fields, **_both(fields), "calibration": calibration, "sweep": sweep})


def _both(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The times of the schedule and of the native all-reduce."""
    return {name: fields[name] and _times(fields[name]) for name in ("schedule", "native")}


def _times(fields: Mapping[str, Any]) -> RunTimes:
    sent = fields["sent_bytes"]
    return RunTimes(tuple(fields["seconds"]), None if sent is None else tuple(sent))


def description(schedule: Schedule, report: RunReport, trial: Trial) -> dict[str, Any]:
    """The run on this machine and its measurements, as JSON."""
    sent = report.schedule.sent_bytes or ()
    return {
        "topology": schedule.topology.name,
        "scheduler": schedule.scheduler.name,
        "collective": schedule.collective,
        "servers": schedule.topology.num_servers,
        "backend": trial.backend,
        "library": report.library,
        "processes": report.processes,
        "cores": os.cpu_count(),
        "gradient_bytes": trial.gradient_bytes,
        "elements": trial.elements,
        "dtype": trial.dtype,
        "reduction": trial.reduction,
        "warm_up": trial.warm_up,
        "repetitions": trial.repetitions,
        "runs_own": is_own(schedule, RUNTIMES[trial.backend]),
        "correct": True,  # a wrong result raises an error instead
        "oracle_elements": report.oracle_elements,
        "pattern_elements": report.pattern_elements,
        "schedule": _numbers(report.schedule, trial)
        | {"sent_bytes": list(sent), "total_sent_bytes": sum(sent)},
        "own": _own(report.native, trial),
        "sizes": [_of_size(schedule, each, trial) for each in report.sweep],
    }


def _own(native: RunTimes | None, trial: Trial) -> dict[str, Any] | None:
    return native and {"name": _NATIVE[trial.backend]} | _numbers(native, trial)


def _of_size(schedule: Schedule, each: SizeTimes, trial: Trial) -> dict[str, Any]:
    """One size of a sweep, with the bus bandwidths of nccl-tests."""
    trial = dataclasses.replace(trial, elements=each.elements)
    both = {"schedule": _numbers(each.schedule, trial), "own": _own(each.native, trial)}
    for times in filter(None, both.values()):
        times["busbw_bytes_per_s"] = bus_bandwidth(
            trial.gradient_bytes,
            times["median_s"],
            schedule.topology.num_servers,
            schedule.collective,
        )
    return {"elements": each.elements, "gradient_bytes": trial.gradient_bytes, **both}


def _numbers(times: RunTimes, trial: Trial) -> dict[str, Any]:
    first, third = times.quartiles
    return {
        "median_s": times.median,
        "min_s": min(times.seconds),
        "first_quartile_s": first,
        "third_quartile_s": third,
        "seconds": list(times.seconds),
        "bandwidth_bytes_per_s": trial.gradient_bytes / times.median,
    }
