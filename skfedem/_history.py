"""What happened in each round, as a dictionary of arrays."""

from __future__ import annotations

import numpy as np

_INTEGERS = ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded")


class History:
    """Rows of a table whose columns are fixed by the first row.

    Row 0 is the start; row ``r`` is the state after round ``r``. A value that is learnt later is
    written into its row when it comes. Columns are arrays with room for more rows, so that a save
    copies them and does not read row by row what was saved before.
    """

    def __init__(self):
        self._columns, self._n_rows = {}, 0

    def append(self, **values):
        """Add a row."""
        if not self._columns:
            self._columns = {name: np.empty(64, dtype=_dtype(name)) for name in values}
        elif self._n_rows == len(next(iter(self._columns.values()))):
            for name, column in self._columns.items():
                room = np.empty(len(column) + 64, dtype=column.dtype)
                self._columns[name] = np.concatenate([column, room])
        for name, column in self._columns.items():
            column[self._n_rows] = values[name]
        self._n_rows += 1

    def update(self, row, **values):
        """Write values into a row (negative numbers count from the last)."""
        at = row + self._n_rows if row < 0 else row
        for name, value in values.items():
            self._columns[name][at] = value

    def row(self, number):
        """A row as a dictionary."""
        at = number + self._n_rows if number < 0 else number
        return {name: column[at].item() for name, column in self._columns.items()}

    def column(self, name, first=0):
        """Values of a column from a row on, as a list (negative numbers count from the last)."""
        return self._columns[name][: self._n_rows][first:].tolist()

    def keep(self, n_rows):
        """Keep only the first ``n_rows`` rows."""
        self._n_rows = min(self._n_rows, n_rows)

    @classmethod
    def of_dict(cls, columns):
        """History whose ``as_dict`` these arrays are."""
        history = cls()
        history._columns = {name: np.array(column) for name, column in columns.items()}
        history._n_rows = len(next(iter(columns.values()), ()))
        return history

    def as_dict(self):
        """Equal-length arrays by column name; counts are integers."""
        return {name: column[: self._n_rows].copy() for name, column in self._columns.items()}


def _dtype(name):
    return np.int64 if name in _INTEGERS else np.float64
