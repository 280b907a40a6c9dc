"""How do ω, p, b, the step size and the solver affect the cost of a fit as good as pooled EM's?

The data are handwritten digits (ten principal components) on 30 clients, each with about 60 rows
of one kind of digit. The model is a mixture of ten components with a shared covariance, and every
run starts from the same parameters. For each setting, the script counts the rounds, the passes over
the data, and the kB that the clients send until the log-likelihood stays within 0.01 nats per row
of pooled EM's. It prints medians over the seeds, as rows of the list-table of doc/choosing.rst:

    python examples/benchmarks/choosing.py
"""

import argparse
import sys
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture

sys.stdout.reconfigure(encoding="utf-8")  # whatever the console's encoding is
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--max-iter", type=int, default=20_000)
parser.add_argument("--gap", type=float, default=0.01, help="nats per row")
options = parser.parse_args()
warnings.simplefilter("ignore", ConvergenceWarning)  # runs end by their number of rounds

images, digits = load_digits(return_X_y=True)
X = PCA(n_components=10, svd_solver="full").fit_transform(images)
clients = [part for digit in range(10) for part in np.array_split(X[digits == digit], 3)]

common = {"n_components": 10, "covariance_type": "tied"}
start = FederatedGaussianMixture(**common, max_iter=0, random_state=11).fit(clients)
common |= {
    "weights_init": start.weights_,
    "means_init": start.means_,
    "precisions_init": start.precisions_,
}
pooled = FederatedGaussianMixture(**common, tol=1e-9, max_iter=10_000).fit(X)
target = pooled.score(X) - options.gap

VR = {"solver": "vr_fedem"}
RUNS = {
    "exact rounds": {},
    "ω = 0.5": {"omega": 0.5},
    "ω = 1": {"omega": 1.0},
    "ω = 2": {"omega": 2.0},
    "ω = 4": {"omega": 4.0},
    "ω = 8": {"omega": 8.0},
    "ω = 1, block": {"omega": 1.0, "compressor": "block"},
    "ω = 1, rand_k": {"omega": 1.0, "compressor": "rand_k"},
    "ω = 1, no control variates": {"omega": 1.0, "control_step": 0.0, "control_init": "zeros"},
    "p = 0.5": {"participation": 0.5},
    "p = 0.1": {"participation": 0.1},
    "ω = 1, p = 0.5": {"omega": 1.0, "participation": 0.5},
    "ω = 1, p = 0.5, γ = 0.1": {"omega": 1.0, "participation": 0.5, "step_size": 0.1},
    "ω = 1, p = 0.5, γ = 0.03": {"omega": 1.0, "participation": 0.5, "step_size": 0.03},
    "ω = 1, p = 0.5, γ = 0.5": {"omega": 1.0, "participation": 0.5, "step_size": 0.5},
    "ω = 1, p = 0.5, b = 20": {"omega": 1.0, "participation": 0.5, "batch_size": 20},
    "ω = 1, p = 0.5, b = 20, VR": {"omega": 1.0, "participation": 0.5, "batch_size": 20} | VR,
    "ω = 1, p = 0.5, b = 5, VR": {"omega": 1.0, "participation": 0.5, "batch_size": 5} | VR,
    "b = 20": {"batch_size": 20},
    "b = 20, VR": {"batch_size": 20} | VR,
}


def cost(settings, seed):
    """Largest γ of a round, and rounds, epochs and kB until the target is reached for good."""
    gm = FederatedGaussianMixture(
        **common, **settings, tol=0, max_iter=options.max_iter, max_epochs=400, random_state=seed
    )
    if gm.batch_size is not None:
        gm.set_params(eval_every=10)
    history = gm.fit(clients).history_
    step_size = np.nanmax(history["step_size"])  # the safeguard may have cut the first
    seen = np.isfinite(history["log_likelihood"])
    below = history["round"][seen][history["log_likelihood"][seen] < target]
    last = history["round"][seen][-1]
    if len(below) and below[-1] == last:
        return step_size, np.inf, np.inf, np.inf
    reached = history["round"][seen][history["round"][seen] > below[-1]][0] if len(below) else 0
    kilobytes = history["uplink_bits"][: reached + 1].sum() / 8e3
    return step_size, reached, history["epoch"][reached], kilobytes


for name, settings in RUNS.items():
    costs = [cost(settings, seed) for seed in range(options.seeds)]
    gamma, rounds, epochs, kilobytes = np.median(costs, axis=0)
    shown = [f"{gamma:.3g}", *(f"{value:.0f}" for value in (rounds, epochs, kilobytes))]
    print("   * - " + "\n     - ".join([name, *shown]).replace("inf", "–"), flush=True)
