import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedMLPClassifier,
    FederatedMLPRegressor,
)

# What is checked does not depend on where rounds end: the stochastic fits, which would take 60 of
# them to converge to any tolerance, take a few. A small step keeps them in the domain of the
# M-step, on one client with twenty rows, for most seeds.
STOCHASTIC = {"step_size": 0.05, "max_iter": 10, "tol": 10.0, "random_state": 0}
# Two checks ask for an accuracy above .83 and R² above .5, of which these rounds are enough.
FEW = {"max_iter": 20, "warmup_rounds": 5, "random_state": 0}
ESTIMATORS = [
    FederatedGaussianMixture(),
    FederatedGaussianMixture(
        n_components=2,
        solver="vr_fedem",
        omega=1.0,
        participation=0.5,
        batch_size=6,
        **STOCHASTIC,
    ),
    # Without minibatches, which are drawn by the order of rows: a check reorders weighted rows.
    FederatedGaussianMixture(
        n_components=2, covariance_type="tied", compressor="rand_k", omega=0.2, **STOCHASTIC
    ),
    FederatedMatrixImputer(),
    FederatedMatrixImputer(rank=None, effects="none", penalty=0.0),
    FederatedMatrixImputer(
        rank=1,
        solver="vr_fedem",
        omega=1.0,
        participation=0.5,
        batch_size=3,
        effects="columns",
        **{**STOCHASTIC, "step_size": 0.01},
    ),
    FederatedMLPClassifier(**FEW),
    FederatedMLPClassifier((), prior="spike_slab", learning_rate_init=0.5, **FEW),
    FederatedMLPRegressor((10,), prior="mixture", **FEW),
    FederatedMLPRegressor((10,), prior="laplace", **FEW),
    FederatedMLPClassifier((10,), omega=1.0, **FEW),
]


# Warnings are errors here, but for these: the checks give classes as y to every estimator, two of
# them rows that repeat, and some a few rows without a pattern, of which all features are pruned.
@pytest.mark.filterwarnings("ignore:Not converged to tol=10.0 after 10 rounds")
@pytest.mark.filterwarnings("ignore:y, which has", "ignore:The variance of")
@pytest.mark.filterwarnings("ignore:All coefficients of layer 0 were pruned")
@parametrize_with_checks(ESTIMATORS)
def test_the_contract_of_scikit_learn(estimator, check):
    check(estimator)
