"""Long tables of measurements as packed subjects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._data.labels import group_rows, missing_labels
from .._data.long_tables import Columns, column, columns_of, is_long_table, numbers
from .._data.tables import check_not_empty
from .._error_messages import label_repr
from .._federation import Elsewhere, offsets_of
from .._random import label_keys
from .._typing import BoolArray, FloatArray, IntArray
from ..models.mixed_effects.subjects import Subjects
from .design import Design


class Records(NamedTuple):
    """Rows of a table, subject after subject, each in the order of the table.

    Attributes
    ----------
    labels : ndarray of shape (N,)
        Labels of the subjects, in the order of their first rows.
    order : ndarray of int
        Rows of the table.
    lengths : ndarray of int, shape (N,)
        Numbers of rows of the subjects.
    response : ndarray
        y of each row, or its logarithm if the error is on logarithms; NaN if missing.
    regressors : dict of ndarray
    covariates : ndarray of shape (c - 1, N)
    n_missing : int
        Number of rows that were dropped because their response is missing.
    """

    labels: NDArray[Any]
    order: IntArray
    lengths: IntArray
    response: FloatArray
    regressors: dict[str, FloatArray]
    covariates: FloatArray
    n_missing: int = 0


class ClientRecords(NamedTuple):
    """Subjects of all clients, client after client.

    Attributes
    ----------
    subjects : Subjects
    offsets : ndarray of int, shape (n_clients + 1,)
    keys : ndarray of uint64, shape (n_subjects,)
        Keys of the subjects' labels, which address their random numbers.
    ids : ndarray of shape (n_clients,)
        Labels of the clients.
    n_missing : int
        Number of rows that were dropped because their response is missing.
    n_places : int
        Largest number of rows of a subject.
    n_observations : int
        Number of responses.
    """

    subjects: Subjects | None
    offsets: IntArray
    keys: NDArray[np.uint64]
    ids: NDArray[Any]
    n_missing: int
    n_places: int
    n_observations: int


def read_clients(
    X: Any, clients: str | ArrayLike | None, design: Design, n_places: int = 0
) -> ClientRecords:
    """Measurements of all clients, for a fit.

    Subjects are in the order of the keys of their labels: the order of the rows in a table does not
    matter.

    Parameters
    ----------
    X : DataFrame or dict of array-likes, or a list of them
    clients : str or array-like, default=None
        Column of client labels, or labels of the rows, if X is one table.
    design : Design
    n_places : int, default=0
        Least number of places for observations of a subject, which all clients have in common.

    Raises
    ------
    TypeError, ValueError
        If the data are invalid; the message names client, subject and column.
    """
    if isinstance(X, Elsewhere):
        return X.read()
    tables, ids, places = _tables_of_clients(X, clients)
    pieces = [
        read_table(table, design, place, drop_missing=True)
        for table, place in zip(tables, places, strict=True)
    ]
    pieces = [_by_key(piece) for piece in pieces]
    for piece, place in zip(pieces, places, strict=True):
        if not len(piece.labels):
            raise ValueError(
                f"Expected a subject with a response in the table{place}, got none. Leave such "
                "clients out."
            )
    _refuse_shared_subjects(pieces, places)
    n = max(n_places, *(int(piece.lengths.max()) for piece in pieces))
    subjects = joined([packed(piece, n) for piece in pieces])
    return ClientRecords(
        subjects=subjects,
        offsets=offsets_of([len(piece.labels) for piece in pieces]),
        keys=np.concatenate([label_keys(piece.labels) for piece in pieces]),
        ids=ids,
        n_missing=sum(piece.n_missing for piece in pieces),
        n_places=n,
        n_observations=int(subjects.n_observations.sum()),
    )


def _tables_of_clients(
    X: Any, clients: str | ArrayLike | None
) -> tuple[list[Columns], NDArray[Any], list[str]]:
    """Columns of each client, the clients' labels, and how messages name their tables."""
    if not is_long_table(X) and isinstance(X, Sequence) and not isinstance(X, str):
        check_not_empty(X)
        if clients is not None:
            raise ValueError(
                "Expected clients=None with a list of tables, got both: the list already tells "
                "the client of each row. Give one of them."
            )
        places = [f" of client {k}" for k in range(len(X))]
        tables = [columns_of(table, place) for table, place in zip(X, places, strict=True)]
        return tables, np.arange(len(X)), places
    columns = columns_of(X)
    if clients is None:
        return [columns], np.arange(1), [""]
    labels: Any = clients
    if isinstance(clients, str):
        labels = column(columns, clients, "clients", "")
    n_rows = len(next(iter(columns.values())))
    ids, order, offsets = group_rows(labels, n_rows)
    order = np.arange(n_rows) if order is None else order
    tables = [
        {name: values[rows] for name, values in columns.items()}
        for rows in np.split(order, offsets[1:-1])
    ]
    return tables, ids, [f" of client {label_repr(label)}" for label in ids]


def read_table(columns: Columns, design: Design, place: str, *, drop_missing: bool) -> Records:
    """Records of one table.

    Rows without a response are dropped for a fit; otherwise the response may be missing altogether.
    """
    labels = column(columns, design.subject, "subjects", place)
    missing = missing_labels(labels)
    if len(missing):
        raise ValueError(
            f"Expected a subject for each row, got a missing one in column {design.subject!r} at "
            f"row {missing[0]} of the table{place}. Drop the row or name its subject."
        )
    if drop_missing or design.response in columns:
        response = numbers(columns, design.response, place, "responses")
    else:
        response = np.full(len(labels), np.nan)
    kept = np.flatnonzero(~np.isnan(response)) if drop_missing else np.arange(len(labels))
    distinct, order, lengths = _by_subject(labels[kept])
    order = kept[order]

    def of_row(position: int) -> str:
        """Subject of a row, and its table, for a message."""
        owner = np.searchsorted(np.cumsum(lengths), position, side="right")
        return f"for subject {label_repr(distinct[owner])}{place}"

    regressors = {
        name: _finite(numbers(columns, name, place, "regressors")[order], name, of_row)
        for name in design.regressors
    }
    starts = np.cumsum(lengths) - lengths
    covariates = np.empty((len(design.covariates), len(lengths)))
    for k, name in enumerate(design.covariates):
        values = _finite(numbers(columns, name, place, "covariates")[order], name, of_row)
        covariates[k] = values[starts] if len(starts) else 0.0
        varies = np.flatnonzero(values != np.repeat(covariates[k], lengths))
        if len(varies):
            first = np.repeat(covariates[k], lengths)[varies[0]]
            raise ValueError(
                f"Expected one value of covariate {name!r} {of_row(varies[0])}, got {first:g} and "
                f"{values[varies[0]]:g}. Give what varies within a subject as a regressor."
            )
    response = response[order]
    _check_response(response, design, of_row)
    if design.error.is_on_logarithms:
        response = np.log(response)
    n_missing = len(labels) - len(kept)
    return Records(distinct, order, lengths, response, regressors, covariates, n_missing)


def _finite(values: FloatArray, name: str, of_row: Any) -> FloatArray:
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(
            f"Expected finite numbers in column {name!r}, got {values[wrong[0]]} "
            f"{of_row(wrong[0])}. Fill it in or drop the row."
        )
    return values


def _check_response(response: FloatArray, design: Design, of_row: Any) -> None:
    """Raise for infinite responses, and for what has no logarithm where one is needed."""
    infinite = np.flatnonzero(np.isinf(response))
    if len(infinite):
        raise ValueError(
            f"Expected finite numbers in column {design.response!r}, got {response[infinite[0]]} "
            f"{of_row(infinite[0])}. Drop the row."
        )
    low = np.flatnonzero((response <= 0) & design.error.is_on_logarithms)
    if len(low):
        raise ValueError(
            f'Expected responses > 0 with error="exponential", got {response[low[0]]:g} in column '
            f'{design.response!r} {of_row(low[0])}. Drop these rows, or use error="combined".'
        )


def _by_subject(labels: NDArray[Any]) -> tuple[NDArray[Any], IntArray, IntArray]:
    """Distinct labels in the order of their first rows, rows by subject, and their numbers."""
    numbers_of: dict[Any, int] = {}
    owners = np.fromiter(
        (numbers_of.setdefault(label, len(numbers_of)) for label in labels.tolist()),
        dtype=np.intp,
        count=len(labels),
    )
    order = np.argsort(owners, kind="stable")
    lengths = np.bincount(owners, minlength=len(numbers_of))
    firsts = order[np.cumsum(lengths) - lengths]
    return labels[firsts], order, lengths


def _by_key(records: Records) -> Records:
    """Records with the subjects in the order of the keys of their labels."""
    order = np.argsort(label_keys(records.labels))
    starts = np.cumsum(records.lengths) - records.lengths
    runs = [np.arange(starts[i], starts[i] + records.lengths[i]) for i in order.tolist()]
    rows = np.concatenate([*runs, np.arange(0)]).astype(np.intp)
    return records._replace(
        labels=records.labels[order],
        order=records.order[rows],
        lengths=records.lengths[order],
        response=records.response[rows],
        regressors={name: values[rows] for name, values in records.regressors.items()},
        covariates=records.covariates[:, order],
    )


def _refuse_shared_subjects(pieces: list[Records], places: list[str]) -> None:
    owners: dict[Any, str] = {}
    for piece, place in zip(pieces, places, strict=True):
        for label in piece.labels.tolist():
            other = owners.setdefault(label, place)
            if other != place:
                raise ValueError(
                    f"Expected subjects with all rows at one client, got rows of subject {label!r} "
                    f"in the tables{other} and{place}. Give different subjects different labels."
                )


def packed(records: Records, n_observations: int) -> Subjects:
    """Subjects with places for n observations each; those without a response are unobserved."""
    n_subjects = len(records.lengths)
    places = np.arange(n_observations)[:, None]
    has_row: BoolArray = places < records.lengths
    starts = np.cumsum(records.lengths) - records.lengths
    rows = starts + np.minimum(places, records.lengths - 1)
    response = records.response[rows]
    observed = has_row & ~np.isnan(response)
    return Subjects(
        response=np.where(observed, response, 0.0),
        observed=observed,
        regressors={name: values[rows] for name, values in records.regressors.items()},
        covariates=np.concatenate([np.ones((1, n_subjects)), records.covariates]),
    )


def joined(pieces: list[Subjects]) -> Subjects:
    """Subjects of several tables with places for equally many observations."""
    return Subjects(
        np.concatenate([piece.response for piece in pieces], axis=1),
        np.concatenate([piece.observed for piece in pieces], axis=1),
        {
            name: np.concatenate([piece.regressors[name] for piece in pieces], axis=1)
            for name in pieces[0].regressors
        },
        np.concatenate([piece.covariates for piece in pieces], axis=1),
    )
