r"""
What control variates are for
=============================

The slides of Dieuleveut, Fort, Moulines and Robin's paper (NeurIPS 2021) set FedEM against *naive*
FedEM, in which clients compress what they know instead of what is new: V = 0 throughout. They
follow the estimate of a weight over the epochs, once for homogeneous and once for strongly
heterogeneous clients, on their toy example of two components in the plane. Here the heterogeneous
clients hold rows of one component each.

The default is five runs of 250 epochs; ``--full`` is 50 runs of 500::

    python examples/plot_slides_naive.py
    python examples/plot_slides_naive.py --full --output naive.png
"""

import argparse
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture
from skfedem.datasets import make_fedem_mixture

parser = argparse.ArgumentParser(description="FedEM with and without control variates.")
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--epochs", type=int, default=250)
parser.add_argument("--full", action="store_true", help="50 runs of 500 epochs")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)
if options.full:
    options.runs, options.epochs = 50, 500

# Runs of this many rounds are wanted, converged or not.
warnings.simplefilter("ignore", ConvergenceWarning)

# %%
# The slides do not give their settings. "Minibatches" are those of the paper's Figure 1: 100
# clients of 100 rows, :math:`b = 20`, :math:`\gamma = \alpha = 10^{-2}`, :math:`\omega = 1` and
# :math:`p = 0.75`. "All rows" is the same, except that active clients read all their rows in every
# round, which leaves compression and absence as the only noise, and that steps are long enough to
# see where this leads: :math:`\gamma = 0.1` and :math:`\alpha = 1/(1 + \omega)`.

CLIENTS = {"homogeneous clients": 0.0, "one-component clients": 1.0}
PARTICIPATION = 0.75
READING = {
    "minibatches": {"batch_size": 20, "step_size": 1e-2, "control_step": 1e-2},
    "all rows": {"batch_size": None, "step_size": 0.1, "control_step": "auto"},
}
# What makes FedEM naive: controls that are zero at first and do not move.
ALGORITHMS = {"FedEM": {}, "naive FedEM": {"control_step": 0.0, "control_init": "zeros"}}
START = {"weights_init": [0.5, 0.5], "means_init": [[-1.0, 0.0], [1.0, 0.0]]}


def fit(data, **settings):
    """Two components with the known covariance, from the start above."""
    return FederatedGaussianMixture(
        2,
        covariance_type="tied",
        fixed_covariance=data.covariances,
        **START,
        **settings,
    ).fit(data.clients)


def several_runs(data, reading, algorithm, n_epochs, n_runs):
    """Rows of epoch, first weight and ||h||², about once an epoch, for each run."""
    settings = {**READING[reading], **ALGORITHMS[algorithm]}
    n_rows = np.mean([len(rows) for rows in data.clients])
    rounds_per_epoch = n_rows / ((settings["batch_size"] or n_rows) * PARTICIPATION)
    runs = []
    for seed in range(n_runs):
        history = fit(
            data,
            **settings,
            compressor="block",
            omega=1.0,
            participation=PARTICIPATION,
            max_iter=round(n_epochs * rounds_per_epoch),
            eval_every=round(rounds_per_epoch),
            tol=0,
            random_state=seed,
        ).history_
        seen = np.isfinite(history["mean_field_sq_norm"])
        columns = history["epoch"], history["weights"][:, 0], history["mean_field_sq_norm"]
        runs.append([column[seen] for column in columns])
    return np.array(runs)


data = {
    name: make_fedem_mixture(heterogeneity=value, random_state=0) for name, value in CLIENTS.items()
}
pooled = {name: fit(of_name, max_iter=1000, tol=1e-12) for name, of_name in data.items()}
runs = {
    (name, reading, algorithm): several_runs(
        data[name], reading, algorithm, options.epochs, options.runs
    )
    for name in CLIENTS
    for reading in READING
    for algorithm in ALGORITHMS
}


# %%
# The last quarter of the epochs: how far the weight is from that of EM on the pooled rows, and the
# squared norm of the mean field.


def ending(of_runs, weight):
    """Root mean squared error of the weight and mean ||h||² over the last quarter of the epochs."""
    last = 3 * of_runs.shape[2] // 4
    error = np.sqrt(np.mean((of_runs[:, 1, last:] - weight) ** 2))
    return error, of_runs[:, 2, last:].mean()


for (name, reading, algorithm), of_runs in runs.items():
    error, mean_field = ending(of_runs, pooled[name].weights_[0])
    print(
        f"{name}, {reading}, {algorithm}: weight off by {error:.1e}, ||h||^2 {mean_field:.1e}, "
        f"at the end {of_runs[:, 2, -1].mean():.1e}"
    )

# %%
# *What the slides claim.* The control variates are there to control the variance of the compression
# step, and this matters for heterogeneous clients.
#
# *What ours shows.* The same, and why. A naive client's message does not fade: near the solution it
# is the client's own field :math:`h_i`, and the noise of compression and absence is proportional to
# it. Homogeneous clients have small fields there, and the noise of minibatches hides that of their
# messages. A client of one component keeps sending a large field, which the others outvote: the
# naive weight strays several times as far, at a mean field several times as large. Nothing is
# biased, though: it wanders about the right value. (FedEM's own floor is *lower* with clients of
# one component: their minibatches together are a stratified sample, in which no component can be
# over- or under-represented.)
#
# Without minibatches the difference is one of kind. FedEM converges to the solution of pooled EM,
# and no more slowly for heterogeneous clients. Naive FedEM stops at a floor, even for homogeneous
# clients, as no two clients are quite alike; for clients of one component, the floor is some forty
# times as high.

COLOURS = {"FedEM": "tab:blue", "naive FedEM": "tab:orange"}
LINES = {"minibatches": "-", "all rows": "--"}
figure, axes = plt.subplots(2, 2, sharex=True, sharey="row", figsize=(10, 7), layout="constrained")
for (top, bottom), name in zip(axes.T, CLIENTS, strict=True):
    for algorithm in reversed(ALGORITHMS):
        of_runs = runs[name, "minibatches", algorithm]
        lines = top.plot(of_runs[:, 0].T, of_runs[:, 1].T, color=COLOURS[algorithm], linewidth=0.9)
        lines[0].set_label(algorithm)
    top.axhline(pooled[name].weights_[0], color="black", linestyle=":", label="pooled EM")
    for reading, line in LINES.items():
        for algorithm, colour in COLOURS.items():
            epochs, _, mean_field = runs[name, reading, algorithm].mean(axis=0)
            bottom.plot(epochs, mean_field, line, color=colour, label=f"{algorithm}, {reading}")
    top.set(title=name)
    bottom.set(xlabel="epoch", yscale="log")
axes[0, 0].set(ylabel="first weight, minibatches")
axes[1, 0].set(ylabel=rf"mean of $\|h(\hat S_k)\|^2$ over {options.runs} runs")
for axis in axes.flat:
    axis.grid(alpha=0.3)
for axis in axes[:, 0]:
    axis.legend(frameon=False)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
