"""Loops compiled with numba: a decorator that caches the compiled code if possible.

Importing this module imports numba, so import it, and kernel modules, only where they are used.
"""

import contextlib
import functools
import os
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gradweave.common import clock

with clock.paused():
    import numba
    from numba.core import event, ir
    from numba.core.caching import FunctionCache
    from numba.core.compiler import Compiler, CompilerBase, DefaultPassBuilder
    from numba.core.compiler_machinery import AnalysisPass, register_pass
    from numba.core.dispatcher import Dispatcher
    from numba.core.typed_passes import NopythonTypeInference


LOCK_TIMEOUT_S, POLL_S = 120.0, 0.02
"""How long a process waits for another to compile a loop, and how often it checks."""


class NotKeptWarning(RuntimeWarning):
    """Compiled loops cannot be cached, so that each run compiles them again."""


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    inner: bool = False,
    allocates: bool = True,
    inlined: bool = False,
    fastmath: bool = False,
) -> Any:
    """Compiles a function when it is first called with arguments of given types.

    Compiled code is cached in the first writable directory of these: the directory in the
    environment variable ``NUMBA_CACHE_DIR``, that of the function's file, and the user's cache
    directory. If none is writable, each run compiles it, with one `NotKeptWarning`.
    `gradweave.common.clock` is paused during compilation.

    Args:
        function: a function of integers, floats, arrays and named tuples of these.
        inner: whether only kernels call it, never Python, so that it compiles faster.
        allocates: whether it may create arrays, and so counts references: an atomic increment and
            decrement for each array taken out of a named tuple, which costs more than most steps of
            a loop. A function with False must not allocate, call functions that return arrays, or
            return any; compilation fails if it does. So allocate in one function, and loop in
            another.
        inlined: whether it is inner, does not allocate, and is part of its caller's loop: a call
            that passes named tuples copies every array's descriptor, which costs more than a short
            step.
        fastmath: whether sums of floats may be reordered.
    """
    if function is None:
        return lambda function: _compile(function, inner, allocates, inlined, fastmath)
    return _compile(function, inner, allocates, inlined, fastmath)


def _compile(
    function: Callable[..., Any], inner: bool, allocates: bool, inlined: bool, fastmath: bool
) -> Any:
    inner, allocates = inner or inlined, allocates and not inlined
    options: dict[str, Any] = {
        "nogil": True,
        "_nrt": allocates,  # numba's reference-counting runtime; inherited from callers if not set
        "pipeline_class": Compiler if allocates else _Borrowing,
        "forceinline": inlined,
        "fastmath": fastmath,
        "no_cpython_wrapper": inner,
        "no_cfunc_wrapper": True,
    }
    compiled: Any = numba.njit(**options)(function)
    if inner:  # cached within the kernels that call it
        return compiled
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # numba found no writable directory
        _not_kept("no directory for them can be written")
    return compiled


@register_pass(mutates_CFG=False, analysis_only=True)
class _Borrowed(AnalysisPass):
    """Rejects a function that must not allocate but receives or returns arrays as owner.

    Numba itself rejects allocations in the function. It does not notice that arrays allocated by a
    callee would never be freed, and that returned arrays would be freed too soon.
    """

    _name = "borrowed"

    def __init__(self) -> None:
        """Numba calls it without arguments."""
        super().__init__()

    def run_pass(self, state: Any) -> Any:
        """Runs on a function with inferred types; returns whether it was changed."""
        got = [
            (operation.loc, "gets", signature.return_type)
            for operation, signature in state.calltypes.items()
            if isinstance(operation, ir.Expr) and operation.op in ("call", "binop", "unary")
        ]
        for place, how, kind in [*got, (state.func_ir.loc, "returns", state.return_type)]:
            if state.targetctx.data_model_manager[kind].contains_nrt_meminfo():
                name = state.func_id.func_qualname
                raise TypeError(f"{name} must not allocate, but {how} {kind}: {place}")
        return False


class _Borrowing(CompilerBase):
    """Numba's compiler with the pass `_Borrowed`."""

    def define_pipelines(self) -> Any:
        """A single pipeline, without Python objects."""
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.add_pass_after(_Borrowed, NopythonTypeInference)
        pipeline.finalize()
        return [pipeline]


class _Cache(FunctionCache):
    """Numba's cache, with the clock paused, and tolerant of a full disk.

    Numba compares only the time of the function's file, and would reuse code compiled with old
    constants and loops from other files.
    """

    @functools.cached_property
    def _sources(self) -> Any:
        """Computed when the function is first called: by then its module has been executed."""
        return self._cache_file._source_stamp, _compiled_from(self._py_func)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._cache_file._source_stamp = self._sources
        with clock.paused():
            kept = self._kept(sig, target_context)
            if kept is None and self._lock.acquire():
                kept = self._kept(sig, target_context)
            if kept is not None:
                self._lock.release()
            return kept

    def _kept(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError:  # such as another user's files
            return None
        except (AttributeError, ImportError):  # from an earlier version with other named tuples
            self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with clock.paused():
            try:
                super().save_overload(sig, data)
            except OSError as error:
                _not_kept(f"{self.cache_path}: {error.strerror}")
            self._lock.release()

    @functools.cached_property
    def _lock(self) -> "_Lock":
        return _Lock(Path(self.cache_path) / f"{self._cache_file._index_name}.lock")


class _Lock:
    """A lock held by the process that compiles a kernel; others wait and then use the cache.

    Without it, sixteen processes that start together would compile each loop sixteen times.
    """

    def __init__(self, path: Path) -> None:
        """Args: a file that all processes with the same cache lock."""
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Takes the lock; returns whether another process held it.

        If a process is killed, its lock is released. Waiting ends after `LOCK_TIMEOUT_S`, and there
        is no waiting if the directory or the system does not support such locks.
        """
        if self._file is not None:  # held for other argument types within the same loop
            return False
        waited = False
        with contextlib.suppress(OSError, ImportError):
            import fcntl  # exists only on Unix

            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
            for _ in range(round(LOCK_TIMEOUT_S / POLL_S)):
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    time.sleep(POLL_S)
                else:
                    return waited
        return waited

    def release(self) -> None:
        """Releases the lock if it is held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _compiled_from(function: Callable[..., Any]) -> Any:
    """Times and sizes of the files that a kernel is compiled from, and its constants."""
    package = function.__module__.partition(".")[0]
    files, constants, seen = {__file__}, set(), set()
    waiting = [function.__globals__]
    while waiting:
        names = waiting.pop()
        if id(names) in seen:
            continue
        seen.add(id(names))
        files.add(names.get("__file__") or __file__)
        for name, value in names.items():
            if isinstance(value, Dispatcher):
                waiting.append(value.py_func.__globals__)
            elif isinstance(value, types.ModuleType):
                if value.__name__.partition(".")[0] == package:
                    waiting.append(vars(value))
            elif isinstance(value, int | float) and not name.startswith("__"):
                constants.add((name, value))
    return [_time_and_size(path) for path in sorted(files)], sorted(constants)


def _time_and_size(path: str) -> tuple[int, int] | None:
    """Modification time and size of a file, or None if it cannot be read."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size
    return None


class _Listener(event.Listener):
    """Pauses the clock while numba compiles."""

    def on_start(self, event: Any) -> None:
        clock.pause("compiling" if _refused else "compiling, first run only")

    def on_end(self, event: Any) -> None:
        clock.resume()


_refused: set[str] = set()


def _not_kept(reason: str) -> None:
    """Warns once."""
    if not _refused:
        warnings.warn(
            f"compiled loops cannot be kept, so each run compiles them again: {reason}; set "
            "NUMBA_CACHE_DIR to a writable directory",
            NotKeptWarning,
            stacklevel=2,
        )
    _refused.add(reason)


event.register("numba:compile", _Listener())
