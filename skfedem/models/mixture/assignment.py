"""Initial assignments of rows to components, and what clients send for them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.random import sample_without_replacement

from ... import _random
from ..._federation import ClientRows, ClientSizes, Federation, SetUp, owners_of
from ..._rows import take_rows
from ..._typing import FloatArray, InitParams, IntArray
from . import messages
from .domain import in_domain
from .gaussian_mixture import GaussianMixtureModel

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
    clients: SetUp,
    init_params: InitParams,
    means: FloatArray | None,
    seed: int,
) -> FloatArray:
    """Initial statistics, from an assignment of rows to components.

    Rows are assigned to the nearest of the ``means``, in the rows' units, or of the centres that
    ``init_params`` finds; with "random", posterior probabilities are drawn.
    """
    if means is None and init_params == "random":
        statistics = clients.mean(messages.random_statistics, model, seed)
    else:
        centers = _CENTERS[init_params](model, clients, seed) if means is None else means
        statistics = clients.mean(messages.statistics_of_nearest, model, centers)
    return _without_empty(model, statistics)


def _without_empty(model: GaussianMixtureModel, statistics: FloatArray) -> FloatArray:
    """Blend the components slightly if one has no rows, as posterior probabilities would."""
    if in_domain(model, statistics):
        return statistics
    table = model.table(statistics)
    return ((1 - _BLEND) * table + _BLEND * table.mean(axis=0)).ravel()


def _kmeans_centers(model: GaussianMixtureModel, clients: SetUp, seed: int) -> FloatArray:
    """One-shot federated k-means: clients send centroids and counts, which the server clusters.

    A client with a single row sends it, which the server knows already, as its mean.
    """
    rng = np.random.RandomState(seed)
    cohort, weights = _cohort(rng, clients.sizes.weights)
    sent = clients.collect(centroids_of_rows, cohort, model.n_components, seed)
    centroids = np.concatenate([own[:, 1:] for own in sent])
    mass = np.concatenate([weight * own[:, 0] for weight, own in zip(weights, sent, strict=True)])
    n_found = min(model.n_components, len(np.unique(centroids, axis=0)))
    if n_found:
        found = _kmeans(centroids, n_found, seed, n_init=10, sample_weight=mass)
        centroids = found.cluster_centers_
    return _filled_up(model, centroids, rng)


def centroids_of_rows(rows: ClientRows, n_components: int, seed: int) -> list[FloatArray]:
    """Centroids of each client's clusters, after their shares of its rows: (n_sent, 1 + d)."""
    return [
        _centroids_of(rows.federation, client, n_components, seed, address)
        for client, address in zip(rows.clients.tolist(), rows.ids.tolist(), strict=True)
    ]


def _centroids_of(
    federation: Federation, client: int, n_components: int, seed: int, address: int
) -> FloatArray:
    """Message of one client."""
    values, weights, is_sample = _distinct_rows(federation, client, seed, address)
    if len(values) == 1:  # the client's mean, if no rows were left out of the sample
        return np.column_stack([np.ones(1), values])[: 0 if is_sample else 1]
    n_clusters = min(n_components, len(values) // _FEWEST_ROWS)
    centroids, shares = _centroids_to_send(values, n_clusters, seed, weights)
    return np.column_stack([shares, centroids])


def _distinct_rows(
    federation: Federation, client: int, seed: int, address: int
) -> tuple[FloatArray, FloatArray, bool]:
    """Distinct rows of a client, or of a sample if there are too many, and their weights."""
    start, stop = federation.offsets[client : client + 2].tolist()
    chosen: IntArray = np.arange(start, stop)
    is_sample = len(chosen) > _LARGEST_SAMPLE
    if is_sample:
        generator = _random.client_generator(seed, _random.INITIALISATION, 1, address)
        chosen = np.unique(generator.integers(start, stop, size=_LARGEST_SAMPLE))
    weighted = federation.sample_weight
    weights = np.ones(len(chosen)) if weighted is None else weighted.values[chosen]
    return *_distinct(take_rows(federation.rows, chosen), weights), is_sample


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


def _plusplus_centers(model: GaussianMixtureModel, clients: SetUp, seed: int) -> FloatArray:
    """Greedy k-means++ over the clients' rows, which reveals the candidate rows to the server.

    For each centre after the first, a few candidates are drawn with probability proportional to the
    squared distance from the centres so far: the server draws a client, the client a row. The
    candidate with the smallest sum of squared distances is chosen (Arthur and Vassilvitskii, 2007).
    """
    rng, weights = np.random.RandomState(seed), clients.sizes.weights
    n_trials = 2 + int(np.log(model.n_components))  # scikit-learn's default
    every, centers = np.arange(len(weights)), np.empty((0, model.n_features))
    potentials, n_tried = weights, 1
    while len(centers) < model.n_components and potentials.sum() > 0:
        drawn = rng.choice(every, n_tried, p=potentials / potentials.sum())
        tried = np.array(
            [
                clients.collect(row_far_from, drawn[[trial]], centers, seed, trial)[0]
                for trial in range(n_tried)
            ]
        )
        after = np.array(clients.collect(squared_distances, every, centers, tried))
        best = int((weights @ after).argmin())
        centers, potentials = np.vstack([centers, tried[best]]), weights * after[:, best]
        n_tried = n_trials
    return _filled_up(model, centers, rng)


def row_far_from(rows: ClientRows, centers: FloatArray, seed: int, trial: int) -> list[FloatArray]:
    """Row that each client draws in proportion to weight times squared distance from centres."""
    drawn = []
    for client, address in zip(rows.clients.tolist(), rows.ids.tolist(), strict=True):
        values, weights, _ = _distinct_rows(rows.federation, client, seed, address)
        shares = weights * _least_squares(values, centers) if len(centers) else weights
        round_index = 2 + (len(centers) << 8) + trial
        generator = _random.client_generator(seed, _random.INITIALISATION, round_index, address)
        row = np.searchsorted(np.cumsum(shares), generator.random() * shares.sum(), side="right")
        drawn.append(values[min(int(row), len(values) - 1)])
    return drawn


def squared_distances(rows: ClientRows, centers: FloatArray, tried: FloatArray) -> list[FloatArray]:
    """Mean squared distance of each client's rows from the centres and one candidate each."""
    means = []
    for client in rows.clients.tolist():
        start, stop = rows.federation.offsets[client : client + 2].tolist()
        values = rows.federation.rows[start:stop].astype(np.float64)
        weighted = rows.federation.sample_weight
        weights = np.ones(len(values)) if weighted is None else weighted.values[start:stop]
        before = _least_squares(values, centers)
        squares = [np.minimum(before, np.square(values - row).sum(axis=1)) for row in tried]
        means.append(np.array([weights @ own for own in squares]) / weights.sum())
    return means


def _least_squares(values: FloatArray, centers: FloatArray) -> FloatArray:
    """Squared distance of each row from the nearest centre; inf if there is none."""
    if not len(centers):
        return np.full(len(values), np.inf)
    return np.min([np.square(values - center).sum(axis=1) for center in centers], axis=0)


def _rows_as_centers(model: GaussianMixtureModel, clients: SetUp, seed: int) -> FloatArray:
    """Randomly drawn rows, which are revealed to the server."""
    rng, sizes, size = np.random.RandomState(seed), clients.sizes, model.n_components
    asked, counts = np.unique(_owners_of_drawn_rows(rng, sizes, size), return_counts=True)
    parts = [
        clients.collect(random_rows, np.array([client]), int(count), seed)[0]
        for client, count in zip(asked.tolist(), counts.tolist(), strict=True)
    ]
    return np.concatenate(parts)


def _owners_of_drawn_rows(rng: np.random.RandomState, sizes: ClientSizes, size: int) -> IntArray:
    """Clients of ``size`` different rows: of any rows, or by weight if weights are not theirs."""
    if np.allclose(sizes.weights, sizes.lengths / sizes.n_samples):
        drawn = sample_without_replacement(sizes.n_samples, size, random_state=rng)
        return owners_of(sizes.offsets, np.sort(drawn))
    left, owners = sizes.lengths.copy(), np.empty(size, dtype=np.intp)
    for number in range(size):
        shares = np.where(left > 0, np.maximum(sizes.weights, np.finfo(float).tiny), 0.0)
        owners[number] = rng.choice(len(left), p=shares / shares.sum())
        left[owners[number]] -= 1
    return owners


def random_rows(rows: ClientRows, size: int, seed: int) -> list[FloatArray]:
    """Different rows that each client draws in proportion to their weights."""
    drawn = []
    for client, address in zip(rows.clients.tolist(), rows.ids.tolist(), strict=True):
        generator = _random.client_generator(seed, _random.INITIALISATION, 1, address)
        start, stop = rows.federation.offsets[client : client + 2].tolist()
        shares = None
        if rows.federation.sample_weight is not None:
            weights = rows.federation.sample_weight.values[start:stop]
            shares = np.maximum(weights / weights.sum(), np.finfo(float).tiny)
            shares /= shares.sum()
        chosen = start + np.sort(generator.choice(stop - start, size, replace=False, p=shares))
        drawn.append(take_rows(rows.federation.rows, chosen).astype(np.float64))
    return drawn


_CENTERS = {
    "kmeans": _kmeans_centers,
    "k-means++": _plusplus_centers,
    "random_from_data": _rows_as_centers,
}
