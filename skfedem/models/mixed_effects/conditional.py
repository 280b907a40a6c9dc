"""The conditional distribution of a subject's parameters, given its measurements.

It is computed for z with φ = centre + Bᵀ x + L z and Ω = L Lᵀ: the prior of z is standard normal,
so that no covariance is inverted, however small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..._typing import BoolArray, FloatArray
from .residual_errors import ResidualError, information, minus_log_density, score
from .subjects import Subjects, sum_in_order
from .transforms import Transform

Structure = Callable[[Mapping[str, FloatArray], Mapping[str, FloatArray]], Any]
"""Structural model: predictions from the parameters and the regressors, dicts of arrays."""

# Half the distance of points for derivatives in z: the errors of rounding, 1e-16 f / h, and of the
# difference, h² f''' / 6, are about equal.
_APART = 1e-5
# A mode has been found when the next step promises less than this, in nats.
_ACCURACY = 1e-8
_MOST_STEPS = 60


class Population(NamedTuple):
    """A population model, and its parameters for each subject.

    Attributes
    ----------
    structure : callable
    transforms : dict of Transform
        By the names of the parameters, in their order.
    error : ResidualError
    means : ndarray of shape (p, N)
        Bᵀ x, plus the centre.
    root : ndarray of shape (p, p, 1) or (p, p, N)
        L, lower triangular.
    squares : ndarray of shape (r, 1) or (r, N)
    """

    structure: Structure
    transforms: Mapping[str, Transform]
    error: ResidualError
    means: FloatArray
    root: FloatArray
    squares: FloatArray

    def take(self, positions: Any) -> Population:
        """The population for some of the subjects."""
        root, squares = self.root, self.squares
        return self._replace(
            means=self.means[:, positions],
            root=root if root.shape[-1] == 1 else root[:, :, positions],
            squares=squares if squares.shape[-1] == 1 else squares[:, positions],
        )

    def rounded(self) -> Population:
        """The population with numbers in single precision."""
        numbers = (self.means, self.root, self.squares)
        means, root, squares = (own.astype(np.float32).astype(np.float64) for own in numbers)
        return self._replace(means=means, root=root, squares=squares)

    def effects(self, z: FloatArray) -> FloatArray:
        """η = L z, of shape (p, ..., N)."""
        effects = np.zeros_like(z)
        for i in range(len(z)):
            for j in range(i + 1):
                effects[i] += self.root[i, j] * z[j]
        return effects

    def gaussian(self, z: FloatArray) -> FloatArray:
        """φ, of shape (p, ..., N)."""
        between = (slice(None),) + (None,) * (z.ndim - 2)
        return self.means[between] + self.effects(z)


class Fit(NamedTuple):
    """Predictions f and residuals r, on logarithms if the error is, and minus log p(y | φ)."""

    predicted: FloatArray
    residuals: FloatArray
    loss: FloatArray


def predict(population: Population, subjects: Subjects, gaussian: FloatArray) -> FloatArray:
    """Predictions of shape (n, ..., N) for φ of shape (p, ..., N); NaN and inf are possible."""
    shape = (len(subjects.response), *gaussian.shape[1:])
    between = (slice(None),) + (None,) * (gaussian.ndim - 2)
    with np.errstate(all="ignore"):
        parameters = {
            name: transform.to_subject(phi)
            for (name, transform), phi in zip(population.transforms.items(), gaussian, strict=True)
        }
        regressors = {name: values[between] for name, values in subjects.regressors.items()}
        try:
            predicted = np.asarray(population.structure(parameters, regressors), dtype=np.float64)
        except KeyError as error:
            raise ValueError(
                f"Expected a structural model of the parameters {list(parameters)} and the "
                f"regressors {list(regressors)}, got one that reads {error} as well. Add it to "
                "start or to regressors."
            ) from error
    if predicted.shape == shape:
        return predicted
    try:
        return np.broadcast_to(predicted, shape)
    except ValueError as error:
        raise ValueError(
            f"Expected the structural model to give an array of shape {shape} for parameters of "
            f"shape {shape[1:]} and regressors of shape {subjects.response[between].shape}, got "
            f"{predicted.shape}. Write it elementwise."
        ) from error


def fit_of(population: Population, subjects: Subjects, gaussian: FloatArray) -> Fit:
    """``Fit`` for φ of shape (p, ..., N); the loss is inf where a prediction is of no use."""
    between = (slice(None),) + (None,) * (gaussian.ndim - 2)
    predicted = predict(population, subjects, gaussian)
    observed = subjects.observed[between]
    with np.errstate(all="ignore"):
        if population.error.is_on_logarithms:
            predicted = np.log(predicted)
        residuals = subjects.response[between] - predicted
        losses = minus_log_density(residuals, predicted, population.squares, population.error)
        loss = sum_in_order(np.where(observed, losses, 0.0))
    return Fit(predicted, residuals, np.where(np.isfinite(loss), loss, np.inf))


class Modes(NamedTuple):
    """Modes of z given y, and the curvature there.

    Attributes
    ----------
    z : ndarray of shape (p, N)
    curvature : ndarray of shape (N, p, p)
        ``I + (J L)ᵀ W (J L)``, the inverse of Γ in units of z; W has the Fisher information of the
        observations. NaN if the loss at z = 0 is not finite.
    """

    z: FloatArray
    curvature: FloatArray


class _Point(NamedTuple):
    """Minus the logarithm of the joint density of y and z, up to a constant, with derivatives."""

    z: FloatArray
    value: FloatArray
    gradient: FloatArray
    curvature: FloatArray

    def take(self, positions: Any) -> _Point:
        """The same for some of the subjects."""
        return _Point(
            self.z[:, positions],
            self.value[positions],
            self.gradient[:, positions],
            self.curvature[positions],
        )


def find_modes(population: Population, subjects: Subjects) -> Modes:
    """Modes by Gauss-Newton steps from z = 0, damped as Levenberg and Marquardt did.

    Each subject has its own damping, and stops when its next step promises no gain.
    """
    n_subjects = subjects.n_subjects
    numbers = np.arange(n_subjects)
    point = _point_at(population, subjects, np.zeros_like(population.means))
    modes = Modes(point.z, point.curvature)
    damping, is_open = np.zeros(n_subjects), np.ones(n_subjects, dtype=bool)
    for _ in range(_MOST_STEPS):
        step, promise = _damped_step(point, damping)
        proposal = _point_at(population, subjects, point.z + step)
        better = proposal.value <= point.value
        point = _chosen(better & is_open, proposal, point)
        # Damped steps promise little, wherever they are; so does a step that rounding refuses.
        is_open &= ~((promise < _ACCURACY) & (better | (damping > 1))) & (damping < 1e10)
        damping = np.where(better, np.where(damping > 1e-3, 0.1 * damping, 0.0), 10 * damping)
        damping = np.where(better, damping, np.maximum(damping, 1e-2))
        if 2 * np.count_nonzero(is_open) <= len(is_open):
            modes.z[:, numbers], modes.curvature[numbers] = point.z, point.curvature
            numbers, damping, point = numbers[is_open], damping[is_open], point.take(is_open)
            population, subjects = population.take(is_open), subjects.take(is_open)
            is_open = is_open[is_open]
            if not len(is_open):
                return modes
    modes.z[:, numbers], modes.curvature[numbers] = point.z, point.curvature
    return modes


def _damped_step(point: _Point, damping: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Step, and twice the gain that it promises; none where the loss is not finite."""
    system, gradient = point.curvature.copy(), point.gradient
    diagonal = np.einsum("nii->ni", system)
    diagonal += damping[:, None] * diagonal
    usable = np.isfinite(point.value) & np.isfinite(system).all(axis=(1, 2))
    usable &= np.isfinite(gradient).all(axis=0)
    if not usable.all():
        system[~usable], gradient = np.eye(len(gradient)), np.where(usable, gradient, 0.0)
    step = -np.linalg.solve(system, gradient.T[:, :, None])[:, :, 0].T.astype(np.float64)
    return step, -(gradient * step).sum(axis=0)


def _chosen(where: BoolArray, new: _Point, old: _Point) -> _Point:
    return _Point(
        np.where(where, new.z, old.z),
        np.where(where, new.value, old.value),
        np.where(where, new.gradient, old.gradient),
        np.where(where[:, None, None], new.curvature, old.curvature),
    )


def _point_at(population: Population, subjects: Subjects, z: FloatArray) -> _Point:
    """Value and derivatives; the curvature is the expected one."""
    p = len(z)
    everything, slopes = _with_slopes(population, subjects, z)
    fit = Fit(*(array[..., 0, :] for array in everything))
    with np.errstate(all="ignore"):
        error, squares, observed = population.error, population.squares, subjects.observed
        weights = np.where(observed, information(fit.predicted, squares, error), 0.0)
        scores = np.where(observed, score(fit.residuals, fit.predicted, squares, error), 0.0)
        gradient = z - sum_in_order(slopes * scores[:, None])
        products = (slopes * weights[:, None])[:, :, None] * slopes[:, None]
        curvature = np.eye(p) + sum_in_order(products).transpose(2, 0, 1)
        value = fit.loss + 0.5 * (z**2).sum(axis=0)
    return _Point(z, value, gradient, curvature)


def _with_slopes(
    population: Population, subjects: Subjects, z: FloatArray
) -> tuple[Fit, FloatArray]:
    """``Fit`` at z and at two points on each axis around it, and df/dz of shape (n, p, N)."""
    p = len(z)
    moves = np.zeros((p, 1 + 2 * p))
    moves[:, 1 : 1 + p], moves[:, 1 + p :] = _APART * np.eye(p), -_APART * np.eye(p)
    around = population.gaussian(z[:, None, :] + moves[:, :, None])
    fit = fit_of(population, subjects, around)
    above, below = fit.predicted[:, 1 : 1 + p], fit.predicted[:, 1 + p :]
    with np.errstate(all="ignore"):
        slopes = np.where(subjects.observed[:, None], (above - below) / (2 * _APART), 0.0)
    return fit, slopes


def slopes_at(population: Population, subjects: Subjects, z: FloatArray) -> FloatArray:
    """Derivatives J L of the predictions in z, of shape (n, p, N); 0 where nothing was observed."""
    return _with_slopes(population, subjects, z)[1]
