"""
National trends of birds
========================

Groups of observers count birds, each at a few sites in a few months. How many are there in the
whole country, month by month? FedMissEM fits a mean to every cell of the sites by months without
bringing the counts together, and the trend is its sum over the sites, as in Figure 2 of
Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

The counts are simulated, at the size of the paper's eBird data, unless you give your own file::

    python examples/plot_bird_trends.py
    python examples/plot_bird_trends.py --ebd ebd_FR_mallar3.txt --species Mallard

The terms of eBird forbid passing its data on: get them from https://ebird.org/data/download.
"""

import argparse

import numpy as np

from skfedem import FederatedMatrixImputer
from skfedem.datasets import make_site_counts, read_ebird

parser = argparse.ArgumentParser(description="National trend from counts at sites by month.")
parser.add_argument("--ebd", help="an eBird Basic Dataset file; simulated counts without one")
parser.add_argument("--sampling", help="its sampling event file: observed zeros come from there")
parser.add_argument("--species", help="common or scientific name, if the file has several")
parser.add_argument("--clients", type=int, default=10, help="groups of observers")
parser.add_argument("--penalty", type=float, default=10.0, help="on the nuclear norm")
parser.add_argument("--sites", type=int, default=9_721, help="simulated sites")
parser.add_argument("--months", type=int, default=525, help="simulated months")
parser.add_argument("--observations", type=int, default=12_185, help="simulated observations")
options = parser.parse_args()

# %%
# The data: for each client its observations (site, month, count). Nobody ever visited most of the
# sites in most of the months.

if options.ebd is None:
    data = make_site_counts(
        options.sites,
        options.months,
        options.clients,
        observed=options.observations,
        effort_growth=0.05,
        random_state=0,
    )
    years, truth = np.arange(options.months) / 12, data.trend
    title, time_label = "Simulated counts", "year of the study"
else:
    data = read_ebird(
        options.ebd,
        options.sampling,
        species=options.species,
        n_clients=options.clients,
        random_state=0,
    )
    years, truth = np.asarray(data.months.year + (data.months.month - 1) / 12), None
    title, time_label = data.species, "year"

n_sites, n_months = data.shape
cells = np.unique(np.concatenate(data.clients)[:, :2].astype(int), axis=0)
n_missing = n_sites - np.bincount(cells[:, 1], minlength=n_months)
print(
    f"{sum(map(len, data.clients)):,} observations by {len(data.clients)} clients: "
    f"{len(cells) / (n_sites * n_months):.2%} of {n_sites:,} sites x {n_months} months"
)

# %%
# The fit: three quarters of the clients take part in a round, and their messages are compressed.
# Most sites were visited once or twice, and where neither a site nor a month is known from
# elsewhere, nothing says which of them a count is due to. A ridge of 1 on the effects settles that:
# it is the prior knowledge that sites, and months, differ by a factor of e or so.

imputer = FederatedMatrixImputer(
    rank=2,
    family="poisson",
    penalty=options.penalty,
    effects="both",
    effects_penalty=1.0,
    omega=1.0,
    participation=0.75,
    max_iter=1_000,
    tol=1e-4,
    random_state=0,
).fit(data.clients, shape=data.shape)
sent = imputer.history_["uplink_bits"].sum()
print(f"rounds: {imputer.n_iter_}, sent by the clients: {sent:,.0f} bits ({sent / 8e6:.1f} MB)")

# %%
# The trend. All fitted means at once would be a matrix of sites by months: they are added up a
# thousand sites at a time. Sites that nobody visited count as typical ones.

BLOCK = 1_000
trend = np.zeros(n_months)
for first in range(0, n_sites, BLOCK):
    block = np.arange(first, min(first + BLOCK, n_sites))
    trend += imputer.fitted_mean(rows=block).sum(axis=0)

for name, values in (("estimated", trend), ("true", truth)):
    if values is not None:
        print(
            f"birds in the country, {name}: {values[:12].mean():,.0f} in the first year, "
            f"{values[-12:].mean():,.0f} in the last"
        )
if truth is not None:
    n_years = n_months // 12
    for period, length in (("month by month", 1), ("year by year", 12)):
        means = [
            values[: 12 * n_years].reshape(-1, length).mean(axis=1) for values in (trend, truth)
        ]
        print(f"correlation with the truth, {period}: {np.corrcoef(means)[0, 1]:.3f}")

# %%
# LOESS curves smooth over season and noise, as in the paper.

try:
    from statsmodels.nonparametric.smoothers_lowess import lowess
except ImportError:
    lowess = None
    print("statsmodels is not installed: no LOESS curves (pip install skfedem[examples])")


def smooth(values):
    """LOESS curve over the months, each time by the nearest fifth of them."""
    return lowess(values, years, frac=0.2, return_sorted=False)


try:
    import matplotlib.pyplot as plt
except ImportError:
    print("matplotlib is not installed: no plot (pip install skfedem[examples])")
else:
    figure, (top, bottom) = plt.subplots(
        nrows=2, sharex=True, figsize=(9, 7), height_ratios=(2, 1), layout="constrained"
    )
    if truth is not None:
        top.plot(years, truth, color="0.75", linewidth=0.8, label="truth, monthly")
    top.plot(
        years, trend, "x", color="tab:blue", markersize=4, alpha=0.6, label="estimate, monthly"
    )
    bottom.plot(years, n_missing, "x", color="tab:red", markersize=4, alpha=0.6, label="monthly")
    if lowess is not None:
        if truth is not None:
            top.plot(years, smooth(truth), "k--", label="truth, LOESS")
        top.plot(years, smooth(trend), color="navy", linewidth=2, label="estimate, LOESS")
        bottom.plot(years, smooth(n_missing), color="darkred", linewidth=2, label="LOESS")
    top.set(ylim=(0, None), ylabel="birds in the country (sum over all sites)")
    bottom.set(xlabel=time_label, ylabel=f"sites without a count\n(of {n_sites:,})")
    for axis in (top, bottom):
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.legend(loc="best", ncols=2, frameon=False)
        axis.grid(alpha=0.3)
    figure.suptitle(f"{title}: monthly trend and missing cells")
    figure.savefig("bird_trends.png", dpi=120)
    print("saved bird_trends.png")
