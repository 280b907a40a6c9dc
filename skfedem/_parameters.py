"""Checks of parameters, with messages on what was expected, what was got, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import copy
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array

from ._compat import parameter_names
from ._error_messages import label_repr, repr_of
from ._typing import FloatArray, IntArray
from ._warnings import warn

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # in typing from Python 3.13 on

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Estimator = TypeVar("_Estimator", bound=BaseEstimator)


def check_number(
    name: str,
    value: Any,
    *,
    kind: type[Any] = Real,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
    high_open: bool = False,
    hint: str = "",
) -> None:
    """Raise if a parameter is not a number within its bounds.

    Bounds are inclusive unless ``low_open`` or ``high_open`` is set; ``high`` requires ``low``. The
    ``hint`` ends the message.
    """
    number, bounds = "an integer" if kind is Integral else "a number", ""
    if low is not None:
        bounds += f" {'>' if low_open else '>='} {low}"
    if high is not None:
        bounds += f" and {'<' if high_open else '<='} {high}"
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(
            (
                f"Expected {name} to be {number}{bounds}, got {repr_of(value)} of type "
                f"{type(value).__name__}. {hint}"
            ).rstrip()
        )
    # Integers may be larger than any float.
    is_finite = value == value and abs(value) != np.inf
    inside = is_finite and (kind is Integral or abs(python_number(value)) <= sys.float_info.max)
    inside = inside and (low is None or value > low or (value == low and not low_open))
    inside = inside and (high is None or value < high or (value == high and not high_open))
    if not inside:
        if not is_finite:
            number = "a finite number"
        raise ValueError(
            f"Expected {name} to be {number}{bounds}, got {repr_of(value)}. {hint}".rstrip()
        )


def check_counts(**values: object) -> None:
    """Raise if one of some parameters is not an integer >= 1."""
    for name, value in values.items():
        check_number(name, value, kind=Integral, low=1)


def check_positive(**values: object) -> None:
    """Raise if one of some parameters is not a number > 0."""
    for name, value in values.items():
        check_number(name, value, low=0, low_open=True)


def check_not_negative(**values: object) -> None:
    """Raise if one of some parameters is not a number >= 0."""
    for name, value in values.items():
        check_number(name, value, low=0)


def check_choice(name: str, value: object, choices: Sequence[str], *, hint: str = "") -> None:
    """Raise if a parameter is not one of some strings."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(map(repr, choices))
        # A high cutoff: "non-iid" must not suggest "iid", its opposite.
        said = value.lower() if isinstance(value, str) else ""
        close = get_close_matches(said, choices, n=1, cutoff=0.7)
        advice = f"Did you mean {close[0]!r}?" if close else "Give one of these."
        raise ValueError(
            f"Expected {name} to be one of {names}, got {repr_of(value)}. {advice} {hint}".rstrip()
        )


def python_number(value: Any) -> Any:
    """Number as int or float; other values are returned unchanged.

    NumPy's integers wrap around, its short floats lack precision, and arrays cannot hold fractions.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def takes_python_numbers(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator that converts arguments by ``python_number``."""

    @wraps(function)
    def computed(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        numbers: list[Any] = list(map(python_number, args))
        named: dict[str, Any] = {name: python_number(value) for name, value in kwargs.items()}
        return function(*numbers, **named)

    return computed


def parameters_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Parameters by name, including those that a subclass fixes or takes as ``**kwargs``."""
    names = [name for kind in type(estimator).__mro__ for name in parameter_names(kind)]
    inherited = {name: getattr(estimator, name) for name in names if hasattr(estimator, name)}
    return {**inherited, **estimator.get_params(deep=False)}


def unfitted(estimator: _Estimator) -> _Estimator:
    """Copy of an estimator with the same parameters, without fitted features."""
    checked = copy(estimator)
    for name in ("n_features_in_", "feature_names_in_"):
        vars(checked).pop(name, None)
    return checked


def read_parameters(estimator: BaseEstimator) -> Any:
    """Record of all parameters of an estimator, as Python's numbers; nothing else of it."""
    parameters = parameters_of(estimator)
    return SimpleNamespace(**{name: python_number(value) for name, value in parameters.items()})


def check_shape(name: str, value: object, shape: tuple[int, ...]) -> FloatArray:
    """Convert a parameter to a finite float array of a shape, or raise."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        raise ValueError(f"Expected {name} to be real numbers, got dtype {value.dtype}.")
    try:
        hidden_as_nan = np.ma.filled(np.ma.asarray(value, dtype=np.float64), np.nan)
        array = np.atleast_1d(hidden_as_nan)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"Expected {name} to be numbers of shape {shape}, got {repr_of(value)}."
        ) from error
    if array.shape != shape:
        raise ValueError(f"Expected {name} to have shape {shape}, got {array.shape}.")
    return check_array(array, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name=name)


def check_shares(name: str, value: object, size: int) -> FloatArray:
    """Convert a parameter to an array of ``size`` shares that sum to 1, or raise."""
    shares = check_shape(name, value, (size,))
    if (shares < 0).any() or not np.isclose(shares.sum(), 1):
        what_to_do = "Normalise them." if shares.min() >= 0 else "Give a share >= 0 for each."
        raise ValueError(
            f"Expected {name} to be non-negative and to sum to 1, got a smallest of "
            f"{shares.min():.3g} and a sum of {shares.sum():.6g}. {what_to_do}"
        )
    return shares


def check_rank(name: str, rank: int | None, shape: tuple[int, int]) -> None:
    """Raise if a rank is too large for the shape of the matrix; None is accepted."""
    if rank is not None and rank > min(shape):
        raise ValueError(
            f"Expected {name} <= min(n_rows, n_columns), got {rank} for a matrix of shape {shape} "
            f"(n_samples = {shape[0]}, n_features = {shape[1]}). Use a smaller rank, or None for "
            "no bound."
        )


def check_enough_rows(n_samples: int, n_components: int) -> None:
    """Raise if there are fewer rows than components."""
    if n_samples < n_components:
        raise ValueError(
            f"Expected n_samples >= n_components, got n_samples = {n_samples} and n_components = "
            f"{n_components}. Use fewer components or more rows."
        )


def check_minibatches(
    estimator: BaseEstimator,
    lengths: IntArray,
    ids: NDArray[Any],
    what: str,
    *,
    weighted: bool = False,
) -> None:
    """Raise if some client cannot draw minibatches without replacement.

    Warn if minibatches with replacement are larger than the data of every client. ``what`` is the
    plural noun for the ``lengths`` of clients, and ``weighted`` whether these have weights.
    """
    batch_size = estimator.batch_size
    if batch_size is None:
        return
    if estimator.replacement:
        if batch_size > lengths.max():
            warn(
                f"batch_size={batch_size} is more {what} than any client has (at most "
                f"{lengths.max()}). Use batch_size=None, which reads each of them once.",
                UserWarning,
            )
        return
    if weighted:
        raise ValueError(
            f"Expected replacement=True with batch_size={batch_size} and a sample_weight, got "
            f"False: {what} are drawn in proportion to their weights. Use replacement=True, or "
            "batch_size=None."
        )
    too_short = np.flatnonzero(lengths < batch_size)
    if len(too_short):
        first = too_short[0]
        raise ValueError(
            f"Expected batch_size={batch_size} {what} for every client with replacement=False, "
            f"got {lengths[first]} for client {label_repr(ids[first])}. Use replacement=True, or a "
            f"batch_size of at most {lengths.min()}."
        )


def is_auto(value: object) -> TypeIs[Literal["auto"]]:
    """Whether a parameter is the string "auto"."""
    return isinstance(value, str) and value == "auto"


def check_switch(name: str, value: object) -> None:
    """Raise if a parameter is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"Expected {name} to be True or False, got {repr_of(value)}.")


def check_n_jobs(value: object) -> None:
    """Raise if a number of jobs is not one that joblib accepts."""
    hint = "Give a number of jobs, -1 for all processors, or None."
    if value is not None:
        check_number("n_jobs", value, kind=Integral, hint=hint)
        if value == 0:
            raise ValueError(f"Expected n_jobs to be an integer other than 0, got 0. {hint}")


def check_verbose(value: object) -> None:
    """Raise if a verbosity is neither a number nor a boolean."""
    if not isinstance(value, bool | np.bool_):
        check_number("verbose", value, low=0, hint="0 prints nothing.")
