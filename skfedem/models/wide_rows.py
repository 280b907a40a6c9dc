"""Rows with many features: their products y_j y_l are summed, but never written out.

There are d (d + 1) / 2 of these a row, where y has d numbers: with few components, reading and
writing them takes longer than all the arithmetic. So log-densities are quadratic forms of ``y``,
and second moments are products of ``y`` and ``r_g y``, one component after the other.

The functions stand for those of ``client_rows``. ``rows`` are the functions 1 and y of rows, shape
(1 + n_features, n_rows), client after client.
"""

from __future__ import annotations

import numpy as np

from . import client_rows
from .covariances import unpack, upper, upper_places

# Least features, and least rows of a client at once, with which this is faster: a client's sums are
# matrices, as large for one row as for many.
_FEATURES, _ROWS = 20, 20
# Most components with which it is; more of them from so many features on.
_COMPONENTS, _MORE_COMPONENTS, _MORE_FEATURES = 5, 10, 100


def are_worth_it(covariance_type, n_components, n_features, n_rows):
    """Whether rows are multiplied faster in this way, ``n_rows`` of each client at once."""
    most = _MORE_COMPONENTS if n_features >= _MORE_FEATURES else _COMPONENTS
    has_products = covariance_type == "full" and n_components <= most
    return has_products and n_features >= _FEATURES and n_rows >= _ROWS


def multiplied_by_client(coefficients, rows, lengths):
    """``φ f(y)`` with each client's φ, or with the only one, shape (n_components, n_rows)."""
    y, d = rows[1:], len(rows) - 1
    products = client_rows.multiplied_by_client(coefficients[:, :, : 1 + d], rows, lengths)
    # In φ, y_j y_l with j < l stands for both entries of a symmetric matrix.
    squares = coefficients[:, :, 1 + d :] * np.where(np.equal(*upper(d)), 1.0, 0.5)
    for component, product in enumerate(products):
        forms = unpack(squares[:, component], d)
        mapped = client_rows.multiplied_by_client(forms, y, lengths)
        product += np.einsum("jr,jr->r", mapped, y)
    return products


def segment_products(posterior, rows, lengths):
    """``Σ r f(y)ᵀ`` over each client's rows, of shape (n_clients, n_components * n_functions)."""
    y, d, shape = rows[1:], len(rows) - 1, (len(lengths), len(posterior), -1)
    first = client_rows.segment_products(posterior, rows, lengths).reshape(shape)
    statistics = np.empty((*first.shape[:2], 1 + d + d * (d + 1) // 2))
    statistics[:, :, : 1 + d] = first
    for component, own in enumerate(posterior):
        second = client_rows.segment_products(own * y, y, lengths)
        statistics[:, component, 1 + d :] = second.take(upper_places(d), axis=1)
    return statistics.reshape(len(lengths), -1)
