import pytest

from skfedem.deploy import _storage


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """The tests need no files that survive a loss of power."""
    monkeypatch.setattr(_storage, "synchronise", lambda file: None)
