"""What do effects of observers change in trends?

Counts at 60 sites in 20 years fall by 3 % a year. Forty observers see from 0.3 to 3 times as many
birds as the mean one, each at six sites in seven years. In the first design, the better ones come
later; in the second, they come at random. The table has means over simulations: of the overall
slope of the log totals, with its standard deviation; the root mean square error of log means; and
rounds and bits. Low-rank fits have the rank 1, which the means have as well.

With a file of skylark counts (skylark.dat of the R package rtrim), the second table is on these:
14 invented observers each miss a part of the birds, those of later years a smaller one. It has the
root mean square difference of the log index from that of all birds, and the slope.

The last table has the share of intervals of 90 % that contain the true index of a year, and the
true slope, for the second design and fits without low-rank part, by what is drawn for the errors.

    python examples/benchmarks/observer_effects.py [--skylarks FILE]            # ten minutes
"""

import argparse
from itertools import pairwise

import numpy as np

from skfedem import FederatedMatrixImputer

SITES, YEARS, OBSERVERS, SLOPE = 60, 20, 40, -0.03


def simulated(seed, in_order):
    """Log means of the mean observer, and each observer's matrix."""
    rng = np.random.default_rng(seed)
    log_means = rng.normal(2, 0.7, (SITES, 1)) + SLOPE * np.arange(YEARS)
    log_means += 0.3 * rng.normal(size=(SITES, 1)) * rng.normal(size=YEARS)
    effects = np.linspace(np.log(0.3), np.log(3), OBSERVERS)
    starts = np.arange(OBSERVERS) * (YEARS - 6) // OBSERVERS
    if not in_order:
        rng.shuffle(starts)
    X = np.full((OBSERVERS, SITES, YEARS), np.nan)
    for own, effect, start in zip(X, effects, starts, strict=True):
        cells = np.ix_(rng.choice(SITES, 6, replace=False), np.arange(start, start + 7))
        own[cells] = rng.poisson(np.exp(log_means[cells] + effect))
    return log_means, list(X)


def measured(log_means, X, **settings):
    """Slope, error, rounds and Mbit of a fit."""
    imputer = FederatedMatrixImputer(
        family="poisson", random_state=0, max_iter=5000, **settings
    ).fit(X)
    means = imputer.fitted_mean()
    slope = np.polyfit(np.arange(YEARS), np.log(means.sum(axis=0)), 1)[0]
    errors = np.log(means) - log_means
    # The level is that of a mean observer.
    error = np.sqrt(np.mean((errors - errors.mean()) ** 2))
    bits = imputer.history_["uplink_bits"].sum() / 1e6
    return slope, error, imputer.n_iter_, bits


def thinned(counts, rng, n_observers=14):
    """Matrices of observers who take turns at each site and see from 25 to 100 % of the birds."""
    shares = np.linspace(0.25, 1, n_observers)
    n_sites, n_years = counts.shape
    X = np.full((n_observers, *counts.shape), np.nan)
    for site in range(n_sites):
        turns = [0, *np.sort(rng.choice(np.arange(1, n_years), 2, replace=False)), n_years]
        for start, stop in pairwise(turns):
            middle = (start + stop) / 2 / n_years * (n_observers - 1)
            own = int(np.clip(round(rng.normal(middle, 3)), 0, n_observers - 1))
            years = np.arange(start, stop)[~np.isnan(counts[site, start:stop])]
            X[own, site, years] = rng.binomial(counts[site, years].astype(int), shares[own])
    return [own for own in X if not np.isnan(own).all()]


def skylarks(path, n_seeds):
    """Print the table on skylarks."""
    table = np.loadtxt(path)
    site, year, count = table[table[:, 2] < 999, :3].astype(int).T
    counts = np.full((site.max(), year.max()), np.nan)
    counts[site - 1, year - 1] = count

    def log_index(X, penalty=None):
        imputer = FederatedMatrixImputer(
            0, family="poisson", effects_penalty=0, client_effects_penalty=penalty
        )
        totals = imputer.fit(X).fitted_mean().sum(axis=0)
        return np.log(totals / totals.mean())

    years, truth = np.arange(counts.shape[1]), log_index(counts)
    print(f"Slope of all birds: {np.polyfit(years, truth, 1)[0]:+.3f}")
    print("client_effects_penalty   difference  slope (deviation)")
    for penalty in (None, "auto", 0.0):
        found = np.array(
            [log_index(thinned(counts, np.random.default_rng(k)), penalty) for k in range(n_seeds)]
        )
        differences = np.sqrt(np.mean((found - truth) ** 2, axis=1))
        slopes = np.polyfit(years, found.T, 1)[0]
        print(
            f"{penalty!s:22}   {differences.mean():10.3f}  {slopes.mean():+.3f} "
            f"({slopes.std(ddof=1):.3f})"
        )


def coverage(n_seeds):
    """Print the table of intervals."""
    inside = {errors: [] for errors in ("parametric", "rows", "clients")}
    for seed in range(n_seeds):
        log_means, X = simulated(seed, in_order=False)
        imputer = FederatedMatrixImputer(0, family="poisson", client_effects_penalty="auto").fit(X)
        # Rows without an observation are left out of totals.
        is_seen = ~np.isnan(X).all(axis=(0, 2))
        truth = np.exp(log_means[is_seen]).sum(axis=0)
        slope = np.exp(np.polyfit(np.arange(YEARS), np.log(truth), 1)[0])
        for errors, own in inside.items():
            totals = imputer.totals(X, errors=errors, n_draws=60, random_state=seed, interval=0.9)
            index, trend = totals.index(), totals.trend("model")
            low, high = (np.asarray(index[f"model_{end}"])[1:] for end in ("low", "high"))
            of_index = (low <= truth[1:] / truth[0]) & (truth[1:] / truth[0] <= high)
            own.append((of_index.mean(), trend.low <= slope <= trend.high))
    print("errors      index  slope")
    for errors, own in inside.items():
        of_index, of_slope = np.mean(own, axis=0)
        print(f"{errors:10}  {of_index:.2f}   {of_slope:.2f}")


def main(n_seeds):
    """Print the table."""
    print("design    rank  noise    client_effects_penalty   slope           error  rounds  Mbit")
    for in_order in (True, False):
        data = [simulated(seed, in_order) for seed in range(n_seeds)]
        for rank, noise in ((0, {}), (1, {}), (1, {"omega": 1.0, "participation": 0.75})):
            for penalty in (None, "auto"):
                fits = np.array(
                    [
                        measured(*own, rank=rank, client_effects_penalty=penalty, **noise)
                        for own in data
                    ]
                )
                slope, error, rounds, bits = fits.mean(axis=0)
                spread = fits[:, 0].std(ddof=1)
                print(
                    f"{'in order' if in_order else 'random':9} {rank}     "
                    f"{'p, omega' if noise else 'none':8} {penalty!s:22}  {slope:+.4f} "
                    f"({spread:.4f})  {error:.3f}  {rounds:6.0f}  {bits:.2f}"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--skylarks")
    given = parser.parse_args()
    main(given.seeds)
    if given.skylarks:
        skylarks(given.skylarks, given.seeds)
    coverage(2 * given.seeds)
