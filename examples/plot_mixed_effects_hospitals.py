r"""
Four hospitals, one population: pharmacokinetics with absent hospitals
======================================================================

Twelve persons took theophylline, and their blood was drawn eleven times. We give them to four
hospitals by body weight: the lightest three to the first. Together the hospitals fit a population
model: how fast a typical person absorbs the drug, in what volume it is distributed, how fast it is
cleared, and how much persons differ. In each round, about half of the hospitals are absent, and
messages are compressed. Is the fit that of all patients in one table?

The script takes ten to twenty seconds::

    python examples/plot_mixed_effects_hospitals.py
    python examples/plot_mixed_effects_hospitals.py --seeds 10 --output hospitals.png
"""

import argparse
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfedem import FederatedNonlinearMixedEffects
from skfedem.datasets import load_theophylline
from skfedem.inspection import IndividualFitDisplay
from skfedem.pharmacokinetics import one_compartment_oral

parser = argparse.ArgumentParser(description="A population model across four hospitals.")
parser.add_argument("--seeds", type=int, default=3, help="number of runs of each kind")
parser.add_argument("--rounds", type=int, default=150, help="rounds of runs with constant steps")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

# Runs of a given number of rounds are wanted, converged or not.
warnings.simplefilter("ignore", ConvergenceWarning)

# %%
# A row of the table is a measurement. Those before the dose are left out. The hospitals have three
# patients each.

table = load_theophylline().data
table = table[table["time"] > 0].sort_values(["weight", "id"], kind="stable")
place = table.groupby("id", sort=False).ngroup()
hospitals = [own for _, own in table.groupby(place // 3)]
for number, own in enumerate(hospitals):
    low, high = own["weight"].min(), own["weight"].max()
    print(f"hospital {number}: patients {sorted(set(own['id']))}, {low:.0f} to {high:.0f} kg")

# %%
# The model is a compartment with absorption of first order. The start is wrong by a factor of up to
# five. The reference is EM on all patients.


def population(**settings):
    start = {"ka": 1.0, "V": 20.0, "CL": 0.5}
    return FederatedNonlinearMixedEffects(one_compartment_oral, start, **settings)


pooled = population(tol=1e-12, max_iter=500).fit(table)
print(pooled.summary().round(2).to_string(index=False))


def excess(log_likelihood):
    """-2 log-likelihood of all patients, minus that of the pooled fit; from means per patient."""
    return 2 * (pooled.log_likelihood_ - pooled.n_subjects_ * np.asarray(log_likelihood))


# %%
# Now the hospitals. A message is compressed with :math:`\omega = 1`, and a hospital takes part in
# half of the rounds. We compare automatic steps, which stop when no more progress is made, with
# constant ones, :math:`\gamma = 0.15`; and these with *naive FedEM*, which has no control variates.

FEDERATED = {"omega": 1.0, "participation": 0.5}
CONSTANT = {"step_size": 0.15, "tol": 0.0, "max_iter": options.rounds, "eval_every": 4}
AUTOMATIC, STEADY, NAIVE = "automatic steps", "constant steps", "no control variates"
KINDS = {
    AUTOMATIC: {"eval_every": 4},
    STEADY: CONSTANT,
    NAIVE: {**CONSTANT, "control_step": 0.0, "control_init": "zeros"},
}
runs = {
    kind: [
        population(**FEDERATED, **settings, random_state=seed).fit(hospitals)
        for seed in range(options.seeds)
    ]
    for kind, settings in KINDS.items()
}

# %%
# How far do the runs end from the pooled fit, and what did the hospitals send?

print(f"clearance of the pooled fit: {pooled.population_parameters_['CL']:.4f}")
print(f"{'':20}  seed  rounds  sent (kB)  excess of -2LL  clearance")
for kind, fits in runs.items():
    for seed, fit in enumerate(fits):
        sent = fit.history_["uplink_bits"].sum() / 8e3
        gap = excess(fit.log_likelihood_ / fit.n_subjects_)
        clearance = fit.population_parameters_["CL"]
        print(f"{kind:20}  {seed:4}  {fit.n_iter_:6}  {sent:9.2f}  {gap:14.2g}  {clearance:9.4f}")

# %%
# *What we expect.* With random absences and compression, each message is right on average. A
# hospital whose patients are unlike the others still pulls the estimates to its side whenever it
# takes part, unless the server remembers what it sent last: that is what control variates are for.
# With them, messages become differences, which vanish, and so does their noise.
#
# *What we see.* With control variates, all runs end at the pooled fit: -2 log-likelihoods differ by
# less than :math:`10^{-5}`. Automatic steps take a little more than a hundred rounds and three
# kilobytes from all hospitals together. Without control variates, the same steps leave the
# estimates wandering around the pooled ones, the clearance by up to a tenth, and no number of
# rounds helps.
#
# A hospital with the fitted population then looks at its own patients: what they tell about
# themselves, and what a typical person with the same dose would have.

COLOURS = {AUTOMATIC: "tab:green", STEADY: "tab:blue", NAIVE: "tab:orange"}
figure = plt.figure(figsize=(9, 6.6), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=(1.3, 1))
gap, trace = above.subplots(1, 2)
for kind, fits in runs.items():
    for fit in fits:
        history = fit.history_
        known = np.isfinite(history["log_likelihood"])
        gaps = np.maximum(np.abs(excess(history["log_likelihood"][known])), 1e-8)
        label = kind if fit is fits[0] else None
        gap.plot(history["round"][known], gaps, color=COLOURS[kind], linewidth=1, label=label)
        trace.plot(history["round"], history["CL"], color=COLOURS[kind], linewidth=1)
trace.axhline(pooled.population_parameters_["CL"], color="0.3", linestyle=":", label="pooled")
gap.set(
    xlabel="round", ylabel="-2 log-likelihood, distance to\nthat of the pooled fit", yscale="log"
)
trace.set(xlabel="round", ylabel="clearance CL", ylim=(2.4, 3.1))
for axis in (gap, trace):
    axis.legend(frameon=False)
    axis.grid(alpha=0.3)
below.suptitle("patients of hospital 3", fontsize="medium")
IndividualFitDisplay.from_estimator(
    runs[AUTOMATIC][0], hospitals[3], ax=below.subplots(1, 3, sharey=True)
)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
