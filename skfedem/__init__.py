"""Federated Expectation-Maximization for scikit-learn users."""

from skfedem.mixture import FederatedGaussianMixture

__all__ = ["FederatedGaussianMixture", "__version__"]

__version__ = "0.1.0"
