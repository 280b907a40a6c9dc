"""Dosing records in NONMEM's columns as regressors of the observations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.long_tables import column, columns_of, like_table, numbers
from .._error_messages import label_repr
from .._typing import BoolArray, FloatArray

_COLUMNS = ("amt", "evid", "rate", "addl", "ii", "ss")


class DosedTable(NamedTuple):
    """Observations with the doses of their subjects.

    Attributes
    ----------
    table : DataFrame or dict of ndarray
        Rows of observations, of the type of the table that was given.
    regressors : tuple of str
        Names of the columns of time and doses.
    """

    table: Any
    regressors: tuple[str, ...]


def doses(
    table: Any, *, subject: str = "id", time: str = "time", n_doses: int | None = None
) -> DosedTable:
    """Turn dosing records into regressors of the observations.

    A row of the table is a record of a subject at a time: an observation or a dose. The columns of
    doses are those of NONMEM [1]_:

    ======  ====================================================================================
    column  meaning
    ======  ====================================================================================
    amt     amount; rows with an amount are doses unless there is ``evid``
    evid    0 for an observation, 1 for a dose, 2 for another event, which is left out; optional
    rate    rate of an infusion, amount / time; 0 for a bolus or an oral dose; optional
    addl    number of additional doses like this one; optional
    ii      time between these; optional
    ss      steady state; optional, and only 0 is possible
    ======  ====================================================================================

    Missing values of the optional columns are 0. An observation that ``mdv`` marks as missing needs
    a missing response instead.

    Parameters
    ----------
    table : DataFrame (pandas or polars) or dict of array-likes
    subject : str, default="id"
        Column that tells subjects apart.
    time : str, default="time"
        Column of times.
    n_doses : int, default=None
        Number of doses that each subject gets columns for; None for the largest number in the
        table. Give all clients the same number: absent doses have the amount 0.

    Returns
    -------
    dosed : DosedTable
        ``table`` with the rows of observations. In place of the columns of dosing records, it has
        ``dose_1``, ``dose_time_1``, with rates also ``dose_rate_1``, and so on. ``regressors``
        has the names of these columns and of ``time``.

    Raises
    ------
    TypeError, ValueError
        If a column is missing or has invalid values; if there are other events, such as resets,
        steady states or infusions whose rates are parameters; or if a subject has more than
        ``n_doses`` doses.

    References
    ----------
    .. [1] A. J. Boeckmann, L. B. Sheiner and S. L. Beal, "NONMEM Users Guide: Part V", NONMEM
       Project Group, University of California, San Francisco, 1994.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem.pharmacokinetics import doses
    >>> records = {
    ...     "id": np.array([1, 1, 1]),
    ...     "time": np.array([0.0, 6.0, 30.0]),
    ...     "amt": np.array([100.0, 0.0, 0.0]),
    ...     "ii": np.array([12.0, 0.0, 0.0]),
    ...     "addl": np.array([1, 0, 0]),
    ...     "dv": np.array([np.nan, 4.2, 3.1]),
    ... }
    >>> table, regressors = doses(records)
    >>> regressors
    ('time', 'dose_1', 'dose_time_1', 'dose_2', 'dose_time_2')
    >>> table["dose_time_2"]
    array([12., 12.])
    """
    columns = columns_of(table)
    needed = {name: numbers(columns, name, where="") for name in ("amt", time)}
    optional = {name: numbers(columns, name, where="") for name in _COLUMNS[1:] if name in columns}
    records = needed | {name: np.nan_to_num(values) for name, values in optional.items()}
    event = _events(records)
    _check_doses(records, event == 1, time)
    labels = column(columns, subject, "subjects", "")
    names, owners = np.unique(labels.astype(str), return_inverse=True)
    given = _repeated(records, owners, event == 1, time)
    counts = np.bincount(given.owners, minlength=len(names))
    most = int(counts.max(initial=0)) if n_doses is None else n_doses
    if counts.max(initial=0) > most:
        raise ValueError(
            f"Expected at most n_doses={most} doses, got {counts.max()} for subject "
            f"{label_repr(names[counts.argmax()])}. Increase n_doses for all clients."
        )
    observed = event == 0
    kept = {name: values[observed] for name, values in columns.items() if name not in _COLUMNS}
    added = _columns_of_doses(given, len(names), most, "rate" in records)
    kept |= {name: values[owners[observed]] for name, values in added.items()}
    return DosedTable(like_table(table, kept), (time, *added))


def _events(records: dict[str, FloatArray]) -> FloatArray:
    """0 for an observation, 1 for a dose, 2 for what is left out."""
    event = records.get("evid", np.where(records["amt"] > 0, 1.0, 0.0))
    unknown = ~np.isin(event, (0, 1, 2))
    if unknown.any():
        raise ValueError(
            f"Expected evid 0 (observation), 1 (dose) or 2 (other), got {event[unknown][0]:g} in "
            f"row {np.argmax(unknown)}. Recode these records."
        )
    return event


def _check_doses(records: dict[str, FloatArray], is_dose: BoolArray, time: str) -> None:
    """Raise ValueError for doses that a sum of single ones does not describe."""
    none = np.zeros(len(is_dose))
    addl, ii = records.get("addl", none), records.get("ii", none)
    allowed = {
        time: ("finite times", np.isfinite(records[time])),
        "amt": ("amounts >= 0", (records["amt"] >= 0) & np.isfinite(records["amt"])),
        "rate": ("rates >= 0", records.get("rate", none) >= 0),
        "addl": ("integers >= 0", (addl >= 0) & (addl % 1 == 0)),
        "ii": ("times > 0 between additional doses", (addl == 0) | (ii > 0)),
        "ss": ("0, no steady states", records.get("ss", none) == 0),
    }
    for name, (expected, is_right) in allowed.items():
        wrong = np.flatnonzero(is_dose & ~is_right)
        if len(wrong):
            value = records.get(name, none)[wrong[0]]
            raise ValueError(
                f"Expected {expected} in column {name!r} of doses, got {value:g} in row "
                f"{wrong[0]}. Write these doses as single ones."
            )


class _Given(NamedTuple):
    """Doses, sorted by subject and time."""

    owners: NDArray[np.intp]
    times: FloatArray
    amounts: FloatArray
    rates: FloatArray


def _repeated(
    records: dict[str, FloatArray], owners: NDArray[np.intp], is_dose: Any, time: str
) -> _Given:
    """All doses, additional ones included."""
    nothing = np.zeros(len(owners))
    at = np.flatnonzero(is_dose)
    n_each = 1 + records.get("addl", nothing)[at].astype(np.intp)
    rows = np.repeat(at, n_each)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(n_each) - n_each, n_each)
    times = records[time][rows] + number * records.get("ii", nothing)[rows]
    order = np.lexsort((times, owners[rows]))
    rows = rows[order]
    rates = records.get("rate", nothing)[rows]
    return _Given(owners[rows], times[order], records["amt"][rows], rates)


def _columns_of_doses(
    given: _Given, n_subjects: int, n_doses: int, with_rates: bool
) -> dict[str, FloatArray]:
    """Columns with an entry for each subject."""
    first = np.searchsorted(given.owners, np.arange(n_subjects))
    number = np.arange(len(given.owners)) - first[given.owners]
    columns = {}
    kinds = {"dose": given.amounts, "dose_time": given.times, "dose_rate": given.rates}
    if not with_rates:
        del kinds["dose_rate"]
    for k in range(n_doses):
        own = number == k
        for kind, values in kinds.items():
            column = np.zeros(n_subjects)
            column[given.owners[own]] = values[own]
            columns[f"{kind}_{k + 1}"] = column
    return columns
