"""Runs that there is no memory for are refused before they start."""

import pytest

from gradweave.errors import OptionError
from gradweave.execute.running import machine_check


@pytest.fixture
def available(monkeypatch):
    def set_to(size):
        monkeypatch.setattr(machine_check, "available_bytes", lambda: size)

    return set_to


def test_what_is_available_is_less_than_the_machine_has():
    has = machine_check.available_bytes()
    assert has is None or 0 < has < 1 << 50


def test_enough_little_and_too_little(available):
    need = 9 * 10**9
    available(8 * need + 10**9)
    assert machine_check.check_memory(9, 9, 10**9) is None
    available(5 * need)
    said = machine_check.check_memory(9, 9, 10**9)
    assert said is not None and "9 gradients of 1 GB and their copies need up to 72.9 GB" in said
    available(4 * need)
    with pytest.raises(OptionError, match=r"at least 36.9 GB, and 36 GB of memory are available"):
        machine_check.check_memory(9, 9, 10**9)
    available(None)
    assert machine_check.check_memory(9, 9, 10**15) is None


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(machine_check, "_LIMITS", ((str(limit), str(used)),))
    limit.write_text("1000000\n")
    used.write_text("400000\n")
    assert machine_check.available_bytes() == 600_000
    limit.write_text("max\n")
    assert machine_check.available_bytes() != 600_000
