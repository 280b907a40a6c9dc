"""What does the ridge on the effects of sites and months do, where next to nothing was seen?

Simulated counts of the paper's size, 9,721 sites and 525 months with 0.24 % of the cells observed
by ten observers, whose effort grows; rank 2 and penalty 10. For each ridge the sum of the fitted
means over all cells, as a multiple of the truth, and their correlation with the true trend over
months: smallest and largest of some seeds.

    python examples/benchmarks/effects_penalty.py            # half a minute
"""

import argparse
import warnings

import numpy as np

from skfedem import FederatedMatrixImputer
from skfedem.datasets import make_site_counts


def main():
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    warnings.simplefilter("ignore")  # fits without a ridge do not converge
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


if __name__ == "__main__":
    main()
