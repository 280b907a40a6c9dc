"""Packages that only a few functions need. They are imported inside functions only."""

from __future__ import annotations

from importlib import import_module


def check_installed(caller: str, package: str) -> None:
    """Raise ImportError, naming the caller, if a package is not installed."""
    try:
        import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{caller} requires {package}, which is not installed. Install it with "
            f"`pip install {package}`."
        ) from error
