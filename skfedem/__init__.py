"""Federated Expectation-Maximization for scikit-learn users."""

from importlib import import_module
from typing import Any

from skfedem.impute import FederatedMatrixImputer
from skfedem.impute_cv import FederatedMatrixImputerCV
from skfedem.mixture import FederatedGaussianMixture

__all__ = [
    "FederatedGaussianMixture",
    "FederatedMatrixImputer",
    "FederatedMatrixImputerCV",
    "__version__",
]

__version__ = "0.1.0"

# Documented modules, imported when first asked for, as scikit-learn's are.
_MODULES = ("compression", "datasets", "inspection", "participation", "preprocessing", "theory")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"skfedem.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
