"""Federated Expectation-Maximization for scikit-learn users."""

from skfedem.impute import FederatedMatrixImputer
from skfedem.mixture import FederatedGaussianMixture

__all__ = ["FederatedGaussianMixture", "FederatedMatrixImputer", "__version__"]

__version__ = "0.1.0"
