"""Messages as bytes: their header, tags, and what version 1 looks like for ever."""

import json
from pathlib import Path

import pytest

from skfedem.deploy._messages import (
    HEADER_BYTES,
    NEVER,
    TAG_BYTES,
    Kind,
    Message,
    Refused,
    digest_of,
    mark_of,
    seal,
    unseal,
)

MESSAGE = Message(Kind.REPLY, b"12345678", 7, 2, 99, digest_of(b"question"), b"body")
CORPUS = json.loads((Path(__file__).parent / "version_1.json").read_text())


def test_headers_are_short():
    assert HEADER_BYTES <= 48
    assert len(seal(MESSAGE)) == HEADER_BYTES + len(MESSAGE.body) + TAG_BYTES


@pytest.mark.parametrize("key", [b"", b"a key"])
@pytest.mark.parametrize("kind", Kind)
def test_messages_are_read_as_written(kind, key):
    message = MESSAGE._replace(kind=kind)
    assert unseal(seal(message, key), key) == message


@pytest.mark.parametrize("name", CORPUS)
def test_messages_of_version_1_are_read_for_ever(name):
    frozen = CORPUS[name]
    key, data = bytes.fromhex(frozen["key"]), bytes.fromhex(frozen["bytes"])
    message = unseal(data, key)
    described = {
        field: value.hex() if isinstance(value, bytes) else int(value)
        for field, value in message._asdict().items()
    }
    assert described == frozen["message"]
    assert seal(message, key) == data
    assert mark_of(message) == frozen["mark"]


def test_every_bit_is_protected():
    data = seal(MESSAGE, b"key")
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused, match="tag"):
            unseal(bytes(damaged), b"key")


def test_a_tag_needs_the_key():
    with pytest.raises(Refused, match="tag"):
        unseal(seal(MESSAGE), b"key")
    with pytest.raises(Refused, match="tag"):
        unseal(seal(MESSAGE, b"other"), b"key")


def test_messages_that_are_too_long_are_refused_before_they_are_read():
    data = seal(MESSAGE._replace(body=bytes(1000)))
    with pytest.raises(Refused, match="size"):
        unseal(data, most=len(data) - 1)
    assert len(unseal(data, most=len(data)).body) == 1000


def test_marks_tell_replies_apart():
    others = [
        MESSAGE._replace(phase=8),
        MESSAGE._replace(accepted=98),
        MESSAGE._replace(digest=bytes(16)),
        MESSAGE._replace(body=b"bodz"),
    ]
    marks = {mark_of(own) for own in [MESSAGE, *others]}
    assert len(marks) == 5 and NEVER not in marks
