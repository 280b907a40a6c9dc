"""Literal FedMissEM and pooled soft-impute: oracles for the tests of the imputer.

Everything here is dense, slow and plain on purpose, and imports nothing of the package, so that an
error of the package cannot hide in its own oracle. Line numbers are those of Algorithm 7 of
A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization with
heterogeneity mitigation and variance reduction", NeurIPS 2021, Appendix F.2.

Two scales of the penalty λ stand side by side. The paper's objective is the *mean* over the
observers of minus their log-likelihood, plus λ‖θ‖_*; soft-impute's is the *sum* over all
observations, plus λ‖Θ‖_*. With I observers the paper's λ is soft-impute's divided by I.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln


class Cells(NamedTuple):
    """Observations: values[m] was seen in the cell (rows[m], columns[m])."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


class Effects(NamedTuple):
    """Main effects: θ_jl = intercept + rows[j] + columns[l] + Θ_jl."""

    intercept: float
    rows: np.ndarray
    columns: np.ndarray

    def matrix(self):
        return self.intercept + np.add.outer(self.rows, self.columns)


class Fit(NamedTuple):
    """Minimum of `objective`, and Θ and the effects that attain it."""

    objective: float
    low_rank: np.ndarray
    effects: Effects


# ---- the families: p(x; θ) = ρ(x) exp(x θ - ψ(θ))


def potential(theta, family):
    """ψ(θ), element by element."""
    if family == "gaussian":
        return theta**2 / 2
    if family == "bernoulli":
        return np.logaddexp(0, theta)
    if family == "poisson":
        return np.exp(theta)
    raise ValueError(f"unknown family {family!r}")


def mean(theta, family):
    """ψ'(θ), the expectation of a cell."""
    if family == "gaussian":
        return np.array(theta, dtype=float)
    if family == "bernoulli":
        return expit(theta)
    if family == "poisson":
        return np.exp(theta)
    raise ValueError(f"unknown family {family!r}")


def variance(theta, family):
    """ψ''(θ), the variance of a cell."""
    if family == "gaussian":
        return np.ones_like(theta)
    if family == "bernoulli":
        return expit(theta) * expit(-theta)
    if family == "poisson":
        return np.exp(theta)
    raise ValueError(f"unknown family {family!r}")


def log_density(values, theta, family):
    """log p(x; θ) with every constant."""
    values = np.asarray(values, dtype=float)
    if family == "gaussian":
        log_rho = -(values**2) / 2 - math.log(2 * math.pi) / 2
    elif family == "bernoulli":
        log_rho = np.zeros_like(values)
    elif family == "poisson":
        log_rho = -gammaln(values + 1)
    else:
        raise ValueError(f"unknown family {family!r}")
    return log_rho + values * theta - potential(theta, family)


def log_likelihood(rows, columns, values, theta, family):
    """Sum over the observations of log p(y; θ_jl); a cell counts as often as it was observed."""
    return float(np.sum(log_density(values, theta[rows, columns], family)))


def nuclear_norm(matrix):
    return float(np.sum(np.linalg.svd(matrix, compute_uv=False)))


def objective(rows, columns, values, low_rank, effects, penalty, family):
    """F(Θ, effects) = - sum of the log-densities + λ‖Θ‖_*, on soft-impute's scale."""
    theta = effects.matrix() + low_rank
    return penalty * nuclear_norm(low_rank) - log_likelihood(rows, columns, values, theta, family)


def threshold_singular_values(matrix, threshold, rank=None):
    """argmin ½‖X - matrix‖² + threshold ‖X‖_* over the X of at most this rank."""
    left, singular_values, right = np.linalg.svd(matrix, full_matrices=False)
    singular_values = np.maximum(singular_values - threshold, 0)
    if rank is not None:
        singular_values[rank:] = 0
    return (left * singular_values) @ right


# ---- Algorithm 7


def client_statistic(observers, theta):
    """s̄_c: mean over the client's observers of the matrix of lines 9 and 10.

    An observer's matrix is Y where it observed and θ elsewhere. An observer sees a cell at most
    once: who saw it twice is two observers.
    """
    total = np.zeros_like(theta)
    for rows, columns, values in observers:
        matrix = np.array(theta)
        for row, column, y in zip(rows, columns, values, strict=True):
            matrix[row, column] = y
        total += matrix
    return total / len(observers)


def algorithm_7(clients, rank, penalty, start, client_weights, step_sizes):
    """FedMissEM with dense matrices: yields Ŝ_{k+1} and θ_{k+1} after each round.

    Every client takes part, reads all its observations, and compresses nothing. The V_{k,c} then
    cancel: H_{k+1} = V_k + Σ w_c (s̄_c(θ_k) - Ŝ_k - V_{k,c}) is the mean field.

    clients           for each client c, a list of observers; an observer is Cells
    rank, penalty     r and λ, on the paper's scale
    start             Ŝ_0: a dense J x L matrix
    client_weights    the w_c, for the paper's 1/n. The paper's objective, where observers count
                      alike, has w_c = (observers of c) / (all observers)
    step_sizes        γ_1, γ_2, ..., one per round
    """
    S = start
    theta = threshold_singular_values(S, penalty, rank)
    for step_size in step_sizes:  # line 3
        H = -S
        for w, observers in zip(client_weights, clients, strict=True):  # lines 4 to 11, and 18
            H = H + w * client_statistic(observers, theta)
        S = S + step_size * H  # line 19
        theta = threshold_singular_values(S, penalty, rank)  # lines 21 and 22
        yield S, theta


# ---- pooled soft-impute


def _counts_and_sums(rows, columns, values, shape):
    counts, sums = np.zeros(shape), np.zeros(shape)
    np.add.at(counts, (rows, columns), 1.0)
    np.add.at(sums, (rows, columns), np.asarray(values, dtype=float))
    return counts, sums


def _effect_coordinates(matrix, effects):
    """Sums of the matrix over the cells that each effect is added to: intercept, rows, columns."""
    parts = {
        "both": (matrix.sum(), matrix.sum(axis=1), matrix.sum(axis=0)),
        "rows": (matrix.sum(), matrix.sum(axis=1)),
        "columns": (matrix.sum(), matrix.sum(axis=0)),
        "none": (),
    }[effects]
    return np.concatenate([np.ravel(part) for part in parts]) if parts else np.zeros(0)


def _effect_hessian(weights, effects):
    """Xᵀ diag(weights) X, X the 0/1 design of the effects."""
    total, by_row, by_column = weights.sum(), weights.sum(axis=1), weights.sum(axis=0)
    if effects == "none":
        return np.zeros((0, 0))
    if effects == "both":
        return np.block(
            [
                [np.array([[total]]), by_row[None, :], by_column[None, :]],
                [by_row[:, None], np.diag(by_row), weights],
                [by_column[:, None], weights.T, np.diag(by_column)],
            ]
        )
    side = by_row if effects == "rows" else by_column
    return np.block([[np.array([[total]]), side[None, :]], [side[:, None], np.diag(side)]])


def _as_effects(coordinates, shape, effects):
    """Effects with these coordinates; those that there are not are 0."""
    intercept, by_row, by_column = 0.0, np.zeros(shape[0]), np.zeros(shape[1])
    if effects != "none":
        intercept = coordinates[0]
    if effects in ("both", "rows"):
        by_row = coordinates[1 : 1 + shape[0]]
    if effects in ("both", "columns"):
        by_column = coordinates[-shape[1] :]
    return Effects(float(intercept), by_row, by_column)


def _fit_effects(counts, sums, low_rank, start, effects, family, tol):
    """Effects that minimise the objective for a fixed Θ: Newton's method with halved steps."""
    shape = counts.shape
    fitted = start
    if effects == "none":
        return fitted

    def smooth(candidate):
        theta = candidate.matrix() + low_rank
        with np.errstate(over="ignore"):
            return float(np.sum(counts * potential(theta, family) - sums * theta))

    value = smooth(fitted)
    for _ in range(200):
        theta = fitted.matrix() + low_rank
        gradient = _effect_coordinates(counts * mean(theta, family) - sums, effects)
        if np.max(np.abs(gradient)) <= tol:
            return fitted
        hessian = _effect_hessian(counts * variance(theta, family), effects)
        step = -np.linalg.lstsq(hessian, gradient, rcond=1e-12)[0]
        length = 1.0
        while True:
            change = _as_effects(length * step, shape, effects)
            candidate = Effects(*(old + new for old, new in zip(fitted, change, strict=True)))
            new_value = smooth(candidate)
            if new_value <= value + 1e-13 * abs(value):
                break
            length /= 2
            if length < 1e-10:
                raise RuntimeError("no step of Newton's method decreases the objective")
        fitted, value = candidate, new_value
    raise RuntimeError("the effects did not converge: is there a row or column without a minimum?")


def soft_impute(rows, columns, values, shape, penalty, family, effects, tol, max_iter=20_000):
    """Minimise `objective` over Θ and the effects, whatever the rank of Θ. Returns a Fit.

    Accelerated proximal gradient in Θ with backtracking, started anew whenever the momentum points
    uphill. The effects are eliminated: each gradient is taken at the effects that are best for its
    Θ, so that it is the gradient of the objective minimised over them, a convex function of Θ.
    Done when the step times the curvature, which is 0 at the optimum alone, is below `tol` times λ.

    `effects`: "both", "rows", "columns" (each beside an intercept) or "none" (no intercept either);
    they are not penalised. At the optimum Θ is orthogonal to them: with "both" its rows and columns
    add up to 0, because there G1 = 0 and G V = -λ U. For a Gaussian θ is unique in the observed
    cells. There has to be a minimum: a row of Poisson zeros has none when it has an effect.
    """
    if not penalty > 0:
        raise ValueError("penalty has to be positive: without it θ is not determined")
    counts, sums = _counts_and_sums(rows, columns, values, shape)
    if effects != "none" and (
        (effects != "columns" and not counts.sum(axis=1).all())
        or (effects != "rows" and not counts.sum(axis=0).all())
    ):
        raise ValueError("a row or a column that has an effect was never observed")
    effects_tol = 1e-12 * max(1.0, float(np.sum(np.abs(sums))))

    def smooth(low_rank, fitted):
        theta = fitted.matrix() + low_rank
        with np.errstate(over="ignore"):
            return float(np.sum(counts * potential(theta, family) - sums * theta))

    low_rank = extrapolated = np.zeros(shape)
    fitted = Effects(0.0, np.zeros(shape[0]), np.zeros(shape[1]))
    curvature = counts.max() * {"gaussian": 1.0, "bernoulli": 0.25, "poisson": 1.0}[family]
    momentum = 1.0
    for _ in range(max_iter):
        fitted = _fit_effects(counts, sums, extrapolated, fitted, effects, family, effects_tol)
        gradient = counts * mean(fitted.matrix() + extrapolated, family) - sums
        value = smooth(extrapolated, fitted)
        while True:
            new = threshold_singular_values(
                extrapolated - gradient / curvature, penalty / curvature
            )
            step = new - extrapolated
            model = value + np.sum(gradient * step) + curvature / 2 * np.sum(step**2)
            # At the effects of the extrapolated point: an upper bound on the minimum over them.
            if family != "poisson" or smooth(new, fitted) <= model + 1e-13 * abs(model):
                break
            curvature *= 2
        uphill = np.sum((extrapolated - new) * (new - low_rank)) > 0
        next_momentum = 1.0 if uphill else (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        slope = 0.0 if uphill else (momentum - 1) / next_momentum
        extrapolated = new + slope * (new - low_rank)
        low_rank, momentum = new, next_momentum
        if curvature * np.linalg.norm(step) <= tol * penalty:
            problem = rows, columns, values, low_rank, fitted, penalty, family
            return Fit(objective(*problem), low_rank, fitted)
    raise RuntimeError("soft-impute did not converge")
