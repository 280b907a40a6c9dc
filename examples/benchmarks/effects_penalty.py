"""What is the effect of the ridge penalty on site and month effects when observations are scarce?

The first table shows how well held-out cells are predicted, on simulated counts at 200 sites in 60
months from eight observers. It has the best score of a search for the penalty, as a mean over
three seeds, for the counts, for presences, and for log1p of the counts.

The second table is on counts of the paper's size: 9,721 sites and 525 months, of whose cells ten
observers with increasing effort saw 0.24%; rank 2 and penalty 10. For each ridge penalty, it has
the sum of the fitted means over all cells, as a multiple of the truth, and the correlation of the
fitted with the true monthly trend: the smallest and the largest of several seeds.

    python examples/benchmarks/effects_penalty.py            # five minutes
"""

import argparse
import warnings

import numpy as np

from skfedem import FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.datasets import make_site_counts

# Transformations of the counts.
CELLS = {
    "poisson": lambda counts: counts,
    "bernoulli": lambda counts: counts > 0,
    "gaussian": np.log1p,
}


def held_out():
    """Print how well held-out cells are predicted."""
    print("observed     family  effects_penalty    nats")
    for observed in (0.05, 0.1, 0.2):
        data = [
            make_site_counts(200, 60, n_clients=8, observed=observed, random_state=seed)
            for seed in range(3)
        ]
        for family, cells_of in CELLS.items():
            for effects_penalty in (0.01, 0.1, 1.0, 10.0):
                search = FederatedMatrixImputerCV(
                    penalties=6,
                    effects_penalties=[effects_penalty],
                    n_splits=3,
                    family=family,
                    random_state=0,
                )
                scores = []
                for counts in data:
                    clients = [
                        np.column_stack([own[:, :2], cells_of(own[:, 2])]) for own in counts.clients
                    ]
                    scores.append(search.fit(clients, shape=counts.shape).best_score_)
                print(f"{observed:8}  {family:>9}  {effects_penalty:15}  {np.mean(scores):6.3f}")


def trends():
    """Print sums and trends when almost nothing was observed."""
    print("effort_growth  effects_penalty                  sum   correlation")
    for effort_growth, n_seeds in ((0.05, 5), (0.1, 3)):
        data = [
            make_site_counts(
                9721, 525, 10, observed=12185, effort_growth=effort_growth, random_state=seed
            )
            for seed in range(n_seeds)
        ]
        for effects_penalty in (0, 0.01, 0.1):
            imputer = FederatedMatrixImputer(
                2,
                family="poisson",
                penalty=10.0,
                effects_penalty=effects_penalty,
                random_state=0,
            )
            sums, correlations = [], []
            for counts in data:
                imputer.fit(counts.clients, shape=counts.shape)
                trend = imputer.fitted_mean().sum(axis=0)
                sums.append(trend.sum() / counts.trend.sum())
                correlations.append(np.corrcoef(trend, counts.trend)[0, 1])
            print(
                f"{effort_growth:13}  {effects_penalty:15}  {min(sums):7.2f} to {max(sums):8.2f}  "
                f"{min(correlations):4.2f} to {max(correlations):4.2f}"
            )


def main():
    """Print both tables."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    warnings.simplefilter("ignore")  # fits without a ridge do not converge
    held_out()
    trends()


if __name__ == "__main__":
    main()
