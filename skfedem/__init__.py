"""Federated Expectation-Maximization for scikit-learn users."""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "FederatedGaussianMixture",
    "FederatedMLPClassifier",
    "FederatedMLPRegressor",
    "FederatedMatrixImputer",
    "FederatedMatrixImputerCV",
    "FederatedNonlinearMixedEffects",
    "__version__",
]

__version__ = "0.1.0"

# Imported when first asked for, as scikit-learn's modules are: estimators, and documented modules.
_ESTIMATORS = {
    "FederatedGaussianMixture": "mixture",
    "FederatedMLPClassifier": "_networks.mlp_classifier",
    "FederatedMLPRegressor": "_networks.regressor",
    "FederatedMatrixImputer": "impute",
    "FederatedMatrixImputerCV": "impute_cv",
    "FederatedNonlinearMixedEffects": "mixed_effects",
}
_MODULES = (
    "compression",
    "datasets",
    "inspection",
    "participation",
    "pharmacokinetics",
    "preprocessing",
    "priors",
    "results",
    "theory",
)

if TYPE_CHECKING:
    from skfedem import compression as compression
    from skfedem import datasets as datasets
    from skfedem import inspection as inspection
    from skfedem import participation as participation
    from skfedem import pharmacokinetics as pharmacokinetics
    from skfedem import preprocessing as preprocessing
    from skfedem import priors as priors
    from skfedem import results as results
    from skfedem import theory as theory
    from skfedem._networks.mlp_classifier import FederatedMLPClassifier as FederatedMLPClassifier
    from skfedem._networks.regressor import FederatedMLPRegressor as FederatedMLPRegressor
    from skfedem.impute import FederatedMatrixImputer as FederatedMatrixImputer
    from skfedem.impute_cv import FederatedMatrixImputerCV as FederatedMatrixImputerCV
    from skfedem.mixed_effects import (
        FederatedNonlinearMixedEffects as FederatedNonlinearMixedEffects,
    )
    from skfedem.mixture import FederatedGaussianMixture as FederatedGaussianMixture
else:
    # A checker that saw this function would let every name pass.
    def __getattr__(name):
        if name in _ESTIMATORS:
            return getattr(import_module(f"skfedem.{_ESTIMATORS[name]}"), name)
        if name in _MODULES:
            return import_module(f"skfedem.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_ESTIMATORS, *_MODULES})
