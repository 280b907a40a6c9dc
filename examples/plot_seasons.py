"""
Winters and months of monthly counts
====================================

Counts of every month have an effect of the winter, from July to June, and one of the calendar
month: 21 + 12 numbers for 240 columns, of which months that nobody visited borrow. Calendar years
would cut each winter flock in two. The counts stay with the clients.

The counts are those of oystercatchers at 138 sites from 1995 to 2014 (R package rtrim) if
``oystercatcher_138x240.csv`` lies in the folder given by the environment variable ``SKFEDEM_DATA``
(default: ``data``), and otherwise simulated.
"""

import argparse
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skfedem import FederatedMatrixImputer

parser = argparse.ArgumentParser(description="Years and seasons of oystercatchers.")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

path = Path(os.environ.get("SKFEDEM_DATA", "data")) / "oystercatcher_138x240.csv"
if path.exists():
    counts, first = np.genfromtxt(path, delimiter=","), "1995-01"
    counts = counts[(~np.isnan(counts)).sum(axis=1) >= 12]
else:
    random, first = np.random.default_rng(0), "2005-01"
    month = np.arange(120)
    theta = 3 + 0.8 * random.normal(size=(60, 1)) - 0.004 * month
    theta = theta + 0.9 * np.cos(2 * np.pi * (month - 9) / 12)
    means = np.exp(theta)
    counts = random.poisson(means * random.gamma(2, 0.5, means.shape)).astype(float)
    counts[random.random(means.shape) < 0.6] = np.nan
months = pd.period_range(first, periods=counts.shape[1], freq="M")
regions = [counts[k::4] for k in range(4)]  # four clients with sites of their own

# %%
# Sites have effects of their own, and months those of their winter and calendar month. Text becomes
# indicators; the first winter and January are the references.

winter = (months - 6).year.astype(str)  # of the July that it begins in
season = pd.DataFrame({"winter": winter, "month": months.strftime("%m")})
imputer = FederatedMatrixImputer(
    rank=0, family="poisson", effects="rows", effects_penalty=0.01, rows="disjoint"
)
imputer.fit(regions, column_covariates=season)
names = imputer.column_covariate_names_
is_month = np.char.startswith(names.astype(str), "month=")
of_month = np.exp(np.append(0.0, imputer.column_coef_[is_month]))
print(f"dispersion {imputer.dispersion_:.0f}: flocks, not single birds")

# %%
# Totals with errors of fits to drawn counts, as overdispersed as the observed ones:

totals = imputer.totals(regions, errors="parametric", n_draws=50, interval=0.9, random_state=0)
table = totals.table
time = months.to_timestamp()

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.4), width_ratios=[3, 1.2], layout="constrained"
)
band = {"color": "#0072B2", "alpha": 0.25, "linewidth": 0, "label": "90 % confidence"}
left.fill_between(time, table["model_low"] / 1e3, table["model_high"] / 1e3, **band)
left.plot(time, table["model"] / 1e3, color="#0072B2", linewidth=1, label="winter + month")
left.set(ylabel="birds at all sites (thousands)", ylim=(0, None), xlabel="month")
left.legend(loc="upper right")
right.bar(range(12), of_month / of_month.mean(), color="#0072B2")
right.set_xticks(range(12), list("JFMAMJJASOND"), fontsize="small")
right.set(ylabel="birds, relative to the mean of months", xlabel="calendar month")
for axis in (left, right):
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
