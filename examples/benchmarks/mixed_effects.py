"""How near population models come to maximum likelihood, and how long they take.

Excess is -2 log-likelihood, by quadrature with 9 nodes (warfarin: 21), minus that of exact maximum
likelihood, by BFGS and as many nodes. Errors are in standard errors of the exact estimates.

    python examples/benchmarks/mixed_effects.py                # theophylline, sites, likelihoods
    python examples/benchmarks/mixed_effects.py --part time    # milliseconds a round
    python examples/benchmarks/mixed_effects.py --warfarin warfarin.csv

The file has columns id, time, amt, dv, dvid ("cp" for concentrations) and evid.
"""

import argparse
import time
import warnings
from copy import copy

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skfedem import FederatedNonlinearMixedEffects
from skfedem.datasets import load_theophylline
from skfedem.pharmacokinetics import one_compartment_oral

START = {"ka": 1.0, "V": 20.0, "CL": 0.5}
# -2 log-likelihood of exact maximum likelihood.
EXACT = {120: 345.4348, 132: 360.7007, "constant": 901.788, "combined": 886.300}
MEANS, MEAN_ERRORS = np.log([1.5794, 31.626, 2.7480]), np.array([0.194, 0.0461, 0.0838])
VARIANCES, VARIANCE_ERRORS = [0.3947, 0.01789, 0.07075], np.array([0.446, 0.546, 0.482])
RESIDUAL, RESIDUAL_ERROR = 0.7380, 0.072


def population(**parameters):
    """One compartment after an oral dose."""
    return FederatedNonlinearMixedEffects(one_compartment_oral, START, **parameters)


def minus_two_log_likelihood(fit, data, n_nodes=9):
    """By so many nodes, whatever the fit used."""
    again = copy(fit)
    again._n_nodes = n_nodes
    return -2 * data["id"].nunique() * again.score(data)


def by_dose(data):
    """Four sites with three subjects each, sorted by dose."""
    doses = data.groupby("id")["dose"].first().sort_values(kind="stable")
    sites = {subject: place // 3 for place, subject in enumerate(doses.index)}
    return data["id"].map(sites).to_numpy()


def theophylline(seeds):
    """Figure 1: chains with default parameters."""
    data = load_theophylline().data
    for n_observations, own in ((120, data[data["time"] > 0]), (132, data)):
        excess, errors = [], []
        for seed in seeds:
            fit = population(e_step="mcmc", random_state=seed).fit(own)
            excess.append(minus_two_log_likelihood(fit, own) - EXACT[n_observations])
            means = np.log(list(fit.population_parameters_.values()))
            variances = np.diagonal(fit.random_effects_cov_)
            errors.append(
                [
                    np.abs(means - MEANS) / MEAN_ERRORS,
                    np.abs(variances / VARIANCES - 1) / VARIANCE_ERRORS,
                    np.full(3, abs(fit.residual_["a"] / RESIDUAL - 1) / RESIDUAL_ERROR),
                ]
            )
        print(f"theophylline, {n_observations} measurements: excess {np.round(excess, 3)}")
        print(f"  mean {np.mean(excess):.3f}, largest {max(excess):.3f}")
        if n_observations == 120:
            worst = np.max(errors, axis=(0, 2)).round(2)
            print("  largest errors of means, variances, residual: {} {} {}".format(*worst))


def sites(seeds):
    """Figure 4: four sites by dose, half of them absent, compressed messages."""
    data = load_theophylline().data
    data = data[data["time"] > 0]
    rough = {"participation": 0.5, "omega": 1.0}
    naive = {"control_step": 0.0, "control_init": "zeros"}
    best = population(tol=1e-13, max_iter=500).fit(data)
    for name, given, exact in (
        ("chains", {"e_step": "mcmc"}, EXACT[120]),
        (
            "quadrature, step 0.15, 200 rounds",
            {"step_size": 0.15, "tol": 0.0, "max_iter": 200, "eval_every": None},
            -2 * best.log_likelihood_,
        ),
    ):
        for controls in ({}, naive):
            excess = []
            for seed in seeds:
                fit = population(**rough, **given, **controls, random_state=seed)
                fit.fit(data, clients=by_dose(data))
                value = -2 * fit.log_likelihood_
                if given.get("e_step") == "mcmc":
                    value = minus_two_log_likelihood(fit, data)
                excess.append(value - exact)
            what = "without control variates" if controls else "with"
            print(f"sites, {name}, {what}: median excess {np.median(excess):.3g}")
            print(f"  {np.array(excess)}")
    fits = [
        population(**rough, random_state=seed).fit(data, clients=by_dose(data)) for seed in seeds
    ]
    rounds = [fit.n_iter_ for fit in fits]
    print(f"sites, quadrature, automatic steps: converged {all(f.converged_ for f in fits)}")
    print(f"  rounds {min(rounds)} to {max(rounds)}")


def warfarin(path, seeds):
    """Figure 6: 32 subjects, constant and combined errors."""
    table = pd.read_csv(path)
    doses = table[table["evid"] != 0].groupby("id")["amt"].first()
    data = table[(table["evid"] == 0) & (table["dvid"] == "cp")]
    data = data.assign(dose=data["id"].map(doses))
    for error in ("constant", "combined"):
        excess = []
        for seed in seeds:
            fit = population(error=error, e_step="mcmc", random_state=seed).fit(data)
            # 9 nodes are off by 0.03.
            excess.append(minus_two_log_likelihood(fit, data, n_nodes=21) - EXACT[error])
        print(f"warfarin, {error}, {len(data)} measurements: excess {np.round(excess, 3)}")


def likelihoods():
    """Figure 7: standard errors; importance sampling beside quadrature."""
    from skfedem import _random
    from skfedem.models.mixed_effects.conditional import find_modes
    from skfedem.models.mixed_effects.importance import importance_sampled

    data = load_theophylline().data
    fit = population(n_nodes=7).fit(data)
    values = fit.population_parameters_.items()
    print("standard errors:", [round(fit.standard_errors_[name] / own, 4) for name, own in values])
    table = fit._table(data)
    modes = find_modes(table.population, table.subjects)
    keys = _random.label_keys(table.records.labels)
    draws = importance_sampled(table.population, table.subjects, modes, 0, keys)
    want = minus_two_log_likelihood(fit, data) / -2
    error = np.sqrt(draws.variance.sum())
    gap = draws.log_likelihood.sum() - want
    print(f"importance sampling minus quadrature: {gap:.4f}, reported error {error:.4f}")


def times(n_runs):
    """Figure 8: one thread."""
    data = load_theophylline().data
    data = data[data["time"] > 0]
    many = pd.concat([data.assign(id=data["id"] + 12 * k) for k in range(42)])
    many = many[many["id"] <= 500]
    chains = {"e_step": "mcmc", "n_exploratory": 300, "n_smoothing": 100}
    cases = {
        "12 subjects, 5 chains": (population(**chains, n_chains=5), data),
        "500 subjects, 1 chain": (population(**chains, n_chains=1, max_iter=100), many),
        "quadrature, 5 nodes": (population(tol=0.0, max_iter=30), data),
        "quadrature, 7 nodes": (population(tol=0.0, max_iter=30, n_nodes=7), data),
    }
    for name, (estimator, own) in cases.items():
        seconds = []
        for _ in range(n_runs):
            start = time.perf_counter()
            estimator.fit(own)
            seconds.append(time.perf_counter() - start)
        best = min(seconds)
        print(f"{name}: {1e3 * best / estimator.n_iter_:.2f} ms a round, {best:.2f} s")


parser = argparse.ArgumentParser(description="Accuracy and time of population models.")
parser.add_argument("--part", choices=["theophylline", "sites", "likelihoods", "time"])
parser.add_argument("--warfarin", help="file with the measurements of warfarin")
parser.add_argument("--seeds", type=int, default=10)
parser.add_argument("--runs", type=int, default=3, help="runs of which the fastest is reported")

if __name__ == "__main__":
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        if options.warfarin:
            warfarin(options.warfarin, range(min(options.seeds, 5)))
        elif options.part == "time":
            times(options.runs)
        else:
            if options.part in (None, "theophylline"):
                theophylline(range(options.seeds))
            if options.part in (None, "sites"):
                sites(range(options.seeds))
            if options.part in (None, "likelihoods"):
                likelihoods()
