"""Validation of the user's initial values for a mixture, in the rows' units."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..._error_messages import label_repr, repr_of
from ..._federation import SetUp
from ..._history import FLOAT_BITS
from ..._parameters import check_choice, check_number, check_shape, check_shares
from ..._typing import CovarianceType, FloatArray, InitParams
from .covariances import COVARIANCES
from .gaussian_mixture import GaussianMixtureModel
from .messages import n_rows_too_far
from .units import LEAST_VARIANCE, Units

# Advice in error messages if a fit or a stream cannot continue.
_TO_BEGIN_ANEW = "Call fit with warm_start=False, or partial_fit on a clone, after such a change."

# Largest distance or width of a start in standard deviations of the rows, and inverse of the
# smallest width. Densities and message units contain fourth powers of distance / width, which would
# overflow.
_FARTHEST = 1e37
# Largest ratio of reg_covar to a variance of the rows; here, no powers can overflow.
_LARGEST_SHARE = 1e300


@dataclass(eq=False, repr=False)
class MixtureParameters:
    """Parameters of the model and its start, which the estimator inherits with its constructor."""

    n_components: int = 1
    _: KW_ONLY
    covariance_type: CovarianceType = "full"
    fixed_covariance: ArrayLike | None = None
    reg_covar: float = 1e-6
    n_init: int = 1
    init_params: InitParams = "kmeans"
    weights_init: ArrayLike | None = None
    means_init: ArrayLike | None = None
    precisions_init: ArrayLike | None = None


def check_mixture_parameters(settings: MixtureParameters) -> None:
    """Raise TypeError or ValueError for an invalid parameter; initial values are checked later."""
    size = settings.n_components
    is_data = hasattr(size, "__len__") and not isinstance(size, str)
    hint = "Pass data to fit. GridSearchCV compares several numbers." if is_data else ""
    check_number("n_components", size, kind=Integral, low=1, hint=hint)
    check_choice("covariance_type", settings.covariance_type, tuple(COVARIANCES))
    check_choice("init_params", settings.init_params, get_args(InitParams))
    hint = "Use 0 to add nothing to the covariances."
    check_number("reg_covar", settings.reg_covar, low=0, hint=hint)
    check_number("n_init", settings.n_init, kind=Integral, low=1, hint="Use 1 for a single start.")


class InitialParameters(NamedTuple):
    """Validated initial values of the user, in the rows' units; None for those not given."""

    weights: FloatArray | None = None
    means: FloatArray | None = None
    covariances: FloatArray | None = None
    fixed_covariance: FloatArray | None = None


def check_initial_parameters(
    settings: MixtureParameters, n_features: int, fitted: InitialParameters | None = None
) -> InitialParameters:
    """Validate ``weights_init``, ``means_init``, ``precisions_init`` and ``fixed_covariance``.

    If there are fitted parameters to continue from, they take the place of the initial values.
    """
    fixed = _known_covariance(settings, n_features)
    if fitted is not None:
        return fitted._replace(fixed_covariance=fixed)
    size, weights, means = settings.n_components, settings.weights_init, settings.means_init
    if weights is not None:
        weights = check_shares("weights_init", weights, size)
    if means is not None:
        means = check_shape("means_init", means, (size, n_features))
    covariances = _inverses_of_precisions(settings, n_features)
    return InitialParameters(weights, means, covariances, fixed)


def _known_covariance(settings: MixtureParameters, d: int) -> FloatArray | None:
    """Validated ``fixed_covariance``, or None."""
    if settings.fixed_covariance is None:
        return None
    if settings.covariance_type != "tied":
        raise ValueError(
            'Expected covariance_type="tied" with a fixed_covariance, got '
            f"{repr_of(settings.covariance_type)}. It is shared by all components."
        )
    if settings.precisions_init is not None:
        raise ValueError(
            "Expected precisions_init=None with a fixed_covariance, got both. Give one."
        )
    fixed = check_shape("fixed_covariance", settings.fixed_covariance, (d, d))
    _check_positive_definite("fixed_covariance", fixed)
    return fixed / 2 + fixed.T / 2  # a sum of large entries would overflow


def check_same_kind(
    settings: MixtureParameters, n_features: int, before: GaussianMixtureModel
) -> None:
    """Raise if covariance type or number of components or features differ from the last fit."""
    for name, want, got in (
        ("covariance_type", before.covariance_type, settings.covariance_type),
        ("n_components", before.n_components, settings.n_components),
        ("n_features", before.n_features, n_features),
    ):
        if got != want:
            raise ValueError(
                f"Expected {name}={repr_of(want)}, as in the last fit, got {repr_of(got)}. "
                f"{_TO_BEGIN_ANEW}"
            )


def _inverses_of_precisions(settings: MixtureParameters, d: int) -> FloatArray | None:
    """Covariances from the validated ``precisions_init``, or None."""
    if settings.precisions_init is None:
        return None
    structure = COVARIANCES[settings.covariance_type]
    shape = structure.shape(settings.n_components, d)
    precisions = check_shape("precisions_init", settings.precisions_init, shape)
    if structure.has_matrices:
        _check_positive_definite("precisions_init", precisions)
        with np.errstate(over="ignore", invalid="ignore"):  # ``check_spread`` reports it
            _, inverse = structure.cholesky_and_inverse(precisions)
            return structure.precisions(np.swapaxes(inverse, -1, -2))
    if (precisions <= 0).any():
        raise ValueError(
            f"Expected positive precisions_init, got {precisions.min():.3g}. They are inverses of "
            "variances: give 1 / variance."
        )
    with np.errstate(over="ignore"):
        return 1 / precisions


def check_size(units: Units, second_moment: FloatArray) -> None:
    """Raise if values of a feature are so small that their squares underflow.

    Only for a fit without regularisation, which would take such a feature for a constant one.
    """
    has_matrices = units.structure.has_matrices
    variances = np.diagonal(second_moment) if has_matrices else second_moment
    center = np.abs(units.center)
    least = LEAST_VARIANCE**0.5
    small = (variances <= LEAST_VARIANCE) & ((variances > 0) | (center > 0)) & (center <= least)
    if small.all() if units.structure.is_isotropic else small.any():
        raise ValueError(
            f"Expected features with standard deviations above {least:.0e}, got numbers of about "
            f"{center[small][0]:.1e} in column {np.argmax(small)}: their squares are too small for "
            "a double. Multiply such a feature by a power of ten."
        )


def check_distance(model: GaussianMixtureModel, means: FloatArray | None) -> None:
    """Raise if ``means_init`` are so far away that computations would overflow."""
    if means is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        far = ~(np.abs(model.units.means_to_standard(means)).max(axis=1) <= _FARTHEST)
    if far.any():
        raise ValueError(
            f"Expected means_init within {_FARTHEST:g} standard deviations of the rows, got "
            f"{means[np.argmax(far)].tolist()} for component {np.argmax(far)}. Give it in the "
            "units of the rows."
        )


def check_distance_of_rows(
    model: GaussianMixtureModel, initial: InitialParameters, clients: SetUp, ids: NDArray[Any]
) -> None:
    """Raise if rows are too far from those that the units were computed from.

    ``ids`` are the labels of the clients. A feature that has been constant so far has no unit yet,
    unless the covariance is known.
    """
    question = model, _FARTHEST, initial.fixed_covariance is not None
    # Clients without such rows need not answer.
    if not clients.sum(n_rows_too_far, *question, n_bits=_bits_of_refusal)[0] > 0:
        return
    every = np.arange(clients.sizes.n_clients)
    counts = np.concatenate(clients.collect(n_rows_too_far, every, *question))
    raise ValueError(
        f"Expected rows within {_FARTHEST:g} standard deviations of those that the first call or "
        f"fit had, got {counts.max():.0f} beyond for client {label_repr(ids[counts.argmax()])}. "
        "Drop such rows, or start over with warm_start=False if the units have changed."
    )


def _bits_of_refusal(n_too_far: FloatArray) -> int:
    return FLOAT_BITS * int(n_too_far[0] > 0)


def check_spread(model: GaussianMixtureModel, name: str, covariances: FloatArray | None) -> None:
    """Raise if covariances, given in the rows' units, are too large or small in standard units."""
    if covariances is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        standard = model.units.covariances_to_standard(covariances)
    variances = model.structure.variances(standard)
    if not (variances.min() >= _FARTHEST**-2 and variances.max() <= _FARTHEST**2):
        found = model.structure.variances(covariances)
        raise ValueError(
            f"Expected {name} with variances within a factor of {_FARTHEST**2:g} of those of the "
            f"rows, got variances from {found.min():.3g} to {found.max():.3g}. Give it in the "
            "units of the rows."
        )


def check_regularization(model: GaussianMixtureModel) -> None:
    """Raise if ``reg_covar`` is too large in standard units."""
    with np.errstate(over="ignore", invalid="ignore"):
        variances = model.structure.variances(model.standard_reg_covar)
    if not np.max(variances) <= _LARGEST_SHARE:
        raise ValueError(
            f"Expected reg_covar to be at most {_LARGEST_SHARE:g} times the variances of the rows, "
            f"got {model.reg_covar:g}. Give it in the units of the rows, squared, or scale the "
            "rows."
        )


def _check_positive_definite(name: str, matrices: FloatArray) -> None:
    expected = f"Expected {name} to be symmetric and positive definite"
    variances = np.diagonal(matrices, axis1=-2, axis2=-1)
    if variances.min() < 0:
        raise ValueError(
            f"{expected}, got {variances.min():.3g} on a diagonal. Give positive numbers there."
        )
    # Scaled to a unit diagonal, so that tolerances do not depend on the units of features.
    scale = np.sqrt(np.where(variances > 0, variances, 1.0))
    scaled = matrices / scale[..., :, None] / scale[..., None, :]
    if not np.allclose(scaled, np.swapaxes(scaled, -1, -2)):
        apart = np.abs(matrices - np.swapaxes(matrices, -1, -2)).max()
        raise ValueError(
            f"{expected}, got one that differs from its transpose by up to {apart:.3g}. Give the "
            "mean of the two."
        )
    smallest = np.linalg.eigvalsh(scaled).min()
    if smallest <= 0:
        raise ValueError(
            f"{expected}, got the eigenvalue {smallest:.3g} with a unit diagonal. Drop features "
            "that are constant or follow from others, or add a positive number to the diagonal."
        )
