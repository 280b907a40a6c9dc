"""The design of a population model, from an estimator's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .._error_messages import repr_of
from .._parameters import check_choice, check_number
from .._typing import BoolArray, FloatArray
from ..models.mixed_effects.conditional import Structure
from ..models.mixed_effects.layout import Layout
from ..models.mixed_effects.residual_errors import ERRORS, ResidualError
from ..models.mixed_effects.transforms import Transform, transform_of


class Design(NamedTuple):
    """What a population model is made of, apart from data and estimates.

    Attributes
    ----------
    structure : callable
        Structural model.
    transforms : dict of Transform
        By the names of the parameters, in their order.
    start : ndarray of shape (p,)
        Values of φ to start from.
    covariates : tuple of str
        Columns of covariates, without the constant.
    mask : ndarray of bool, shape (c, p)
        What covariate acts on what parameter; the constant, which comes first, acts on all.
    is_full : bool
        Whether random effects may be correlated.
    error_name : str
        Key of ``ERRORS``, whose functions cannot be pickled.
    subject, response : str
        Columns.
    regressors : tuple of str
        Columns.
    """

    structure: Structure
    transforms: dict[str, Transform]
    start: FloatArray
    covariates: tuple[str, ...]
    mask: BoolArray
    is_full: bool
    error_name: str
    subject: str
    response: str
    regressors: tuple[str, ...]

    @property
    def error(self) -> ResidualError:
        """Residual error."""
        return ERRORS[self.error_name]

    @property
    def layout(self) -> Layout:
        """Places of numbers in vectors."""
        return Layout(self.mask, self.is_full, len(self.error.names))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(self.transforms)


def design_of(estimator: Any) -> Design:
    """Design from the parameters of an estimator; raise TypeError or ValueError if invalid."""
    if not callable(estimator.model):
        raise TypeError(
            "Expected model to be a function of (parameters, regressors), got "
            f"{repr_of(estimator.model)}. Give one, as those of skfedem.pharmacokinetics."
        )
    hint = (
        "Parameters without a random effect are planned; until then, fix theirs in the model, or "
        "give all of them one."
    )
    check_choice("covariance_type", estimator.covariance_type, ("diag", "full"), hint=hint)
    check_choice("error", estimator.error, tuple(ERRORS))
    for role in ("subject", "response"):
        if not isinstance(getattr(estimator, role), str):
            raise TypeError(
                f"Expected {role} to be the name of a column, got "
                f"{repr_of(getattr(estimator, role))}. Give a string."
            )
    names = _checked_start(estimator.start)
    transforms = _transforms(estimator.transform, names)
    covariates, mask = _mask(estimator.covariates, names)
    return Design(
        structure=estimator.model,
        transforms=transforms,
        start=_gaussian_start(estimator.start, transforms),
        covariates=covariates,
        mask=mask,
        is_full=estimator.covariance_type == "full",
        error_name=estimator.error,
        subject=estimator.subject,
        response=estimator.response,
        regressors=_column_names("regressors", estimator.regressors),
    )


def _checked_start(start: Any) -> tuple[str, ...]:
    """Names of the parameters."""
    is_dict = isinstance(start, Mapping) and bool(start)
    if not is_dict or not all(isinstance(name, str) for name in start):
        raise TypeError(
            "Expected start to be a dict with a value for each parameter of the model, got "
            f'{repr_of(start)}. Give one, as {{"V": 20.0, "CL": 0.5}}.'
        )
    for name, value in start.items():
        check_number(f"start[{name!r}]", value)
    return tuple(start)


def _transforms(given: Any, names: tuple[str, ...]) -> dict[str, Transform]:
    if not isinstance(given, Mapping):
        return {name: transform_of(given, name) for name in names}
    _refuse_unknown("transform", given, names)
    return {name: transform_of(given.get(name, "identity"), name) for name in names}


def _gaussian_start(start: Mapping[str, float], transforms: dict[str, Transform]) -> FloatArray:
    for name, transform in transforms.items():
        if not transform.low < start[name] < transform.high:
            raise ValueError(
                f"Expected start[{name!r}] between {transform.low:g} and {transform.high:g}, as "
                f"transform={transform.name!r} requires, got {start[name]}. Give a value inside."
            )
    pairs = transforms.items()
    return np.array([transform.to_gaussian(float(start[name])) for name, transform in pairs])


def _mask(given: Any, names: tuple[str, ...]) -> tuple[tuple[str, ...], BoolArray]:
    """Names of the covariates in the order of their mention, and the mask."""
    if given is None:
        return (), np.ones((1, len(names)), dtype=bool)
    if not isinstance(given, Mapping):
        raise TypeError(
            "Expected covariates to be None or a dict from parameters to columns, got "
            f'{repr_of(given)}. Give one, as {{"CL": ["log_weight"]}}.'
        )
    _refuse_unknown("covariates", given, names)
    lists = {name: _column_names(f"covariates[{name!r}]", given[name]) for name in given}
    covariates = tuple(dict.fromkeys(column for columns in lists.values() for column in columns))
    acts = [[column in lists.get(name, ()) for name in names] for column in covariates]
    return covariates, np.array([[True] * len(names), *acts])


def _refuse_unknown(what: str, given: Mapping[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(
            f"Expected the keys of {what} to be parameters of start, {list(names)}, got "
            f"{unknown[0]!r}. Correct the name, or add it to start."
        )


def _column_names(what: str, given: Any) -> tuple[str, ...]:
    """Tuple of names of columns; a string is a single name."""
    names = (given,) if isinstance(given, str) else given
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not is_list or len(set(names)) < len(names):
        raise TypeError(
            f"Expected {what} to be a list of different names of columns, got {repr_of(given)}. "
            "Give their names."
        )
    return tuple(names)


def design_again(design: Design, fitted: Design) -> Design:
    """Design of a fit that starts where another one ended, with its centre of φ.

    Raises ValueError if the two do not have the same estimates.
    """
    same = (
        design.names == fitted.names
        and design.covariates == fitted.covariates
        and np.array_equal(design.mask, fitted.mask)
        and (design.is_full, design.error_name) == (fitted.is_full, fitted.error_name)
        and [own.name for own in design.transforms.values()]
        == [own.name for own in fitted.transforms.values()]
    )
    if not same:
        raise ValueError(
            "Expected the parameters, transforms, covariates, covariance_type and error of the "
            "last fit with warm_start=True, got others. Use warm_start=False."
        )
    return design._replace(start=fitted.start)
