"""Measurements and answers of fitted population models, for their displays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .._data.long_tables import Columns, columns_of, is_long_table, numbers
from .._mixed_effects.fitted import FittedMixedEffects
from .._typing import FloatArray
from ._figures import last_step

LEVELS: tuple[Literal["population", "individual"], ...] = ("population", "individual")


def population_model(estimator: Any) -> FittedMixedEffects:
    """Fitted population model, possibly in a search; raise TypeError for another estimator."""
    model, _ = last_step(estimator)
    if not isinstance(model, FittedMixedEffects):
        raise TypeError(
            f"Expected a FederatedNonlinearMixedEffects, got {type(model).__name__}. Give a fitted "
            "population model."
        )
    return model


def x_column(model: FittedMixedEffects, x: str | None) -> str:
    """Name of the column of the x axis: by default, the first regressor."""
    return model._design.regressors[0] if x is None else x


def tables_of(X: Any) -> list[Columns]:
    """Columns of one table, or of each table of a list."""
    return [columns_of(table) for table in ([X] if is_long_table(X) else X)]


def joined_column(X: Any, name: str) -> FloatArray:
    """A column of numbers of all tables."""
    return np.concatenate([numbers(table, name, where="") for table in tables_of(X)])


def joined(answer: Any) -> FloatArray:
    """What a model answers for one table, or for all tables of a list, along the last axis."""
    return np.concatenate(answer, axis=-1) if isinstance(answer, tuple) else answer
