"""Messages between a server and its clients: a header, a body and a tag, as bytes."""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"FDEM"
VERSION = 1
NEVER = 0
"""Mark of no reply."""

# Magic, version, kind, run, phase, client, accepted, digest, length of the body.
_HEADER = struct.Struct("<4sHH8sIII16sI")
HEADER_BYTES = _HEADER.size
TAG_BYTES = hashlib.sha256().digest_size


class Kind(IntEnum):
    """What a message is.

    ``QUESTION`` and ``RESET`` (the same for a client that starts afresh) and ``END`` come from the
    server; ``REPLY``, ``REFUSAL`` and ``LOST`` (my state is not the one you think) from a client.
    """

    QUESTION = 1
    RESET = 2
    END = 3
    REPLY = 4
    REFUSAL = 5
    LOST = 6


class Refused(Exception):
    """A message is not used; the text says why."""


class Message(NamedTuple):
    """A message.

    Attributes
    ----------
    kind : Kind
    run : bytes
        Eight random bytes that name the run.
    phase : int
        Number of the question that is asked or answered.
    client : int
        Position of the client in the roster.
    accepted : int
        Mark of the last reply of the client that the server has used, as each side knows it.
    digest : bytes
        Of the question, in all messages of a phase.
    body : bytes
    """

    kind: Kind
    run: bytes
    phase: int
    client: int
    accepted: int
    digest: bytes
    body: bytes


def printable(text: str) -> str:
    """Text of the other side, without control characters: it cannot forge lines of a log."""
    return "".join(c if c.isprintable() else "?" for c in text)


def digest_of(body: bytes) -> bytes:
    """Digest of a question."""
    return hashlib.sha256(body).digest()[:16]


def mark_of(message: Message) -> int:
    """Mark of a reply, a number that two replies of a client hardly ever share."""
    fields = struct.pack("<II16s", message.phase, message.accepted, message.digest)
    return int.from_bytes(hashlib.sha256(fields + message.body).digest()[:4], "little") or 1


def seal(message: Message, key: bytes = b"") -> bytes:
    """Bytes of a message, with an HMAC-SHA256 tag; without a key it is only a checksum."""
    *fields, body = message
    data = _HEADER.pack(MAGIC, VERSION, *fields, len(body)) + body
    return data + hmac.digest(key, data, "sha256")


def unseal(data: bytes, key: bytes = b"", most: int = 2**32) -> Message:
    """Message from its bytes.

    Parameters
    ----------
    data : bytes
    key : bytes
    most : int
        Largest length of a message.

    Raises
    ------
    Refused
        With the first reason that applies: size, tag, magic, version, kind, length.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise Refused(f"size: expected bytes, got a {type(data).__name__}")
    data = bytes(data) if len(data) <= most else b""
    if len(data) < HEADER_BYTES + TAG_BYTES:
        raise Refused("size")
    if not hmac.compare_digest(data[-TAG_BYTES:], hmac.digest(key, data[:-TAG_BYTES], "sha256")):
        raise Refused("tag: the key is another, or the message is damaged")
    magic, version, kind, run, *numbers, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Refused("magic")
    if version != VERSION:
        raise Refused(f"version: expected {VERSION}, got {version}")
    if kind not in {*Kind}:
        raise Refused(f"kind: {kind}")
    body = data[HEADER_BYTES:-TAG_BYTES]
    if length != len(body):
        raise Refused("length")
    phase, client, accepted, digest = numbers
    return Message(Kind(kind), run, phase, client, accepted, digest, body)
