r"""
What a bit buys: likelihood against communication
=================================================

In uncompressed federated EM every client sends its statistics in each round, 64 bits a number.
FedEM sends a compressed difference to what the server already knows. This example shows how far a
fit has come against the number of bits that the clients have sent, for the three operators of
:mod:`skfedem.compression`, at several levels of the relative variance ω, with two step sizes.

The rows are scikit-learn's handwritten digits on 30 clients that hold few digits each. With
``--full`` they are MNIST's images on 100 clients, if its four idx files are in the subfolder
``mnist`` of the folder that ``SKFEDEM_DATA`` names (``data`` if it is not set); this takes a
quarter of an hour::

    python examples/plot_communication.py
    python examples/plot_communication.py --full --output communication.png
"""

import argparse
import gzip
import os
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture
from skfedem.datasets import client_labels

parser = argparse.ArgumentParser(description="Log-likelihood against bits sent.")
parser.add_argument("--full", action="store_true", help="MNIST instead of the digits")
parser.add_argument("--seeds", type=int, default=3, help="runs of each setting")
parser.add_argument("--rounds", type=int, help="of a run: 150, or 300 with MNIST")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)
n_rounds = options.rounds or (300 if options.full else 150)

# Runs of this many rounds are wanted, converged or not.
warnings.simplefilter("ignore", ConvergenceWarning)

N_COMPONENTS, WITHIN = 10, 0.01

# %%
# The rows and who holds them.


def digits_rows():
    """Rows of the digits, and their clients: 30 with two or a few more kinds of digit each."""
    images, digits = load_digits(return_X_y=True)
    X = PCA(n_components=10, random_state=0).fit_transform(images)
    return X, client_labels(X, 30, scheme="label", y=digits, random_state=0)


def mnist_rows(folder):
    """Rows of MNIST and their clients: 100 with 700 random images each."""
    images = []
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        with gzip.open(folder / name) as file:
            images.append(np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 784))
    pixels = np.concatenate(images).astype(np.float32)
    pixels = pixels[:, pixels.std(axis=0) > 0]
    X = PCA(n_components=20, random_state=0).fit_transform(pixels).astype(np.float64)
    return X, client_labels(X, 100, random_state=0)


name, (X, labels) = "digits", digits_rows()
if options.full:
    folder = Path(os.environ.get("SKFEDEM_DATA", "data")) / "mnist"
    try:
        name, (X, labels) = "MNIST", mnist_rows(folder)
    except FileNotFoundError as error:
        print(f"{error}: the digits instead")
print(f"{name}: {len(X):,} rows on {labels.max() + 1} clients")

# %%
# Uncompressed federated EM is what the estimator does by default. From the start, which all runs
# share, it climbs to an optimum, and we plot the distance to this optimum. The digits start from
# the default, one-shot federated k-means. On MNIST that start is so near the end that uncompressed
# EM takes four to twelve rounds; so there the start is the paper's, with random images as means.


def common():
    """Parameters of all runs: the model and the start."""
    model = {"n_components": N_COMPONENTS, "covariance_type": "tied"}
    if name == "MNIST":
        weights = np.full(N_COMPONENTS, 1 / N_COMPONENTS)
        means = X[np.random.default_rng(0).choice(len(X), N_COMPONENTS, replace=False)]
        precisions = np.linalg.inv(np.cov(X.T, bias=True))
    else:
        first = FederatedGaussianMixture(**model, max_iter=0, random_state=7)
        first.fit(X, clients=labels)
        weights, means, precisions = first.weights_, first.means_, first.precisions_
    start = {"weights_init": weights, "means_init": means, "precisions_init": precisions}
    return {**model, **start, "tol": 0, "eval_every": 1}


def bits_and_likelihood(**settings):
    """Bits that the clients have sent and log-likelihood in nats per row, round by round."""
    model = FederatedGaussianMixture(**START, **settings).fit(X, clients=labels)
    return np.cumsum(model.history_["uplink_bits"]), model.history_["log_likelihood"]


START = common()
reference_bits, reference = bits_and_likelihood(max_iter=500)
optimum = reference.max()


def bits_to_arrive(bits, log_likelihood):
    """Bits until the log-likelihood is within 0.01 nats of the optimum for good; inf if never."""
    outside = np.flatnonzero(log_likelihood < optimum - WITHIN)
    first = outside[-1] + 1 if len(outside) else 0
    return bits[first] if first < len(bits) else np.inf


unit = bits_to_arrive(reference_bits, reference)
print(
    f"uncompressed federated EM: {reference[0]:.4f} nats per row at the start, {optimum:.4f} at "
    f"the optimum; within {WITHIN} of it after {unit / 8e6:.3f} MB"
)

# %%
# The compressed runs: all clients and all rows in every round, so that compression is the only
# noise. Clients start with empty control variates, which saves an uncompressed message. The curves
# are means over runs with different seeds, at the same round.

OPERATORS = {"dithering": "random dithering", "block": "block quantizer", "rand_k": "random k"}
OMEGAS = (0.5, 1.0, 2.0, 4.0, 8.0)
STEP_SIZES = ("auto", 0.5)


def curve(operator, omega, step_size):
    """Mean bits and mean log-likelihood of several runs by round, and median bits to arrive."""
    runs = [
        bits_and_likelihood(
            compressor=operator,
            omega=omega,
            step_size=step_size,
            control_init="zeros",
            max_iter=n_rounds,
            random_state=seed,
        )
        for seed in range(options.seeds)
    ]
    arrival = np.median([bits_to_arrive(*run) for run in runs])
    bits, log_likelihood = np.mean(runs, axis=0)
    return bits, log_likelihood, arrival


curves = {
    (operator, omega, step_size): curve(operator, omega, step_size)
    for operator in OPERATORS
    for omega in OMEGAS
    for step_size in STEP_SIZES
}

print(f"bits until within {WITHIN} nats, as a share of uncompressed federated EM's")
print(
    f"{'operator':10} {'gamma':>5}  " + "  ".join(f"{f'omega = {omega:g}':>11}" for omega in OMEGAS)
)
for operator in OPERATORS:
    for step_size in STEP_SIZES:
        shares = [curves[operator, omega, step_size][2] / unit for omega in OMEGAS]
        listed = "  ".join(f"{'-' if np.isinf(x) else f'{x:.3f}':>11}" for x in shares)
        print(f"{operator:10} {step_size!s:>5}  {listed}")
print("log-likelihood in nats per row by bits sent, mean of the runs")
for key, (bits, log_likelihood, _) in curves.items():
    shown = np.linspace(0, n_rounds, 6).astype(int)
    pairs = " ".join(f"{bits[k] / 8e6:.3f} MB {log_likelihood[k]:.4f} " for k in shown)
    print(f"{key[0]:10} omega = {key[1]:<3g} gamma = {key[2]!s:5}: {pairs}")

# %%
# *What is seen*, on the digits. *The operators* differ in what a number costs: dithering needs two
# or three bits, the block quantizer pays for one norm every :math:`(1 + \omega)^2` numbers, and
# random k for 64 bits with each number that it keeps. At :math:`\omega = 0.5`, with the automatic
# step, they take 7.5 percent (dithering), less than half (block) and 95 percent (random k) of the
# bits of uncompressed EM to come within 0.01 nats of the optimum. More than a quarter of
# dithering's bits at :math:`\omega = 1` is in the messages before the first round.
#
# *A larger* :math:`\omega` *makes messages shorter, and the automatic step as well.* The block
# quantizer gains from it all the way. Dithering's messages are short as they are: with the
# automatic step it takes a quarter more bits at 1 and 2 than at 0.5, and at 8 nearly twice as many.
#
# The automatic step *is* 0.5 at :math:`\omega = 2` with dithering and at 1 with the others, so that
# these runs are the same in both rows. For smaller :math:`\omega` it is longer, about 0.7 at 0.5.
#
# *Runs that stop short* are mostly at rest in another optimum, 0.019 nats below. Where one of the
# three seeds is, their mean ends 0.006 nats below, and 0.012 with two of them, for which the table
# of medians has a dash. Some are still on their way after 150 rounds: automatic steps at
# :math:`\omega = 4` and 8 above all.
#
# In the first rounds, control variates are still empty, so that whole statistics are compressed:
# that is the bump at the left, and its noise decides where a run goes. Noise may also help:
# uncompressed EM creeps over a plateau for twenty rounds, which some runs with :math:`\omega = 8`
# leave earlier. So it is noise that decides which settings arrive, and which is the cheapest of
# all: other seeds give other ones.

figure, axes = plt.subplots(
    nrows=2, ncols=3, sharex=True, sharey=True, figsize=(10, 7), layout="constrained"
)
colours = plt.get_cmap("viridis")(np.linspace(0.2, 0.95, len(OMEGAS)))
floor = 1e-5
most = max(unit, *(bits[-1] for bits, _, _ in curves.values())) / 8e6
highest = max(2, 2 * (optimum - reference[0]))
for row, step_size in zip(axes, STEP_SIZES, strict=True):
    for axis, (operator, title) in zip(row, OPERATORS.items(), strict=True):
        axis.plot(
            reference_bits / 8e6,
            np.maximum(optimum - reference, floor / 10),
            color="black",
            linewidth=2,
            label="uncompressed EM",
        )
        for omega, colour in zip(OMEGAS, colours, strict=True):
            bits, log_likelihood, _ = curves[operator, omega, step_size]
            axis.plot(
                bits / 8e6,
                np.maximum(optimum - log_likelihood, floor / 10),
                color=colour,
                label=f"ω = {omega:g}",
            )
        axis.axhline(WITHIN, color="0.5", linestyle=":", linewidth=1, label=f"{WITHIN} nats")
        axis.set(xscale="log", yscale="log", xlim=(None, 1.2 * most), ylim=(floor, highest))
        axis.set_title(f"{title}, γ = {step_size}")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
for axis in axes[-1]:
    axis.set(xlabel="sent by the clients (MB)")
figure.supylabel("log-likelihood below the optimum (nats per row)")
handles, names = axes[0, 0].get_legend_handles_labels()
figure.legend(handles, names, loc="outside lower center", ncols=7, frameon=False)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
