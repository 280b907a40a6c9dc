"""Federated Expectation-Maximization for scikit-learn users."""

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
