r"""
What control variates are for
=============================

The slides of the paper by Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021) compare FedEM with
*naive* FedEM. Its clients have no control variates (V = 0 throughout): they compress their whole
field, not its difference from what they sent before. The slides plot the estimate of a weight
against the epochs, for homogeneous and for strongly heterogeneous clients, on a toy example with
two components in the plane. Here, each heterogeneous client has rows from only one component.

By default, there are five runs of 250 epochs; ``--full`` uses 50 runs of 500::

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
# The slides do not state their settings, so we use two:
#
# - "minibatches" are the settings of the paper's Figure 1: 100 clients with 100 rows each,
#   :math:`b = 20`, :math:`\gamma = \alpha = 10^{-2}`, :math:`\omega = 1` and :math:`p = 0.75`;
# - "all rows" is the same, except that active clients read all their rows in every round, so that
#   compression and participation are the only noise. The steps are larger, to see the limit sooner:
#   :math:`\gamma = 0.1` and :math:`\alpha = 1/(1 + \omega)`.

CLIENTS = {"homogeneous clients": 0.0, "one-component clients": 1.0}
PARTICIPATION = 0.75
READING = {
    "minibatches": {"batch_size": 20, "step_size": 1e-2, "control_step": 1e-2},
    "all rows": {"batch_size": None, "step_size": 0.1, "control_step": "auto"},
}
# Naive FedEM: the control variates start at zero and are never updated.
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
# For the last quarter of the epochs, we print the error of the weight against EM on the pooled
# rows, and the squared norm of the mean field.


def ending(of_runs, weight):
    """Root mean squared error of the weight and mean ||h||² over the last quarter of the epochs."""
    last = 3 * of_runs.shape[2] // 4
    error = np.sqrt(np.mean((of_runs[:, 1, last:] - weight) ** 2))
    return error, of_runs[:, 2, last:].mean()


for (name, reading, algorithm), of_runs in runs.items():
    error, mean_field = ending(of_runs, pooled[name].weights_[0])
    print(
        f"{name}, {reading}, {algorithm}: error of the weight {error:.1e}, "
        f"||h||^2 {mean_field:.1e}, at the end {of_runs[:, 2, -1].mean():.1e}"
    )

# %%
# *What the slides claim.* Control variates reduce the variance of the compression step, which
# matters for heterogeneous clients.
#
# *What we see here.* The same. The messages of naive clients do not vanish at the solution. There,
# a message is the client's own field :math:`h_i`, and the noise of compression and participation is
# proportional to its size. For homogeneous clients these fields are small, and their noise is below
# that of the minibatches. For one-component clients they are large and cancel only in the mean over
# all clients. The error of the weight in naive FedEM is then several times as large as in FedEM,
# and so is the mean field. The weight is not biased, though: it fluctuates around the right value.
# (FedEM's own floor is *lower* with one-component clients, because their minibatches together are
# a stratified sample, in which no component is over- or under-represented.)
#
# Without minibatches, the difference is clearer. FedEM converges to the solution of pooled EM, and
# as fast for heterogeneous clients as for homogeneous ones. Naive FedEM levels off at a floor, even
# for homogeneous clients, whose rows still differ. For one-component clients, this floor is about
# forty times as high.

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
