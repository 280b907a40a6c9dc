"""How many quadrature nodes do population models need?

For each number of nodes: rounds of a fit to theophylline after the dose until -2 log-likelihood is
within 0.004 of exact maximum likelihood, from a start that is wrong by factors up to five; the
largest decrease of the log-likelihood in a round; and what a converged fit reports as -2
log-likelihood, and what it is by 15 nodes. With ``--warfarin``, the same for a combined error.

Then a linear mixed model, whose likelihood is exact with any number of nodes: beside its closed
form and statsmodels' MixedLM.

    python examples/benchmarks/quadrature.py [--warfarin warfarin.csv]    # half a minute

The file has columns id, time, amt, dv, dvid ("cp" for concentrations) and evid.
"""

import argparse
import warnings

import numpy as np
import pandas as pd
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from statsmodels.regression.mixed_linear_model import MixedLM

from skfedem import FederatedNonlinearMixedEffects
from skfedem.datasets import load_theophylline
from skfedem.pharmacokinetics import doses, one_compartment_oral

# -2 log-likelihood of exact maximum likelihood, by BFGS with 9 nodes.
EXACT, EXACT_WARFARIN = 345.4348, 886.300
NODES = (3, 5, 7, 9)


def by_nodes(table, exact, start, **settings):
    """Print a row for each number of nodes."""
    print("nodes  rounds  largest decrease  -2LL reported  by 15 nodes    exact")
    for n_nodes in NODES:
        fit = FederatedNonlinearMixedEffects(
            one_compartment_oral, start, n_nodes=n_nodes, tol=1e-8, **settings
        ).fit(table)
        deviances = -2 * fit.n_subjects_ * fit.history_["log_likelihood"]
        near = np.flatnonzero(np.abs(deviances - exact) < 0.004)
        rounds, decrease = near[0] if len(near) else "-", np.diff(deviances).max() / 2
        fit._n_nodes = 15
        print(
            f"{n_nodes:5}  {rounds:>6}  {decrease:16.1e}  "
            f"{deviances[-1]:13.4f}  {-2 * fit.n_subjects_ * fit.score(table):11.4f}  {exact:7.3f}"
        )


def line(parameters, regressors):
    return parameters["level"] + parameters["slope"] * regressors["time"]


def linear_mixed_model():
    """Print differences from the closed form and from statsmodels."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(60), 5)
    time_of = rng.uniform(0, 3, len(owners))
    level, slope = np.array([[3.0], [-1.0]]) + rng.standard_normal((2, 60)) * [[0.8], [0.5]]
    dv = level[owners] + slope[owners] * time_of + 0.4 * rng.standard_normal(len(owners))
    table = pd.DataFrame({"id": owners, "time": time_of, "dv": dv})
    fit = FederatedNonlinearMixedEffects(
        line,
        {"level": 1.0, "slope": 0.5},
        transform="identity",
        covariance_type="full",
        regressors=["time"],
        n_nodes=3,
        tol=1e-13,
        max_iter=3000,
    ).fit(table)
    means = np.array(list(fit.population_parameters_.values()))
    closed = 0.0
    for _, own in table.groupby("id"):
        design = np.column_stack([np.ones(len(own)), own["time"]])
        covariance = design @ fit.random_effects_cov_ @ design.T
        covariance += fit.residual_["a"] ** 2 * np.eye(len(own))
        closed += multivariate_normal(design @ means, covariance).logpdf(own["dv"])
    exog = np.column_stack([np.ones(len(table)), table["time"]])
    theirs = MixedLM(table["dv"], exog, groups=table["id"], exog_re=exog)
    theirs = theirs.fit(reml=False, method=["bfgs"], gtol=1e-9, maxiter=1000)
    ours = fit.log_likelihood_
    for name, value in {"the closed form": closed, "MixedLM": theirs.llf}.items():
        print(f"linear model, log-likelihood over that of {name}, -1: {ours / value - 1:.1e}")


parser = argparse.ArgumentParser(description="Accuracy of quadrature by its number of nodes.")
parser.add_argument("--warfarin", help="file with the measurements of warfarin")
options = parser.parse_args()
# How slowly a fit converges is not the question.
warnings.simplefilter("ignore", ConvergenceWarning)
table = load_theophylline().data
print("theophylline")
by_nodes(table[table["time"] > 0], EXACT, {"ka": 1.0, "V": 20.0, "CL": 0.5})
if options.warfarin:
    records = pd.read_csv(options.warfarin)
    table, regressors = doses(records[records["dvid"] == "cp"])
    print("warfarin, combined error")
    start = {"ka": 1.0, "V": 8.0, "CL": 0.1}
    by_nodes(table, EXACT_WARFARIN, start, error="combined", regressors=regressors)
linear_mixed_model()
