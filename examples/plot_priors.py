r"""
Priors: a median, an ensemble, and FedProx
==========================================

In hard EM, clients train parameters of their own under a prior, and the server learns the prior's
centre (Louizos, Reisser, Soriaga and Welling, 2021, Appendix J). Three priors other than FedAvg's
are shown on scikit-learn's digits:

- a Laplace prior makes the server's parameters a median, which some broken clients cannot move;
- a mixture trains an ensemble, for clients of two kinds that contradict each other;
- a Gaussian prior with a precision, FedProx, keeps clients near the common model.

::

    python examples/plot_priors.py
    python examples/plot_priors.py --output priors.png
"""

import argparse
import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfedem import FederatedMLPClassifier

parser = argparse.ArgumentParser(description="Medians, ensembles and FedProx on digits.")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X / 16, y, test_size=0.3, stratify=y, random_state=0)
generator = np.random.default_rng(0)
SETTINGS = {
    "hidden_layer_sizes": (),
    "batch_size": 16,
    "learning_rate_init": 0.2,
    "random_state": 0,
}

# %%
# Broken clients
# --------------
# Of 20 clients with images at random, some have labels that were shifted by one, and each of their
# rows five times, so that they train longer. The median ignores them as long as they are a clear
# minority; the mean follows them.

owners = generator.integers(20, size=len(y))
numbers = range(0, 13, 2)
accuracy = {"mean (FedAvg)": [], "median (Laplace)": []}
for n_broken in numbers:
    broken = owners < n_broken
    rows = np.concatenate([np.flatnonzero(~broken), np.repeat(np.flatnonzero(broken), 5)])
    labels = np.where(broken, (y + 1) % 10, y)
    for name, prior in zip(accuracy, ("gaussian", "laplace"), strict=True):
        clf = FederatedMLPClassifier(prior=prior, client_weights="uniform", max_iter=60, **SETTINGS)
        clf.fit(X[rows], labels[rows], clients=owners[rows])
        accuracy[name].append(clf.score(X_test, y_test))
for name, values in accuracy.items():
    print(f"{name}: accuracy with 0, 2, ..., 12 broken clients", np.round(values, 2))

# %%
# Two populations
# ---------------
# For half of the clients, the digits are reversed: 9 for 0, 8 for 1. No single model suits both.
# Each client of an ensemble trains the model with the smaller loss on its rows.

reversed_ = owners % 2 == 1
labels = np.where(reversed_, 9 - y, y)
both = {}
for name, settings in {"one model": {}, "ensemble of two": {"prior": "mixture"}}.items():
    clf = FederatedMLPClassifier(max_iter=60, **settings, **SETTINGS)
    clf.fit(X, labels, clients=owners)
    coefs, intercepts = clf.coefs_[0].reshape(-1, 64, 10), clf.intercepts_[0].reshape(-1, 10)
    found = [(X_test @ c + i).argmax(axis=1) for c, i in zip(coefs, intercepts, strict=True)]
    goals = {"as they are": y_test, "reversed": 9 - y_test}
    both[name] = [max(np.mean(own == goal) for own in found) for goal in goals.values()]
    print(f"{name}: accuracy for digits as they are and reversed", np.round(both[name], 2))

# %%
# Drift
# -----
# Each of ten clients has two digits, and trains for many epochs in a round. Its parameters then
# drift away from the server's, towards a model that knows these two digits only, as accuracies of
# the clients' own models on all digits show. A precision holds them back; too much of it keeps them
# from learning, within these rounds.

owners_of_digits = np.where(generator.random(len(y)) < 0.5, y, (y + 1) % 10)
precisions = [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
own_scores, scores = [], []
for precision in precisions:
    clf = FederatedMLPClassifier(
        prior_precision=precision, local_epochs=20, max_iter=30, **SETTINGS
    )
    clf.fit(X, y, clients=owners_of_digits)
    own = [clf.score(X_test, y_test, clients=np.full(len(y_test), k)) for k in range(10)]
    own_scores.append(np.mean(own))
    scores.append(clf.score(X_test, y_test))
print("precision            ", *precisions)
print("global model         ", *np.round(scores, 3))
print("own, on all digits   ", *np.round(own_scores, 3))

# %%

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for (name, values), marker in zip(accuracy.items(), "os", strict=True):
    axes[0].plot(numbers, values, marker=marker, label=name)
axes[0].set(title="Broken clients", xlabel="broken clients of 20", ylabel="accuracy", ylim=(0, 1))
axes[0].legend(loc="lower left")
for shift, (name, values) in zip((-0.2, 0.2), both.items(), strict=True):
    axes[1].bar(np.arange(2) + shift, values, width=0.4, label=name)
axes[1].set_xticks([0, 1], ["digits as they are", "digits reversed"])
axes[1].set(title="Two populations", ylabel="accuracy of the better model", ylim=(0, 1.25))
axes[1].legend(loc="upper center", ncols=2)
places = np.arange(len(precisions))
axes[2].plot(places, scores, marker="o", label="global model")
axes[2].plot(places, own_scores, marker="s", label="own models, on all digits")
axes[2].set_xticks(places, [f"{value:g}" for value in precisions])
axes[2].set(title="FedProx", xlabel="precision λ", ylabel="accuracy", ylim=(0, 1.25))
axes[2].legend(loc="upper center")
for axis in axes:
    axis.grid(alpha=0.3, axis="y")
if options.output:
    figure.savefig(options.output, dpi=150)
plt.show()
