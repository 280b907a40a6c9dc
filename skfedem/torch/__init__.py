"""Federated training of PyTorch modules; importing it does not import torch."""

from ._classifier import FederatedTorchClassifier

__all__ = ["FederatedTorchClassifier"]
