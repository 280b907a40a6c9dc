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

FAMILIES = ("gaussian", "bernoulli", "poisson")
EFFECTS = ("both", "rows", "columns", "none")


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
    """Minimum of `objective`, Θ and the effects that attain it, and the certificate for them."""

    objective: float
    low_rank: np.ndarray
    effects: Effects
    gap: "Gap"

    @property
    def theta(self):
        return self.effects.matrix() + self.low_rank


class Gap(NamedTuple):
    """How far a point is from the conditions of optimality: all are 0 at the optimum.

    effects      largest absolute derivative of the objective in an effect
    support      ‖G V + λ U‖ or ‖Uᵀ G + λ Vᵀ‖, the larger: G is opposed to Θ = U diag(s) Vᵀ on its
                 singular vectors. It contains Uᵀ G V = -λ I
    complement   max(‖(I - U Uᵀ) G (I - V Vᵀ)‖₂ - λ, 0): elsewhere G is at most λ
    objective    bound on objective - minimum, for a point whose derivatives in the effects are 0
    """

    effects: float
    support: float
    complement: float
    objective: float


class MissRound(NamedTuple):
    """What stands after round k: Ŝ_{k+1}, θ_{k+1}, the V_{k+1,c}, V_{k+1} and the field H_{k+1}."""

    statistics: np.ndarray
    theta: np.ndarray
    client_controls: list
    control: np.ndarray
    field: np.ndarray


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


def client_statistic(observers, theta, family, batch=None):
    """s̄_c: mean over the client's observers of the matrix of lines 9 and 10.

    An observer's matrix is Y where it observed and ψ'(θ) elsewhere. (The paper prints θ, which is
    ψ'(θ) for a Gaussian.) An observer sees a cell at most once: who saw it twice is two observers.

    `batch` holds positions among the client's observations, its observers' one after the other; the
    b of them stand for all M: the observed part, Y - ψ'(θ), counts M/b times. A cell that is in
    the batch twice counts twice.
    """
    expectation = mean(theta, family)
    total = np.zeros_like(expectation)
    if batch is None:
        for rows, columns, values in observers:
            matrix = np.array(expectation)
            for row, column, y in zip(rows, columns, values, strict=True):
                matrix[row, column] = y
            total += matrix
        return total / len(observers)
    seen = [cell for cells in observers for cell in zip(*cells, strict=True)]
    for position in batch:
        row, column, y = seen[position]
        total[row, column] += len(seen) / len(batch) * (y - expectation[row, column])
    return expectation + total / len(observers)


def missing_values_m_step(statistics, family, rank, penalty, start, tol=1e-13, max_iter=100_000):
    """T: argmin over θ of at most this rank of Σ ψ(θ) - <S, θ> + λ‖θ‖_*.

    Gaussian: the singular value decomposition of S, thresholded at λ and cut at `rank`. Else
    "computed iteratively": proximal gradient from `start`, to convergence. Where the rank binds the
    problem is not convex, and what is found is a stationary point that depends on `start`.
    """
    if family == "gaussian":
        return threshold_singular_values(statistics, penalty, rank)

    def smooth(theta):
        return float(np.sum(potential(theta, family) - statistics * theta))

    theta = np.array(start, dtype=float)
    curvature = 0.25 if family == "bernoulli" else float(np.max(variance(theta, family)))
    for _ in range(max_iter):
        gradient = mean(theta, family) - statistics
        while True:
            new = threshold_singular_values(theta - gradient / curvature, penalty / curvature, rank)
            step = new - theta
            with np.errstate(over="ignore"):
                value = smooth(new)
            model = smooth(theta) + np.sum(gradient * step) + curvature / 2 * np.sum(step**2)
            if value <= model + 1e-13 * abs(model):
                break
            curvature *= 2
        theta = new
        if np.linalg.norm(step) <= tol * max(1.0, float(np.linalg.norm(theta))):
            return theta
    raise RuntimeError("the M-step did not converge")


def no_quantisation(k, c, matrix):
    return matrix


def algorithm_7(
    clients,
    family,
    rank,
    penalty,
    start,
    controls,
    client_weights,
    step_sizes,
    control_step,
    participation,
    active_sets,
    batches,
    quantise=no_quantisation,
    start_theta=None,
):
    """FedMissEM with dense matrices. Yields a MissRound after each round.

    clients                 for each client c, a list of observers; an observer is Cells
    rank, penalty           r (None: no limit) and λ, on the paper's scale
    start, controls         Ŝ_0, and the list of the V_{0,c}: dense J x L matrices
    client_weights          the w_c, for the paper's 1/n. The paper's objective, where observers
                            count alike, has w_c = (observers of c) / (all observers)
    step_sizes              γ_1, γ_2, ..., one per round
    control_step            α
    participation           p, and `active_sets`: for each round, the clients that take part
                            (Algorithm 7 prints p = 1; lines 4 and 18 as in Algorithm 1)
    batches                 batches[k][c]: None for all of the client's observations; positions
                            among them (see `client_statistic`); or a boolean J x L matrix, the
                            selection of line 7 *as printed*: S and Δ stay 0 outside of it
    quantise(k, c, matrix)  the compressed matrix
    start_theta             where the first iterative M-step starts; default 0
    """
    n_clients = len(clients)
    S, V_clients = start, list(controls)  # line 1
    V = 0.0
    for c in range(n_clients):
        V = V + client_weights[c] * V_clients[c]
    theta = np.zeros_like(start) if start_theta is None else start_theta
    theta = missing_values_m_step(S, family, rank, penalty, theta)
    for k in range(len(active_sets)):  # line 3
        V_next = list(V_clients)
        quantised = {}
        for c in range(n_clients):  # lines 4 and 5
            if c not in active_sets[k]:
                continue
            batch = batches[k][c]  # line 7
            printed = batch is not None and np.asarray(batch).dtype == bool
            S_client = client_statistic(
                clients[c], theta, family, None if printed else batch
            )  # lines 8 to 10
            delta = S_client - S - V_clients[c]  # line 11
            if printed:
                delta = np.where(batch, delta, 0.0)  # line 6: 0 outside of the loops of 8 and 9
            quantised[c] = quantise(k, c, delta)  # line 15
            V_next[c] = V_clients[c] + control_step * quantised[c]  # line 14
        message_sum = np.zeros_like(S)
        for c in quantised:
            message_sum = message_sum + client_weights[c] * quantised[c]
        H = V + message_sum / participation  # line 18
        S = S + step_sizes[k] * H  # line 19
        V = V + control_step * message_sum  # line 20
        V_clients = V_next
        theta = missing_values_m_step(S, family, rank, penalty, theta)  # lines 21 and 22
        yield MissRound(S, theta, list(V_clients), V, H)


def missing_values_controls(clients, family, rank, penalty, start, start_theta=None):
    """h_c(Ŝ_0) = s̄_c(T(Ŝ_0)) - Ŝ_0 for each client: the V_{0,c} of Theorem 1."""
    theta = np.zeros_like(start) if start_theta is None else start_theta
    theta = missing_values_m_step(start, family, rank, penalty, theta)
    return [client_statistic(observers, theta, family) - start for observers in clients]


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
    """Effects whose rows and columns each add up to 0, from any that give the same matrix."""
    intercept, by_row, by_column = 0.0, np.zeros(shape[0]), np.zeros(shape[1])
    if effects != "none":
        intercept = coordinates[0]
    if effects in ("both", "rows"):
        by_row = coordinates[1 : 1 + shape[0]]
    if effects in ("both", "columns"):
        by_column = coordinates[-shape[1] :]
    intercept = float(intercept + by_row.mean() + by_column.mean())
    return Effects(intercept, by_row - by_row.mean(), by_column - by_column.mean())


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


def optimality_gap(rows, columns, values, low_rank, fitted_effects, penalty, family, effects):
    """The certificate `Gap` of a point (Θ, effects): optimal exactly where all its entries are 0.

    It reads the conditions off the point itself and needs no other solution. The problem is convex,
    so the conditions are sufficient as well as necessary. Nothing here limits the rank: a solver
    whose rank is below that of the optimum solves another problem, one that is not convex, and its
    solution fails `complement` although it may be the best of its rank.

    The rank of Θ is the number of its singular values above 1e-9 of the largest.
    """
    counts, sums = _counts_and_sums(rows, columns, values, low_rank.shape)
    theta = fitted_effects.matrix() + low_rank
    gradient = counts * mean(theta, family) - sums
    by_effect = _effect_coordinates(gradient, effects)
    left, singular_values, right = np.linalg.svd(low_rank, full_matrices=False)
    rank = int(np.sum(singular_values > 1e-9 * singular_values[0]))
    left, right = left[:, :rank], right[:rank].T
    support = max(
        np.linalg.norm(gradient @ right + penalty * left),
        np.linalg.norm(left.T @ gradient + penalty * right.T),
    )
    complement = gradient - left @ (left.T @ gradient)
    complement = complement - (complement @ right) @ right.T

    # With G1 = 0 and 1ᵀG = 0 where there are effects, convexity gives F(Θ) - F(Θ*) <=
    # <G, Θ - Θ*> + λ‖Θ‖_* - λ‖Θ*‖_* <= <G, Θ> + λ‖Θ‖_* + (‖G‖₂ - λ)‖Θ*‖_*, and
    # λ‖Θ*‖_* <= F(Θ) - the smallest that minus the log-likelihood can be.
    observed = np.asarray(values, dtype=float)
    if family == "gaussian":
        saturated = log_density(observed, observed, family)
    elif family == "bernoulli":
        saturated = np.zeros_like(observed)
    else:
        saturated = log_density(observed, np.log(np.maximum(observed, 1e-300)), family)
    value = objective(rows, columns, values, low_rank, fitted_effects, penalty, family)
    excess = max(float(np.linalg.norm(gradient, 2)) - penalty, 0.0)
    bound = np.sum(gradient * low_rank) + penalty * np.sum(singular_values)
    bound = bound + excess * (value + np.sum(saturated)) / penalty
    return Gap(
        effects=float(np.max(np.abs(by_effect), initial=0.0)),
        support=float(support),
        complement=max(float(np.linalg.norm(complement, 2)) - penalty, 0.0),
        objective=float(bound),
    )


def soft_impute(
    rows,
    columns,
    values,
    shape,
    penalty,
    family="gaussian",
    effects="both",
    tol=1e-9,
    max_iter=20_000,
):
    """Minimise `objective` over Θ and the effects, whatever the rank of Θ. Returns a Fit.

    Accelerated proximal gradient in Θ with backtracking, started anew whenever the momentum points
    uphill. The effects are eliminated: each gradient is taken at the effects that are best for its
    Θ, so that it is the gradient of the objective minimised over them, a convex function of Θ.
    Done when every entry of the `Gap`, divided by λ or by the objective, is below `tol`.

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
    for iteration in range(max_iter):
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
        if iteration % 10 == 9:
            at_best = _fit_effects(counts, sums, low_rank, fitted, effects, family, effects_tol)
            problem = rows, columns, values, low_rank, at_best, penalty, family
            gap, value = optimality_gap(*problem, effects), objective(*problem)
            conditions = max(gap.effects, gap.support, gap.complement)
            if conditions <= tol * penalty and gap.objective <= tol * max(1.0, abs(value)):
                return Fit(value, low_rank, at_best, gap)
    raise RuntimeError(f"soft-impute did not converge: {gap}")
