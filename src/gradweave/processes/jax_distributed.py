"""The processes of one JAX program: how one joins the others, and how it ends without them.

`jax.distributed` ends a process from another thread, with a C++ abort, where the process that
coordinates is gone or heartbeats stay away. No exception can be caught then; so the abort's signal
is, and one line takes the place of a stack.
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
"""How long a process with nothing to say lets another say it: mpirun ends all when one ends."""
_HOW = (
    "set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each process, or start "
    "them by mpirun or Slurm"
)


@contextlib.contextmanager
def joined(devices: int | None, say: Callable[[str], None]) -> Iterator[Processes]:
    """The processes that were started with this one, for as long as the block lasts.

    Joins them and starts JAX. Where the block raises what all processes know of
    (`Processes.ended_together`), they part; one raises it and the others exit in silence. Any other
    error ends this process at once, in one line: Python's own way to end waits for processes that
    may be gone.

    Args:
        devices: that all of them together need; None: one each.
        say: writes a line to standard error.

    Raises:
        OptionError: nothing says which processes these are, or what says so makes no sense.
        SystemExit: where another process says why all end.
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
    """Joins the processes that were started with this one, before JAX has started.

    Returns:
        How many there are.

    Raises:
        OptionError: nothing says which processes these are, or what says so makes no sense.
    """
    import jax
    from jax._src import distributed  # the number, before JAX starts: nothing public tells it

    given = jax_arguments()
    if len(given) == len(JAX_VARIABLES) and given["process_id"] == 0:
        _check_port(given["coordinator_address"])
    method = _method(given)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with contextlib.suppress(AttributeError):  # it would keep this process from being ended
        jax.config.update("jax_enable_preemption_service", False)
    more: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_S}
    if "heartbeat_timeout_seconds" not in inspect.signature(jax.distributed.initialize).parameters:
        more = {}
    if bind := bind_address(given.get("coordinator_address")):
        more["coordinator_bind_address"] = bind
    try:
        jax.distributed.initialize(**given, cluster_detection_method=method, **more)
    except (ValueError, RuntimeError, IndexError) as error:
        if "be defined" in str(error):  # which of the three is not
            raise OptionError(f"--distributed: no other processes were found; {_HOW}") from error
        raise OptionError(f"--distributed: {str(error).splitlines()[0]}; {_HOW}") from error
    if method is not None:
        from mpi4py import MPI

        MPI.Finalize()  # it has named the processes, and would have them wait for each other
    return distributed.global_state.num_processes


def _redirect_libraries(say: Callable[[str], None]) -> None:
    """Keeps the standard streams for Python, and says in a line why C++ aborts the process.

    The libraries would write on standard output, which is for results, and stacks on standard
    error.
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
    """How JAX is to find the others; None where it knows."""
    if len(given) == len(JAX_VARIABLES) or not only_through_mpi4py():
        return None
    try:
        import mpi4py  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "--distributed: this mpirun is understood through mpi4py, which is missing: "
            f"pip install mpi4py; or set {', '.join(JAX_VARIABLES.values())} in each process"
        ) from error
    return "mpi4py"


def _check_port(address: str) -> None:
    """Refuses a port that is taken, of which JAX would die."""
    port = int(address.rpartition(":")[2])
    try:
        with socket.create_server(("", port)):
            pass
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        reason = os.strerror(number) if number else error
        variable = JAX_VARIABLES["coordinator_address"]
        raise OptionError(f"{variable}: port {port} cannot be had: {reason}") from error


def _moved(stream: Any, instead: IO[bytes]) -> Any:
    """The stream on another descriptor; what is written to the old one goes to a file."""
    stream.flush()
    try:
        old = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return stream
    moved = os.fdopen(os.dup(old), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
    os.dup2(instead.fileno(), old)
    return moved


def _reason(written: str) -> str:
    """Why JAX aborts, from the last that libraries wrote."""
    lines = written.splitlines()
    fatal = [line for line in lines if line.startswith("F")] or lines[-1:]
    text = fatal[-1] if fatal else "no reason was given"
    if "distributed service" not in text:
        return f"JAX gave up: {text}"
    status = text.rpartition("absl::Status: ")[2].split(". ")[0]
    if "RegisterTask" in written:
        return f"--distributed: the other processes cannot be reached: {status}; {_HOW}"
    return lost(status)
