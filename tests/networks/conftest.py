"""Digits of ten clients, and a fit."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from perceptrons import QUICK
from skfedem import FederatedMLPClassifier


@pytest.fixture(scope="module")
def digits():
    """Tables and targets of ten clients, most with two digits, and all of them in one table."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:1000] / 16, y[:1000]
    owners = np.where(np.arange(1000) % 5, y, (y + 1) % 10)
    tables = [X[owners == k] for k in range(10)]
    return tables, [y[owners == k] for k in range(10)], X, y, owners


@pytest.fixture(scope="module")
def fitted(digits):
    tables, targets, *_ = digits
    return FederatedMLPClassifier((), **{**QUICK, "max_iter": 60}).fit(tables, targets)
