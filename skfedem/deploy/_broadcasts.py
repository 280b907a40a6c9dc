"""What servers tell of parameters: only numbers from which clients can compute the others.

Clients know the model. So Ŝ is enough for T(Ŝ), coefficients for the terms of covariates, and
networks have the precision of their messages.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from .._serialization import to_bytes
from ..models.matrix.covariates import Covariates
from ..models.matrix.low_rank import NaturalParameters
from ..models.matrix.theta import Theta


def told_of(model: Any, parameters: Any, reference: Any) -> tuple[Any, Any]:
    """Parameters, or None if they are T(Ŝ), and the reference, as they are sent."""
    if hasattr(model, "message_type"):
        weights = _as_sent(model, parameters.weights)
        return parameters._replace(weights=weights), _as_sent(model, reference)
    if isinstance(parameters, NaturalParameters):
        return NaturalParameters(without_terms(parameters.natural)), reference
    if isinstance(reference, np.ndarray):
        with suppress(ValueError):  # Ŝ_0 need not be in the domain of T
            if to_bytes(model.maximization(reference)) == to_bytes(parameters):
                return None, reference
    return parameters, reference


def heard_of(model: Any, parameters: Any, reference: Any) -> tuple[Any, Any]:
    """Inverse of ``told_of``, but for the terms of covariates."""
    if hasattr(model, "message_type"):
        weights = parameters.weights.astype(np.float64)
        return parameters._replace(weights=weights), np.asarray(reference, np.float64)
    return model.maximization(reference) if parameters is None else parameters, reference


def _as_sent(model: Any, numbers: Any) -> Any:
    """Numbers in the precision of messages, if they have no more digits."""
    if not isinstance(numbers, np.ndarray):
        return numbers
    sent = numbers.astype(model.message_type)
    return sent if np.array_equal(sent, numbers) else numbers


def without_terms(argument: Any) -> Any:
    """θ of a matrix without the terms of covariates."""
    return argument._replace(covariates=None) if isinstance(argument, Theta) else argument


def with_terms(argument: Any, known: Covariates | None) -> Any:
    """θ of a matrix, or parameters, with the terms of covariates."""
    if known is not None and isinstance(argument, Theta):
        return argument._replace(covariates=known.terms(argument.effects.coefficients))
    if isinstance(argument, NaturalParameters):
        return NaturalParameters(with_terms(argument.natural, known))
    return argument
