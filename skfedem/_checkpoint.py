"""Files that a fit goes on from: the state of a run, bit for bit, without pickle.

A checkpoint is an npz file. Its arrays are the leaves of nested NamedTuples and dictionaries, by
dotted names; beside them stand the schema, whose run it is, and a digest of all arrays.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import zipfile
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from time import sleep

import numpy as np

from ._messages import cut, short

_FORMAT = "skfedem checkpoint"
_VERSION = 6
_HEADER, _DIGEST = "header", "digest"
_PREVIOUS = ".previous"
# Seconds after which a file that is still being written is not.
_LEFT_BEHIND = 3600
# Seconds to wait before each attempt to rename a file that is in use.
_WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)
# Errors in reading that say nothing of the file.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
# How an npz file begins.
_ZIP = b"PK\x03\x04"


def save(path, identity, state):
    """Write a checkpoint; at any moment, the file is either the previous one or this one.

    The previous one is kept as ``path`` with ``.previous`` appended. Who may read it may read this
    one.

    Parameters
    ----------
    path : path-like
    identity : dict
        Which run it is; JSON.
    state : NamedTuple or dict
        Nested; its leaves are arrays, numbers, booleans and None.
    """
    path = _real(path)
    arrays = dict(_leaves("state", state))
    header = {"format": _FORMAT, "version": _VERSION, "identity": identity}
    arrays[_HEADER] = np.array(json.dumps(header))
    arrays[_DIGEST] = np.array(_digest(arrays))
    # In this order, for the file may be damaged, and the previous one the last that is whole.
    with _temporary(path) as new, _temporary(path) as old:
        _write(new, arrays, like=path)
        if path.exists():
            _link(path, old)
        _rename(new, path)
        if old.exists():
            # If these are two names of one file, both stay: another process has kept it.
            _rename(old, path.with_name(path.name + _PREVIOUS))
    _sync_directory(path.parent)


def try_out(path):
    """Raise OSError or ValueError where ``save`` could not begin a file; none is left there.

    Nor are those that saves left when they were killed, long enough ago that none can be at work.
    """
    path = _real(path)
    with _temporary(path) as temporary:
        temporary.open("xb").close()
        now = temporary.stat().st_mtime  # by the clock of the file system
    for left in path.parent.glob(f"{escape(path.name)}{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # another process was faster
            # A link to a checkpoint has the time at which that was written, but a new status.
            if now - max(left.stat().st_mtime, left.stat().st_ctime) > _LEFT_BEHIND:
                left.unlink()


def load(path, identity, template):
    """Read a checkpoint of the same run.

    Parameters
    ----------
    path : path-like
    identity : dict
        Which run it has to be.
    template : NamedTuple or dict
        A state of the same types, whose leaves are replaced by those of the checkpoint.

    Returns
    -------
    state : of the template's type

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, no checkpoint, of another version, or of another run.
    MemoryError, OSError
        If a whole file does not fit into memory, or cannot be read now.
    """
    found, arrays = _read(path)
    check_identity(path, found, json.loads(json.dumps(identity)))
    return _rebuilt("state", template, arrays)


def identity_of(path):
    """Which run a checkpoint is of; errors as in ``load``."""
    return _read(path)[0]


def check_identity(path, found, expected):
    """Raise ValueError if a checkpoint is of another run, naming the first thing that differs."""
    for name in [*expected, *(found.keys() - expected.keys())]:
        if found.get(name) != expected.get(name):
            if name == "seed":
                raise ValueError(
                    f"Expected the random_state of the run at {path}, got another. Give that one, "
                    "or random_state=None, which takes the run's seed from the file."
                )
            raise ValueError(
                f"Expected a checkpoint of this run at {path}, got one with {name}="
                f"{found.get(name)!r} where this fit has {name}={expected.get(name)!r}. Resume "
                "with the parameters and the data of the run, or fit without resume_from."
            )


def _read(path):
    """Identity and arrays of a file, after its digest was compared."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"Expected resume_from to be a path or None, got {short(path)}.")
    path = Path(path)
    arrays = _arrays_of(path)
    try:
        is_ours = json.loads(arrays[_HEADER].item())["format"] == _FORMAT
    except (AttributeError, KeyError, TypeError, ValueError):  # no array, no JSON or no dict
        is_ours = False
    if not is_ours:
        raise ValueError(f"Expected a checkpoint of skfedem at {path}, got another file.")
    digest = np.asarray(arrays.pop(_DIGEST, "")).tolist()
    if digest != _digest(arrays):
        raise _damaged(path, "its digest differs")
    header = json.loads(arrays.pop(_HEADER).item())
    if header["version"] != _VERSION:
        raise ValueError(
            f"Expected a checkpoint of version {_VERSION} at {path}, got version "
            f"{header['version']}. Resume with the version of skfedem that wrote it."
        )
    # Those of a machine of another byte order are brought into that of this one.
    native = {
        name: array.astype(array.dtype.newbyteorder("="), copy=False)
        for name, array in arrays.items()
    }
    return header["identity"], native


def _arrays_of(path):
    """Arrays of an npz file by name."""
    if not os.path.exists(path):  # that of Path raises for names that are too long
        raise FileNotFoundError(
            f"Expected a checkpoint to resume from at {path}, got no such file. Fit without "
            "resume_from to begin anew."
        )
    if not path.is_file():
        raise ValueError(
            f"Expected a checkpoint to resume from at {path}, got a folder, device or pipe. Name a "
            "file."
        )
    with path.open("rb") as handle:
        start = handle.read(len(_ZIP))
    if not _ZIP.startswith(start):
        raise ValueError(f"Expected a checkpoint of skfedem at {path}, got another file.")
    if start != _ZIP:
        raise _damaged(path, f"it ends after {len(start)} bytes")
    try:
        # If np.load opened the file itself, it would leave a damaged one open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:
        if getattr(error, "errno", None) in _SHORTAGES or (
            isinstance(error, MemoryError) and _is_whole_archive(path)
        ):
            raise
        # Errors of many types: zipfile takes damage for encryption, NumPy's header parser gives up.
        raise _damaged(path, error) from error
    return arrays


def _is_whole_archive(path):
    """Whether the members of a zip file have their checksums; what is damaged may look huge."""
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        return archive.testzip() is None
    return False


def _damaged(path, why):
    """Error for a file that is no whole checkpoint."""
    return ValueError(
        f"Expected a whole checkpoint at {path}, got one that is truncated or damaged "
        f"({cut(why)}). The one before it may be at {_real(path)}{_PREVIOUS}."
    )


def _leaves(name, node):
    """Named arrays of a nested state; what is None is left out."""
    if hasattr(node, "_asdict"):
        node = node._asdict()
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _leaves(f"{name}.{key}", child)
    elif node is not None:
        yield name, np.asarray(node)


def _rebuilt(name, template, arrays):
    """State of a template's type from named arrays."""
    if hasattr(template, "_asdict"):
        fields = template._asdict().items()
        return type(template)(*(_rebuilt(f"{name}.{key}", child, arrays) for key, child in fields))
    if isinstance(template, dict):
        return {key: _rebuilt(f"{name}.{key}", child, arrays) for key, child in template.items()}
    if isinstance(template, bool | int | float):
        return type(template)(arrays[name])
    return arrays.get(name)


def _digest(arrays):
    """SHA-256 of the names, types, shapes and bytes of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.view(np.uint8).data if array.size and array.ndim else array.tobytes())
    return digest.hexdigest()


@contextmanager
def _temporary(path):
    """Name beside a path that no other process uses; no file of that name is left.

    It is longer than the other names that are used.
    """
    # Not by tempfile, whose files nobody else may ever read, whatever the umask allows.
    temporary = path.with_name(f"{path.name}{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):  # renamed, or never made
            os.unlink(temporary)


def _write(path, arrays, like):
    """Write a new npz file, as private as another, that is on the disk when this returns."""
    try:
        with path.open("xb") as file:
            with suppress(OSError):  # there is no other
                shutil.copymode(like, path)
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
    except ValueError as error:
        # If writing is interrupted inside a member, zipfile complains that it is not closed.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


def _link(path, name):
    """Give a file a second name; its first one exists at any moment."""
    try:
        os.link(path, name)
    except OSError:  # a file system without hard links
        shutil.copy2(path, name)


def _real(path):
    """The file that a path leads to: a link is kept, and what it points to replaced."""
    return Path(os.path.realpath(Path(path)))


def _rename(path, name):
    """Give a file a name; Windows refuses while anybody has the file of that name open."""
    for seconds in _WAITS:
        try:
            os.replace(path, name)
        except PermissionError:
            sleep(seconds)
        else:
            return
    os.replace(path, name)


def _sync_directory(directory):
    """Make renames durable; not all systems can."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
