"""Which solver is best after a few epochs, depending on the number of rows per client?

The data have five overlapping components with unit covariances in five dimensions, on ten
homogeneous clients. The model is a mixture with a shared covariance, fitted with ω = 1 and
minibatches of 50 rows (10 for clients with 100 rows). The script prints how many nats per row a fit
is below pooled EM from the same start, after several numbers of epochs.

    python examples/benchmarks/first_epochs.py
"""

import argparse
import warnings

import numpy as np

from skfedem import FederatedGaussianMixture

EPOCHS = (3, 5, 10, 20)
N_CLIENTS, N_COMPONENTS, N_FEATURES = 10, 5, 5


def main():
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    warnings.simplefilter("ignore")  # fits end by their epochs
    print("rows a client  run                 " + "".join(f"{n:9d}" for n in EPOCHS))
    for n_rows, batch_size in ((100, 10), (1000, 50), (5000, 50)):
        rng = np.random.default_rng(0)
        means = 1.8 * rng.normal(size=(N_COMPONENTS, N_FEATURES))
        components = rng.integers(N_COMPONENTS, size=N_CLIENTS * n_rows)
        X = means[components] + rng.normal(size=(len(components), N_FEATURES))
        clients = np.repeat(np.arange(N_CLIENTS), n_rows)
        first = FederatedGaussianMixture(
            N_COMPONENTS,
            covariance_type="tied",
            means_init=X[rng.choice(len(X), N_COMPONENTS, replace=False)],
            max_iter=0,
            random_state=0,
        ).fit(X, clients=clients)
        start = first.get_params() | {
            "weights_init": first.weights_,
            "means_init": first.means_,
            "precisions_init": first.precisions_,
        }
        pooled = FederatedGaussianMixture(**start | {"max_iter": 5000, "tol": 1e-9}).fit(X)
        start |= {"max_iter": None, "tol": 0, "eval_every": None, "omega": 1.0}
        runs = {
            "all rows": {},
            f"FedEM, b = {batch_size}": {"batch_size": batch_size},
            f"VR-FedEM, b = {batch_size}": {"batch_size": batch_size, "solver": "vr_fedem"},
        }
        for name, settings in runs.items():
            gaps = []
            for max_epochs in EPOCHS:
                run = FederatedGaussianMixture(**start | settings | {"max_epochs": max_epochs})
                gaps.append(pooled.score(X) - run.fit(X, clients=clients).score(X))
            print(f"{n_rows:13d}  {name:20s}" + "".join(f"{gap:9.4f}" for gap in gaps))


if __name__ == "__main__":
    main()
