"""Checkpoint files: the exact state of a run, without pickle.

A checkpoint is an npz file. Its first member is the version of the format and the identity of the
run, as JSON; the others are the leaves of nested NamedTuples and dictionaries, with dotted names.
The comment of the archive, at the end of the file, is the SHA-256 of all bytes before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from ._error_messages import repr_of
from ._typing import FilePath

Arrays = dict[str, NDArray[Any]]
Identity = dict[str, Any]
"""Description of a run, as JSON."""

_State = TypeVar("_State")

_HEADER = "skfedem checkpoint"  # name of the first member
_VERSION = 10
_PREVIOUS = ".previous"
_DIGEST_LENGTH = 64  # of hexadecimal digits
# In a zip file, the name of the first member follows after so many bytes, of which four are fixed.
_ZIP, _NAME_START = b"PK\x03\x04", 30
# Seconds after which a temporary file is regarded as abandoned.
_ABANDONED = 3600


def save(path: FilePath, identity: Identity, state: object) -> None:
    """Write a checkpoint; at any moment, the file is either the previous one or this one.

    The previous one is kept as ``path`` with ``.previous`` appended. The new file has its
    permissions. ``identity`` describes the run; the leaves of the nested ``state`` are arrays,
    numbers, booleans and None.
    """
    path = _real(path)
    header = json.dumps({"version": _VERSION, "identity": identity})
    arrays = {_HEADER: np.array(header), **dict(_leaves("state", state))}
    # In this order, because the file may be damaged, and the previous one the last intact one.
    with _temporary(path) as new, _temporary(path) as old:
        _write(new, arrays, like=path)
        if path.exists():
            _link(path, old)
        os.replace(new, path)
        if old.exists():
            # If both names belong to one file, which another process has kept, both remain.
            os.replace(old, path.with_name(path.name + _PREVIOUS))
    _sync_directory(path.parent)


def try_out(path: FilePath) -> None:
    """Raise OSError or ValueError if ``save`` could not create a file; leave no file behind.

    Also remove temporary files of killed processes, if they are old enough.
    """
    path = _real(path)
    with _temporary(path) as temporary:
        temporary.open("xb").close()
        now = temporary.stat().st_mtime  # by the clock of the file system
    for left in path.parent.glob(f"{escape(path.name)}{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # removed by another process meanwhile
            # A hard link to a checkpoint has an old modification time, but a new status change.
            if now - max(left.stat().st_mtime, left.stat().st_ctime) > _ABANDONED:
                left.unlink()


def load(path: FilePath, identity: Identity, template: _State) -> _State:
    """State in a checkpoint, of the type of the ``template``, a state of the same types.

    Raises FileNotFoundError if there is no such file; ValueError if it is damaged, not a
    checkpoint, or of another version, or of a run with another identity.
    """
    found, arrays = _read(path)
    check_identity(path, found, json.loads(json.dumps(identity)))
    return _rebuilt("state", template, arrays)


def identity_of(path: FilePath) -> Identity:
    """Description of the run of a checkpoint; errors as in ``load``."""
    return _read(path)[0]


def check_identity(path: FilePath, found: Identity, expected: Identity) -> None:
    """Raise ValueError if a checkpoint is of another run, naming the first difference."""
    for name in [*expected, *(found.keys() - expected.keys())]:
        if found.get(name) != expected.get(name):
            if name == "seed":
                raise ValueError(
                    f"Expected the random_state of the run at {path}, got a different one. Give "
                    "the same, or None to use the seed in the file."
                )
            if name in ("data", "lengths of clients"):
                raise ValueError(
                    f"Expected a checkpoint of this run at {path}, got one of other data. Resume "
                    "with the data of the run, or fit without resume_from."
                )
            raise ValueError(
                f"Expected a checkpoint of this run at {path}, got one with {name}="
                f"{found.get(name)!r} where this fit has {name}={expected.get(name)!r}. Resume "
                "with the parameters and the data of the run, or fit without resume_from."
            )


def _read(path: FilePath) -> tuple[Identity, Arrays]:
    """Identity and arrays of a file, after verifying its digest."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"Expected resume_from to be a path or None, got {repr_of(path)}.")
    path = Path(path)
    if not os.path.exists(path):  # Path.exists raises for names that are too long
        raise FileNotFoundError(
            f"Expected a checkpoint to resume from at {path}, got no such file. Fit without "
            "resume_from to start a new run."
        )
    if not path.is_file():
        raise ValueError(
            f"Expected a checkpoint to resume from at {path}, got a folder, device or pipe. Give "
            "the path of a file."
        )
    with path.open("rb") as file:
        _check_content(path, file)
        with np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive[_HEADER].item())
            if header["version"] != _VERSION:
                raise ValueError(
                    f"Expected a checkpoint of version {_VERSION} at {path}, got version "
                    f"{header['version']}. Resume with the version of skfedem that wrote it."
                )
            arrays = {name: _native(archive[name]) for name in archive.files if name != _HEADER}
    return header["identity"], arrays


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """Array from a machine with another byte order, in that of this one."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_content(path: Path, file: BinaryIO) -> None:
    """Raise ValueError if a file is no checkpoint, or not a whole one."""
    start = file.read(_NAME_START + len(_HEADER))
    name = start[_NAME_START:].decode("ascii", "replace")
    if not (_ZIP.startswith(start[: len(_ZIP)]) and _HEADER.startswith(name)):
        raise ValueError(f"Expected a checkpoint of skfedem at {path}, got another file.")
    digest = _digest(file)
    if file.read() != digest:
        raise ValueError(
            f"Expected a complete checkpoint at {path}, got one that is truncated or damaged. "
            "Resume from the checkpoint before it, if there is a file "
            f"{_real(path)}{_PREVIOUS}."
        )
    file.seek(0)


def _digest(file: BinaryIO) -> bytes:
    """SHA-256 of all bytes of a file but the digest at its end, where the file then is."""
    digest, n_left = hashlib.sha256(), file.seek(0, os.SEEK_END) - _DIGEST_LENGTH
    file.seek(0)
    while n_left > 0:
        content = file.read(min(n_left, 2**20))
        digest.update(content)
        n_left -= len(content)
    return digest.hexdigest().encode()


def _leaves(name: str, node: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield named arrays of a nested state, leaving out None."""
    if hasattr(node, "_asdict"):
        node = node._asdict()
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _leaves(f"{name}.{key}", child)
    elif node is not None:
        yield name, np.asarray(node)


def _rebuilt(name: str, template: Any, arrays: Arrays) -> Any:
    """State of the template's type from named arrays."""
    if hasattr(template, "_asdict"):
        fields = template._asdict().items()
        return type(template)(*(_rebuilt(f"{name}.{key}", child, arrays) for key, child in fields))
    if isinstance(template, dict):
        return {key: _rebuilt(f"{name}.{key}", child, arrays) for key, child in template.items()}
    if isinstance(template, bool | int | float):
        return type(template)(arrays[name])
    return arrays.get(name)


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Context with a unique temporary name beside a path; the file is removed at the end.

    It is longer than any other name that is used, so that a too long name is noticed early.
    """
    # Not by tempfile, whose files are private regardless of the umask.
    temporary = path.with_name(f"{path.name}{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):  # renamed, or never created
            os.unlink(temporary)


def _write(path: Path, arrays: dict[str, Any], like: Path) -> None:
    """Write and sync a new file, with the permissions of another file."""
    try:
        with path.open("xb+") as file:
            with suppress(OSError):  # there is no other file
                shutil.copymode(like, path)
            np.savez(file, **arrays)
            with zipfile.ZipFile(file, "a") as archive:
                archive.comment = bytes(_DIGEST_LENGTH)
            file.write(_digest(file))
            file.flush()
            os.fsync(file.fileno())
    except ValueError as error:
        # zipfile raises ValueError if writing is interrupted inside a member.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


def _link(path: Path, name: Path) -> None:
    """Give a file a second name, without removing the first one at any moment."""
    try:
        os.link(path, name)
    except OSError:  # a file system without hard links
        shutil.copy2(path, name)


def _real(path: FilePath) -> Path:
    """Resolve a path: if it is a link, its target is replaced, not the link."""
    return Path(os.path.realpath(Path(path)))


def _sync_directory(directory: Path) -> None:
    """Make renames durable, if the system supports this."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
