"""Initial assignments of rows to components, and their cost in bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.random import sample_without_replacement

from ... import _random
from ..._federation import Federation, owners_of, read
from ..._history import FLOAT_BITS
from ..._rows import take_rows
from ..._typing import FloatArray, InitParams, IntArray
from .domain import in_domain
from .gaussian_mixture import GaussianMixtureModel
from .linear_algebra import ROUNDING

# Most clients that cluster their rows for init_params="kmeans"; more would add little.
_LARGEST_COHORT = 128
# Most rows for k-means or k-means++; of more rows, a random sample is as informative.
_LARGEST_SAMPLE = 2**17
# Centroids of fewer distinct rows than this are not sent, as they would reveal a row.
_FEWEST_ROWS = 2
# A row that is repeated so often that it has this share of the weight of a client's mean cluster,
# and this many times the weight of the lightest row, identifies nobody.
_COMMON = 0.5
_MANY = 5
# scikit-learn's default.
_KMEANS_TOL = 1e-4
# Start of scikit-learn's warning about empty clusters.
_FEWER_CLUSTERS = "Number of distinct clusters"
# Share of every component that is spread over all, if some component starts without rows.
_BLEND = 0.01


def assign(
    model: GaussianMixtureModel,
    federation: Federation,
    init_params: InitParams,
    means: FloatArray | None,
    seed: int,
) -> tuple[FloatArray, int, int]:
    """Initial assignment of rows to components.

    Parameters
    ----------
    model : GaussianMixtureModel
    federation : Federation
    init_params : {"kmeans", "k-means++", "random_from_data", "random"}
        Method that finds centres, to the nearest of which rows are assigned; or "random", for
        random posterior probabilities.
    means : ndarray of shape (n_components, n_features) or None
        The centres in the rows' units, if they are given.
    seed : int

    Returns
    -------
    statistics : ndarray of shape (n_statistics,)
    uplink_bits, downlink_bits : int
        Bits sent and received by all clients.
    """
    uplink, downlink = FLOAT_BITS * federation.n_clients * model.n_statistics, 0
    if means is None and init_params == "random":
        statistics = _random_statistics(model, federation, seed)
    else:
        if means is None:
            means, n_up, n_down = _CENTERS[init_params](model, federation, seed)
            uplink, downlink = uplink + FLOAT_BITS * n_up, FLOAT_BITS * n_down
        statistics = pooled_statistics(model, federation, partial(sums_of_nearest, model, means))
        downlink += FLOAT_BITS * federation.n_clients * means.size
    return _without_empty(model, statistics), uplink, downlink


def pooled_statistics(
    model: GaussianMixtureModel,
    federation: Federation,
    sums: Callable[[NDArray[Any], IntArray, FloatArray | None], FloatArray],
) -> FloatArray:
    """Σ_i w_i of the mean statistics of client i's rows.

    ``sums(rows, lengths, sample_weight)`` gives sums over each client's rows, of shape (n_clients,
    n_statistics).
    """
    statistics = np.zeros(model.n_statistics)
    row_weights = federation.row_weights
    every = np.arange(federation.n_clients)
    for group, rows, lengths, weights in read(federation, every, model.block_rows):
        statistics += row_weights[group] @ sums(rows, lengths, weights)
    return statistics


def sums_of_nearest(
    model: GaussianMixtureModel,
    centers: FloatArray,
    rows: NDArray[Any],
    lengths: IntArray,
    sample_weight: FloatArray | None = None,
) -> FloatArray:
    """Sums over each client's rows of the statistics of a hard assignment.

    Each row is assigned to the nearest of ``centers`` (n_components, n_features).
    """
    # Relative to the median of the centres: otherwise, a large common offset would cost digits of
    # the differences.
    middle = np.median(centers, axis=0)
    apart, offsets = rows - middle, centers - middle
    likeness = apart @ offsets.T - 0.5 * np.square(offsets).sum(axis=1)
    # The first of the centres that are equally near up to rounding.
    rounding = ROUNDING * (np.abs(apart) @ np.abs(offsets).T + np.square(offsets).sum(axis=1))
    closest = (likeness + rounding >= (likeness - rounding).max(axis=1, keepdims=True)).argmax(1)
    posterior = np.equal(closest, np.arange(model.n_components)[:, None]).astype(float)
    return model.assigned(posterior, model.features(rows), lengths, sample_weight)


def _without_empty(model: GaussianMixtureModel, statistics: FloatArray) -> FloatArray:
    """Blend the components slightly if one has no rows, as posterior probabilities would."""
    if in_domain(model, statistics):
        return statistics
    table = model.table(statistics)
    return ((1 - _BLEND) * table + _BLEND * table.mean(axis=0)).ravel()


def _random_statistics(
    model: GaussianMixtureModel, federation: Federation, seed: int
) -> FloatArray:
    """Statistics under posterior probabilities that each client draws for its own rows."""
    statistics = np.zeros(model.n_statistics)
    row_weights = federation.row_weights
    size, every = model.n_components, np.arange(federation.n_clients)
    source, current = _random.generator(seed, _random.INITIALISATION), 0
    for group, rows, lengths, weights in read(federation, every, model.block_rows):
        posterior, first = np.empty((size, len(rows))), 0
        for client, length in enumerate(lengths.tolist(), group.start):
            # Each client owns 2**32 numbers. Rows of a large one come in several blocks.
            position = max(current, client << 32)
            source.bit_generator.advance(position - current)
            posterior[:, first : first + length] = source.random((size, length))
            current, first = position + size * length, first + length
        posterior /= posterior.sum(axis=0)
        statistics += row_weights[group] @ model.assigned(
            posterior, model.features(rows), lengths, weights
        )
    return statistics


def _kmeans_centers(
    model: GaussianMixtureModel, federation: Federation, seed: int
) -> tuple[FloatArray, int, int]:
    """One-shot federated k-means: clients send centroids and counts, which the server clusters.

    A client with a single row sends nothing, since the server already knows its mean. Returns the
    centres, and the numbers of values that clients have sent and received.
    """
    rng = np.random.RandomState(seed)
    parts, n_sent = [], 0
    for client, weight in zip(*_cohort(rng, federation.weights), strict=True):
        centroids, shares, n_new = _centroids_of(model, federation, client, rng, seed)
        parts.append((centroids, shares * weight))
        n_sent += n_new
    centroids, mass = map(np.concatenate, zip(*parts, strict=True))
    n_found = min(model.n_components, len(np.unique(centroids, axis=0)))
    if n_found:
        found = _kmeans(centroids, n_found, seed, n_init=10, sample_weight=mass)
        centroids = found.cluster_centers_
    return _filled_up(model, centroids, rng), n_sent * (model.n_features + 1), 0


def _centroids_of(
    model: GaussianMixtureModel,
    federation: Federation,
    client: int,
    rng: np.random.RandomState,
    seed: int,
) -> tuple[FloatArray, FloatArray, int]:
    """Centroids of a client, their shares of its rows, and the number that is sent."""
    weighted = federation.sample_weight
    start, stop = federation.offsets[client : client + 2]
    sample = _sample(rng, start, stop)
    weights = np.ones(len(sample)) if weighted is None else weighted.values[sample]
    rows, weights = _distinct(take_rows(federation.rows, sample), weights)
    if len(rows) == 1:  # the client's mean, if no rows were left out of the sample
        n_known = int(len(sample) == stop - start)
        return rows[:n_known], np.ones(n_known), 0
    n_clusters = min(model.n_components, len(rows) // _FEWEST_ROWS)
    centroids, shares = _centroids_to_send(rows, n_clusters, seed, weights)
    return centroids, shares, len(shares)


def _cohort(rng: np.random.RandomState, weights: FloatArray) -> tuple[IntArray, FloatArray]:
    """Clients that cluster their rows, drawn by weight, and the weight that each represents."""
    if len(weights) <= _LARGEST_COHORT:
        return np.arange(len(weights)), weights
    size = min(_LARGEST_COHORT, int(np.count_nonzero(weights)))  # weights may underflow to 0
    cohort = np.sort(rng.choice(len(weights), size, replace=False, p=weights))
    return cohort, _represented(weights[cohort])


def _represented(own: FloatArray) -> FloatArray:
    """Weights, with sum 1, represented by clients that were drawn in proportion to weight.

    A client with more than an equal share represents its own weight; the others share the rest.
    """
    left, n_left = 1.0, len(own)
    for weight in np.sort(own)[:0:-1]:
        if weight * n_left <= left:
            break
        left, n_left = left - weight, n_left - 1
    return np.maximum(own, left / n_left)


def _distinct(rows: NDArray[Any], weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distinct rows, as float64, in the order of their values, and the weight of each.

    Draws from them then depend neither on the order of the rows, nor on whether a row is weighted
    or repeated.
    """
    rows = np.add(rows, 0.0, dtype=np.float64, order="C")  # turns -0.0 into 0.0
    order = np.argsort(rows[:, 0], kind="stable")
    if not (np.diff(rows[order, 0]) > 0).all():
        order = np.lexsort(rows.T[::-1])
    rows, weights = rows[order], weights[order]
    is_new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
    return rows[is_new], np.add.reduceat(weights, np.flatnonzero(is_new))


def _centroids_to_send(
    rows: FloatArray, n_clusters: int, seed: int, sample_weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Centroids of a client's clusters with at least two rows, and their shares of the rows.

    Rows are distinct, and clusters of one row are withheld; if that row has the weight of many, it
    is instead joined by the nearest row of a larger cluster. As the server knows the mean of the
    client's rows, it can compute the sum of the withheld ones. If this would be a single row, the
    smallest of the other clusters is withheld as well.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    n_clusters : int
    seed : int
    sample_weight : ndarray of shape (n_rows,)

    Returns
    -------
    centroids : ndarray of shape (n_sent, n_features)
    mass : ndarray of shape (n_sent,)
        Share of the client's rows, or of their weight.
    """
    tol = _weighted_tol(rows, sample_weight)
    found = _kmeans(rows, n_clusters, seed, n_init=1, sample_weight=sample_weight, tol=tol)
    labels, centroids = found.labels_, found.cluster_centers_
    common = max(_COMMON * sample_weight.sum() / n_clusters, _MANY * sample_weight.min())
    for row in np.flatnonzero(sample_weight >= common):
        members = np.bincount(labels, minlength=n_clusters)
        if members[labels[row]] == 1:
            distances = np.square(rows - rows[row]).sum(axis=1)
            distances[members[labels] <= _FEWEST_ROWS] = np.inf
            labels[distances.argmin()] = labels[row]
            centroids = _means_of_clusters(rows, labels, centroids, sample_weight)
    members = np.bincount(labels, minlength=n_clusters)
    mass = np.bincount(labels, sample_weight, minlength=n_clusters)
    sent = members >= _FEWEST_ROWS
    if np.count_nonzero(members == 1) == 1:
        sent[np.where(sent, members, np.inf).argmin()] = False
    return centroids[sent], mass[sent] / mass.sum()


def _means_of_clusters(
    rows: FloatArray, labels: IntArray, centroids: FloatArray, weights: FloatArray
) -> FloatArray:
    """Means of the clusters; the centroid of an empty cluster is unchanged."""
    size = len(centroids)
    sums = [np.bincount(labels, weights * column, minlength=size) for column in rows.T]
    mass = np.bincount(labels, weights, minlength=size)[:, None]
    return np.divide(np.transpose(sums), mass, out=centroids.copy(), where=mass > 0)


def _sample(rng: np.random.RandomState, start: int, stop: int) -> IntArray:
    """Indices of the rows from ``start`` to ``stop``, or of a sample if there are too many."""
    if stop - start <= _LARGEST_SAMPLE:
        return np.arange(start, stop)
    return np.unique(rng.randint(start, stop, size=_LARGEST_SAMPLE))


def _kmeans(
    rows: FloatArray,
    n_clusters: int,
    seed: int,
    *,
    n_init: int,
    sample_weight: FloatArray,
    tol: float = _KMEANS_TOL,
) -> KMeans:
    kmeans = KMeans(n_clusters, n_init=n_init, random_state=seed, tol=tol)
    with warnings.catch_warnings():
        # Rows that are equal up to rounding have fewer clusters, which is fine. Only this message
        # is ignored, because warning filters are shared by all threads.
        warnings.filterwarnings("ignore", _FEWER_CLUSTERS, ConvergenceWarning)
        # Constant features become exactly 0; scikit-learn's own centring has rounding errors.
        middle = np.median(rows, axis=0)
        kmeans.fit(rows - middle, sample_weight=sample_weight)
    kmeans.cluster_centers_ += middle
    return kmeans


def _weighted_tol(rows: FloatArray, weights: FloatArray) -> float:
    """Tolerance for KMeans, which scales it by the unweighted instead of the weighted variance."""
    plain = rows.var(axis=0).mean()
    if plain == 0 or (weights == weights[0]).all():
        return _KMEANS_TOL
    mean = np.average(rows, axis=0, weights=weights)
    return _KMEANS_TOL * np.average((rows - mean) ** 2, axis=0, weights=weights).mean() / plain


def _filled_up(
    model: GaussianMixtureModel, centers: FloatArray, rng: np.random.RandomState
) -> FloatArray:
    """Centres, and normal draws with the rows' mean and variances in place of missing ones."""
    drawn = rng.normal(size=(model.n_components - len(centers), model.n_features))
    return np.concatenate([centers, drawn * model.units.standard_deviations + model.units.center])


def _plusplus_centers(
    model: GaussianMixtureModel, federation: Federation, seed: int
) -> tuple[FloatArray, int, int]:
    """k-means++ over the clients' rows, which reveals the candidate rows to the server.

    For each centre after the first, a few candidate rows are tried, and the one with the smallest
    sum of squared distances is chosen. Each client receives the candidates and sends its part of
    the sums.
    """
    rng = np.random.RandomState(seed)
    sample = _sample(rng, 0, federation.n_samples)
    owners = owners_of(federation.offsets, sample)
    row_weights = federation.row_weights[owners]
    if federation.sample_weight is not None:
        row_weights *= federation.sample_weight.values[sample]
    rows, row_weights = _distinct(take_rows(federation.rows, sample), row_weights)
    n_found = min(model.n_components, len(rows))
    n_trials = 2 + int(np.log(n_found))  # scikit-learn's default
    _, chosen = kmeans_plusplus(
        rows - np.median(rows, axis=0),  # unlike a mean, independent of the order of the rows
        n_found,
        sample_weight=row_weights,
        random_state=rng,
        n_local_trials=n_trials,
    )
    n_tried, d = 1 + (n_found - 1) * n_trials, model.n_features
    n_up = n_tried * (d + federation.n_clients)
    return _filled_up(model, rows[chosen], rng), n_up, n_tried * d * federation.n_clients


def _rows_as_centers(
    model: GaussianMixtureModel, federation: Federation, seed: int
) -> tuple[FloatArray, int, int]:
    """Randomly drawn rows, which are revealed to the server."""
    rng = np.random.RandomState(seed)
    n, size = federation.n_samples, model.n_components
    if federation.sample_weight is None:
        drawn = sample_without_replacement(n, size, random_state=rng)
    else:
        # As with repeated rows, except that no row is drawn twice.
        weights = federation.sample_weight.values
        shares = np.maximum(weights / weights.sum(), np.finfo(float).tiny)  # some may underflow
        drawn = rng.choice(n, size, replace=False, p=shares)
    centers = take_rows(federation.rows, np.sort(drawn)).astype(np.float64)
    return centers, centers.size, 0


_CENTERS = {
    "kmeans": _kmeans_centers,
    "k-means++": _plusplus_centers,
    "random_from_data": _rows_as_centers,
}
INIT_PARAMS = (*_CENTERS, "random")
