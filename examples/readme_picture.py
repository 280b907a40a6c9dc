"""
The picture of the README
=========================

Left: handwritten digits on ten clients, each with one kind of digit. Right: how far the
log-likelihood is below that of pooled EM, against the amount of data that the clients have sent.

    python examples/readme_picture.py doc/_static/readme.png
"""

import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture

images, digits = load_digits(return_X_y=True)
X = PCA(n_components=10, svd_solver="full").fit_transform(images)
clients = [X[digits == digit] for digit in range(10)]

common = {"n_components": 10, "covariance_type": "tied", "random_state": 4, "tol": 1e-9}
pooled = FederatedGaussianMixture(**common, max_iter=5000).fit(clients)
best = pooled.score(X)
warnings.simplefilter("ignore", ConvergenceWarning)  # one of them never converges
noisy = {"omega": 1.0, "participation": 0.5, "max_iter": 600}
vr = {"solver": "vr_fedem", "batch_size": 20, "eval_every": 2}
runs = {
    "exact rounds: EM": pooled,
    "FedEM, compressed, half of the clients": FederatedGaussianMixture(
        **common, **noisy, eval_every=1
    ),
    "VR-FedEM, the same with 20 rows a client": FederatedGaussianMixture(**common, **noisy, **vr),
    "FedEM, the same without control variates": FederatedGaussianMixture(
        **common, **noisy, control_step=0.0, control_init="zeros", eval_every=1
    ),
}

figure, (left, right) = plt.subplots(
    ncols=2, figsize=(9, 3.6), width_ratios=(1, 1.5), layout="constrained"
)
for digit, rows in enumerate(clients):
    left.scatter(rows[:, 0], rows[:, 1], s=3, color=f"C{digit}", alpha=0.5)
    middle = np.median(rows[:, :2], axis=0)
    left.text(*middle, digit, weight="bold", ha="center", va="center", fontsize=12)
left.set(title="ten clients, one digit each", xticks=[], yticks=[])
left.set(xlabel="first of ten features", ylabel="second")

for (label, gm), style in zip(runs.items(), ("k-", "C0-", "C2--", "C3:"), strict=True):
    history = (gm if gm is pooled else gm.fit(clients)).history_
    sent = np.cumsum(history["uplink_bits"]) / 8e3
    gap = best - history["log_likelihood"]
    seen = gap > 1e-6  # NaN where it was not evaluated
    right.plot(sent[seen], gap[seen], style, label=label, linewidth=1.5)
    evaluated = np.flatnonzero(np.isfinite(gap))
    above = evaluated[gap[evaluated] > 1e-3][-1]  # the last time
    arrived = f"{sent[above]:.0f} kB until 1e-3" if above < evaluated[-1] else "never within 1e-3"
    print(f"{label}: {best - gm.score(X):.1e} nats below; {arrived}")
right.set(yscale="log", xlim=(0, 200), ylim=(1e-6, 3e3))
right.set(xlabel="sent by the clients (kB)", ylabel="nats per row below pooled EM")
right.set_title("how good a fit, for how many bits")
right.legend(frameon=False, fontsize=9, loc="upper right")
right.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "readme.png", dpi=110)
