"""Exact reductions: where the algorithms must agree with others to rounding."""

from itertools import pairwise
from math import isclose

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

import literal
from problems import (
    COVARIANCE_TYPES,
    KNOWN_COVARIANCE,
    SETTINGS,
    SOLVERS,
    Setting,
    lower_bounds,
    make_problem,
    mixture_model,
    mixture_parameters,
    ragged_clients,
    run_rounds,
    stack,
    standard_reg_covar,
    standard_rows,
    start_at,
)
from skfedem import FederatedGaussianMixture, _random
from skfedem._federation import draw_minibatches
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.compression import BlockQuantizer, Dithering, RandK
from skfedem.models.mixture.parameters import in_row_units, in_standard_units
from skfedem.participation import draw_active
from skfedem.solvers._loop import Options, run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
every_covariance_type = pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)

FITTED = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")


def start_of(covariance_type, scale=1.0, shift=0.0):
    """A start within the rows of ``ragged_clients``, times ``scale`` plus ``shift``."""
    precisions = {
        "full": np.array([[[1.0, 0.1], [0.1, 0.2]], [[0.7, -0.1], [-0.1, 0.15]]]),
        "tied": np.array([[0.8, 0.1], [0.1, 0.2]]),
        "diag": np.array([[1.0, 0.2], [0.7, 0.15]]),
        "spherical": np.array([0.5, 0.3]),
    }[covariance_type]
    return {
        "weights_init": np.array([0.4, 0.6]),
        "means_init": np.array([[1.0, -7.0], [3.0, -3.0]]) * scale + shift,
        "precisions_init": precisions / scale**2,
    }


def federated(covariance_type, **params):
    params = {"n_components": 2, "tol": 0.0, "random_state": 0, **params}
    return FederatedGaussianMixture(covariance_type=covariance_type, **params)


def assert_same_fit(got, want, rtol=1e-8, atol=1e-9, names=FITTED):
    for name in names:
        assert_allclose(getattr(got, name), getattr(want, name), rtol=rtol, atol=atol, err_msg=name)


# ---- scikit-learn's EM


# EM on 48 rows of spread 1 to 4 is well conditioned: the two implementations part by rounding,
# below 1e-12 in every quantity, which leaves 1e-8 four digits to spare.
@every_covariance_type
@pytest.mark.parametrize("max_iter", [1, 2, 6])
def test_defaults_are_scikit_learns_em_iteration_by_iteration(covariance_type, max_iter):
    clients = ragged_clients()
    params = {"max_iter": max_iter, "reg_covar": 1e-3, **start_of(covariance_type)}
    pooled = GaussianMixture(2, covariance_type=covariance_type, tol=0.0, **params)
    bounds = lower_bounds(pooled.fit(np.concatenate(clients)), np.concatenate(clients))
    fit = federated(covariance_type, **params).fit(clients)
    assert_same_fit(fit, pooled)
    assert_allclose(fit.lower_bounds_, bounds, rtol=1e-10)
    assert_allclose(fit.lower_bound_, pooled.lower_bound_, rtol=1e-10)
    assert (fit.n_iter_, fit.converged_) == (pooled.n_iter_, pooled.converged_)
    assert fit.n_iter_ == max_iter and not fit.converged_
    # Row r of the history is the state after r rounds: one E-step ahead of the bounds.
    assert_allclose(fit.history_["log_likelihood"][:max_iter], bounds, rtol=1e-10)
    assert_array_equal(fit.history_["safeguarded"], 0)


# Rows of spread 1e-8 under unit precisions: in standard units Ŝ_0 would be 1e16, which has no digit
# left for the rows.
@every_covariance_type
@pytest.mark.parametrize("max_iter", [1, 2, 20])
def test_a_start_that_is_wide_beside_the_rows_loses_no_digits(covariance_type, max_iter):
    scale = 1e-8
    clients = [rows * scale for rows in ragged_clients()]
    params = {"max_iter": max_iter, "reg_covar": 1e-3 * scale**2, "tol": 0.0}
    params.update(start_of(covariance_type, scale))
    params["precisions_init"] = params["precisions_init"] * scale**2
    pooled = GaussianMixture(2, covariance_type=covariance_type, **params)
    pooled.fit(np.concatenate(clients))
    fit = federated(covariance_type, **params).fit(clients)
    assert_allclose(fit.lower_bound_, pooled.lower_bound_, rtol=1e-10)
    assert_same_fit(fit, pooled, atol=0)


@every_covariance_type
@pytest.mark.parametrize("tol", [1e-2, 1e-4])
def test_defaults_stop_where_scikit_learn_stops(covariance_type, tol):
    clients = ragged_clients()
    params = {"max_iter": 500, "tol": tol, **start_of(covariance_type)}
    pooled = GaussianMixture(2, covariance_type=covariance_type, **params)
    bounds = lower_bounds(pooled.fit(np.concatenate(clients)), np.concatenate(clients))
    fit = federated(covariance_type, **params).fit(clients)
    assert (fit.n_iter_, fit.converged_) == (pooled.n_iter_, pooled.converged_)
    assert fit.converged_ and fit.n_iter_ > 2
    assert_allclose(fit.lower_bounds_, bounds, rtol=1e-8)
    # Rounding grows a little where EM converges slowly.
    assert_same_fit(fit, pooled, rtol=1e-7)


@every_covariance_type
def test_the_split_does_not_matter(covariance_type):
    rows = np.concatenate(ragged_clients())
    fits = []
    for lengths in ([48], [1] * 48, [47, 1], [10, 20, 3, 15]):
        split = np.split(rows, np.cumsum(lengths)[:-1])
        fits.append(federated(covariance_type, max_iter=20, **start_of(covariance_type)).fit(split))
    assert [fit.n_clients_ for fit in fits] == [1, 48, 2, 4]
    for fit in fits[1:]:
        assert_same_fit(fit, fits[0])
        assert_allclose(fit.lower_bounds_, fits[0].lower_bounds_, rtol=1e-10)


@every_covariance_type
def test_a_known_control_changes_nothing_of_an_exact_fit(covariance_type):
    # The fields of the control variates cancel, whatever their start and their step.
    clients = ragged_clients()
    fits = [
        federated(
            covariance_type, max_iter=10, control_init=init, control_step=step,
            **start_of(covariance_type),
        ).fit(clients)
        for init in ("field", "zeros")
        for step in ("auto", 0.0, 0.3)
    ]  # fmt: skip
    for fit in fits[1:]:
        assert_same_fit(fit, fits[0])


def test_fixed_covariance_is_a_literal_em_of_weights_and_means():
    clients = [rows / [1.0, 3.0] for rows in ragged_clients()]
    rows = np.concatenate(clients)
    weights, means = np.array([0.4, 0.6]), np.array([[1.0, -2.0], [3.0, -1.0]])
    start = {"weights_init": weights, "means_init": means}
    for max_iter in range(1, 6):
        shares = np.array(literal.responsibilities(rows, weights, means, KNOWN_COVARIANCE, "tied"))
        weights, means = shares.mean(axis=0), (shares.T @ rows) / shares.sum(axis=0)[:, None]
        fit = federated("tied", fixed_covariance=KNOWN_COVARIANCE, max_iter=max_iter, **start)
        fit.fit(clients)
        assert_allclose(fit.weights_, weights, rtol=1e-8)
        assert_allclose(fit.means_, means, rtol=1e-8)
        # Units to standard units and back: one rounding each.
        assert_allclose(fit.covariances_, KNOWN_COVARIANCE, rtol=1e-14)
    log_likelihood = literal.log_likelihood(rows, weights, means, KNOWN_COVARIANCE, "tied")
    assert_allclose(fit.score(rows), log_likelihood, rtol=1e-10)
    assert_allclose(fit.history_["log_likelihood"][-1], log_likelihood, rtol=1e-10)


# ---- units and numbers


@every_covariance_type
def test_rows_far_from_the_origin_give_the_fit_of_centred_ones(covariance_type):
    # Near 1e6 doubles are 2^-33, about 1e-10, apart. Rows rounded to multiples of it can be moved
    # there and back without an error; the fitted means are rounded to it once more, when they are
    # stored, and the mean of all rows, to a few of it, before.
    spacing = 2.0**-33
    near = [np.round(rows / spacing) * spacing for rows in ragged_clients()]
    far = [rows + 1e6 for rows in near]
    assert all(((a - 1e6) == b).all() for a, b in zip(far, near, strict=True))
    params = {"max_iter": 15, "reg_covar": 1e-6}
    expected = federated(covariance_type, **params, **start_of(covariance_type)).fit(near)
    fit = federated(covariance_type, **params, **start_of(covariance_type, shift=1e6)).fit(far)
    assert_allclose(fit.means_ - 1e6, expected.means_, rtol=0, atol=8 * spacing)
    assert_allclose(fit.weights_, expected.weights_, rtol=1e-9)
    assert_allclose(fit.covariances_, expected.covariances_, rtol=1e-9, atol=1e-9)
    assert_allclose(fit.lower_bounds_, expected.lower_bounds_, rtol=1e-9)
    # Prediction sees means that are off by the spacing, about 1e-9 of a standard deviation.
    assert_allclose(fit.score_samples(far[2]), expected.score_samples(near[2]), atol=1e-8)
    assert_allclose(fit.predict_proba(far[2]), expected.predict_proba(near[2]), atol=1e-8)


@pytest.mark.parametrize("scale", [1e-4, 1e-11, 1e-30])
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_a_feature_that_reg_covar_drowns_takes_nothing_from_the_others(covariance_type, scale):
    # Correlated with the first one. What is added to its variance may be any number of times that.
    clients = [np.column_stack([rows, rows @ [scale, 0.5 * scale]]) for rows in ragged_clients()]
    precisions = np.diag([1.0, 0.2, 1e6])
    start = {
        **start_of("full"),
        "means_init": [[1.0, -7.0, 0.0], [3.0, -3.0, 0.0]],
        "precisions_init": {
            "full": np.stack([precisions, precisions]),
            "tied": precisions,
            "diag": np.diagonal([precisions] * 2, axis1=1, axis2=2),
        }[covariance_type],
        "max_iter": 20,
    }
    fit = federated(covariance_type, **start).fit(clients)
    pooled = GaussianMixture(2, covariance_type=covariance_type, tol=0.0, **start)
    pooled.fit(np.concatenate(clients))
    assert_same_fit(fit, pooled, names=("weights_", "means_", "covariances_"))
    assert isclose(fit.score(clients), pooled.score(np.concatenate(clients)), rel_tol=1e-8)


@every_covariance_type
@pytest.mark.parametrize("omega", [0.0, 1.0])
def test_a_feature_whose_variance_floats_cannot_hold_is_a_constant_one(covariance_type, omega):
    clients = ragged_clients()
    fit = federated(covariance_type, omega=omega, max_iter=20)
    constant = clone(fit).fit([rows * [1.0, 0.0] for rows in clients])
    assert_same_fit(fit.fit([rows * [1.0, 1e-158] for rows in clients]), constant)
    fit.fit([rows * 1e-158 for rows in clients])
    for name in (*FITTED, "client_drift_"):
        assert np.isfinite(getattr(fit, name)).all()


@pytest.mark.parametrize("setting", ["exact", "rough"])
@every_covariance_type
def test_units_of_the_features_change_nothing_but_units(covariance_type, setting):
    # Also for noisy rounds: what travels is in standard units, and the draws are the same.
    params = {"max_iter": 12, "reg_covar": 0.0}
    if setting == "rough":
        params.update(omega=0.5, participation=0.7, batch_size=5, step_size=0.05)
    units = np.array([1e-3, 1e-3]) if covariance_type == "spherical" else np.array([1e-4, 250.0])
    shift = np.array([7.0, -30.0])
    clients = ragged_clients()
    start = start_of(covariance_type)
    squared = {"spherical": units[0] ** 2, "diag": units**2}
    start_moved = {
        "weights_init": start["weights_init"],
        "means_init": start["means_init"] * units + shift,
        "precisions_init": start["precisions_init"]
        / squared.get(covariance_type, np.outer(units, units)),
    }
    expected = federated(covariance_type, **params, **start).fit(clients)
    moved = [rows * units + shift for rows in clients]
    fit = federated(covariance_type, **params, **start_moved).fit(moved)
    squares = squared.get(covariance_type, np.outer(units, units))
    assert_allclose(fit.weights_, expected.weights_, rtol=1e-8)
    # 7 and 30 are 1e5 of the small unit: the means, and the rows, lose five digits of sixteen.
    assert_allclose((fit.means_ - shift) / units, expected.means_, rtol=1e-8)
    assert_allclose(fit.covariances_ / squares, expected.covariances_, rtol=1e-8)
    log_units = np.log(units).sum()
    assert_allclose(fit.lower_bounds_, np.array(expected.lower_bounds_) - log_units, rtol=1e-8)


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_a_turn_of_the_axes_turns_the_fit(covariance_type):
    turn = np.array([[0.6, -0.8], [0.8, 0.6]]) @ np.diag([1.0, 2.0])
    clients, start = ragged_clients(), start_of(covariance_type)
    inverse = np.linalg.inv(turn)
    turned = {
        "weights_init": start["weights_init"],
        "means_init": start["means_init"] @ turn.T,
        "precisions_init": inverse.T @ start["precisions_init"] @ inverse,
    }
    params = {"max_iter": 12, "reg_covar": 0.0}
    expected = federated(covariance_type, **params, **start).fit(clients)
    fit = federated(covariance_type, **params, **turned).fit([rows @ turn.T for rows in clients])
    assert_allclose(fit.weights_, expected.weights_, rtol=1e-8)
    assert_allclose(fit.means_, expected.means_ @ turn.T, rtol=1e-8)
    assert_allclose(fit.covariances_, turn @ expected.covariances_ @ turn.T, rtol=1e-8)


@every_covariance_type
def test_float32_rows_give_the_fit_of_the_same_numbers_in_float64(covariance_type):
    clients = [rows.astype(np.float32) for rows in ragged_clients()]
    params = {"max_iter": 10, **start_of(covariance_type)}
    low = federated(covariance_type, **params).fit(clients)
    high = federated(covariance_type, **params).fit([rows.astype(np.float64) for rows in clients])
    assert_same_fit(low, high, rtol=1e-12)
    assert low.means_.dtype == np.float64


@every_covariance_type
def test_uniform_weights_are_those_of_clients_resampled_to_equal_size(covariance_type):
    # Rows of clients with 12, 6, 4 and 3 rows, repeated until each has 12.
    clients = ragged_clients((12, 6, 4, 3))
    repeated = [np.repeat(rows, 12 // len(rows), axis=0) for rows in clients]
    params = {"max_iter": 10, "reg_covar": 1e-3, **start_of(covariance_type)}
    uniform = federated(covariance_type, client_weights="uniform", **params).fit(clients)
    by_rows = federated(covariance_type, client_weights="n_samples", **params).fit(repeated)
    assert_same_fit(uniform, by_rows)
    assert_allclose(uniform.lower_bounds_, by_rows.lower_bounds_, rtol=1e-10)
    pooled = federated(covariance_type, client_weights="n_samples", **params).fit(clients)
    assert np.abs(pooled.means_ - uniform.means_).max() > 1e-3


# ---- one solver against another


ROUGH = {
    "compressed": Setting(Dithering(omega=1.0)),
    "partial": Setting(participation=0.6),
    "both": Setting(RandK(omega=1.0), participation=0.6),
}


@pytest.mark.parametrize("setting", [SETTINGS["exact"], *ROUGH.values()], ids=["exact", *ROUGH])
@pytest.mark.parametrize("batch_size", [None, 12])
def test_vr_fedem_on_all_rows_is_fedem(setting, batch_size):
    # A minibatch of all twelve rows, none twice, is all rows too, in another order.
    federation = stack(ragged_clients((12, 12, 12)))
    model = mixture_model(federation, "full")
    start = start_at(model, federation, mixture_parameters(model))
    fedem, vr_fedem = (
        run_rounds(SOLVERS[name], problem, federation, start, 15, control_init="zeros")
        for name, problem in {
            "fedem": make_problem(model, federation, setting),
            "vr_fedem": make_problem(
                model, federation, setting, batch_size=batch_size, replacement=False
            ),
        }.items()
    )
    for plain, reduced in zip(fedem, vr_fedem, strict=True):
        assert_allclose(reduced.server.statistics, plain.server.statistics, rtol=1e-10, atol=1e-12)
        assert_allclose(reduced.controls, plain.controls, rtol=1e-10, atol=1e-12)


def test_vr_fedem_of_one_client_is_spider_em():
    # Fort, Moulines and Wai (2020): S is the running estimate, refreshed every n_inner rounds.
    federation = stack(ragged_clients((40,)))
    model = mixture_model(federation, "diag")
    start = start_at(model, federation, mixture_parameters(model))
    problem = make_problem(model, federation, batch_size=5, n_inner=4, seed=7)
    rounds = list(run_rounds(SOLVERS["vr_fedem"], problem, federation, start, 11, step_size=0.2))
    rows = standard_rows(model, federation.rows)

    def expected_statistics(theta, batch):
        return literal.expected_statistics(rows[batch], *theta[:3], "diag")

    statistics, last = start.statistics.reshape(2, -1), None
    for k, result in enumerate(rounds[1:]):
        theta = literal.m_step(statistics, "diag", standard_reg_covar(model))
        if k % 4 == 0:
            estimate = expected_statistics(theta, slice(None))
        else:
            uniforms = _random.client_uniforms(7, _random.MINIBATCH, k, np.array([0]), 5)
            batch = draw_minibatches(uniforms, federation.lengths, replacement=True)[0]
            estimate = estimate + expected_statistics(theta, batch)
            estimate = estimate - expected_statistics(last, batch)
        last = theta
        field = estimate - statistics
        statistics = statistics + 0.2 * field
        assert_allclose(result.info.field, field.ravel(), rtol=1e-9, atol=1e-11)
        assert_allclose(result.server.statistics, statistics.ravel(), rtol=1e-9, atol=1e-11)
    assert k == 10


# ---- the paper's algorithms, round by round


class Drawn:
    """What a problem's clients draw, as the literal algorithms want it."""

    def __init__(self, problem, n_rounds):
        self.task = task = problem.task
        n_clients, every = problem.sizes.n_clients, np.arange(problem.sizes.n_clients)
        self.active_sets = [
            set(
                draw_active(
                    _random.generator(task.seed, _random.PARTICIPATION, k),
                    n_clients,
                    problem.participation,
                ).tolist()
            )
            for k in range(n_rounds)
        ]
        self.batches = [[None] * n_clients] * n_rounds
        if task.batch_size is not None:
            self.batches = [
                draw_minibatches(
                    _random.client_uniforms(
                        task.seed, _random.MINIBATCH, k, every, task.batch_size
                    ),
                    problem.sizes.lengths,
                    replacement=task.replacement,
                )
                for k in range(n_rounds)
            ]

    def quantise(self, k, client, vector, theta):
        if not self.task.omega:
            return vector
        uniforms = _random.client_uniforms(
            self.task.seed, _random.COMPRESSION, k, np.array([client]), vector.size
        )
        model = self.task.model
        is_rest = model.covariance_type == "tied" and model.fixed_covariance is None
        units = literal.component_units(theta, model.covariance_type, is_rest)
        mapped = [A @ part for A, part in zip(units, vector, strict=True)]
        compressed = self.task.compressor.compress(np.ravel(mapped), uniforms[0])
        parts = zip(units, compressed.reshape(vector.shape), strict=True)
        return np.array([np.linalg.solve(A, part) for A, part in parts])


def literal_arguments(problem, federation, drawn, start, step_sizes, controls=None):
    """What the literal algorithms all take, of a mixture problem in the model's standard units."""
    model = problem.model
    rows = standard_rows(model, federation.rows)
    clients = np.split(rows, federation.offsets[1:-1])
    client_statistics, m_step = literal.mixture_problem(
        clients,
        federation.weights,
        model.covariance_type,
        standard_reg_covar(model),
        model.fixed_covariance,
    )
    statistics = start.statistics.reshape(model.n_components, -1)
    if controls is None:
        controls = literal.client_fields(client_statistics, m_step, statistics, len(clients))
    return {
        "client_statistics": client_statistics,
        "m_step": m_step,
        "start": statistics,
        "controls": controls,
        "client_weights": federation.weights,
        "step_sizes": step_sizes,
        "control_step": problem.task.control_step,
        "batches": drawn.batches,
        "quantise": drawn.quantise,
    }


def literal_rounds(solver, problem, federation, start, step_sizes, controls=None):
    drawn = Drawn(problem, len(step_sizes))
    given = literal_arguments(problem, federation, drawn, start, step_sizes, controls)
    given.update(participation=problem.inclusion_probability, active_sets=drawn.active_sets)
    if solver is SOLVERS["vr_fedem"]:
        return literal.vr_fedem(**given, n_inner=problem.n_inner)
    return literal.fedem(**given)


def assert_same_rounds(rounds, expected):
    n_rounds = 0
    # Fields of order 1 from sums of 20 rows. A rounding of 1e-16 that tipped a draw of an operator
    # would show as a difference of order 0.1, and happens once in 1e14 draws.
    close = {"rtol": 1e-9, "atol": 1e-11}
    for result, want in zip(rounds, expected, strict=True):
        assert result.info.safeguarded == 0
        controls = np.reshape(want.client_controls, result.controls.shape)
        assert_allclose(result.info.field, want.field.ravel(), **close)
        assert_allclose(result.server.statistics, want.statistics.ravel(), **close)
        assert_allclose(result.server.control, want.control.ravel(), **close)
        assert_allclose(result.controls, controls, **close)
        n_rounds += 1
    assert n_rounds == 10


# Small enough for 32 rows with all that noise to stay in the domain of T, without its safeguard.
STEP_SIZE = 0.005

LITERAL_SETTINGS = {
    **SETTINGS,
    "dithering": Setting(Dithering(omega=1.0), 0.7, 3),
    "block": Setting(BlockQuantizer(omega=1.5, norm=np.inf), 0.7, 2),
    "distinct": Setting(Dithering(omega=0.5), 0.7, 4, replacement=False),
}


@every_solver
@pytest.mark.parametrize(
    ("name", "setting"),
    [("mixture-full", setting) for setting in LITERAL_SETTINGS]
    + [(f"mixture-{kind}", "distinct") for kind in ("tied", "diag", "spherical", "fixed")],
)
def test_rounds_are_those_of_the_paper(name, setting, solver):
    setting = LITERAL_SETTINGS[setting]
    covariance_type = name.removeprefix("mixture-").replace("fixed", "tied")
    fixed = KNOWN_COVARIANCE if name == "mixture-fixed" else None
    federation = stack(ragged_clients((7, 12, 4, 9)))
    model = mixture_model(federation, covariance_type, reg_covar=1e-2, fixed=fixed)
    problem = make_problem(model, federation, setting, n_inner=4, seed=11)
    start = start_at(model, federation, mixture_parameters(model))
    _, *rounds = run_rounds(solver, problem, federation, start, 10, STEP_SIZE)
    if problem.exact:
        # Exact rounds start from V_i = 0: nothing that the server sees depends on it.
        controls = [np.zeros((2, model.n_functions))] * 4
    else:
        controls = None
    expected = literal_rounds(solver, problem, federation, start, [STEP_SIZE] * 10, controls)
    assert_same_rounds(rounds, expected)


def test_vr_fedem_with_everyone_is_algorithm_2_as_printed():
    federation = stack(ragged_clients((7, 12, 4, 9)))
    model = mixture_model(federation, "diag", reg_covar=1e-2)
    setting = Setting(Dithering(omega=1.0), batch_size=3)
    problem = make_problem(model, federation, setting, n_inner=5, seed=11)
    start = start_at(model, federation, mixture_parameters(model))
    _, *rounds = run_rounds(SOLVERS["vr_fedem"], problem, federation, start, 10, STEP_SIZE)
    given = literal_arguments(problem, federation, Drawn(problem, 10), start, [STEP_SIZE] * 10)
    printed = literal.vr_fedem_full_participation(**given, n_inner=5, n_outer=2)
    assert_same_rounds(rounds, printed)


@every_solver
@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_fit_is_that_of_the_paper(covariance_type, solver):
    # The same through the estimator: its seed, units, start, schedule and history.
    name = next(name for name in SOLVERS if SOLVERS[name] is solver)
    clients = ragged_clients((7, 12, 4, 9))
    fit = federated(
        covariance_type, solver=name, omega=0.5, participation=0.7, batch_size=4, replacement=False,
        n_inner=3, control_step=0.4, step_size=lambda k: 0.1 / k, reg_covar=1e-2, max_iter=10,
        random_state=3, **start_of(covariance_type),
    ).fit(clients)  # fmt: skip
    federation = stack(clients)
    model = mixture_model(federation, covariance_type, reg_covar=1e-2)
    setting = Setting(Dithering(omega=0.5), 0.7, 4, replacement=False)
    seed = np.random.RandomState(3).randint(np.iinfo(np.int32).max)
    problem = make_problem(model, federation, setting, n_inner=3, seed=seed, control_step=0.4)
    weights, means, precisions = start_of(covariance_type).values()
    covariances = np.linalg.inv(precisions) if covariance_type == "full" else 1 / precisions
    parameters = model.parameters(*in_standard_units(model.units, weights, means, covariances))
    start = model.statistics_of(parameters)
    rounds = literal_rounds(
        solver,
        problem,
        federation,
        type("Start", (), {"statistics": start}),
        [0.1 / k for k in range(1, 11)],
    )
    fitted_weights = [weights]
    field_sq_norms = []
    for result in rounds:
        theta = literal.m_step(result.statistics, covariance_type, standard_reg_covar(model))
        fitted_weights.append(theta.weights)
        field_sq_norms.append((result.field**2).sum())
    assert_allclose(fit.history_["weights"], fitted_weights, rtol=1e-9)
    assert_allclose(fit.history_["field_sq_norm"][1:], field_sq_norms, rtol=1e-8)
    assert_allclose(fit.history_["step_size"][1:], [0.1 / k for k in range(1, 11)], rtol=1e-15)
    fitted = model.parameters(theta.weights, theta.means, theta.covariances)
    _, means, covariances, _ = in_row_units(model.units, fitted)
    assert_allclose(fit.means_, means, rtol=1e-9)
    assert_allclose(fit.covariances_, covariances, rtol=1e-8)
    final_controls = np.reshape(result.client_controls, (4, -1))
    assert_allclose(fit.client_drift_, np.linalg.norm(final_controls, axis=1), rtol=1e-8)


@every_solver
@pytest.mark.parametrize("setting", ["everything", "compressed"])
def test_naive_fedem_has_no_control_variates(solver, setting):
    federation = stack(ragged_clients((7, 12, 4, 9)))
    model = mixture_model(federation, "tied", reg_covar=1e-2)
    problem = make_problem(
        model, federation, SETTINGS[setting], control_step=0.0, has_controls=False, seed=5
    )
    start = start_at(model, federation, mixture_parameters(model))
    _, *rounds = run_rounds(solver, problem, federation, start, 10, STEP_SIZE, "zeros")
    zeros = np.zeros((4, model.n_statistics))
    for result in rounds:
        assert not result.server.control.any()
        assert result.controls.size == 0  # nothing is kept
    rounds = [result._replace(controls=zeros) for result in rounds]
    controls = list(zeros.reshape(4, 2, -1))
    expected = literal_rounds(solver, problem, federation, start, [STEP_SIZE] * 10, controls)
    assert_same_rounds(rounds, expected)


def test_naive_fedem_through_the_estimator_has_no_drift():
    fit = federated(
        "diag", omega=1.0, control_step=0, control_init="zeros", max_iter=5, step_size=0.1
    ).fit(ragged_clients())
    assert_array_equal(fit.client_drift_, 0.0)
    fit.set_params(control_init="field").fit(ragged_clients())
    assert (fit.client_drift_ > 0).all()


@every_solver
def test_the_loop_goes_through_the_rounds_one_by_one(solver):
    federation = stack(ragged_clients((7, 12, 4, 9)))
    model = mixture_model(federation, "full", reg_covar=1e-2)
    problem = make_problem(model, federation, SETTINGS["everything"], seed=2)
    start = start_at(model, federation, mixture_parameters(model))
    rounds = list(run_rounds(solver, problem, federation, start, n_rounds=6))
    for n_rounds in (0, 1, 6):
        options = Options(step_size=lambda k: 0.05, max_iter=n_rounds, tol=0.0, eval_every=3)
        with Workers() as workers:
            clients = LocalClients(federation, workers)
            clients.join(solver, problem.task)
            result = run(solver, problem, start, options, clients, lambda row: None)
        assert_array_equal(result.server.statistics, rounds[n_rounds].server.statistics)
        assert_array_equal(result.clients["controls"], rounds[n_rounds].controls)
    history = result.history
    fields = [now.info.field for now in rounds[1:]]
    assert_allclose(history["field_sq_norm"][1:], [field @ field for field in fields], rtol=1e-14)
    assert_array_equal(history["n_active"][1:], [len(now.active) for now in rounds[1:]])
    assert_array_equal(
        history["uplink_bits"][1:], [8 * now.aggregated.n_bytes for now in rounds[1:]]
    )
    # All four clients are told Ŝ_0, for their control variates.
    listening = np.concatenate([[4], history["n_active"][1:]])
    assert_array_equal(history["downlink_bits"], 64 * model.n_statistics * listening)
    expectations = np.cumsum([now.aggregated.n_expectations for now in rounds[1:]])
    assert_allclose(history["epoch"][1:] - history["epoch"][0], expectations / 32, rtol=1e-14)
    assert_array_equal(np.isfinite(history["log_likelihood"]), [1, 0, 0, 1, 0, 0, 1])
    assert isclose(result.criteria("log_likelihood")[-1], history["log_likelihood"][-1])
    assert all(a < b for a, b in pairwise(history["epoch"]))
