"""How well does FederatedMatrixImputerCV predict held-out cells of real counts?

The data are monthly counts of oystercatchers at 138 sites, from DATA/oystercatcher_138x240.csv, and
yearly counts of great egrets' nests in colonies of the Everglades, from
DATA/everglades/maxcounts.csv. A tenth of the observed cells is held out; rank and penalties are
chosen on the others. First, log1p of the counts is modelled as Gaussian, with one client and with
ten, of which three quarters send compressed messages in each round. Then the counts themselves are
modelled as Poisson, for five such splits. Models with only row and column effects, and soft-impute
without effects, are included for comparison.

With --simulated, the script instead shows what bounds on the rank gain. The data are Gaussian
tables of 150 rows and 60 columns with noise of variance 1, and half of the cells are observed.
Their means are row and column effects alone, or effects and one factor, three factors or a decaying
spectrum. For searches over several lists of ranks, the script prints the error in the means of
missing cells and the processor time, both as means over three seeds, and how often a bound was
chosen.

    python examples/benchmarks/imputation_error.py [--data DATA] [--ranks 10 None]
    python examples/benchmarks/imputation_error.py --simulated
"""

import argparse
import csv
import os
import time
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.metrics import mean_poisson_deviance

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[3] / "shared" / "data"))
N_CLIENTS, N_SPLITS, N_SEEDS = 10, 5, 3
FEDERATED = {"omega": 1.0, "participation": 0.75}
RANKS = (None,), (1, 2, None), (1, 2, 3, 4, None)
N_ROWS, N_COLUMNS = 150, 60
# Singular values of the low-rank part, up to a factor, and its standard deviations.
SPECTRA = {
    "effects alone": ([0.0], (0.0,)),
    "one factor": ([1.0], (0.5, 1.5)),
    "three factors": ([1.0, 1.0, 1.0], (0.5, 1.5)),
    "1, 1/2, 1/3, ...": (1 / np.arange(1, N_COLUMNS + 1), (0.5, 1.5)),
}


def hold_out(table, seed):
    """The table without a tenth of its observed cells, and which these are."""
    observed = np.flatnonzero(~np.isnan(table))
    cells = np.random.default_rng(seed).choice(observed, len(observed) // 10, replace=False)
    kept = table.copy()
    kept.ravel()[cells] = np.nan
    return kept, np.unravel_index(cells, table.shape)


def deal(table, n_clients, seed=0):
    """Deal the cells of a table to clients at random."""
    owners = np.random.default_rng(seed).integers(n_clients, size=table.shape)
    return [np.where(owners == client, table, np.nan) for client in range(n_clients)]


def root_mean_square(values, means):
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((values - means) ** 2)))


def measured(name, imputer, table, seed, n_clients, error):
    """Held-out error of an imputer; prints a row of the table."""
    kept, cells = hold_out(table, seed)
    started = time.perf_counter()
    imputer.fit(deal(kept, n_clients))
    seconds = time.perf_counter() - started
    result = error(table[cells], imputer.fitted_mean()[cells])
    chosen = getattr(imputer, "best_params_", None) or imputer.get_params()
    print(
        f"{name:>12} {imputer.family:>9} {seed:>6} {n_clients:>8} {chosen['rank'] or '-':>6} "
        f"{chosen['penalty']:>9.4g} {result:>9.4g} {seconds:>6.0f} s",
        flush=True,
    )
    return result


def oystercatchers(folder):
    """Counts (sites, months)."""
    return np.genfromtxt(folder / "oystercatcher_138x240.csv", delimiter=",")


def great_egrets(folder):
    """Nesting pairs (colonies, years), of colonies that were counted in three years or more."""
    with open(folder / "everglades" / "maxcounts.csv", newline="", encoding="utf-8") as file:
        counts = [row for row in csv.DictReader(file) if row["species"] == "greg"]
    colonies, colony = np.unique([row["colony"] for row in counts], return_inverse=True)
    years, year = np.unique([int(row["year"]) for row in counts], return_inverse=True)
    table = np.full((len(colonies), len(years)), np.nan)
    np.fmax.at(table, (colony, year), [float(row["count"]) for row in counts])
    return table[np.isfinite(table).sum(axis=1) >= 3]


def simulated_means(spectrum, deviation, generator):
    """Effects, and a low-rank part of this standard deviation."""
    effects = generator.normal(size=(N_ROWS, 1)) + 0.5 * generator.normal(size=(1, N_COLUMNS))
    left = np.linalg.qr(generator.normal(size=(N_ROWS, len(spectrum))))[0]
    right = np.linalg.qr(generator.normal(size=(N_COLUMNS, len(spectrum))))[0]
    low_rank = (left * spectrum) @ right.T
    return effects + deviation * low_rank / (low_rank.std() or 1.0)


def bounds_on_the_rank():
    """Print what several lists of ranks gain on simulated tables."""
    print("             table  deviation              ranks     error      time   with a bound")
    for name, (spectrum, deviations) in SPECTRA.items():
        for deviation, ranks in product(deviations, RANKS):
            errors, seconds, n_bounds = [], [], 0
            for seed in range(N_SEEDS):
                generator = np.random.default_rng(seed)
                means = simulated_means(spectrum, deviation, generator)
                is_seen = generator.random(means.shape) < 0.5
                table = np.where(is_seen, means + generator.normal(size=means.shape), np.nan)
                started = time.process_time()
                search = FederatedMatrixImputerCV(
                    ranks, effects_penalties=[1.0], random_state=0
                ).fit(table)
                seconds.append(time.process_time() - started)
                fitted = search.fitted_mean()
                errors.append(root_mean_square(means[~is_seen], fitted[~is_seen]))
                n_bounds += search.best_params_["rank"] is not None
            print(
                f"{name:>18} {deviation:10} {ranks!s:>18} {np.mean(errors):9.3f} "
                f"{np.mean(seconds):7.1f} s {n_bounds:7} of {N_SEEDS}",
                flush=True,
            )


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--ranks", nargs="+", default=["None"])
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    if options.simulated:
        bounds_on_the_rank()
        return
    ranks = [None if rank == "None" else int(rank) for rank in options.ranks]
    searched = FederatedMatrixImputerCV(ranks, random_state=0)
    # So large a penalty leaves nothing but the effects.
    effects = FederatedMatrixImputer(rank=1, penalty=1e6)
    soft_impute = clone(searched).set_params(effects="none")
    federated = clone(searched).set_params(**FEDERATED)
    for read in (oystercatchers, great_egrets):
        counts = read(options.data)
        logs = np.log1p(counts)
        print(f"{read.__name__}: {np.isfinite(counts).sum():,} of {counts.size:,} cells observed")
        print("       model    family  split  clients   rank   penalty     error     time")
        measured("effects", effects, logs, 0, 1, root_mean_square)
        measured("soft-impute", soft_impute, logs, 0, 1, root_mean_square)
        measured("low rank", searched, logs, 0, 1, root_mean_square)
        measured("low rank", federated, logs, 0, N_CLIENTS, root_mean_square)
        for name, imputer in (("effects", effects), ("low rank", searched)):
            of_counts = clone(imputer).set_params(family="poisson")
            deviances = [
                measured(name, of_counts, counts, seed, 1, mean_poisson_deviance)
                for seed in range(N_SPLITS)
            ]
            print(f"mean deviance {np.mean(deviances):.1f}")


if __name__ == "__main__":
    main()
