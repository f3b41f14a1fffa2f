"""Compiled programs that are kept from one run of the tests to the next."""

import os
import time
from pathlib import Path

import pytest

from tests.kept import DAY_S, UNUSED_S, keep_all_meanwhile, programs


def written(folder: Path, name: str, used: int, size: int = 4) -> None:
    """As JAX writes a program: itself first, and then when it was used."""
    (folder / f"{name}-cache").write_bytes(bytes(size))
    (folder / f"{name}-atime").write_bytes(used.to_bytes(8, "little"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_run_compiled_the_next_one_finds(tmp_path: Path):
    kept = tmp_path / "kept-here"
    with programs(kept) as first:
        assert names(first) == []
        written(first, "a", used=7)
    assert names(tmp_path) == ["kept-here"] and names(kept) == ["a-cache"]
    with programs(kept) as second:
        assert names(second) == ["a-atime", "a-cache"]
        assert (second / "a-atime").read_bytes() == (7).to_bytes(8, "little")


def test_runs_side_by_side_do_not_meet(tmp_path: Path):
    kept = tmp_path / "kept-here"
    with programs(kept) as run:
        written(run, "a", used=7)
    with programs(kept) as first, programs(kept) as second:
        written(first, "b", used=8)
        written(second, "b", used=9)
        (second / "a-cache").unlink()  # JAX makes room
        assert names(first) == ["a-atime", "a-cache", "b-atime", "b-cache"]
    assert names(kept) == ["a-cache", "b-cache"]


def test_what_was_written_by_halves_is_not_kept(tmp_path: Path):
    with programs(tmp_path / "kept-here") as run:
        (run / "a-cache").write_bytes(b"hal")  # its process was killed
    assert names(tmp_path / "kept-here") == []


def test_the_least_recently_used_go_first(tmp_path: Path):
    kept = tmp_path / "kept-here"
    with programs(kept) as run:
        for name, used in (("a", 10**9), ("b", 2 * 10**9), ("c", 3 * 10**9)):
            written(run, name, used)
    with programs(kept, most_bytes=8) as run:
        written(run, "a", 4 * 10**9)  # is used again
    assert names(kept) == ["a-cache", "c-cache"]


@pytest.mark.parametrize(("name", "limit_s"), [("kept-other", UNUSED_S), ("run-killed", DAY_S)])
def test_what_nobody_used_for_long_goes(name: str, limit_s: float, tmp_path: Path):
    for suffix, age_s in (("-old", limit_s + 60), ("-young", limit_s - 60)):
        folder = tmp_path / (name + suffix)
        folder.mkdir()
        os.utime(folder, (time.time() - age_s,) * 2)
    with programs(tmp_path / "kept-here"):
        pass
    assert names(tmp_path) == sorted(["kept-here", f"{name}-young"])


def test_jax_makes_no_room_for_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It still can: `keep_all_meanwhile` replaces what this version of JAX calls."""
    lru_cache = pytest.importorskip("jax._src.lru_cache")
    called = []
    monkeypatch.setattr(
        lru_cache.LRUCache, "_evict_if_needed", lambda *_, **__: called.append("looked")
    )
    cache = lru_cache.LRUCache(str(tmp_path), max_size=100)
    cache.put("a", bytes(60))
    assert called == ["looked"]
    keep_all_meanwhile()
    cache.put("b", bytes(60))
    assert called == ["looked"] and names(tmp_path)[1:] == [
        "a-atime",
        "a-cache",
        "b-atime",
        "b-cache",
    ]
