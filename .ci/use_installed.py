"""Import the modules of the installed skfedem and fit its estimators, with nothing else there."""

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sysconfig
from importlib.resources import files
from pathlib import Path

import numpy as np

import skfedem

OPTIONAL = ("matplotlib", "pandas", "statsmodels", "torch")

present = [name for name in OPTIONAL if importlib.util.find_spec(name)]
assert not present, f"the environment is not empty: {present}"
assert Path(skfedem.__file__).is_relative_to(sysconfig.get_path("purelib")), skfedem.__file__
assert importlib.metadata.version("skfedem") == skfedem.__version__
assert files("skfedem").joinpath("py.typed").is_file()
modules = [module.name for module in pkgutil.walk_packages(skfedem.__path__, "skfedem.")]
for name in modules:
    if name.startswith("skfedem.dask"):  # for those alone who have a cluster
        continue
    importlib.import_module(name)

rows = np.random.default_rng(0).normal(size=(3, 40, 2)) + np.arange(3)[:, None, None]
mixture = skfedem.FederatedGaussianMixture(2, max_iter=500, random_state=0).fit(list(rows))
assert mixture.predict(rows[0]).shape == (40,)
holes = np.where(np.random.default_rng(1).random(rows.shape) < 0.3, np.nan, rows)
imputer = skfedem.FederatedMatrixImputer(1, max_iter=2000, random_state=0).fit(list(holes))
assert np.isfinite(imputer.fitted_mean()).all()
print(f"{len(modules)} modules imported, {mixture.n_iter_} and {imputer.n_iter_} rounds fitted")
