"""Populations for tests, and likelihoods of linear ones in closed form."""

import numpy as np
from scipy.stats import multivariate_normal

from skfedem.models.mixed_effects.layout import Layout
from skfedem.models.mixed_effects.maximization import Constants, Theta
from skfedem.models.mixed_effects.model import MixedEffectsModel
from skfedem.models.mixed_effects.residual_errors import ERRORS
from skfedem.models.mixed_effects.subjects import Subjects
from skfedem.models.mixed_effects.transforms import IDENTITY, LOG
from skfedem.pharmacokinetics import one_compartment_oral

# One covariate acts on the slope only.
MASK = np.array([[True, True], [False, True]])


def line(parameters, regressors):
    """Linear in the parameters: the likelihood has a closed form."""
    return parameters["level"] + parameters["slope"] * regressors["time"]


def linear_subjects(n_subjects, seed=0):
    """Measurements along lines, of one to five times each."""
    generator = np.random.default_rng(seed)
    n = 5
    times = np.sort(generator.uniform(0, 3, (n, n_subjects)), axis=0)
    observed = np.arange(n)[:, None] < generator.integers(1, n + 1, n_subjects)
    covariates = np.stack([np.ones(n_subjects), generator.standard_normal(n_subjects)])
    effects = np.array([[0.8, 0.0], [0.3, 0.5]]) @ generator.standard_normal((2, n_subjects))
    level, slope = effects + np.array([[3.0], [-1.0]]) + np.array([[0.0], [0.7]]) * covariates[1]
    response = level + slope * times + 0.4 * generator.standard_normal((n, n_subjects))
    last = times[observed.sum(axis=0) - 1, np.arange(n_subjects)]
    return Subjects(
        np.where(observed, response, 0.0),
        observed,
        {"time": np.where(observed, times, last)},
        covariates,
    )


def means_of(subjects, subject_weights):
    """Constants that clients send once."""
    x = subjects.covariates
    return Constants((subject_weights * x) @ x.T, float(subject_weights @ subjects.n_observations))


def linear_model(subjects, constants, is_full, n_nodes=3):
    """Model of lines, with a centre that is not that of the parameters."""
    return MixedEffectsModel(
        structure=line,
        transforms={"level": IDENTITY, "slope": IDENTITY},
        error=ERRORS["constant"],
        layout=Layout(MASK, is_full, 1),
        sent=constants,
        center=np.array([2.0, 0.5]),
        regressors=("time",),
        n_observations=len(subjects.response),
        n_nodes=n_nodes,
    )


def linear_parameters(model, seed):
    """Some θ that T can give."""
    generator = np.random.default_rng(seed)
    coefficients = np.where(MASK, 0.5 * generator.standard_normal((2, 2)), 0.0)
    factor = np.diag(generator.uniform(0.6, 1.2, 2))
    if model.layout.is_full:
        factor[1, 0] = 0.3 * generator.standard_normal()
    squares = np.array([generator.uniform(0.1, 0.4)])
    return model.parameters(Theta(coefficients, factor @ factor.T, squares))


def linear_log_likelihoods(rows, model, parameters):
    """Log-density of each packed subject, a multivariate normal."""
    n = model.n_observations
    values = np.empty(len(rows))
    for i, row in enumerate(rows):
        own = row[n : 2 * n] > 0
        times, x = row[2 * n : 3 * n][own], np.append(1.0, row[3 * n :])
        design = np.stack([np.ones_like(times), times], axis=1)
        mean = design @ (model.center + parameters.coefficients.T @ x)
        covariance = design @ parameters.covariance @ design.T
        covariance += parameters.squares[0] * np.eye(len(times))
        values[i] = multivariate_normal(mean, covariance).logpdf(row[:n][own])
    return values


def oral_subjects(table, *, after_dose=True):
    """Subjects of theophylline, in the order of their numbers."""
    kept = np.asarray(table["time"]) > 0 if after_dose else slice(None)
    columns = {
        name: np.asarray(table[name])[kept].reshape(12, -1).T.astype(float)
        for name in ("time", "dv", "dose")
    }
    return Subjects(
        columns["dv"],
        np.ones(columns["dv"].shape, bool),
        {name: columns[name] for name in ("time", "dose")},
        np.ones((1, 12)),
    )


def oral_model(subjects, *, error="constant", n_nodes=7, is_full=False):
    """One compartment with first-order absorption, and logarithms of parameters."""
    weights = np.full(subjects.n_subjects, 1 / subjects.n_subjects)
    names, kind = ("ka", "V", "CL"), ERRORS[error]
    return MixedEffectsModel(
        structure=one_compartment_oral,
        transforms=dict.fromkeys(names, LOG),
        error=kind,
        layout=Layout(np.ones((1, 3), bool), is_full, len(kind.names)),
        sent=means_of(subjects, weights),
        center=np.log([1.0, 20.0, 0.5]),
        regressors=("time", "dose"),
        n_observations=len(subjects.response),
        n_nodes=n_nodes,
    )
