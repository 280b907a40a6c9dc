"""Covariates of a fit: from what the user gave to the model, and back to fitted attributes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._data.cells import CellData
from .._data.covariates import CovariateTable, numbered, read_covariates
from .._data.frame_labels import check_labels, series_labels
from .._typing import EffectsName, FloatArray, IntArray, Table
from ..models.matrix.covariates import Covariates


class GivenCovariates(NamedTuple):
    """Arguments of ``fit``."""

    row_covariates: Table | None = None
    column_covariates: Table | None = None
    row_groups: ArrayLike | None = None


NO_COVARIATES = GivenCovariates()


class KnownCovariates(NamedTuple):
    """Covariates of rows and columns as the user named them, and groups of rows.

    Attributes
    ----------
    rows, columns : CovariateTable
    groups : ndarray
        Labels of the groups; empty if there are none.
    numbers : ndarray of int, shape (n_rows,)
        Group of each row.
    with_effects : bool
        Whether groups have their own effects of columns.
    n_clients : int
        Number of clients with an effect.
    """

    rows: CovariateTable
    columns: CovariateTable
    groups: NDArray[Any]
    numbers: IntArray
    with_effects: bool
    n_clients: int

    @property
    def design(self) -> Covariates | None:
        """What the model knows; None if there is nothing."""
        n_groups = max(1, len(self.groups))
        n_names = len(self.rows.names) + len(self.columns.names)
        if not n_names and n_groups == 1 and not self.n_clients:
            return None
        values = self.rows.values, self.columns.values
        return Covariates(*values, self.numbers, n_groups, self.with_effects, self.n_clients)

    def attributes(self, coefficients: FloatArray) -> dict[str, Any]:
        """Fitted attributes, in the units of the user."""
        design = self.design
        of_rows, of_columns, effects = np.empty(0), np.empty((1, 0)), None
        if design is not None:
            of_rows, of_columns, effects, _ = design.split(coefficients)
        has_groups = len(self.groups) > 0
        of_columns = of_columns / self.columns.scale
        return {
            "row_coef_": of_rows / self.rows.scale,
            "column_coef_": of_columns if has_groups else of_columns[0],
            "group_effects_": effects if self.with_effects else None,
            "_coefficients": coefficients.copy(),
        }


def n_client_effects(settings: Any, data: CellData) -> int:
    """Number of clients with an effect."""
    return 0 if settings.client_effects_penalty is None else len(data.observers)


def check_client_effects(settings: Any, *, share_rows: bool) -> None:
    """Raise if clients have effects that are those of their rows, or without common effects."""
    if settings.client_effects_penalty is None or (share_rows and settings.effects != "none"):
        return
    raise ValueError(
        "Expected client_effects_penalty=None with effects='none', rows='disjoint' or a matrix "
        f"whose rows have client labels, got {settings.client_effects_penalty!r}. Clients need "
        "common rows to differ there: give a list, or triplets with their clients."
    )


def read_given(
    given: GivenCovariates,
    shape: tuple[int, int],
    labels: tuple[Any, Any],
    effects: EffectsName,
    n_clients: int = 0,
) -> KnownCovariates:
    """Validate covariates and groups of a matrix with these labels."""
    if effects == "none" and any(own is not None for own in given):
        raise ValueError(
            "Expected no covariates or groups with effects='none', got some. Use effects='rows', "
            "'columns' or 'both'."
        )
    n_rows, n_columns = shape
    groups: NDArray[Any] = np.empty(0)
    numbers: IntArray = np.zeros(n_rows, dtype=np.intp)
    if given.row_groups is not None:
        if effects == "rows" and given.column_covariates is None:
            raise ValueError(
                "Expected column_covariates, or effects of columns, with row_groups, got neither: "
                "groups differ in these. Use effects='both' or 'columns'."
            )
        groups, numbers = numbered(given.row_groups, n_rows, "row_groups")
        own = series_labels(given.row_groups)
        check_labels("row", labels[0], own, "Reindex row_groups", "the matrix")
    return KnownCovariates(
        read_covariates(given.row_covariates, n_rows, "row", labels[0], "row_covariates"),
        read_covariates(
            given.column_covariates, n_columns, "column", labels[1], "column_covariates"
        ),
        groups,
        numbers,
        with_effects=len(groups) > 1 and effects != "rows",
        n_clients=n_clients,
    )
