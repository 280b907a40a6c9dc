"""Gaussian mixtures; ``gaussian_mixture`` is the model."""
