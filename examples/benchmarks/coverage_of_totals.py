"""How often 90 % intervals of totals contain the true total, by where the errors come from.

Counts of 40 sites in 10 years, 60 % observed, are drawn from row and column effects plus an
interaction of rank 1 (standard deviation 0.4 on the log scale; 0 without). In each, totals of
expected counts are compared with the intervals of the fits. Prints coverage, the mean error in
standard errors, and the mean standard error over the standard deviation of the errors. Then the
same of slopes, where log means deviate from effects by 0.5 (standard deviation), from year to year
with an autocorrelation.

    python examples/benchmarks/coverage_of_totals.py [number of simulations]
"""

import sys
import warnings

import numpy as np
from joblib import Parallel, delayed

from skfedem import FederatedMatrixImputer

N_SITES, N_YEARS, OBSERVED, N_DRAWS = 40, 10, 0.6, 40
FITS = {
    "effects": (dict(rank=0, effects_penalty=0), ("equations", "parametric", "rows")),
    "rank 2": (dict(rank=2, penalty=5.0), ("parametric", "rows")),
}


def simulated(seed, interaction):
    """Expected counts and observed ones."""
    generator = np.random.default_rng(seed)
    sites, own = generator.normal(size=(2, N_SITES, 1))
    years, common = generator.normal(size=(2, 1, N_YEARS))
    means = np.exp(2 + 0.6 * sites + 0.3 * years + interaction * own * common)
    counts = generator.poisson(means).astype(float)
    counts[generator.random(counts.shape) > OBSERVED] = np.nan
    return means, counts


def errors_of(seed, interaction):
    """For each fit and source of errors: true totals, estimates, standard errors and limits."""
    warnings.simplefilter("ignore")
    means, counts = simulated(seed, interaction)
    results = {}
    for name, (parameters, sources) in FITS.items():
        imputer = FederatedMatrixImputer(family="poisson", tol=1e-4, **parameters).fit(counts)
        for source in sources:
            options = dict(errors=source, n_draws=N_DRAWS, random_state=seed, interval=0.9)
            table = imputer.totals(counts, **options).table
            columns = ("imputed", "imputed_error", "imputed_low", "imputed_high")
            results[name, source] = [means.sum(axis=0), *(np.array(table[own]) for own in columns)]
    return results


def slopes_of(seed, autocorrelation):
    """For each source of errors: slope of the totals, whose truth is -0.02, and its error."""
    warnings.simplefilter("ignore")
    generator = np.random.default_rng(seed)
    noise = generator.normal(0, 0.5, (N_SITES, N_YEARS))
    for year in range(1, N_YEARS):
        noise[:, year] *= np.sqrt(1 - autocorrelation**2)
        noise[:, year] += autocorrelation * noise[:, year - 1]
    sites = generator.normal(0, 0.8, (N_SITES, 1))
    means = np.exp(2.5 + sites - 0.02 * np.arange(N_YEARS) + noise)
    counts = generator.poisson(means).astype(float)
    counts[generator.random(counts.shape) > OBSERVED] = np.nan
    parameters = dict(rank=0, effects_penalty=0, tol=1e-4)
    imputer = FederatedMatrixImputer(family="poisson", **parameters).fit(counts)
    results = {}
    for source in ("equations", "rows"):
        options = dict(errors=source, n_draws=N_DRAWS, random_state=seed)
        trend = imputer.totals(counts, **options).trend("model")
        results[source] = trend.slope + 0.02, trend.slope_error
    return results


if __name__ == "__main__":
    n_simulations = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seeds = range(n_simulations)
    for interaction in (0.0, 0.4):
        found = Parallel(2)(delayed(errors_of)(seed, interaction) for seed in seeds)
        print(f"interaction {interaction}, {n_simulations} simulations")
        for fit in found[0]:
            truth, total, error, low, high = np.moveaxis([own[fit] for own in found], 1, 0)
            covered = np.mean((low <= truth) & (truth <= high))
            bias = np.mean((total - truth) / error)
            ratio = error.mean() / (total - truth).std()
            print(f"  {fit[0]:8} {fit[1]:11} {covered:5.1%}  {bias:+.2f}  {ratio:.2f}")
    for autocorrelation in (0.0, 0.6):
        found = Parallel(2)(delayed(slopes_of)(seed, autocorrelation) for seed in seeds)
        print(f"slopes, autocorrelation {autocorrelation}")
        for source in found[0]:
            gap, error = np.transpose([own[source] for own in found])
            covered = np.mean(np.abs(gap) <= 1.645 * error)
            bias, ratio = np.mean(gap / error), error.mean() / gap.std()
            print(f"  {source:11} {covered:5.1%}  {bias:+.2f}  {ratio:.2f}")
