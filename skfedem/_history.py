"""What happened in each round, as a dictionary of arrays."""

from __future__ import annotations

import numpy as np

_INTEGERS = ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded")


class History:
    """Rows of a table whose columns are fixed by the first row.

    Row 0 is the start; row ``r`` is the state after round ``r``. A value that is learnt later is
    written into its row when it comes.
    """

    def __init__(self):
        self._rows = []

    def append(self, **values):
        """Add a row."""
        self._rows.append(values)

    def update(self, row, **values):
        """Write values into a row (negative numbers count from the last)."""
        self._rows[row].update(values)

    def row(self, number):
        """A row as a dictionary."""
        return self._rows[number]

    def column(self, name, first=0):
        """Values of a column from a row on, as a list (negative numbers count from the last)."""
        return [row[name] for row in self._rows[first:]]

    def keep(self, n_rows):
        """Keep only the first ``n_rows`` rows."""
        del self._rows[n_rows:]

    @classmethod
    def of_dict(cls, columns):
        """History whose ``as_dict`` these arrays are."""
        history = cls()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        history._rows = [dict(zip(columns, row, strict=True)) for row in rows]
        return history

    def as_dict(self):
        """Equal-length arrays by column name; counts are integers."""
        if not self._rows:
            return {}
        return {
            name: np.array(self.column(name), dtype=np.int64 if name in _INTEGERS else np.float64)
            for name in self._rows[0]
        }
