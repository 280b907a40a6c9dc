"""Simulated Gaussian mixtures with known parameters, split over clients."""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike
from sklearn.utils import Bunch

from .._parameters import (
    check_choice,
    check_counts,
    check_number,
    check_shares,
    takes_python_numbers,
)
from .._random import random_numbers
from .._typing import CovarianceType, FloatArray, IntArray, Seed
from ._splits import client_labels, equal_sizes, fill_up, split_by

_N_MEANS_DRAWN = 20
# Weights, means, covariances and their type.
_Mixture = tuple[FloatArray, FloatArray, FloatArray, CovarianceType]


@takes_python_numbers
def make_federated_mixture(
    n_clients: int = 10,
    n_samples: int = 100,
    n_features: int = 2,
    n_components: int = 3,
    *,
    covariance_type: CovarianceType = "tied",
    separation: float = 3.0,
    weights: ArrayLike | None = None,
    heterogeneity: float = 0.0,
    random_state: Seed = None,
) -> Bunch:
    """Simulate a federated Gaussian mixture with identical to fully heterogeneous clients.

    ``n_clients * n_samples`` rows are drawn from a random mixture. Each client is assigned one
    component. A share `heterogeneity` of the rows goes to the clients that are assigned to the
    row's component; the others are split at random. If the number of clients of each component is
    in proportion to its weight, the components of client i have approximately the probabilities
    ``(1 - heterogeneity) * weights + heterogeneity * indicator_of_component_i``.

    With an int as `random_state`, `heterogeneity` only changes which client holds which row: the
    pooled rows, and thus the optimal fit, stay the same. As it increases, rows move to the clients
    of their component and stay there, except for rows that are given to clients without any.

    Parameters
    ----------
    n_clients : int, default=10
        Number of clients; at least `n_components`, unless ``heterogeneity=0``.
    n_samples : int, default=100
        Mean number of rows per client; with ``heterogeneity=0``, every client has this number.
    n_features : int, default=2
        Number of features.
    n_components : int, default=3
        Number of components.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="tied"
        Shape of the covariances, as in :class:`sklearn.mixture.GaussianMixture`. The variances
        along the principal axes are drawn uniformly from [0.5, 1.5].
    separation : float, default=3.0
        Distance between the two closest means, ``separation >= 0``. Standard deviations are around
        1: with 1, components overlap heavily; with 5, hardly at all.
    weights : array-like of shape (n_components,), default=None
        Probabilities of the components; None for equal ones.
    heterogeneity : float in [0, 1], default=0.0
        0: rows are split at random, so that all clients have the same distribution. 1: each client
        holds rows of a single component; the number of clients of a component is in proportion to
        its rows, and at least one.
    random_state : int, RandomState instance or None, default=None
        Seed. Pass an int for reproducible results.

    Returns
    -------
    Bunch
        - ``clients`` : list of ndarray of shape (n_samples_i, n_features), the clients' rows;
        - ``labels`` : list of ndarray of shape (n_samples_i,), the rows' components;
        - ``weights`` : ndarray of shape (n_components,), the true weights;
        - ``means`` : ndarray of shape (n_components, n_features), the true means;
        - ``covariances`` : ndarray, the true covariances: (n_components, n_features, n_features)
          for "full", (n_features, n_features) for "tied", (n_components, n_features) for "diag",
          (n_components,) for "spherical".

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of its range, or if ``heterogeneity > 0`` and there are fewer clients
        than components.

    See Also
    --------
    make_fedem_mixture : The paper's synthetic experiment, with a fixed mixture.
    split_clients : Splits rows by label, by Dirichlet draws, or into clients of unequal sizes.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.datasets import make_federated_mixture
    >>> for heterogeneity in (0.0, 0.5, 1.0):
    ...     data = make_federated_mixture(
    ...         n_clients=6, n_samples=1000, heterogeneity=heterogeneity, random_state=0
    ...     )
    ...     components = data.labels[0]
    ...     print((np.bincount(components, minlength=3) / len(components)).round(1))
    [0.4 0.3 0.3]
    [0.7 0.1 0.2]
    [1. 0. 0.]
    """
    _check_sizes(n_clients, n_components, heterogeneity)
    rng = random_numbers(random_state)
    mixture = _draw_mixture(n_features, n_components, covariance_type, separation, weights, rng)
    return _simulate(n_clients, n_samples, mixture, heterogeneity, rng)


@takes_python_numbers
def make_fedem_mixture(
    n_clients: int = 100,
    n_samples: int = 100,
    *,
    heterogeneity: float = 0.0,
    random_state: Seed = None,
) -> Bunch:
    """Simulate the synthetic data of the FedEM paper: two components with known covariance.

    By default, there are 10,000 rows in two dimensions, held by 100 clients with 100 rows each;
    only the weights and the means are to be estimated. The paper states the sizes but not the
    parameters, which here are weights 0.4 and 0.6, means (-1.5, -1) and (1.5, 1) and the covariance
    ((1, 0.5), (0.5, 1)), so that the means are about 3 standard deviations apart.

    Parameters
    ----------
    n_clients, n_samples, heterogeneity, random_state
        As in :func:`make_federated_mixture`; the parameters of the mixture do not depend on them.

    Returns
    -------
    Bunch
        As :func:`make_federated_mixture`; ``covariances``, of shape (2, 2), is the known common
        covariance.

    Raises
    ------
    TypeError, ValueError
        As :func:`make_federated_mixture`.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", Advances in Neural Information
       Processing Systems 34, 2021, Section 4, "Synthetic data".

    Examples
    --------
    >>> from skfedem.datasets import make_fedem_mixture
    >>> data = make_fedem_mixture(random_state=0)
    >>> len(data.clients), data.clients[0].shape
    (100, (100, 2))
    >>> data.covariances
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    weights, means = np.array([0.4, 0.6]), np.array([[-1.5, -1.0], [1.5, 1.0]])
    mixture: _Mixture = weights, means, np.array([[1.0, 0.5], [0.5, 1.0]]), "tied"
    _check_sizes(n_clients, 2, heterogeneity)
    rng = random_numbers(random_state)
    return _simulate(n_clients, n_samples, mixture, heterogeneity, rng)


def _check_sizes(n_clients: int, n_components: int, heterogeneity: float) -> None:
    check_counts(n_clients=n_clients, n_components=n_components)
    hint = "It is the share of the rows that go to clients of one component."
    check_number("heterogeneity", heterogeneity, low=0, high=1, hint=hint)
    if heterogeneity > 0 and n_clients < n_components:
        raise ValueError(
            f"Expected a client for each of the {n_components} components with "
            f"heterogeneity={heterogeneity!r}, got n_clients={n_clients}. Raise n_clients, or use "
            "heterogeneity=0."
        )


def _draw_mixture(
    n_features: int,
    n_components: int,
    covariance_type: CovarianceType,
    separation: float,
    weights: ArrayLike | None,
    rng: RandomState,
) -> _Mixture:
    check_counts(n_features=n_features)
    check_number("separation", separation, low=0)
    check_choice("covariance_type", covariance_type, get_args(CovarianceType))
    if weights is None:
        shares = np.full(n_components, 1 / n_components)
    else:
        shares = check_shares("weights", weights, n_components)
        shares = shares / shares.sum()
    means = _draw_means(n_components, n_features, separation, rng)
    covariances = _draw_covariances(covariance_type, n_components, n_features, rng)
    return shares, means, covariances, covariance_type


def _draw_means(
    n_components: int, n_features: int, separation: float, rng: RandomState
) -> FloatArray:
    if n_components == 1:
        return np.zeros((1, n_features))
    # The best of a few draws: if two means nearly coincide, scaling would move the others far away.
    shape = n_components, n_features
    best = max((rng.standard_normal(shape) for _ in range(_N_MEANS_DRAWN)), key=_closest)
    return best * (separation / _closest(best))


def _closest(means: FloatArray) -> float:
    """Smallest distance between two means."""
    return min(
        np.linalg.norm(means[k:] - mean, axis=1).min() for k, mean in enumerate(means[:-1], 1)
    )


def _draw_covariances(
    covariance_type: CovarianceType, n_components: int, n_features: int, rng: RandomState
) -> FloatArray:
    if covariance_type == "spherical":
        return rng.uniform(0.5, 1.5, n_components)
    if covariance_type == "diag":
        return rng.uniform(0.5, 1.5, (n_components, n_features))
    n_covariances = 1 if covariance_type == "tied" else n_components
    covariances = np.empty((n_covariances, n_features, n_features))
    for covariance in covariances:
        axes, _ = np.linalg.qr(rng.standard_normal((n_features, n_features)))
        scaled = axes * np.sqrt(rng.uniform(0.5, 1.5, n_features))
        covariance[:] = scaled @ scaled.T
    return covariances[0] if covariance_type == "tied" else covariances


def _matrices(
    covariances: FloatArray, covariance_type: CovarianceType, shape: tuple[int, int, int]
) -> FloatArray:
    """Covariance matrix of each component."""
    if covariance_type in ("full", "tied"):
        return np.broadcast_to(covariances, shape)
    return covariances.reshape(shape[0], 1, -1) * np.eye(shape[1])


def _simulate(
    n_clients: int, n_samples: int, mixture: _Mixture, heterogeneity: float, rng: RandomState
) -> Bunch:
    check_counts(n_samples=n_samples)
    weights, means, covariances, covariance_type = mixture
    n_components, n_features = means.shape
    n_rows = n_clients * n_samples
    components = rng.choice(n_components, size=n_rows, p=weights)
    shape = n_components, n_features, n_features
    factors = np.linalg.cholesky(_matrices(covariances, covariance_type, shape))
    rows = rng.standard_normal((n_rows, n_features))
    for component, factor in enumerate(factors):
        drawn = components == component
        rows[drawn] = means[component] + rows[drawn] @ factor.T

    # After the rows, so that the split does not change them.
    labels = _deal(components, n_clients, heterogeneity, rng)
    return Bunch(
        clients=split_by(rows, labels, n_clients),
        labels=split_by(components, labels, n_clients),
        weights=weights,
        means=means,
        covariances=covariances,
    )


def _deal(components: IntArray, n_clients: int, heterogeneity: float, rng: RandomState) -> IntArray:
    """Client of each row: a share goes to clients of its component, the rest at random."""
    labels = client_labels(components, n_clients, random_state=rng)
    if heterogeneity == 0:
        return labels
    sorted_labels = _one_component_labels(components, n_clients, rng)
    moved = rng.random_sample(len(components)) < heterogeneity
    return fill_up(np.where(moved, sorted_labels, labels), n_clients, 1, rng)


def _one_component_labels(components: IntArray, n_clients: int, rng: RandomState) -> IntArray:
    """Assign whole clients to components; the next one goes where clients have the most rows."""
    n_rows = np.bincount(components)
    n_holders = (n_rows > 0).astype(int)
    for _ in range(n_clients - np.count_nonzero(n_rows)):
        n_holders[np.argmax(n_rows / np.maximum(n_holders, 1))] += 1
    labels = np.empty(len(components), dtype=int)
    first = 0
    for component in np.flatnonzero(n_rows):
        holders = np.arange(first, first + n_holders[component])
        holders_of_rows = np.repeat(holders, equal_sizes(n_rows[component], len(holders)))
        labels[components == component] = rng.permutation(holders_of_rows)
        first += len(holders)
    return labels
