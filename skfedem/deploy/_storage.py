"""Files that survive a crash: written as a whole or not at all."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = hashlib.sha256().digest_size


def synchronise(file: int) -> None:
    """Wait until a file is on the disk."""
    os.fsync(file)


def write(path: Path, data: bytes) -> None:
    """Replace a file: afterwards it has the old contents or the new ones."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        synchronise(file.fileno())
    os.replace(new, path)
    _synchronise_folder(path.parent)


def _synchronise_folder(folder: Path) -> None:
    """Make a renaming durable; Windows has no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        synchronise(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is created if need be, until the end or the death of this process.

    Raises OSError if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "ab") as file:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OSError(
                f"Expected to be alone in {folder}, got another process there ({error})."
            ) from error
        yield


class Journal:
    """Records that are only appended; one that was cut off by a crash is dropped.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path, self._end = path, 0

    def read(self) -> list[bytes]:
        """All records."""
        records = []
        data = self._path.read_bytes() if self._path.exists() else b""
        for record, self._end in _records(data):
            records.append(record)
        return records

    def append(self, record: bytes) -> None:
        """Add a record; it is on the disk when this returns."""
        is_new = not self._path.exists()
        with open(self._path, "w+b" if is_new else "r+b") as file:
            file.truncate(self._end)  # drops what an interrupted call has left
            file.seek(self._end)
            file.write(_LENGTH.pack(len(record)) + hashlib.sha256(record).digest() + record)
            file.flush()
            synchronise(file.fileno())
            end = file.tell()
        if is_new:
            _synchronise_folder(self._path.parent)
        self._end = end


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Records of a journal, and where each of them ends."""
    position = 0
    while position + _LENGTH.size + _DIGEST_BYTES <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        start = position + _LENGTH.size + _DIGEST_BYTES
        record = data[start : start + length]
        digest = data[position + _LENGTH.size : start]
        if len(record) < length or hashlib.sha256(record).digest() != digest:
            return
        position = start + length
        yield record, position
