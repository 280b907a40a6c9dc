r"""
Averages of parameters, or of statistics
========================================

The draft "Federated Stochastic Approximation of the EM Algorithm" (submitted to NeurIPS 2020) has
two algorithms for population models. In the first, each hospital estimates the population from its
own patients, and the server averages the parameters. In the second, the server averages the
statistics, and estimates the parameters itself. They do not have the same limit.

    python examples/plot_mixed_effects_averaging.py
    python examples/plot_mixed_effects_averaging.py --rounds 300 --output averaging.png
"""

import argparse
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedNonlinearMixedEffects
from skfedem.pharmacokinetics import one_compartment_oral

parser = argparse.ArgumentParser(description="Averages of parameters and of statistics.")
parser.add_argument("--rounds", type=int, default=100, help="exploratory and smoothing rounds")
parser.add_argument("--patients", type=int, default=20, help="patients of a hospital")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

# The numbers of rounds are given, converged or not.
warnings.simplefilter("ignore", ConvergenceWarning)

# %%
# Ten hospitals measure the concentration of a drug in the blood of their patients. Elimination is
# faster in some hospitals than in others, because of the age of their patients, say: the logarithm
# of the clearance is shifted by -0.5 to 0.5.

N_HOSPITALS, N_PATIENTS = 10, options.patients
TIMES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0, 24.0])
NAMES, TYPICAL, VARIANCES = ("ka", "V", "CL"), (1.5, 30.0, 2.7), (0.3, 0.03, 0.05)

rng = np.random.default_rng(0)
hospital = np.repeat(np.arange(N_HOSPITALS), N_PATIENTS)
effects = np.sqrt(VARIANCES)[:, None] * rng.normal(size=(3, len(hospital)))
effects[2] += np.linspace(-0.5, 0.5, N_HOSPITALS)[hospital]
patients = dict(zip(NAMES, np.array(TYPICAL)[:, None] * np.exp(effects), strict=True))
concentration = one_compartment_oral(patients, {"time": TIMES[:, None], "dose": 320.0})
data = pd.DataFrame(
    {
        "id": np.repeat(np.arange(len(hospital)), len(TIMES)),
        "hospital": np.repeat(hospital, len(TIMES)),
        "time": np.tile(TIMES, len(hospital)),
        "dose": 320.0,
        "dv": (concentration + 0.5 * rng.normal(size=concentration.shape)).T.ravel(),
    }
)

# %%
# Maximum likelihood, by quadrature, is the reference: its variance of the clearance includes that
# between hospitals.


def population(**parameters):
    """The population of all hospitals, with these parameters of the fit."""
    model = FederatedNonlinearMixedEffects(
        one_compartment_oral, {"ka": 1.0, "V": 20.0, "CL": 0.5}, random_state=0, **parameters
    )
    return model.fit(data, clients="hospital")


best = population()
chains = {"e_step": "mcmc", "n_exploratory": options.rounds, "n_smoothing": options.rounds}
fits = {
    "statistics": population(**chains),
    "parameters, 1 iteration a round": population(**chains, aggregate="parameters"),
    "parameters, 5 iterations": population(**chains, aggregate="parameters", n_local=5),
}

# %%
# With one iteration a round, theory says what is missing: the variance of the hospitals' own means.

means = pd.DataFrame(np.log(patients["CL"])).groupby(hospital).mean().to_numpy().ravel()
expected = best.random_effects_cov_[2, 2] - means.var()
print(f"variance of log CL by maximum likelihood: {best.random_effects_cov_[2, 2]:.3f}")
print(f"minus that between the hospitals: {expected:.3f}")
for name, fit in fits.items():
    loss = best.log_likelihood_ - fit.log_likelihood_
    print(f"averages of {name}: {fit.random_effects_cov_[2, 2]:.3f}, {loss:.1f} nats lower")

# %%
# Averages of statistics reach maximum likelihood, and averages of parameters do not: patients of
# the population seem more alike than they are, by two thirds of the variance. (In the first half of
# the exploratory rounds, variances may fall by 3 % in an iteration at most.)

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
colors = dict(zip(fits, ("C0", "C1", "C3"), strict=True))
for name, fit in fits.items():
    axes[0].plot(fit.history_["round"], fit.history_["omega2_CL"], color=colors[name], label=name)
axes[0].axhline(
    best.random_effects_cov_[2, 2], color="k", ls="--", lw=1, label="maximum likelihood"
)
axes[0].axhline(expected, color="k", ls=":", lw=1, label="minus the variance between hospitals")
axes[0].set(xlabel="round", ylabel=r"$\omega^2$ of log CL", yscale="log")
axes[0].legend(title="averages of", fontsize="small")

estimates = [name for name in best.standard_errors_ if not name.startswith("omega2_")]
estimates += [f"omega2_{name}" for name in NAMES]
reference = dict(zip(best.summary()["name"], best.summary()["estimate"], strict=True))
for place, (name, fit) in enumerate(fits.items()):
    own = dict(zip(fit.summary()["name"], fit.summary()["estimate"], strict=True))
    errors = [(own[key] - reference[key]) / best.standard_errors_[key] for key in estimates]
    heights = np.arange(len(estimates)) + 0.2 * (place - 1)
    axes[1].plot(errors, heights, "o", color=colors[name])
axes[1].axvline(0, color="k", ls="--", lw=1)
axes[1].set_yticks(range(len(estimates)), estimates)
axes[1].set(xlabel="difference from maximum likelihood, in standard errors")
axes[1].invert_yaxis()

if options.output:
    figure.savefig(options.output, dpi=150)
else:
    plt.show()
