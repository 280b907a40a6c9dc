"""History of the rounds, as a dictionary of arrays."""

from __future__ import annotations

from array import array
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# Number of bits of an uncompressed number, a double.
FLOAT_BITS = 64
_INTEGERS = ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded")


class History:
    """Rows of a table whose columns are fixed by the first row.

    Row 0 is the start; row ``r`` is the state after round ``r``. Values that become known later are
    written into their row. Negative row numbers count from the end.
    """

    def __init__(self) -> None:
        # Arrays instead of lists, because every save copies the columns.
        self._columns: dict[str, array[Any]] = {}

    def append(self, **values: float) -> None:
        """Add a row."""
        if not self._columns:
            self._columns = {name: array(_type_code(name)) for name in values}
        row = {name: values[name] for name in self._columns}
        for name, value in row.items():
            self._columns[name].append(value)

    def update(self, row: int, **values: float) -> None:
        """Write values into a row."""
        for name, value in values.items():
            self._columns[name][row] = value

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Values of a column, as an array."""
        return np.array(self._columns[name])

    def row(self, number: int) -> dict[str, float]:
        """A row as a dictionary."""
        return {name: column[number] for name, column in self._columns.items()}

    def column(self, name: str) -> list[float]:
        """Values of a column, as a list."""
        return self._columns[name].tolist()

    def keep(self, n_rows: int) -> None:
        """Keep only the first ``n_rows`` rows."""
        for column in self._columns.values():
            del column[n_rows:]

    @classmethod
    def of_dict(cls, columns: dict[str, NDArray[Any]]) -> History:
        """History from the arrays of ``as_dict``."""
        history = cls()
        history._columns = {
            name: array(_type_code(name), column.tolist()) for name, column in columns.items()
        }
        return history

    def as_dict(self) -> dict[str, NDArray[Any]]:
        """Equal-length arrays by column name; counts are integers."""
        return {name: np.array(column) for name, column in self._columns.items()}


def _type_code(name: str) -> Literal["q", "d"]:
    return "q" if name in _INTEGERS else "d"
