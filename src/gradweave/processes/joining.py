"""How a process joins the others of a training, and how it ends where they are gone.

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
import threading
import time
from collections.abc import Callable
from typing import IO, Any, NoReturn

from gradweave.errors import OptionError
from gradweave.processes.agreement import lost

VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
HEARTBEAT_S = 20
"""Time after which a process that says nothing counts as lost."""
_BY_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SEEN_BY_JAX = ("OMPI_MCA_orte_hnp_uri", "SLURM_JOB_ID")
"""Older Open MPI, and Slurm; of other launchers of MPI JAX learns through mpi4py alone."""
_HOW = (
    f"set {', '.join(VARIABLES[:-1])} and {VARIABLES[-1]} in each process, or start them by mpirun "
    "or Slurm"
)


def join() -> int:
    """Joins the processes that were started with this one, before JAX has started.

    Returns:
        How many there are.

    Raises:
        OptionError: nothing says which processes these are, or what says so makes no sense.
    """
    import jax
    from jax._src import distributed  # the number, before JAX starts: nothing public tells it

    given = _given()
    if len(given) == len(VARIABLES) and given["process_id"] == 0:
        _check_port(given["coordinator_address"])
    method = _method(given)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with contextlib.suppress(AttributeError):  # it would keep this process from being ended
        jax.config.update("jax_enable_preemption_service", False)
    more: dict[str, Any] = {"heartbeat_timeout_seconds": HEARTBEAT_S}
    if "heartbeat_timeout_seconds" not in inspect.signature(jax.distributed.initialize).parameters:
        more = {}
    try:
        jax.distributed.initialize(**given, cluster_detection_method=method, **more)
    except (ValueError, RuntimeError, IndexError) as error:
        if "be defined" in str(error):  # which of the three is not
            raise OptionError(f"--distributed: no other processes were found; {_HOW}") from error
        raise OptionError(f"--distributed: {str(error).splitlines()[0]}; {_HOW}") from error
    if method is not None:
        from mpi4py import MPI

        MPI.Finalize()  # it has told who there is, and would have processes wait for each other
    return distributed.global_state.num_processes


def leave() -> None:
    """Parts from the others, which all do together: from here on each is by itself."""
    import jax

    jax.distributed.shutdown()


def end_at_once(status: int, say: Callable[[], None]) -> NoReturn:
    """Ends this process without waiting for the others, as Python would.

    Of several threads that want to, the first one has the last word.

    Args:
        status: to exit with.
        say: the last word.
    """
    if _last_word.acquire(blocking=False):
        try:
            say()
            sys.stderr.flush()
        finally:
            os._exit(status)
    time.sleep(_LAST_WORD_S)
    os._exit(status)


_last_word = threading.Lock()
_LAST_WORD_S = 10.0


def speak_alone(complain: Callable[[str], None]) -> None:
    """Keeps the standard streams for Python, and tells where the C++ libraries abort the process.

    They would write on standard output, which is for results, and a stack where a line is enough.

    Args:
        complain: says a line, after which the process ends.
    """
    said = tempfile.TemporaryFile()
    sys.stdout, sys.stderr = _own(sys.stdout, said), _own(sys.stderr, said)

    def aborted(_signal: int) -> None:
        size = os.fstat(said.fileno()).st_size
        reason = _reason(os.pread(said.fileno(), size, 0).decode(errors="replace"))
        end_at_once(1, lambda: complain(reason))

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(aborted)
    _kept.append((handler, said))
    ctypes.CDLL(None).signal(int(signal.SIGABRT), handler)


_kept: list[Any] = []
"""What C has a pointer to."""


def _given() -> dict[str, Any]:
    """What the environment's variables say, as `jax.distributed.initialize` takes it."""
    names = ("coordinator_address", "num_processes", "process_id")
    given: dict[str, Any] = {}
    for variable, name in zip(VARIABLES, names, strict=True):
        if variable in os.environ:
            given[name] = os.environ[variable]
            if name != "coordinator_address":
                if not given[name].isdecimal():
                    raise OptionError(f"{variable}: expected a number, got {given[name]!r}")
                given[name] = int(given[name])
            elif not given[name].rpartition(":")[2].isdecimal():
                raise OptionError(f"{variable}: expected HOST:PORT, got {given[name]!r}")
    return given


def _method(given: dict[str, Any]) -> str | None:
    """How JAX is to find the others; None where it knows."""
    by_mpi = any(name in os.environ for name in _BY_MPI)
    if len(given) == len(VARIABLES) or not by_mpi:
        return None
    if any(name in os.environ for name in _SEEN_BY_JAX):
        return None
    try:
        import mpi4py  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "--distributed: this mpirun is understood through mpi4py, which is missing: "
            f"pip install mpi4py; or set {', '.join(VARIABLES)} in each process"
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
        raise OptionError(f"{VARIABLES[0]}: port {port} cannot be had: {reason}") from error


def _own(stream: Any, instead: IO[bytes]) -> Any:
    """The stream on a descriptor of its own; what is written to the old one goes elsewhere."""
    stream.flush()
    try:
        old = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return stream
    own = os.fdopen(os.dup(old), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)
    os.dup2(instead.fileno(), old)
    return own


def _reason(said: str) -> str:
    """What libraries said last, as a line."""
    fatal = [line for line in said.splitlines() if line.startswith("F")] or said.splitlines()[-1:]
    text = fatal[-1] if fatal else "no reason was given"
    if "distributed service" not in text:
        return f"JAX gave up: {text}"
    status = text.rpartition("absl::Status: ")[2].split(". ")[0]
    if "RegisterTask" in said:
        return f"--distributed: the other processes cannot be reached: {status}; {_HOW}"
    return lost(status)
