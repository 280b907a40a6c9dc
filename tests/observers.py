"""Visits of observers who differ in skill, and the fit of a model to them by SciPy."""

from functools import cache

import numpy as np
from scipy import optimize, stats
from scipy.special import expit, logit

from skfedem import FederatedMatrixImputer

J, L, N_CLIENTS, SIZE = 9, 6, 7, 1.7
SHAPE = (J, L)
FAMILIES = ["gaussian", "bernoulli", "poisson", "negative_binomial"]
TRUE_EFFECTS = np.linspace(-1.1, 1.1, N_CLIENTS)


@cache
def triplets(family="poisson"):
    """Each observer's visits, some of them to the same cell; the last one counts nothing."""
    rng = np.random.default_rng(2)
    theta = rng.normal(0.5, 0.6, (J, 1)) + rng.normal(0, 0.4, L)
    tables = []
    for effect in TRUE_EFFECTS:
        sites, months = rng.integers(0, J, 25), rng.integers(0, L, 25)
        own = theta[sites, months] + effect
        values = {
            "gaussian": lambda own: own + rng.normal(size=len(own)),
            "bernoulli": lambda own: (rng.random(len(own)) < expit(own)) * 1.0,
            "poisson": lambda own: rng.poisson(np.exp(own)),
            "negative_binomial": lambda own: rng.negative_binomial(
                SIZE, SIZE / (SIZE + np.exp(own))
            ),
        }[family](own)
        tables.append(np.column_stack([sites, months, values]).astype(float))
    if family != "gaussian":
        tables[-1][:, 2] = 0
    return tables


def densities(family, values, theta):
    """Log-densities from SciPy."""
    if family == "gaussian":
        return stats.norm.logpdf(values, theta)
    if family == "bernoulli":
        return stats.bernoulli.logpmf(values, expit(theta))
    if family == "poisson":
        return stats.poisson.logpmf(values, np.exp(theta))
    return stats.nbinom.logpmf(values, SIZE, SIZE / (SIZE + np.exp(theta)))


def slopes(family, values, theta):
    """Derivatives of these by θ."""
    if family == "gaussian":
        return values - theta
    if family == "bernoulli":
        return values - expit(theta)
    means = np.exp(theta)
    return values - means if family == "poisson" else (values - means) / (1 + means / SIZE)


@cache
def optimum(family, penalty, effects_penalty=0.1):
    """Most likely θ of all cells and effects of clients, and the objective, by SciPy."""
    tables = triplets(family)
    sites, months, values = np.concatenate(tables).T
    client = np.repeat(np.arange(N_CLIENTS), [len(own) for own in tables])
    parts = [np.ones((len(values), 1)), np.eye(J)[sites.astype(int)]]
    design = np.hstack([*parts, np.eye(L)[months.astype(int)], np.eye(N_CLIENTS)[client]])
    ridge = np.repeat([0.0, effects_penalty, penalty], [1, J + L, N_CLIENTS])

    def objective(beta):
        theta = design @ beta
        loss = ridge @ beta**2 / 2 - densities(family, values, theta).sum()
        return loss, ridge * beta - design.T @ slopes(family, values, theta)

    start = np.zeros(design.shape[1])
    found = optimize.minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-7})
    intercept, rows, columns, effects = np.split(found.x, [1, 1 + J, 1 + J + L])
    return intercept + rows[:, None] + columns, effects, found.fun


def exact(family="poisson", rank=0, **settings):
    settings = dict(tol=1e-12, max_iter=3000, client_effects_penalty=1.5) | settings
    return FederatedMatrixImputer(rank, family=family, negative_binomial_size=SIZE, **settings)


def theta_of(imputer):
    link = {"gaussian": np.positive, "bernoulli": logit}.get(imputer.family, np.log)
    return link(imputer.fitted_mean())
