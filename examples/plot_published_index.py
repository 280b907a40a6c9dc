"""
From field notes to a published index
=====================================

What a monitoring scheme publishes: yearly totals of a species with standard errors, an index, and
the overall trend in words. Volunteers count, sites are missed, and the counts stay with the
provinces that collected them. The results are those of TRIM's model 3 (R package rtrim) with
overdispersion and serial correlation.

The counts are those of skylarks at 55 sites in eight years (file ``skylark.dat`` of rtrim) if it
lies in the folder given by the environment variable ``SKFEDEM_DATA`` (default: ``data``), and
otherwise simulated.
"""

import argparse
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skfedem import FederatedMatrixImputer
from skfedem.datasets import read_counts

parser = argparse.ArgumentParser(description="Totals, an index and a trend of skylarks.")
parser.add_argument("--output", help="file to save the figure to")
# The kernel of a notebook has options of its own.
options = parser.parse_args([] if "ipykernel" in sys.modules else None)

path = Path(os.environ.get("SKFEDEM_DATA", "data")) / "skylark.dat"
if path.exists():
    names = ["site", "year", "birds", "habitat", "weight"]
    notes = pd.read_csv(path, sep=r"\s+", header=None, names=names, na_values={"birds": [999]})
else:
    random = np.random.default_rng(0)
    notes = pd.MultiIndex.from_product([range(1, 56), range(1, 9)], names=["site", "year"])
    notes = notes.to_frame(index=False)
    means = 8 * np.exp(0.8 * random.normal(size=55)[notes["site"] - 1] + 0.05 * notes["year"])
    notes["birds"] = random.poisson(means)
    notes = notes[random.random(len(notes)) < 0.75]
notes["province"] = notes["site"] % 5

# %%
# Row effects for sites and column effects for years, without a low-rank part (``rank=0``) and
# without ridge. The messages of each round are compressed, and a province misses every fourth one.

counts = read_counts(notes, site="site", time="year", count="birds", observer="province")
imputer = FederatedMatrixImputer(
    rank=0, family="poisson", effects_penalty=0, omega=1.0, participation=0.75, random_state=0
)
imputer.fit(counts.clients, shape=(counts.sites, counts.times))

# %%
# Totals of observed counts plus expected ones where nobody counted, with standard errors:

totals = imputer.totals(counts.clients)
print(totals.table[["column", "imputed", "imputed_error"]].round(1).to_string(index=False))
index = totals.index()
print(index[["column", "imputed", "imputed_error"]].round(3).to_string(index=False))
trend = totals.trend()
print(f"dispersion {totals.dispersion:.2f}, serial correlation {totals.serial_correlation:.2f}")
print(f"{trend.multiplicative:.3f} ± {trend.multiplicative_error:.3f} a year: {trend.meaning}")

# %%
# The table is what a plot needs.

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
band = {"color": "#0072B2", "alpha": 0.2, "linewidth": 0, "label": "95 % confidence"}
axis.fill_between(index["column"], index["imputed_low"], index["imputed_high"], **band)
axis.plot(index["column"], index["imputed"], color="#0072B2", marker="o", label="index")
axis.set(xlabel="year", ylabel=f"index (year {index['column'][0]} = 1)", ylim=(0, None))
change, error = trend.multiplicative - 1, trend.multiplicative_error
axis.set_title(f"{trend.meaning}: {change:+.1%} ± {error:.1%} (standard error) a year")
axis.legend(loc="lower right")
axis.grid(alpha=0.3)
if options.output:
    figure.savefig(options.output, dpi=120)
else:
    plt.show()
