"""What a server is to fit, and with whom: checked, and described to clients."""

from __future__ import annotations

import hashlib
import inspect
import secrets
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from .. import __version__
from .._error_messages import repr_of
from .._imputer.covariates import NO_COVARIATES, GivenCovariates
from .._parameters import parameters_of
from .._serialization import to_bytes
from .._typing import Shape
from . import _covariates
from ._functions import described
from ._readers import READERS


def check_roster(roster: object) -> None:
    """Raise unless a roster is a sequence of different names."""
    if isinstance(roster, str) or not isinstance(roster, Sequence):
        raise TypeError(f"Expected roster to be a list of names, got {repr_of(roster)}.")
    if not roster or not all(isinstance(name, str) and name for name in roster):
        raise ValueError(f"Expected roster to contain names, got {repr_of(roster)}.")
    if len({*roster}) < len(roster):
        raise ValueError(f"Expected roster to contain each name once, got {repr_of(roster)}.")


def check_shape(estimator: BaseEstimator, shape: Shape | None) -> None:
    """Raise unless there is a shape for an estimator of matrices, and for no other."""
    name = type(estimator).__name__
    if getattr(estimator, "rows", "shared") == "disjoint":
        raise ValueError(
            "Expected rows='shared', got 'disjoint': all clients get the effects and factors of "
            "all rows. Disjoint rows are simulated only."
        )
    if getattr(estimator, "client_effects_penalty", None) is not None:
        raise ValueError(
            "Expected client_effects_penalty=None, got "
            f"{estimator.client_effects_penalty!r}. Effects of clients are simulated only."
        )
    if READERS[name].has_shape == (shape is not None) if name in READERS else shape is None:
        return
    wanted = "None" if shape is not None else "(sites, times)"
    raise TypeError(f"Expected shape to be {wanted} for {name}, got {repr_of(shape)}.")


def check_target(estimator: BaseEstimator, target: object, classes: object) -> None:
    """Raise unless there is a target for networks, and classes at most for classifiers."""
    name = type(estimator).__name__
    reader = READERS.get(name)
    has_target, has_classes = reader and reader.has_target, reader and reader.has_classes
    names = [target] if isinstance(target, str) else target
    are_names = isinstance(names, list) and names and all(isinstance(own, str) for own in names)
    if has_target and not (are_names and (not has_classes or isinstance(target, str))):
        wanted = "a name of a column" if has_classes else "names of columns"
        raise TypeError(f"Expected target to be {wanted} for {name}, got {repr_of(target)}.")
    if target is not None and not has_target:
        raise TypeError(f"Expected target to be None for {name}, got {repr_of(target)}.")
    if classes is None:
        return
    if not has_classes or not isinstance(classes, list) or len({*map(type, classes)}) != 1:
        wanted = "a list of labels of one type" if has_classes else "None"
        raise TypeError(f"Expected classes to be {wanted} for {name}, got {repr_of(classes)}.")


def check_covariates(estimator: BaseEstimator, covariates: GivenCovariates) -> None:
    """Raise if there are covariates or groups for an estimator that has no matrix."""
    name = type(estimator).__name__
    has_matrix = name in READERS and READERS[name].has_shape
    for argument, own in covariates._asdict().items():
        if own is not None and not has_matrix:
            raise TypeError(f"Expected {argument} to be None for {name}, got {repr_of(own)}.")


def plan_of(
    estimator: BaseEstimator,
    roster: list[str],
    columns: list[str] | int | None,
    shape: Shape | None = None,
    target: str | list[str] | None = None,
    classes: list[Any] | None = None,
    covariates: GivenCovariates = NO_COVARIATES,
) -> dict[str, Any]:
    """What clients have to agree to, with a digest; the seed is not told."""
    parameters = {name: _plain(value) for name, value in parameters_of(estimator).items()}
    parameters.pop("random_state", None)
    plan = {
        "skfedem": __version__,
        "estimator": type(estimator).__name__,
        "parameters": parameters,
        "features": columns,
        "roster": roster,
        "shape": None if shape is None else [_size(own) for own in shape],
    }
    if target is not None:
        plan |= {"target": target, "classes": classes}
    if any(own is not None for own in covariates):
        plan["covariates"] = _covariates.described(covariates, shape, parameters["effects"])
    return {**plan, "digest": hashlib.sha256(to_bytes(plan)).hexdigest()}


def _size(size: Any) -> Any:
    """Number of rows or columns of a matrix, or their names as text or numbers."""
    if isinstance(size, Integral):
        return int(size)
    return [own if isinstance(own, str | int) else str(own) for own in np.asarray(size).tolist()]


def _plain(value: Any) -> Any:
    """Parameter as it is sent: numbers, strings, arrays and operators; the name of others."""
    if isinstance(value, list | tuple) and np.asarray(value).dtype.kind in "biuf":
        value = np.asarray(value)
    if inspect.isfunction(value):
        return described(value)
    try:
        to_bytes(value)
    except TypeError:
        return f"{type(value).__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
    return value


def seed_of(estimator: BaseEstimator) -> int:
    """Seed of the fit, drawn if it is not given."""
    seed = getattr(estimator, "random_state", None)
    if seed is None:
        return secrets.randbelow(2**31)
    if not isinstance(seed, Integral):
        raise TypeError(
            f"Expected random_state to be an int or None, got a {type(seed).__name__}: a restarted "
            "server has to draw the same numbers."
        )
    return int(seed)
