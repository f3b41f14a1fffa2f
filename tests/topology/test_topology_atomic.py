"""Files are written whole or not at all."""

import os
import resource
import stat

import pytest

from gradweave.common.atomic import atomic_write, reopened
from gradweave.errors import FileError


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "file"
    atomic_write(path, b"one")
    assert path.read_bytes() == b"one"
    atomic_write(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_are_those_of_any_new_file_or_of_the_old(tmp_path):
    path, other = tmp_path / "file", tmp_path / "other"
    atomic_write(path, b"")
    other.write_bytes(b"")
    assert path.stat().st_mode == other.stat().st_mode
    path.chmod(0o600)
    atomic_write(path, b"more")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, failing):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(FileError, match=r"file' cannot be written: No space left on device"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "file", b"new")
    assert not os.listdir(tmp_path)


def test_links_are_followed_and_devices_written_in_place(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(path)
    atomic_write(link, b"x")
    assert link.is_symlink() and path.read_bytes() == b"x"
    atomic_write("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["missing/file", "a\0b", "x" * 5000, "."])
def test_names_that_cannot_be_written(tmp_path, name):
    with pytest.raises(FileError, match="cannot be written"):
        atomic_write(tmp_path / name, b"x")


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:  # the system refuses the write itself, as it does on a full disk
        with pytest.raises(FileError, match="cannot be written: File too large") as refused:
            atomic_write(path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def kept(line: str) -> bool:
    return line in ("1", "2")


def test_lines_that_are_kept_are_on_the_disk_all_the_time(tmp_path):
    path = tmp_path / "log.jsonl"
    with reopened(path, kept) as log:
        log.write("1\n2\n3\n")
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write("4 which was cut o")
    with reopened(path, kept) as log:
        # Here a training compiles for minutes, and may be killed.
        assert path.read_text() == "1\n2\n"
        log.write("3\n")
    assert path.read_text() == "1\n2\n3\n"
    assert [each.name for each in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_line_without_its_end_is_given_one(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("1\n2")
    with reopened(path, kept) as log:
        log.write("3\n")
    assert path.read_text() == "1\n2\n3\n"
