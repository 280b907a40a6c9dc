"""Files that survive a crash."""

import pytest

from skfedem.deploy import _storage


class Crash(BaseException):
    pass


def test_a_file_is_replaced_or_left(tmp_path, monkeypatch):
    path = tmp_path / "file"
    _storage.write(path, b"old")
    assert path.read_bytes() == b"old"

    def crash(file):
        raise Crash

    monkeypatch.setattr(_storage, "synchronise", crash)
    with pytest.raises(Crash):
        _storage.write(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_record_that_was_cut_off_anywhere_is_dropped(tmp_path):
    path, records = tmp_path / "journal", [b"first", b"", b"the third"]
    journal = _storage.Journal(path)
    for record in records:
        journal.append(record)
    data = path.read_bytes()
    ends = [40 + 5, 40 + 5 + 40, len(data)]
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        n_whole = sum(end <= size for end in ends)
        again = _storage.Journal(path)
        assert again.read() == records[:n_whole]
        again.append(b"next")
        assert _storage.Journal(path).read() == [*records[:n_whole], b"next"]


def test_a_damaged_record_ends_a_journal(tmp_path):
    path = tmp_path / "journal"
    journal = _storage.Journal(path)
    for record in (b"first", b"second"):
        journal.append(record)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert _storage.Journal(path).read() == [b"first"]


def test_an_append_that_failed_can_be_tried_again(tmp_path, monkeypatch):
    journal = _storage.Journal(tmp_path / "journal")
    journal.append(b"first")

    def full(file):
        raise OSError("No space left on device")

    with monkeypatch.context() as context:
        context.setattr(_storage, "synchronise", full)
        with pytest.raises(OSError, match="No space"):
            journal.append(b"second")
    journal.append(b"second")
    assert _storage.Journal(tmp_path / "journal").read() == [b"first", b"second"]
