"""The same seed on other machines: other kernels of BLAS and other numbers of its threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

ROOT = Path(__file__).parents[1]
FITS = """
import json
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer

warnings.simplefilter("ignore")  # too few rounds to converge
images, digits = load_digits(return_X_y=True)
X = PCA(n_components=10, whiten=True, svd_solver="full").fit_transform(images)
noisy = {"omega": 1.0, "participation": 0.5, "batch_size": 5, "random_state": 0, "max_iter": 30}
scores = [
    FederatedGaussianMixture(8, covariance_type=covariance_type, **noisy)
    .fit(X, clients=digits)
    .score(X)
    for covariance_type in ("full", "tied", "diag")
]
rng = np.random.default_rng(0)
counts = rng.poisson(np.exp(rng.normal(size=(30, 2)) @ rng.normal(size=(2, 24))), (4, 30, 24))
counts = np.where(rng.random(counts.shape) < 0.4, counts, np.nan)
for family in ("gaussian", "poisson"):
    imputer = FederatedMatrixImputer(rank=3, family=family, **noisy).fit(counts)
    scores.append(imputer.history_["objective"][-1])
print(json.dumps(scores))
"""


@pytest.mark.slow
def test_a_seed_gives_the_same_fit_with_other_kernels_and_threads(tmp_path):
    # Without OpenBLAS some of these variables do nothing.
    results = []
    for variables in (
        {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Nehalem"},
    ):
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        run = subprocess.run(
            [sys.executable, "-c", FITS],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path} | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        results.append(json.loads(run.stdout))
    # Roundings of thirty rounds are below 1e-12; other axes changed scores by 1e-7 to 1e-5.
    assert_allclose(*results, rtol=1e-9)
