"""
National trends of birds
========================

Groups of observers count birds, each at a few sites in a few months. How many are there in the
whole country, month by month? FedMissEM fits a mean to every cell of the sites by months without
bringing the counts together, and the trend is its sum over the sites, as in Figure 2 of
Dieuleveut, Fort, Moulines and Robin (NeurIPS 2021).

The counts are simulated, at the size of the paper's data of mallards, unless you give your own
file. ``--full`` also simulates counts at the size of the paper's data of buzzards::

    python examples/plot_bird_trends.py
    python examples/plot_bird_trends.py --full --output bird_trends.png
    python examples/plot_bird_trends.py --ebd ebd_FR_mallar3.txt --species Mallard

The terms of eBird forbid passing its data on: get them from https://ebird.org/data/download.
"""

import argparse
import sys

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
parser.add_argument("--observations", type=int, help="simulated observations")
parser.add_argument("--full", action="store_true", help="both of the paper's species, simulated")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

# %%
# The data: for each client its observations (site, month, count). Nobody ever visited most of the
# sites in most of the months.

PAPER = {
    "simulated, as many counts as of mallards": 12_185,
    "simulated, as many counts as of buzzards": 5_980,
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
# The fit: three quarters of the clients take part in a round, and their messages are compressed.
# Most sites were visited once or twice, and where neither a site nor a month is known from other
# counts, nothing says to which of them a count is due. A ridge of 1 on the effects settles that: it
# expresses the prior knowledge that sites, and months, differ by a factor of e or so.
#
# The trend is the sum over the sites. All fitted means at once would be a matrix of sites by
# months, so they are added up a thousand sites at a time. Sites that nobody visited count as
# typical ones.


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
# *What the paper shows.* Monthly totals of two species with LOESS curves through them, between
# 520 and 600 buzzards and between 800 and 950 mallards, and beside them the number of missing
# cells.
#
# *What ours shows.* Other totals, as the counts are simulated: a species in steep decline with a
# strong season, seen by ever more observers. With simulated counts the truth is known. The
# estimate follows its course (with 12,185 observations, the correlation from year to year is 0.98)
# and lies below it, by a third in the first year, in which next to nothing was observed: sites that
# nobody visited count as typical ones, and the ridge pulls what is hardly known to the middle.
#
# *What is done differently.* The paper has Gaussian counts of variance 1, no effects of site or
# month and no penalty. A cell far from all observations is then estimated as about zero, and we
# suppose that totals of some hundred birds at 9,721 sites come from that. If we do the same here,
# from a start at zero with the paper's :math:`\gamma = 10^{-4}`, :math:`\alpha = 10^{-3}`,
# :math:`b = 100` and 150 epochs, the trend stays at zero; the paper does not state its start.
# Poisson counts with effects fill a cell according to its site and its month. The paper's data may
# not be passed on: with a file of your own, the script draws its trend.

# %%
# LOESS curves smooth over season and noise, as in the paper.

try:
    from statsmodels.nonparametric.smoothers_lowess import lowess
except ImportError:
    lowess = None
    print("statsmodels is not installed: no LOESS curves (pip install statsmodels)")


def smooth(values, years):
    """LOESS curve over the months, each time by the nearest fifth of them."""
    # Without iterations that would take the peaks of the season for outliers.
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
