"""
Federated EM compared with pooled EM
====================================

Handwritten digits are spread over 30 clients, most of which hold only one or two kinds of digit. We
fit a Gaussian mixture by VR-FedEM, with compressed messages and three quarters of the clients in
each round, and compare it with EM on the pooled rows from the same start. The same run without
control variates shows why they are needed.
"""

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture
from skfedem.datasets import split_clients

# %%
# The data are 1,797 images of 8 x 8 pixels, reduced to 10 features.

images, digits = load_digits(return_X_y=True)
X = PCA(n_components=10, random_state=0).fit_transform(images)
clients = split_clients(X, n_clients=30, scheme="label", y=digits, random_state=0)
print(f"{len(clients)} clients with {min(map(len, clients))} to {max(map(len, clients))} rows each")

# %%
# For EM on the pooled rows, we give the same estimator a single table instead of a list of clients.

common = {"n_components": 10, "covariance_type": "tied", "random_state": 0}
start = FederatedGaussianMixture(**common, max_iter=0).fit(clients)
common |= {
    "weights_init": start.weights_,
    "means_init": start.means_,
    "precisions_init": start.precisions_,
    "max_iter": 1000,
}
pooled = FederatedGaussianMixture(**common, tol=1e-10).fit(X)

# %%
# In the federated fit, ``omega`` is the relative variance of the compression, and ``participation``
# the probability that a client takes part in a round. The default step size depends on both.

federated = FederatedGaussianMixture(
    **common, solver="vr_fedem", batch_size=20, omega=1.0, participation=0.75, tol=1e-5
).fit(clients)

# The same without control variates, for the same number of epochs (tol=0 does not stop earlier).
warnings.simplefilter("ignore", ConvergenceWarning)
naive = FederatedGaussianMixture(
    **common,
    solver="vr_fedem",
    batch_size=20,
    omega=1.0,
    participation=0.75,
    step_size=float(federated.history_["step_size"][1:].max()),
    control_step=0.0,
    control_init="zeros",
    max_epochs=federated.history_["epoch"][-1],
    tol=0,
).fit(clients)


def n_bits(model):
    """Bits that the clients sent in all rounds."""
    return model.history_["uplink_bits"].sum()


uncompressed = FederatedGaussianMixture(**common, tol=1e-5).fit(clients)
print(f"log-likelihood per row, pooled EM:           {pooled.score(X):.4f} nats")
print(f"log-likelihood per row, VR-FedEM:            {federated.score(X):.4f} nats")
print(f"log-likelihood per row, no control variates: {naive.score(X):.4f} nats")
print(f"rounds of VR-FedEM:                          {federated.n_iter_}")
print(f"sent by clients, VR-FedEM:                   {n_bits(federated) / 8e6:.2f} MB")
print(f"sent by clients, uncompressed federated EM:  {n_bits(uncompressed) / 8e6:.2f} MB")

# %%
# The figure shows the convergence. The mean field is zero at a fixed point of pooled EM.

try:
    import matplotlib.pyplot as plt
except ImportError:
    print("matplotlib is not installed: no plot")
else:
    figure, axes = plt.subplots(ncols=2, figsize=(10, 4), layout="constrained")
    for model, label in ((federated, "VR-FedEM"), (naive, "without control variates")):
        seen = np.isfinite(model.history_["log_likelihood"])
        epochs = model.history_["epoch"][seen]
        gap = pooled.score(X) - model.history_["log_likelihood"][seen]
        axes[0].plot(epochs, np.where(gap > 0, gap, np.nan), label=label)
        axes[1].plot(epochs, model.history_["mean_field_sq_norm"][seen], label=label)
    axes[0].set(ylabel="log-likelihood below pooled EM (nats per row)")
    axes[1].set(ylabel=r"squared norm of the mean field $\|h(\hat S)\|^2$")
    for axis in axes:
        axis.set(xlabel="epoch", yscale="log")
        axis.legend()
    figure.suptitle("Handwritten digits on 30 label-skewed clients")
    figure.savefig("quickstart.png", dpi=120)
    print("saved quickstart.png")
