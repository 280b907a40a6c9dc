"""Reader of long tables of counts: clients' observations by site and time."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from .._data.labels import group_rows, missing_labels
from .._data.long_tables import Columns, column, columns_of, numbers
from .._optional import check_installed
from .._parameters import check_choice
from .._typing import BoolArray, IntArray, Table

_DIGITS = re.compile(r"(\d+)")
# Text that begins with a day, or a month, and another number.
_DAY_FIRST = re.compile(r"\s*\d{1,2}[^\w\s]\s*\d{1,2}[^\w\s]\s*\d")


def read_counts(
    table: Table,
    *,
    site: str,
    time: str,
    count: str,
    observer: str | None = None,
    effort: str | None = None,
    freq: Literal["D", "W", "M", "Q", "Y"] | None = None,
) -> Bunch:
    """Read a long table with names as clients' counts by site and time.

    Each row of the table is an observation. The result is what
    :meth:`~skfedem.FederatedMatrixImputer.fit` takes: ``imputer.fit(counts.clients,
    shape=(counts.sites, counts.times))`` knows sites and times by their names.

    Parameters
    ----------
    table : DataFrame or dict of array-likes
        Table with a row for each observation, from pandas, polars, or a dict of columns.
    site, time, count : str
        Names of the columns that tell site, time and number. Rows with a missing number are left
        out.
    observer : str, default=None
        Name of the column that tells the client; None for a single client.
    effort : str, default=None
        Name of the column with the effort of each observation (hours, length, traps), positive
        numbers. Fit with ``offset=counts.offset``, its logarithm.
    freq : {"D", "W", "M", "Q", "Y"}, default=None
        Period of a column of the matrix: day, week (Monday to Sunday), month, quarter or year. The
        times are then dates, or text such as "2024-05", year first, and every period from the first
        to the last is a column. Requires pandas. None: the distinct times are the columns, sorted.
        A year without any observation is then no column.

    Returns
    -------
    Bunch
        - ``clients`` : list of ndarray of shape (n_samples_i, 3), float64, the observations of each
          client, with columns site, time (both numbered from 0) and count, sorted;
        - ``shape`` : tuple, ``(n_sites, n_times)``;
        - ``sites`` : ndarray of shape (n_sites,), the names of the sites, sorted;
        - ``times`` : ndarray of shape (n_times,), or PeriodIndex if `freq` is given;
        - ``client_ids`` : ndarray of shape (n_clients,), the observers, sorted;
        - ``offset`` : list of ndarray of shape (n_samples_i,), log efforts, if `effort` is given;
        - ``n_missing_counts`` : int, number of rows left out because their number is missing.

    Raises
    ------
    ImportError
        If `freq` is given, but pandas is missing.
    TypeError, ValueError
        If a column is missing, or has missing names, times that are no dates, or have day or month
        first, or counts that are no numbers; if an effort is not positive; or if no count is known.

    See Also
    --------
    read_ebird : Reads files of eBird.

    Examples
    --------
    >>> from skfedem.datasets import read_counts
    >>> notes = {
    ...     "observer": ["ann", "ann", "bob"],
    ...     "site": ["pond", "wood", "pond"],
    ...     "year": [2022, 2022, 2024],
    ...     "count": [3, 0, 5],
    ... }
    >>> counts = read_counts(notes, site="site", time="year", count="count", observer="observer")
    >>> counts.clients
    [array([[0., 0., 3.],
           [1., 0., 0.]]), array([[0., 1., 5.]])]
    >>> counts.sites.tolist(), counts.times.tolist(), counts.client_ids.tolist()
    (['pond', 'wood'], [2022, 2024], ['ann', 'bob'])
    """
    if freq is not None:
        check_choice("freq", freq, ("D", "W", "M", "Q", "Y"))
        check_installed("read_counts with freq", "pandas")
    columns = columns_of(table)
    values = numbers(columns, count, "", "counts")
    is_known = ~np.isnan(values)
    if not is_known.any():
        raise ValueError(f"Expected numbers in column {count!r}, got none. Check the column.")
    sites, site_numbers = _numbered(columns, site, is_known)
    _check_times(_names(columns, time, is_known), time, freq)
    if freq is None:
        times, time_numbers = _numbered(columns, time, is_known)
    else:
        times, time_numbers = _periods(_names(columns, time, is_known), time, freq)
    client_ids: NDArray[Any] = np.arange(1)
    owners: IntArray = np.zeros(len(site_numbers), dtype=np.intp)
    if observer is not None:
        client_ids, owners = _numbered(columns, observer, is_known)
    triplets = np.column_stack([site_numbers, time_numbers, values[is_known]])
    known: dict[str, Any] = {}
    order = np.lexsort((*triplets.T[::-1], owners))
    ends = np.cumsum(np.bincount(owners, minlength=len(client_ids)))[:-1]
    if effort is not None:
        efforts = numbers(columns, effort, "", "efforts")[is_known]
        if not (np.isfinite(efforts) & (efforts > 0)).all():
            raise ValueError(
                f"Expected positive efforts in column {effort!r}, got "
                f"{efforts[~(np.isfinite(efforts) & (efforts > 0))][0]}. Drop these rows, or fill "
                "in their effort."
            )
        known["offset"] = np.split(np.log(efforts)[order], ends)
    return Bunch(
        **known,
        clients=np.split(triplets[order], ends),
        shape=(len(sites), len(times)),
        sites=sites,
        times=times,
        client_ids=client_ids,
        n_missing_counts=int(np.count_nonzero(~is_known)),
    )


def _names(columns: Columns, name: str, is_known: BoolArray) -> NDArray[Any]:
    """Names in some rows of a column, none of them missing."""
    names = column(columns, name, "names", "")[is_known]
    missing = missing_labels(names)
    if len(missing):
        row = np.flatnonzero(is_known)[missing[0]]
        raise ValueError(
            f"Expected a name in each row of column {name!r}, got a missing one at row {row}. Fill "
            "it in, or drop the row."
        )
    return names


def _numbered(columns: Columns, name: str, is_known: BoolArray) -> tuple[NDArray[Any], IntArray]:
    """Distinct names, sorted, and the number of the name in each row."""
    labels = _names(columns, name, is_known)
    names, order, offsets = group_rows(labels, len(labels), f"column {name!r}")
    places = np.empty(len(labels), dtype=np.intp)
    places[slice(None) if order is None else order] = np.repeat(
        np.arange(len(names)), np.diff(offsets)
    )
    return names, places


def _check_times(times: NDArray[Any], name: str, freq: str | None) -> None:
    """Raise for dates whose order is not known, and without ``freq`` for text in another order."""
    text = sorted({own for own in times if isinstance(own, str)})
    for time in text:
        if _DAY_FIRST.match(time):
            raise ValueError(
                f"Expected dates with the year first in column {name!r}, such as 2024-05-31, got "
                f"{time!r}, in which day and month may be confused. Convert the column by "
                "pandas.to_datetime(..., dayfirst=True), or False."
            )
    if freq is not None or not any(_DIGITS.search(own) for own in text):
        return
    if not all(re.match(r"\d{4}", own) for own in text) or sorted(text, key=_as_read) != text:
        raise ValueError(
            f"Expected times in column {name!r} whose text is in the order of time, such as "
            f"2024-05, got {text[0]!r}. Give freq=, or numbers."
        )


def _as_read(text: str) -> list[Any]:
    """Key by which numbers in text are in their order."""
    return [int(own) if own.isdigit() else own for own in _DIGITS.split(text)]


def _periods(times: NDArray[Any], name: str, freq: str) -> tuple[Any, IntArray]:
    """All periods from the first to the last, and the number of the period in each row."""
    import pandas

    # As text, because pandas reads the integer 2024 as nanoseconds.
    codes, distinct = pandas.factorize(times.astype(str) if times.dtype.kind in "iu" else times)
    try:
        periods = [pandas.Period(value, freq=freq) for value in pandas.Series(distinct)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected dates in column {name!r} for freq={freq!r}, got others: {error}. Give dates "
            "or text such as '2024-05'."
        ) from error
    ordinals = np.array([period.ordinal for period in periods])
    first, last = ordinals.min(), ordinals.max()
    every = pandas.PeriodIndex.from_ordinals(np.arange(first, last + 1), freq=freq)
    return every, ordinals[codes] - first
