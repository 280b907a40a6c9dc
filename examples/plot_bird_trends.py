"""
National trends of birds
========================

Groups of observers count birds, each at a few sites in a few months. How many birds are there in
the whole country, month by month? FedMissEM estimates a mean for every site and month without
collecting the counts in one place. The national trend is the sum of these means over the sites, as
in Figure 2 of Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

Unless you give a file of your own, the counts are simulated. There are as many of them as in the
paper's data on mallards. ``--full`` also simulates as many as in its data on buzzards::

    python examples/plot_bird_trends.py
    python examples/plot_bird_trends.py --full --output bird_trends.png
    python examples/plot_bird_trends.py --ebd ebd_FR_mallar3.txt --species Mallard

eBird's terms do not allow its data to be passed on. You can request them at
https://ebird.org/data/download.
"""

import argparse
import sys

import numpy as np

from skfedem import FederatedMatrixImputer
from skfedem.datasets import make_site_counts, read_ebird

parser = argparse.ArgumentParser(description="National trend from counts at sites by month.")
parser.add_argument("--ebd", help="an eBird Basic Dataset file (default: simulated counts)")
parser.add_argument("--sampling", help="its sampling event file, which adds observed zeros")
parser.add_argument("--species", help="common or scientific name, if the file has several")
parser.add_argument("--clients", type=int, default=10, help="groups of observers")
parser.add_argument("--penalty", type=float, default=10.0, help="penalty on the nuclear norm")
parser.add_argument("--sites", type=int, default=9_721, help="number of simulated sites")
parser.add_argument("--months", type=int, default=525, help="number of simulated months")
parser.add_argument("--observations", type=int, help="number of simulated observations")
parser.add_argument("--full", action="store_true", help="simulate both species of the paper")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %%
# The data are one table of observations (site, month, count) for each client. In most months, most
# of the sites were visited by nobody.

PAPER = {
    "simulated, with as many counts as for mallards": 12_185,
    "simulated, with as many counts as for buzzards": 5_980,
}


def simulated(title, n_observations):
    """Title, data, time of each month and true trend."""
    data = make_site_counts(
        options.sites,
        options.months,
        options.clients,
        observed=n_observations,
        effort_growth=0.05,
        random_state=0,
    )
    return title, data, np.arange(options.months) / 12, data.trend


def of_file():
    """The same for an eBird file, whose true trend nobody knows."""
    data = read_ebird(
        options.ebd,
        options.sampling,
        species=options.species,
        n_clients=options.clients,
        random_state=0,
    )
    years = np.asarray(data.months.year + (data.months.month - 1) / 12)
    return data.species, data, years, None


if options.ebd:
    studies, time_label = [of_file()], "year"
elif options.observations:
    studies, time_label = [simulated("simulated", options.observations)], "year of the study"
else:
    chosen = list(PAPER.items())[: 2 if options.full else 1]
    studies, time_label = [simulated(*of_one) for of_one in chosen], "year of the study"


def missing_by_month(data):
    """Number of sites that nobody visited, month by month."""
    n_sites, n_months = data.shape
    cells = np.unique(np.concatenate(data.clients)[:, :2].astype(int), axis=0)
    return n_sites - np.bincount(cells[:, 1], minlength=n_months)


# %%
# In each round of the fit, three quarters of the clients take part, and their messages are
# compressed. Most sites were visited only once or twice. If neither the site nor the month of a
# count has other counts, the data do not tell whether a large count is due to the site or to the
# month. A ridge penalty of 1 on the effects resolves this: it expresses the prior knowledge that
# sites, and months, differ by a factor of about e.
#
# The trend is the sum of the fitted means over the sites. To avoid a dense matrix of sites by
# months, we add up a thousand sites at a time. A site that nobody visited is treated as a typical
# site.


def fit(data):
    """FedMissEM on Poisson counts."""
    return FederatedMatrixImputer(
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


def national_trend(imputer, shape, block=1_000):
    """Sum of the fitted means over all sites, month by month."""
    n_sites, n_months = shape
    trend = np.zeros(n_months)
    for first in range(0, n_sites, block):
        rows = np.arange(first, min(first + block, n_sites))
        trend += imputer.fitted_mean(rows=rows).sum(axis=0)
    return trend


def report(title, data, years, truth, imputer, trend):
    """Print what is plotted: means of every fourth year."""
    n_sites, n_months = data.shape
    missing = missing_by_month(data)
    sent = imputer.history_["uplink_bits"].sum()
    print(
        f"{title}: {sum(map(len, data.clients)):,} observations by {len(data.clients)} clients: "
        f"{1 - missing.sum() / (n_sites * n_months):.2%} of {n_sites:,} sites x {n_months} months"
    )
    print(f"rounds: {imputer.n_iter_}, sent by the clients: {sent:,.0f} bits ({sent / 8e6:.1f} MB)")
    print("  year   estimated birds        true  sites without a count (monthly means)")
    for first in range(0, n_months - 11, 48):
        year = slice(first, first + 12)
        true = f"{truth[year].mean():12,.0f}" if truth is not None else f"{'-':>12}"
        seen = f"{true} {missing[year].mean():12,.1f}"
        print(f"  {years[first]:7.2f} {trend[year].mean():12,.0f} {seen}")
    if truth is not None:
        n_years = n_months // 12
        for period, length in (("month by month", 1), ("year by year", 12)):
            means = [
                values[: 12 * n_years].reshape(-1, length).mean(axis=1) for values in (trend, truth)
            ]
            print(f"correlation with the truth, {period}: {np.corrcoef(means)[0, 1]:.3f}")


imputers = [fit(data) for _, data, _, _ in studies]
trends = [
    national_trend(imputer, study[1].shape)
    for imputer, study in zip(imputers, studies, strict=True)
]
for study, imputer, trend in zip(studies, imputers, trends, strict=True):
    report(*study, imputer, trend)

# %%
# *What the paper shows.* The monthly totals of two species with LOESS curves through them (520 to
# 600 buzzards and 800 to 950 mallards), and next to them the number of missing cells.
#
# *What we see here.* The totals are different, because the counts are simulated: the species is in
# steep decline, has a strong seasonal pattern, and is seen by more and more observers. As the
# counts are simulated, we know the true trend. The estimate follows its shape: with 12,185
# observations, the correlation of yearly means is 0.98. But it is too low, by a third in the first
# year, when almost nothing was observed: sites that nobody visited are treated as typical, and the
# ridge penalty shrinks effects with little data towards the average.
#
# *Differences from the paper.* The paper's model has Gaussian counts of variance 1, no site or
# month effects, and no penalty. It estimates a cell far from all observations as about zero, which
# probably explains totals of a few hundred birds at 9,721 sites. If we fit this model here from a
# start at zero, with the paper's :math:`\gamma = 10^{-4}`, :math:`\alpha = 10^{-3}`,
# :math:`b = 100` and 150 epochs, the trend stays at zero. (The paper does not state its start.)
# Our Poisson model with effects predicts a missing cell from its site and its month. The paper's
# data may not be passed on, but with a file of your own the script draws its trend.

# %%
# As in the paper, LOESS curves smooth out the season and the noise.

try:
    from statsmodels.nonparametric.smoothers_lowess import lowess
except ImportError:
    lowess = None
    print("statsmodels is not installed: no LOESS curves (pip install statsmodels)")


def smooth(values, years):
    """LOESS curve over the months, each point from the nearest fifth of them."""
    # it=0: robustifying iterations would treat the seasonal peaks as outliers.
    return lowess(values, years, frac=0.2, it=0, return_sorted=False)


def draw(top, bottom, study, trend):
    """Trend above, missing cells below."""
    title, data, years, truth = study
    missing = missing_by_month(data)
    if truth is not None:
        top.plot(years, truth, color="0.75", linewidth=0.8, label="truth, monthly")
    top.plot(
        years, trend, "x", color="tab:blue", markersize=4, alpha=0.6, label="estimate, monthly"
    )
    bottom.plot(years, missing, "x", color="tab:red", markersize=4, alpha=0.6, label="monthly")
    if lowess is not None:
        if truth is not None:
            top.plot(years, smooth(truth, years), "k--", label="truth, LOESS")
        top.plot(years, smooth(trend, years), color="navy", linewidth=2, label="estimate, LOESS")
        bottom.plot(years, smooth(missing, years), color="darkred", linewidth=2, label="LOESS")
    top.set(title=title, ylim=(0, None), ylabel="birds in the country (sum over all sites)")
    bottom.set(xlabel=time_label, ylabel=f"sites without a count\n(of {data.shape[0]:,})")
    for axis in (top, bottom):
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.legend(loc="best", ncols=2, frameon=False)
        axis.grid(alpha=0.3)


try:
    import matplotlib.pyplot as plt
except ImportError:
    print("matplotlib is not installed: no plot (pip install matplotlib)")
else:
    figure, axes = plt.subplots(
        nrows=2,
        ncols=len(studies),
        sharex="col",
        figsize=(9 if len(studies) == 1 else 13, 7),
        height_ratios=(2, 1),
        layout="constrained",
        squeeze=False,
    )
    for column, study, trend in zip(axes.T, studies, trends, strict=True):
        draw(*column, study, trend)
    if options.output:
        figure.savefig(options.output, dpi=120)
    else:
        plt.show()
