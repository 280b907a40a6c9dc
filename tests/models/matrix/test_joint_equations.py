"""Newton's equations for effects beside covariates and groups, against dense ones."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from low_rank_cells import support_of
from skfedem.models.matrix.covariates import CovariateData, Covariates
from skfedem.models.matrix.joint_equations import joint_design, joint_direction, trace_of_clients
from skfedem.models.matrix.pooled import LEAST_PENALTY, Pooled
from skfedem.models.matrix.theta import Effects

SHAPE, RIDGE = (12, 5), 0.4


@pytest.mark.parametrize("with_effects", [True, False])
@pytest.mark.parametrize("n_groups", [1, 3])
@pytest.mark.parametrize("n_clients", [0, 4])
@pytest.mark.parametrize("effects", ["both", "rows", "columns"])
def test_the_direction_solves_the_dense_equations(effects, n_clients, n_groups, with_effects):
    check(effects, n_clients, n_groups, with_effects, rtol=1e-6)  # a ridge of 1e-10 at least


def test_conjugate_gradients_solve_for_many_clients():
    # They stop at residuals of 1e-6, and the trace is that of eight random vectors.
    check("both", 1100, 2, True, n_visits=60, rtol=1e-5, rtol_of_trace=0.02)


def check(effects, n_clients, n_groups, with_effects, *, n_visits=1, rtol=1e-6, rtol_of_trace=1e-6):
    """Compare direction and trace with those of the dense Hessian."""
    rng = np.random.default_rng(0)
    rows, columns = (np.repeat(own, n_visits) for own in np.nonzero(rng.random(SHAPE) < 0.6))
    support = support_of(rows, columns, SHAPE)
    groups = np.arange(SHAPE[0]) % n_groups
    known = Covariates(
        rng.normal(size=(SHAPE[0], 2)),
        rng.normal(size=(SHAPE[1], 3)),
        groups,
        n_groups,
        with_effects,
        n_clients,
    )
    owners = np.arange(len(support.rows)) % max(n_clients, 1)
    sizes = [1, SHAPE[0] * (effects != "columns"), SHAPE[1] * (effects != "rows"), sum(known.sizes)]
    own = rng.uniform(0.3, 2, sizes[3])
    design = known.design(support.rows, support.columns, owners)
    joint = joint_design(support, effects, known, design)
    data = CovariateData(known, np.zeros(sizes[3]), own, design, joint)
    pooled = Pooled(support, None, "poisson", 0, 0.0, effects, RIDGE, covariates=data)

    def effects_of(values):
        intercept, rows, columns, coefficients = np.split(values, np.cumsum(sizes)[:-1])
        rows, columns = (
            own if own.size else np.zeros(n) for own, n in zip((rows, columns), SHAPE, strict=True)
        )
        return Effects(float(intercept[0]), rows, columns, coefficients)

    slopes, weights = rng.normal(size=sum(sizes)), rng.uniform(0.5, 3, len(support.rows))
    jacobian = np.stack(
        [pooled.effects_at_cells(effects_of(e)) for e in np.eye(sum(sizes))], axis=1
    )
    penalties = [np.full(1, LEAST_PENALTY), *(np.full(n, RIDGE) for n in sizes[1:3]), own]
    hessian = jacobian.T @ (weights[:, None] * jacobian) + np.diag(np.concatenate(penalties))
    want = effects_of(np.linalg.solve(hessian, slopes))
    got = joint_direction(pooled, data, effects_of(slopes), weights)
    for one, other in zip(got, want, strict=True):
        assert_allclose(one, other, rtol=rtol, atol=rtol * np.abs(other).max(initial=0))
    if n_clients:
        trace = np.trace(np.linalg.inv(hessian)[-n_clients:, -n_clients:])
        assert_allclose(trace_of_clients(pooled, data, weights), trace, rtol=rtol_of_trace)
