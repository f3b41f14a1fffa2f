"""A frozen release of the library: one archive whose bytes depend only on its content."""

import hashlib
import io
import zipfile
from pathlib import Path

import gradweave_check as checker
from gradweave.common.atomic import atomic_write
from gradweave.errors import FileError
from gradweave.library.store import INDEX, MAX_INDEX_BYTES, SCHEDULES, Library

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of each file in an archive: the earliest that zip supports."""
_MODE = 0o644


def freeze(library: Library, path: str | Path) -> str:
    """Writes index, schedules and checker into one archive, uncompressed and in order.

    Schedules are compressed already, so no version of zlib changes a byte.

    Args:
        library: the library, whose files must match its index.
        path: path of the archive, ``.zip``.

    Returns:
        The archive's SHA-256, which papers can state.

    Raises:
        FileError: a file of the library is missing or does not match the index, or the archive
            cannot be written.
    """
    files = {INDEX: library.read(INDEX, MAX_INDEX_BYTES)}
    for instance in library.instances.values():
        packed = library.packed(instance)
        if hashlib.sha256(packed).hexdigest() != instance.record.sha256:
            raise FileError(f"{instance.id}: its file does not match the index")
        files[f"{SCHEDULES}/{instance.id}.json.gz"] = packed
    files["gradweave_check.py"] = Path(checker.__file__).read_bytes()
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = 3, _MODE << 16
            archive.writestr(entry, files[name])
    atomic_write(path, written.getvalue())
    return hashlib.sha256(written.getvalue()).hexdigest()
