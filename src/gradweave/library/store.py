"""Location of the library: a folder in a checkout, or the archive of a frozen release."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from gradweave.common.atomic import atomic_write
from gradweave.errors import FileError, OptionError
from gradweave.library.instance import Instance, is_id

VARIABLE = "GRADWEAVE_LIBRARY"
"""Environment variable with the path of the library."""
OWN = Path(__file__).parents[3] / "benchmarks" / "library"
"""The library of the checkout that the package runs from; an installed package has none."""
INDEX, SCHEDULES = "index.json", "schedules"
MAX_INDEX_BYTES = 1 << 26
MAX_PACKED_BYTES, MAX_BYTES = 1 << 24, 1 << 27
"""Largest schedule file, packed and unpacked, that is stored or read."""


class _Index(msgspec.Struct):
    format: Literal["gradweave-library"]
    version: Literal[1]
    release: str
    instances: list[Instance]


@dataclasses.dataclass(frozen=True)
class Library:
    """Instances with their best schedules.

    Args:
        path: a folder with an index and schedules, or an archive of them.
    """

    path: Path

    @cached_property
    def _index(self) -> _Index:
        content = self.read(INDEX, MAX_INDEX_BYTES)
        try:
            index = msgspec.json.decode(content, type=_Index)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FileError(f"{self.path}: {INDEX}: not the index of a library: {error}") from error
        seen: set[str] = set()
        for one in index.instances:
            if not is_id(one.id) or one.id in seen:
                raise FileError(f"{self.path}: {INDEX}: {one.id!r:.60}: no id, or there twice")
            seen.add(one.id)
        return index

    @property
    def release(self) -> str:
        """Name of the release, such as ``2026.11``."""
        return self._index.release

    @cached_property
    def instances(self) -> dict[str, Instance]:
        """The instances by id, in order."""
        return {one.id: one for one in self._index.instances}

    def instance(self, name: str) -> Instance:
        """The instance with an id.

        Raises:
            OptionError: there is no such instance.
        """
        if name not in self.instances:
            raise OptionError(f"{name!r:.80}: no such instance; gradweave library list names them")
        return self.instances[name]

    def read(self, name: str, most: int) -> bytes:
        """A file of the library.

        Args:
            name: path relative to the library.
            most: maximum number of bytes.

        Raises:
            FileError: it is missing, or larger.
        """
        try:
            with self._opened(name) as file:
                content = file.read(most + 1)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise FileError(f"{self.path}: {name}: cannot be read: {why}") from error
        if len(content) > most:
            raise FileError(f"{self.path}: {name}: larger than {most:,} bytes, the most accepted")
        return content

    def _opened(self, name: str) -> Any:
        if self.path.is_dir():
            return (self.path / name).open("rb")
        with zipfile.ZipFile(self.path) as archive:
            return archive.open(name)

    def packed(self, instance: Instance) -> bytes:
        """The stored file of an instance's best schedule."""
        return self.read(f"{SCHEDULES}/{instance.id}.json.gz", MAX_PACKED_BYTES)

    def schedule(self, instance: Instance) -> dict[str, Any]:
        """The content of an instance's best schedule file.

        Raises:
            FileError: the file does not match the record's hash, or cannot be read.
        """
        packed = self.packed(instance)
        if hashlib.sha256(packed).hexdigest() != instance.record.sha256:
            raise FileError(f"{self.path}: {instance.id}: its file does not match the index")
        return content_of(packed, f"{instance.id}.json.gz")

    def keep(self, instance: Instance, packed: bytes) -> None:
        """Writes an instance's record: first the file, then the index.

        Args:
            instance: the instance with the file's hash; new instances are appended.
            packed: content of the file.

        Raises:
            FileError: it cannot be written, or this is an archive.
        """
        self.keep_all([(instance, packed)], self.release)

    def keep_all(self, made: list[tuple[Instance, bytes]], release: str) -> None:
        """Writes several records, or the first records of a new library.

        Raises:
            FileError: they cannot be written, or this is an archive.
        """
        if not self.path.is_dir():
            raise FileError(f"{self.path}: an archive is frozen; write to a checkout's folder")
        self._forget()  # others may have written since
        there = dict(self.instances) if (self.path / INDEX).exists() else {}
        for instance, packed in made:
            there[instance.id] = instance
            atomic_write(self.path / SCHEDULES / f"{instance.id}.json.gz", packed)
        atomic_write(self.path / INDEX, _as_bytes(release, there))
        self._forget()

    def _forget(self) -> None:
        """Discards the cached index, so that it is read again."""
        vars(self).pop("_index", None)
        vars(self).pop("instances", None)


def _as_bytes(release: str, instances: Mapping[str, Instance]) -> bytes:
    """The index with one instance per line, so that changes are readable."""
    head = json.dumps({"format": "gradweave-library", "version": 1, "release": release})
    lines = b",\n".join(msgspec.json.encode(instances[name]) for name in sorted(instances))
    return head[:-1].encode() + b', "instances": [\n' + lines + b"\n]}\n"


def content_of(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object in a file, which may be gzipped.

    Args:
        content: content of the file, not trusted.
        name: name of the file for messages.

    Raises:
        FileError: it is too large, or not a JSON object.
    """
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
                content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise FileError(f"{name}: larger than {MAX_BYTES:,} bytes unpacked, the most accepted")
        data = json.loads(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{name}: not a whole gzip file: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{name}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise FileError(f"{name}: expected a JSON object")
    return data


def open_library(path: str | Path | None = None) -> Library:
    """The library at a path, or the default library.

    Args:
        path: a folder or an archive; by default the path in the environment variable
            ``GRADWEAVE_LIBRARY``, or ``benchmarks/library`` of the checkout.

    Raises:
        FileError: there is no library.
    """
    named = path or os.environ.get(VARIABLE)
    chosen = Path(named or OWN)
    there = zipfile.is_zipfile(chosen) if chosen.is_file() else (chosen / INDEX).is_file()
    if not there:
        where = chosen if named else "the package was installed without the library's files"
        raise FileError(
            f"{where}: no library; give --library FOLDER|ARCHIVE, such as benchmarks/library of a "
            f"checkout or the archive of a release, or set {VARIABLE}"
        )
    return Library(chosen)
