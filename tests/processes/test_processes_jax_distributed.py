"""How the processes of one JAX program end, with others in the place of real ones."""

import sys
from types import SimpleNamespace

import pytest

from gradweave.errors import BAD_INPUT, INTERRUPTED, OptionError
from gradweave.processes import jax_distributed
from gradweave.processes.agreement import EndedElsewhereError


def ends_with(monkeypatch, error: BaseException, first: bool) -> BaseException:
    """What leaves the block that an error ends, where all end together."""
    left = []
    processes = SimpleNamespace(ended_together=True, first=first, leave=lambda: left.append(True))
    for name, value in {
        "_redirect_libraries": lambda _: None,
        "join": lambda: 2,
        "start_jax": lambda _: None,
        "Processes": lambda: processes,
        "_LINGER_S": 0.0,
    }.items():
        monkeypatch.setattr(jax_distributed, name, value)
    with pytest.raises(BaseException) as caught, jax_distributed.joined(None, print):
        raise error
    assert left == [True]
    return caught.value


@pytest.mark.parametrize("first", [True, False])
def test_where_another_process_says_why_this_one_ends_in_silence(monkeypatch, first):
    ended = ends_with(monkeypatch, EndedElsewhereError("elsewhere"), first)
    assert isinstance(ended, SystemExit) and ended.code == BAD_INPUT


def test_the_first_process_alone_says_that_all_were_interrupted(monkeypatch):
    interrupted = KeyboardInterrupt()
    assert ends_with(monkeypatch, interrupted, first=True) is interrupted
    ended = ends_with(monkeypatch, interrupted, first=False)
    assert isinstance(ended, SystemExit) and ended.code == INTERRUPTED


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_its_own_is_raised(monkeypatch, first):
    own = OptionError("wrong")
    assert ends_with(monkeypatch, own, first) is own


@pytest.mark.parametrize("method", [None, "mpi4py"])
def test_mpi_is_left_where_it_has_named_the_processes(monkeypatch, method):
    jax = pytest.importorskip("jax")
    left = []
    mpi = SimpleNamespace(MPI=SimpleNamespace(Finalize=lambda: left.append(method)))
    monkeypatch.setitem(sys.modules, "mpi4py", mpi)
    monkeypatch.setattr(jax_distributed, "jax_arguments", dict)
    monkeypatch.setattr(jax_distributed, "_method", lambda _: method)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: None)
    jax_distributed.join()
    assert left == ([method] if method else [])
