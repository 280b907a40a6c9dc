r"""
Largest stable step size, measured and in theory
================================================

Theorems 1, 3 and 4 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021) bound the step size γ of
FedEM and VR-FedEM in terms of the number of clients n, the relative variance of the compression ω,
and the participation probability p. The functions of :mod:`skfedem.theory` compute these bounds.
Here we *measure* the largest stable step size, by bisection over short runs, and compare.

By default, each step size is tried with three seeds, and the interval is halved five times.
``--full`` uses twelve seeds, nine halvings and runs of twice the length::

    python examples/plot_step_size_theory.py
    python examples/plot_step_size_theory.py --full --output step_sizes.png
"""

import argparse
import sys
import warnings
from functools import cache
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedGaussianMixture
from skfedem.datasets import make_federated_mixture
from skfedem.participation import participation_omega
from skfedem.theory import max_step_size, vr_batch_size, vr_step_size

parser = argparse.ArgumentParser(description="Largest stable step size, measured and in theory.")
parser.add_argument("--seeds", type=int, default=3, help="runs for each step size")
parser.add_argument("--halvings", type=int, default=5, help="halvings of the interval")
parser.add_argument("--length", type=float, default=15.0, help="length of a run, in time constants")
parser.add_argument("--full", action="store_true", help="12 seeds, 9 halvings, length 30")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)
if options.full:
    options.seeds, options.halvings, options.length = 12, 9, 30.0

# Runs of this many rounds are wanted, converged or not.
warnings.simplefilter("ignore", ConvergenceWarning)

# %%
# *When is a step size stable?* Each client has 30 rows from one of three components in seven
# dimensions, with a known covariance. A run starts near the solution of pooled EM, with noise of
# 0.1 standard deviations on the means, and :math:`\alpha = 1/(1 + \omega)` as in the theorems.
# FedEM reads all rows and VR-FedEM minibatches, so that neither has a noise floor: with a stable
# step size, :math:`\lVert h \rVert^2` converges to zero. We call a step size stable if in every
# run (one per seed),
#
# - :math:`\lVert h \rVert^2` at the end is less than a hundredth of its value at the start,
# - and no step left the domain of the M-step.
#
# A run has 15 times :math:`1/\gamma + (1 + \omega)/p` rounds. The first term is the number of
# rounds that EM needs with this step size to forget its start, the second the number that the
# control variates need. A step size of 1 is EM, and we try no larger ones.
#
# A message has 24 numbers, of which random k sends k, so that :math:`\omega = 24/k - 1`.

N_COMPONENTS, N_FEATURES, N_ROWS, N_INNER = 3, 7, 30, 20
SMALLEST = 1 / 64
# Each sweep changes one of (n, ω, p), and keeps the others.
VALUES = {
    r"$\omega$": (1.0, 2.0, 5.0, 11.0, 23.0),
    "$n$": (3, 6, 12, 24, 48),
    "$p$": (0.05, 0.1, 0.2, 0.5, 1.0),
}
SWEEPS = {
    r"$\omega$": [(6, omega, 1.0) for omega in VALUES[r"$\omega$"]],
    "$n$": [(n_clients, 23.0, 1.0) for n_clients in VALUES["$n$"]],
    "$p$": [(12, 2.0, p) for p in VALUES["$p$"]],
}
TITLES = {
    r"$\omega$": "6 clients, p = 1",
    "$n$": r"$\omega = 23$, p = 1",
    "$p$": r"12 clients, $\omega = 2$",
}
SOLVERS = {"FedEM": "fedem", "VR-FedEM": "vr_fedem"}


@cache
def federation(n_clients):
    """Clients of one component each, and the parameters that pooled EM finds."""
    data = make_federated_mixture(
        n_clients,
        N_ROWS,
        N_FEATURES,
        N_COMPONENTS,
        heterogeneity=1.0,
        random_state=0,
    )
    pooled = FederatedGaussianMixture(
        N_COMPONENTS,
        covariance_type="tied",
        fixed_covariance=data.covariances,
        weights_init=data.weights,
        means_init=data.means,
        max_iter=1000,
        tol=1e-10,
    ).fit(data.clients)
    return data, pooled


def is_stable(step_size, solver, n_clients, omega, participation, n_seeds, length):
    """Whether this step size is stable in the sense above."""
    data, pooled = federation(n_clients)
    n_rounds = ceil(length * (1 / step_size + (1 + omega) / participation))
    for seed in range(n_seeds):
        noise = np.random.default_rng(seed).standard_normal(pooled.means_.shape)
        history = (
            FederatedGaussianMixture(
                N_COMPONENTS,
                covariance_type="tied",
                fixed_covariance=data.covariances,
                solver=solver,
                step_size=step_size,
                batch_size=vr_batch_size(N_INNER, omega) if solver == "vr_fedem" else None,
                n_inner=N_INNER,
                compressor="rand_k",
                omega=omega,
                participation=participation,
                weights_init=pooled.weights_,
                means_init=pooled.means_ + 0.1 * noise,
                max_iter=n_rounds,
                eval_every=n_rounds,
                tol=0,
                random_state=seed,
            )
            .fit(data.clients)
            .history_
        )
        first, last = history["mean_field_sq_norm"][[0, -1]]
        if not last < first / 100 or history["safeguarded"].any():
            return False
    return True


def largest_stable_step(solver, n_clients, omega, participation, n_seeds, n_halvings, length):
    """Bisection between SMALLEST and 1, on a logarithmic scale; NaN where no step was stable."""
    setting = solver, n_clients, omega, participation, n_seeds, length
    if is_stable(1.0, *setting):
        return 1.0
    low, high = np.log(SMALLEST), 0.0
    for _ in range(n_halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(np.exp(middle), *setting) else (low, middle)
    return np.exp(low) if low > np.log(SMALLEST) else np.nan


def measure(sweep, solver, n_seeds, n_halvings, length):
    """Largest stable step of each setting of a sweep."""
    return np.array(
        [largest_stable_step(solver, *setting, n_seeds, n_halvings, length) for setting in sweep]
    )


measured = {
    (name, swept): measure(sweep, solver, options.seeds, options.halvings, options.length)
    for name, solver in SOLVERS.items()
    for swept, sweep in SWEEPS.items()
    if not (solver == "vr_fedem" and swept == "$p$")  # Theorem 3 is for p = 1.
}

# %%
# *What the theorems say.* Their constants are unknown for most data, but here we can estimate L,
# the root mean square of the Lipschitz constants of the clients' fields. It is at least the root
# mean square of the norms of their derivatives at the solution, and we use the latter. (Norms are
# in the units of the estimator's statistics, in which all rows together have unit second moments.)
# For VR-FedEM, the mean in L is over rows instead of clients, and L is larger still. We take all
# curvatures to be equal, :math:`v_\mathrm{min} = v_\mathrm{max} = L_{\dot W}`. All of this makes
# the bounds larger than they really are.


def client_fields(statistics, clients, precision):
    """h_i of each client, (n_clients, n_statistics); one E-step for a known covariance."""
    weights, sums = np.split(statistics, [N_COMPONENTS])
    means = sums.reshape(N_COMPONENTS, N_FEATURES) / weights[:, None]
    offset = np.log(weights) - np.einsum("gi,ij,gj->g", means, precision, means) / 2
    expected = []
    for rows in clients:
        posterior = softmax(rows @ precision @ means.T + offset, axis=1)
        expected.append(np.append(posterior.mean(axis=0), posterior.T @ rows / len(rows)))
    return np.array(expected) - statistics


def in_standard_units(n_clients):
    """The solution's statistics, the clients' rows and the precision, in standard units."""
    data, pooled = federation(n_clients)
    rows = np.concatenate(data.clients)
    centre = rows.mean(axis=0)
    whitening = np.linalg.cholesky(np.linalg.inv(np.cov(rows.T, bias=True)))
    sums = pooled.weights_[:, None] * ((pooled.means_ - centre) @ whitening)
    clients = [(own - centre) @ whitening for own in data.clients]
    precision = np.linalg.inv(whitening.T @ data.covariances @ whitening)
    return np.append(pooled.weights_, sums), clients, precision


@cache
def field_lipschitz(n_clients):
    """Root mean square over clients of ||dh_i/ds|| at the solution, by central differences."""
    solution, clients, precision = in_standard_units(n_clients)
    columns = [
        client_fields(solution + shift, clients, precision)
        - client_fields(solution - shift, clients, precision)
        for shift in 1e-5 * np.eye(len(solution))
    ]
    norms = np.linalg.norm(np.stack(columns, axis=2) / 2e-5, 2, axis=(1, 2))
    return np.sqrt(np.mean(norms**2))


def in_theory(name, n_clients, omega, participation):
    """Theorem 4 (for p = 1 Theorem 1) for FedEM, Theorem 3 for VR-FedEM."""
    constants = {
        "v_min": 1.0,
        "gradient_lipschitz": 1.0,
        "field_lipschitz": field_lipschitz(n_clients),
    }
    if name == "FedEM":
        return max_step_size(n_clients, omega, participation, **constants)
    return vr_step_size(n_clients, omega, v_max=1.0, **constants)


def clients_per_noise(n_clients, omega, participation):
    """n / ω_p, at most 2; FedEM's largest stable steps turn out to be about half of it."""
    return min(n_clients / participation_omega(omega, participation, n_clients), 2.0)


def exponent(x, y):
    """Slope of log y against log x where steps are not limited by their largest value, 1."""
    free = y < 0.8
    if free.sum() < 2:
        return np.nan
    return np.polyfit(np.log(np.asarray(x)[free]), np.log(y[free]), 1)[0]


bounds = {
    key: np.array([in_theory(key[0], *setting) for setting in SWEEPS[key[1]]]) for key in measured
}
for (name, swept), steps in measured.items():
    plain = swept.strip("$\\")
    print(f"{name}, against {plain}")
    for setting, step, bound in zip(SWEEPS[swept], steps, bounds[name, swept], strict=True):
        print(
            "  n = {:2}, omega = {:2.0f}, p = {:4.2f}, ".format(*setting)
            + f"L = {field_lipschitz(setting[0]):.1f}: measured {step:.3f}, bound {bound:.4f}, "
            f"{step / bound:3.0f} times"
        )
    x = VALUES[swept]
    if name == "FedEM":
        ratios = steps / [clients_per_noise(*setting) for setting in SWEEPS[swept]]
        print(f"  over n / omega_p (at most 2): {np.round(ratios, 2)}")
    print(
        f"  as a power of {plain}: measured {exponent(x, steps):.2f}, "
        f"bound {exponent(x, bounds[name, swept]):.2f}"
    )

# %%
# *The bounds hold, with a large margin.* The largest stable steps are 5 to 90 times as large as the
# bounds. The factor grows with :math:`\omega`, and as p decreases. This is not surprising: a bound
# has to hold for all problems that meet its assumptions.
#
# *The dependence on n, p and* :math:`\omega` *differs.* FedEM's largest stable steps, where they
# are below 1, are proportional to n and p, and to :math:`1/\omega` if :math:`\omega` is large. The
# bound is proportional to :math:`\sqrt n`, :math:`p^{3/2}` and :math:`\omega^{-3/2}`. The measured
# steps are 0.9 to 1.4 times :math:`0.5\,n/\omega_p` (dotted), where
# :math:`\omega_p = (1 + \omega)/p - 1` is the relative variance of compression and participation
# together. (With ``--full``, they are 0.8 to 1.4 times this value, and the power of n is 0.78.)
#
# A heuristic explains this. A control variate needs :math:`(1 + \omega)/p` rounds to follow its
# client's field. The proofs allow for a statistic that moves in one direction during all this time.
# But for steps larger than :math:`p/(1 + \omega)`, EM pulls the statistic back sooner. It then only
# fluctuates, with a variance of about :math:`\gamma/2` times that of the noise of one round. That
# noise is :math:`\omega_p / n` times the mean square error of the control variates. This error is
# the difference of two such fluctuations, with twice the variance of one. So the noise sustains
# itself if :math:`\gamma\, \omega_p / n` is around 1.
#
# VR-FedEM's largest stable steps grow like their bound, as :math:`\sqrt n`. As :math:`\omega`
# grows, they decrease more slowly than the bound, although we reduce the batch size as in
# Theorem 3.
#
# So the bounds are safe, but not sharp. ``step_size="auto"`` uses the dependence of Theorem 4 with
# a measured constant, and is at most :math:`p / (1 + \omega)`, or :math:`0.03\, n / \omega_p` if
# that is larger and there are many rows. All of these are smaller than the steps measured here. Do
# not use the latter as a rule for other data: the runs are few and short, start near a solution,
# and are all on one kind of mixture.

COLOURS = {"FedEM": "tab:blue", "VR-FedEM": "tab:red"}
MARKERS = {"FedEM": "o", "VR-FedEM": "^"}
figure, axes = plt.subplots(ncols=3, sharey=True, figsize=(11, 4.4), layout="constrained")
for axis, (swept, values) in zip(axes, VALUES.items(), strict=True):
    for (name, of_sweep), steps in measured.items():
        if of_sweep == swept:
            style = {"color": COLOURS[name], "marker": MARKERS[name]}
            axis.plot(values, steps, "-", **style, label=f"{name}, measured")
            axis.plot(
                values, bounds[name, swept], "--", mfc="none", **style, label=f"{name}, bound"
            )
    allowed = [clients_per_noise(*setting) / 2 for setting in SWEEPS[swept]]
    axis.plot(values, allowed, ":", color="black", label=r"$0.5\, n / \omega_p$, at most 1")
    axis.set(xlabel=swept, xscale="log", yscale="log", title=TITLES[swept])
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.set_xticks([], minor=True)
    axis.grid(alpha=0.3)
axes[0].set(ylabel=r"largest stable step size $\gamma$")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
