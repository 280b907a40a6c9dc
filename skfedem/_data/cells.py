"""Validation of the imputer's data as observed cells. The user's data are never modified."""

from __future__ import annotations

import hashlib
import math
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from .._error_messages import plural
from .._federation import MOST_CLIENTS, Elsewhere, client_groups, little_endian, offsets_of
from .._parameters import check_choice
from .._typing import ClientWeights, FloatArray, IntArray, MatricesLike, RowsName, Shape, Table
from .effort import check_effort
from .features import column_names
from .frame_labels import labels_of_shape, named_table, sizes_of_shape
from .labels import check_no_labels, check_not_name, warn_of_labels
from .matrices import GIVE_MATRICES, holds_clients
from .observations import (
    Family,
    Observations,
    check_values,
    marker,
    observations_of_list,
    observations_of_stacked,
    observations_of_table,
    observations_of_triplets,
)
from .tables import check_not_vectors, is_client_list, is_frame

# Number of observations sorted at once, to limit the memory in addition to input and result.
_BLOCK = 2**20
_ONLY_TRIPLETS = (
    "Expected a fit of FederatedMatrixImputer with shape= and rows='shared', without clients, "
    "offset or client_effects_penalty, to a {}, got another use. Give tables for it."
)


class CellData(NamedTuple):
    """Observed cells of all clients, client after client, each client's in row-major order.

    Cells of a client are distinct; several clients may have the same cell. ``origin`` is subtracted
    from Gaussian observations and their θ, without changing likelihoods, because squares of a large
    offset would cost digits.
    """

    rows: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: FloatArray  # means of the client's observations of each cell, per unit of effort
    counts: FloatArray  # numbers of these observations, or their total effort
    offsets: IntArray  # client i owns the cells offsets[i]:offsets[i + 1], which may be none
    log_base_measure: FloatArray  # Σ log ρ(y - origin) over each client's observations
    ids: NDArray[Any]  # sorted labels of the clients, or their positions in a list
    shape: tuple[int, int]
    row_offsets: IntArray | None  # of the clients' rows, if they are disjoint
    observations: FloatArray | None  # all of them, cell after cell, if requested
    origin: float
    n_observations: FloatArray  # of each cell
    log_effort: FloatArray | None  # of all observations, if they have one and are requested
    sums: FloatArray  # of each client's observations
    place: Elsewhere | None = None  # of the clients, if not in this process; without their cells

    @property
    def observers(self) -> IntArray:
        """Positions of the clients that have cells, in increasing order."""
        return np.flatnonzero(np.diff(self.offsets))

    def digest(self) -> str:
        """Digest of the cells of all clients, to recognise other data."""
        digest, cells = hashlib.sha256(), (self.rows, self.columns, self.values, self.counts)
        for array in (self.offsets, *cells, self.n_observations):
            digest.update(little_endian(array).data)
        return digest.hexdigest()


class CellReading(NamedTuple):
    """How clients elsewhere read their triplets.

    Attributes
    ----------
    family : Family
    shape : tuple of two int
    missing_values : float
    from_mean : bool
        Whether the origin is the mean of all observations.
    client_weights : {"n_samples", "uniform"}
    """

    family: Family
    shape: tuple[int, int]
    missing_values: float
    from_mean: bool
    client_weights: ClientWeights

    def cells(
        self, triplets: NDArray[Any], offsets: IntArray, ids: NDArray[Any], origin: float = 0.0
    ) -> CellData:
        """Cells of clients with these labels, whose triplets are stacked."""
        missing = self.missing_values
        observations = observations_of_stacked(triplets, offsets, ids, self.shape, missing)
        check_values(observations, self.family, missing)
        return _merged(observations, self.family, origin, merge=self.family.merges_visits)


def unread_cells(
    lengths: IntArray, sums: FloatArray, ids: Any, shape: tuple[int, int], origin: float
) -> CellData:
    """What a fit knows of clients elsewhere before it asks for cells, of which they have as many.

    ``sums`` are those of each client's observations.
    """
    none: Any = np.empty(0, dtype=np.int32)
    return CellData(
        rows=none,
        columns=none,
        values=np.empty(0),
        counts=np.empty(0),
        offsets=offsets_of(lengths),
        log_base_measure=np.empty(0),
        ids=np.asarray(ids),
        shape=shape,
        row_offsets=None,
        observations=None,
        origin=origin,
        n_observations=np.empty(0),
        log_effort=None,
        sums=sums,
    )


def read_cells(
    estimator: BaseEstimator,
    X: MatricesLike,
    clients: ArrayLike | None = None,
    *,
    shape: Shape | None = None,
    family: Family,
    keep_observations: bool = False,
    offset: Any = None,
    origin: float | None = None,
) -> CellData:
    """Validate training data; set ``n_features_in_`` and ``feature_names_in_``.

    Arguments are those of ``fit``; ``keep_observations`` is for cross-validation, and ``origin``
    that of all clients, for one of them. A client in a
    list is a matrix with missing cells, a 3-D array (observers, sites, months), or a sparse matrix
    whose stored entries (including zeros) are the observations; with ``shape``, dense 2-D arrays
    are triplets. Errors name the client and the cell.
    """
    sizes = sizes_of_shape(shape)
    rows, missing = estimator.rows, marker(estimator.missing_values)
    hint = "'disjoint' is for clients that each have rows of their own."
    check_choice("rows", rows, get_args(RowsName), hint=hint)
    from_mean = estimator.effects != "none" and family.name == "gaussian"
    if isinstance(X, Elsewhere):
        has_effects = estimator.client_effects_penalty is not None
        is_other = offset is not None or keep_observations or rows == "disjoint" or has_effects
        if clients is not None or is_other:
            raise TypeError(_ONLY_TRIPLETS.format(type(X).__name__))
        if sizes is None:
            raise ValueError(
                f"Expected shape=(sites, months) with a {type(X).__name__}, got None. Its rows "
                "are triplets (site, month, value)."
            )
        reading = CellReading(family, sizes, missing, from_mean, estimator.client_weights)
        data: CellData = X.read(reading)
        _check_features(estimator, named_table(labels_of_shape(shape)[1]), sizes[1], reset=True)
        return data if data.place else data._replace(place=X)
    named = None  # table whose columns name the features
    if holds_clients(X):
        check_no_labels(clients, GIVE_MATRICES)
        observations = observations_of_list(list(X), sizes, missing, rows, offset)
        if shape is None and column_names(X[0], 0) is not None:
            named = X[0]
    else:
        check_not_name(clients)
        check_not_vectors(X, clients)
        if shape is None:
            observations = observations_of_table(estimator, X, clients, missing, offset)
            named = X
            warn_of_labels(X, clients)
        else:
            observations = observations_of_triplets(X, clients, sizes, missing, rows, offset)
    if shape is not None:
        named = named_table(labels_of_shape(shape)[1])
    _check_features(estimator, named, observations.shape[1], reset=True)
    check_values(observations, family, missing)
    observations = _per_effort(observations, family)
    if not len(observations.codes):
        raise ValueError(
            "Expected at least one observed cell, got none from "
            f"{plural(len(observations.offsets) - 1, 'client')}: all cells are missing. Check "
            "what marks missing cells (missing_values)."
        )
    if origin is None:
        origin = mean_of_sums(_sums(observations), len(observations.values)) if from_mean else 0.0
    return _merged(observations, family, origin, keep_observations, merge=family.merges_visits)


def mean_of_sums(sums: FloatArray, n_observations: int | float) -> float:
    """Origin of Gaussian cells, from the sums that clients send."""
    return float(sums.sum() / n_observations)


def _sums(observations: Observations) -> FloatArray:
    """Sum of each client's observations, one by one."""
    offsets = observations.offsets
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    sums: Any = np.bincount(owners, observations.values, len(offsets) - 1)
    return sums


def read_matrix(
    estimator: BaseEstimator,
    X: Table,
    missing_values: float,
    family: Family,
    origin: float = 0.0,
    offset: Any = None,
) -> CellData:
    """Cells of one table, validated against the fitted estimator; may be empty."""
    if is_client_list(X):
        raise ValueError("Expected one table, got a list of tables. Give them one by one.")
    missing = marker(missing_values)
    observations = observations_of_table(estimator, X, None, missing, offset)
    _check_features(estimator, X, observations.shape[1], reset=False)
    return _valid(observations, family, missing, origin)


def read_clients_of_sites(
    X: MatricesLike,
    shape: tuple[int, int],
    missing_values: float,
    family: Family,
    origin: float,
    *,
    are_triplets: bool,
    offset: Any = None,
) -> CellData:
    """Cells of clients with the sites of a fit, whose matrix has shape (J, L), in one pass.

    X is a list of clients or a 3-D array, as for ``read_cells``, without labels. Dense 2-D arrays
    are triplets if ``are_triplets``. The result may be empty.
    """
    missing = marker(missing_values)
    form = shape if are_triplets else None
    observations = observations_of_list(list(X), form, missing, "shared", offset)
    if observations.shape != shape:
        raise ValueError(f"Expected matrices of shape {shape}, got {observations.shape}.")
    return _valid(observations, family, missing, origin)


def read_triplets(
    X: Table,
    shape: tuple[int, int],
    missing_values: float,
    family: Family,
    origin: float,
    offset: Any = None,
    clients: ArrayLike | None = None,
) -> CellData:
    """Cells of triplets of one client, or with labels, validated against the matrix of the fit.

    The result may be empty.
    """
    missing = marker(missing_values)
    observations = observations_of_triplets(X, clients, shape, missing, offset=offset)
    return _valid(observations, family, missing, origin)


def _valid(observations: Observations, family: Family, missing: float, origin: float) -> CellData:
    check_values(observations, family, missing)
    return _merged(_per_effort(observations, family), family, origin)


def _per_effort(observations: Observations, family: Family) -> Observations:
    """Observations with valid offsets, which are subtracted from Gaussian ones."""
    log_effort = observations.log_effort
    if log_effort is None:
        return observations
    check_effort(log_effort, family.name)
    if family.name != "gaussian":
        return observations
    return observations._replace(values=observations.values - log_effort, log_effort=None)


def check_not_triplets(X: Table, n_columns: int) -> None:
    """Raise if X does not have the columns of the fit, but three columns like triplets."""
    if not issparse(X) and n_columns != 3 and getattr(X, "shape", ())[1:] == (3,):
        raise ValueError(
            f"Expected a matrix of {plural(n_columns, 'column')}, got 3. Give [X] if these are "
            "(site, month, value) triplets."
        )


def _check_features(estimator: BaseEstimator, table: Table, n_columns: int, *, reset: bool) -> None:
    """Store or compare number and names of the features; only a DataFrame has names."""
    named = table if is_frame(table) else np.empty((0, n_columns))
    validate_data(estimator, named, reset=reset, skip_check_array=True)


def _merged(
    observations: Observations,
    family: Family,
    origin: float,
    keep_observations: bool = False,
    *,
    merge: bool = True,
) -> CellData:
    """Sort each client's observations by cell, and merge those of the same cell."""
    offsets, shape = observations.offsets, observations.shape
    lengths, n_cells, none = np.diff(offsets), math.prod(shape), np.empty(0)
    parts = []
    # Keys of a group's clients differ by multiples of n_cells, which must not overflow int64.
    for group in client_groups(offsets, _BLOCK, min(MOST_CLIENTS, (2**63 - 1) // n_cells)):
        counted, part = lengths[group], slice(offsets[group.start], offsets[group.stop])
        log_effort = None if observations.log_effort is None else observations.log_effort[part]
        keys, values, log_effort = _sorted_by_cell(
            observations.codes[part], observations.values[part], log_effort, counted, n_cells
        )
        # From sorted values, so that sums do not depend on the order of triplets.
        owners = np.repeat(np.arange(len(counted)), counted)
        effort = 0.0 if log_effort is None else log_effort
        measures = family.log_base_measure(values - origin, effort)
        measures = np.bincount(owners, measures, len(counted))
        kept = (values if keep_observations else none, none if log_effort is None else log_effort)
        starts = np.flatnonzero(np.diff(keys, prepend=-1)) if merge else np.arange(len(keys))
        cells = _means_of_cells(keys, starts, values, log_effort, len(counted), shape)
        parts.append((*cells, measures, *kept))
    rows, columns, means, counts, n_observations, n_client_cells, base_measures, *kept_parts = map(
        np.concatenate, zip(*parts, strict=True)
    )
    has_effort = keep_observations and observations.log_effort is not None
    return CellData(
        rows,
        columns,
        means,
        counts,
        offsets=offsets_of(n_client_cells),
        log_base_measure=base_measures,
        ids=np.arange(1) if observations.ids is None else observations.ids,
        shape=shape,
        row_offsets=observations.row_offsets,
        observations=kept_parts[0] if keep_observations else None,
        origin=origin,
        n_observations=n_observations,
        log_effort=kept_parts[1] if has_effort else None,
        sums=_sums(observations),
    )


def _sorted_by_cell(
    codes: NDArray[np.int64],
    values: FloatArray,
    log_effort: FloatArray | None,
    lengths: IntArray,
    n_cells: int,
) -> tuple[NDArray[np.int64], FloatArray, FloatArray | None]:
    """Keys ``client * n_cells + code`` of some clients' observations, sorted, and their values."""
    keys = np.repeat(np.arange(len(lengths), dtype=np.int64) * n_cells, lengths) + codes
    if not (keys[1:] < keys[:-1]).any():
        return keys, values, log_effort
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order], None if log_effort is None else log_effort[order]


def _means_of_cells(
    keys: NDArray[np.int64],
    starts: IntArray,
    values: FloatArray,
    log_effort: FloatArray | None,
    n_clients: int,
    shape: tuple[int, int],
) -> tuple[NDArray[np.int32], NDArray[np.int32], FloatArray, FloatArray, FloatArray, IntArray]:
    """Rows, columns, means, efforts and numbers of runs of observations; clients' cells.

    Poisson counts with the rate exp(θ) and efforts e have the likelihood of their sum, whose rate
    is exp(θ) times the sum of the efforts.
    """
    n_rows, n_columns = shape
    numbers = np.diff(starts, append=len(keys)).astype(np.float64)
    counts = numbers if log_effort is None else np.add.reduceat(np.exp(log_effort), starts)
    owners, cells = np.divmod(keys[starts], n_rows * n_columns)
    rows, columns = (index.astype(np.int32) for index in np.divmod(cells, n_columns))
    means = np.add.reduceat(values, starts) / counts
    return rows, columns, means, counts, numbers, np.bincount(owners, minlength=n_clients)
