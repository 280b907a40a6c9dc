"""Rows with many features: products y_j y_l are summed without being stored.

Each row has d (d + 1) / 2 of them: with few components, reading and writing them takes longer than
all the arithmetic. Instead, log-densities are computed as quadratic forms of ``y``, and second
moments as products of ``y`` and ``r_g y``, one component after the other.

The functions replace those of ``client_rows``. ``rows`` are the functions 1 and y of the rows,
shape (1 + n_features, n_rows), client after client.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..._typing import CovarianceType, FloatArray, IntArray
from .. import client_rows
from .covariances import COVARIANCES
from .linear_algebra import flat_upper_indices, n_moments, unpack, upper_indices


class _Faster(NamedTuple):
    """Where quadratic forms are faster, by ``examples/benchmarks/mixture_speed.py``."""

    # Minimum numbers of features, and of rows of a client at once: a client's sums are matrices,
    # whose size does not depend on the number of rows.
    features: int = 20
    rows: int = 20
    # Maximum number of components, and with at least so many features.
    components: int = 5
    more_components: int = 10
    more_features: int = 100


_FASTER = _Faster()


def use_quadratic_forms(
    covariance_type: CovarianceType, n_components: int, n_features: int, n_rows: float
) -> bool:
    """Whether this module is faster, with ``n_rows`` of each client at once."""
    is_large = n_features >= _FASTER.more_features
    most = _FASTER.more_components if is_large else _FASTER.components
    has_products = COVARIANCES[covariance_type].n_squares(n_features) > n_features
    is_small = n_features < _FASTER.features or n_rows < _FASTER.rows
    return has_products and n_components <= most and not is_small


def multiplied_by_client(
    coefficients: FloatArray, rows: FloatArray, lengths: IntArray
) -> FloatArray:
    """``φ f(y)`` with each client's φ, or with the only one, shape (n_components, n_rows)."""
    y, d = rows[1:], len(rows) - 1
    products = client_rows.multiplied_by_client(coefficients[:, :, : 1 + d], rows, lengths)
    # In φ, y_j y_l with j < l stands for both entries of a symmetric matrix.
    squares = coefficients[:, :, 1 + d :] * np.where(np.equal(*upper_indices(d)), 1.0, 0.5)
    for component, product in enumerate(products):
        forms = unpack(squares[:, component], d)
        mapped = client_rows.multiplied_by_client(forms, y, lengths)
        product += np.einsum("jr,jr->r", mapped, y)
    return products


def segment_products(posterior: FloatArray, rows: FloatArray, lengths: IntArray) -> FloatArray:
    """``Σ r f(y)ᵀ`` over each client's rows, of shape (n_clients, n_components * n_functions)."""
    y, d, shape = rows[1:], len(rows) - 1, (len(lengths), len(posterior), -1)
    first = client_rows.segment_products(posterior, rows, lengths).reshape(shape)
    statistics = np.empty((*first.shape[:2], 1 + d + n_moments(d, True)))
    statistics[:, :, : 1 + d] = first
    for component, own in enumerate(posterior):
        second = client_rows.segment_products(own * y, y, lengths)
        statistics[:, component, 1 + d :] = second.take(flat_upper_indices(d), axis=1)
    return statistics.reshape(len(lengths), -1)
