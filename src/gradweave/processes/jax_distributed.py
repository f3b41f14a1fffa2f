"""Connects a process to the others of one JAX program, and ends it in one line if they fail.

If the coordinating process is gone or heartbeats are missing, `jax.distributed` ends a process from
another thread by a C++ abort, which no exception handler sees. So this module handles the abort's
signal, and prints one line instead of a stack.
"""

import contextlib
import ctypes
import inspect
import io
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

from gradweave.errors import (
    ANSWER_IS_NO,
    BAD_INPUT,
    INTERRUPTED,
    GradweaveError,
    OptionError,
    exit_status,
)
from gradweave.processes.agreement import EndedElsewhereError, Processes, lost
from gradweave.processes.ending import end_at_once
from gradweave.processes.jax_start import bind_address, start_jax
from gradweave.processes.launchers import JAX_VARIABLES, jax_arguments, only_through_mpi4py

HEARTBEAT_S = 20
"""Time after which a silent process counts as lost."""
_LINGER_S = 1.0
"""How long a process with nothing to report lets another report: mpirun ends all when one ends."""
_HOW = (
    "set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each process, or start "
    "them by mpirun or Slurm"
)


@contextlib.contextmanager
def joined(devices: int | None, say: Callable[[str], None]) -> Iterator[Processes]:
    """All processes of this program, connected for the duration of the block.

    This starts JAX. If the block raises an error that all processes know of
    (`Processes.ended_together`), they disconnect; one of them raises it and the others exit
    silently. Any other error ends this process immediately, in one line: an ordinary exit of Python
    would wait for processes that may be gone.

    Args:
        devices: number of devices that all processes need together; None: one device each.
        say: writes a line to standard error.

    Raises:
        OptionError: the environment does not describe the processes, or is inconsistent.
        SystemExit: another process reports why all end.
    """
    _redirect_libraries(say)
    number = join()
    processes = None
    try:
        start_jax(1 if devices is None else max(devices // number, 1))
        processes = Processes()
        yield processes
    except BaseException as error:
        if processes is None or not processes.ended_together:
            _end_alone(error, say)
        processes.leave()
        interrupted = isinstance(error, KeyboardInterrupt)
        if isinstance(error, EndedElsewhereError) or (interrupted and not processes.first):
            time.sleep(_LINGER_S)
            raise SystemExit(INTERRUPTED if interrupted else BAD_INPUT) from None
        raise


def _end_alone(error: BaseException, say: Callable[[str], None]) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        end_at_once(INTERRUPTED, lambda: say("interrupted"))
    if isinstance(error, GradweaveError):
        end_at_once(exit_status(error), lambda: say(str(error)))
    end_at_once(ANSWER_IS_NO, lambda: traceback.print_exception(error))


def join() -> int:
    """Connects to the other processes of this program, before JAX has started.

    Returns:
        The number of processes.

    Raises:
        OptionError: the environment does not describe the processes, or is inconsistent.
    """
    import jax
    from jax._src import distributed  # the number, before JAX starts: nothing public tells it

    given = jax_arguments()
    if len(given) == len(JAX_VARIABLES) and given["process_id"] == 0:
        _check_port(given["coordinator_address"])
    method = _method(given)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with contextlib.suppress(AttributeError):  # the service would keep this process alive
        jax.config.update("jax_enable_preemption_service", False)
    more: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_S}
    if "heartbeat_timeout_seconds" not in inspect.signature(jax.distributed.initialize).parameters:
        more = {}
    if bind := bind_address(given.get("coordinator_address")):
        more["coordinator_bind_address"] = bind
    try:
        jax.distributed.initialize(**given, cluster_detection_method=method, **more)
    except (ValueError, RuntimeError, IndexError) as error:
        if "be defined" in str(error):  # JAX names the missing one of its three variables
            raise OptionError(f"--distributed: no other processes were found; {_HOW}") from error
        raise OptionError(f"--distributed: {str(error).splitlines()[0]}; {_HOW}") from error
    if method is not None:
        from mpi4py import MPI

        MPI.Finalize()  # it was needed for the ranks only; its exit would wait for the others
    return distributed.global_state.num_processes


def _redirect_libraries(say: Callable[[str], None]) -> None:
    """Reserves the standard streams for Python, and reports a C++ abort in one line.

    Otherwise libraries would write to standard output, which is for results, and print stacks to
    standard error.
    """
    written = tempfile.TemporaryFile()
    sys.stdout, sys.stderr = _moved(sys.stdout, written), _moved(sys.stderr, written)

    def aborted(_signal: int) -> None:
        size = os.fstat(written.fileno()).st_size
        reason = _reason(os.pread(written.fileno(), size, 0).decode(errors="replace"))
        end_at_once(ANSWER_IS_NO, lambda: say(reason))

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    _referenced_by_c.append((handler, written))
    ctypes.CDLL(None).signal(int(signal.SIGABRT), handler)


_referenced_by_c: list[Any] = []


def _method(given: dict[str, Any]) -> str | None:
    """How JAX should find the other processes, or None if it knows."""
    if len(given) == len(JAX_VARIABLES) or not only_through_mpi4py():
        return None
    try:
        import mpi4py  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "--distributed: this mpirun needs mpi4py, which is missing: "
            f"pip install mpi4py; or set {', '.join(JAX_VARIABLES.values())} in each process"
        ) from error
    return "mpi4py"


def _check_port(address: str) -> None:
    """Refuses a port that is in use, which would make JAX abort."""
    port = int(address.rpartition(":")[2])
    try:
        with socket.create_server(("", port)):
            pass
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number else error
        variable = JAX_VARIABLES["coordinator_address"]
        raise OptionError(f"{variable}: port {port} cannot be used: {reason}") from error


def _moved(stream: Any, instead: IO[bytes]) -> Any:
    """The stream on another descriptor; output to the old descriptor goes to a file."""
    stream.flush()
    try:
        old = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return stream
    moved = os.fdopen(os.dup(old), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
    os.dup2(instead.fileno(), old)
    return moved


def _reason(written: str) -> str:
    """The reason for JAX's abort, from the last output of the libraries."""
    lines = written.splitlines()
    fatal = [line for line in lines if line.startswith("F")] or lines[-1:]
    text = fatal[-1] if fatal else "no reason was given"
    if "distributed service" not in text:
        return f"JAX gave up: {text}"
    status = text.rpartition("absl::Status: ")[2].split(". ")[0]
    if "RegisterTask" in written:
        return f"--distributed: the other processes cannot be reached: {status}; {_HOW}"
    return lost(status)
