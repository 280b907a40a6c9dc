"""scikit-learn's callbacks, where the installed version has them (1.9 and newer)."""

from __future__ import annotations

from ._typing import Method

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as _with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Empty replacement for scikit-learn's class in versions without it."""

    def _with_callbacks(method: Method) -> Method:
        return method


def with_callbacks(method: Method) -> Method:
    """scikit-learn's decorator, with the type of the method preserved."""
    return _with_callbacks(method)
