r"""
Trajectories of a weight in FedEM and VR-FedEM
==============================================

The slides of the paper by Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021) plot the estimate of
a mixture's weight, and the mean of ‖h(Ŝ)‖² over runs, against the epochs. They compare FedEM and
VR-FedEM on a toy example with two components in the plane.

By default, there are eight runs of 200 epochs; ``--full`` uses 50 runs of 500::

    python examples/plot_slides_weights.py
    python examples/plot_slides_weights.py --full --output weights.png
"""

import argparse
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture
from skfedem.datasets import make_fedem_mixture

parser = argparse.ArgumentParser(description="Weights by FedEM and VR-FedEM, several runs.")
parser.add_argument("--runs", type=int, default=8)
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--full", action="store_true", help="50 runs of 500 epochs")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)
if options.full:
    options.runs, options.epochs = 50, 500

# Runs of this many epochs are wanted, converged or not.
warnings.simplefilter("ignore", ConvergenceWarning)

# %%
# The slides do not state their settings, so we use those of the paper's Figure 1: 100 clients with
# 100 rows each, :math:`\gamma = \alpha = 10^{-2}`, :math:`\omega = 1` and :math:`p = 0.75`; FedEM
# with :math:`b = 20`, VR-FedEM with :math:`b = 5` and :math:`k_\mathrm{in} = 20`. All runs have the
# same rows and the same start.

SOLVERS = {
    "FedEM": {"solver": "fedem", "batch_size": 20},
    "VR-FedEM": {"solver": "vr_fedem", "batch_size": 5, "n_inner": 20},
}
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


def several_runs(data, solver, epochs, n_runs):
    """First weight and ||h||² at the given epochs, for each run: (n_runs, 2, n_epochs)."""
    runs = []
    for seed in range(n_runs):
        history = fit(
            data,
            **SOLVERS[solver],
            step_size=1e-2,
            control_step=1e-2,
            compressor="block",
            omega=1.0,
            participation=0.75,
            max_iter=None,
            max_epochs=epochs[-1],
            tol=0,
            random_state=seed,
        ).history_
        seen = np.isfinite(history["mean_field_sq_norm"])
        columns = history["weights"][seen, 0], history["mean_field_sq_norm"][seen]
        # Evaluated about once an epoch, when a round ends.
        runs.append([np.interp(epochs, history["epoch"][seen], column) for column in columns])
    return np.array(runs)


data = make_fedem_mixture(random_state=0)
pooled = fit(data, max_iter=1000, tol=1e-12).weights_[0]
epochs = np.arange(1, options.epochs + 1)
runs = {solver: several_runs(data, solver, epochs, options.runs) for solver in SOLVERS}


# %%
# Both algorithms converge to the weight of pooled EM.

print(f"weight by pooled EM: {pooled:.5f}")
for solver, of_solver in runs.items():
    print(solver)
    for at in np.unique(np.linspace(0, options.epochs, 6)[1:].astype(int)):
        weights, fields = of_solver[:, :, at - 1].T
        print(
            f"  epoch {at:3}: weight {weights.mean():.5f} +- {weights.std():.0e}, "
            f"mean ||h||^2 {fields.mean():.1e}"
        )

# %%
# *What the slides claim.* VR-FedEM reduces the variance of the clients' estimates, and with it that
# of the weight.
#
# *What we see here.* The same. At epoch 200, the weights of FedEM's runs differ in the third
# decimal, and :math:`\lVert h \rVert^2` is near :math:`10^{-5}` and no longer decreases. Those of
# VR-FedEM differ in the sixth decimal, and :math:`\lVert h \rVert^2` keeps decreasing by a factor
# of ten every 38 epochs. Both use the same step size. VR-FedEM is ahead from the beginning, because
# it reads fewer rows in a round: an epoch has 8.3 rounds of VR-FedEM, but only 6.7 of FedEM.

COLOURS = {"FedEM": "tab:red", "VR-FedEM": "tab:blue"}
LINES = {"FedEM": "-", "VR-FedEM": "--"}
figure, (left, right) = plt.subplots(ncols=2, figsize=(10, 4), layout="constrained")
inset = left.inset_axes([0.42, 0.28, 0.55, 0.42])
late = epochs > options.epochs / 2
for solver, colour in COLOURS.items():
    weights, fields = runs[solver].transpose(1, 2, 0)
    for axis, shown in ((left, slice(None)), (inset, late)):
        axis.plot(epochs[shown], weights[shown], LINES[solver], color=colour, linewidth=0.8)
    left.plot([], LINES[solver], color=colour, label=solver)
    right.plot(epochs, fields.mean(axis=1), LINES[solver], color=colour, label=solver)
for axis in (left, inset):
    axis.axhline(pooled, color="black", linestyle=":", linewidth=1)
left.plot([], color="black", linestyle=":", label="pooled EM")
left.set(xlabel="epoch", ylabel="first weight", title=f"weight in each of {options.runs} runs")
inset.tick_params(labelsize="small")
right.set(xlabel="epoch", ylabel=r"mean of $\|h(\hat S_k)\|^2$ over runs", yscale="log")
for axis in (left, right):
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
