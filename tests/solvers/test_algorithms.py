"""The solvers against the paper's algorithms, round by round, and against each other."""

from itertools import pairwise
from math import isclose

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import literal
from fits import federated, start_of
from problems import (
    KNOWN_COVARIANCE,
    SETTINGS,
    SOLVERS,
    Setting,
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
from skfedem import _random
from skfedem._minibatches import draw_minibatches
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.compression import BlockQuantizer, Dithering, RandK
from skfedem.models.mixture.parameters import in_row_units, in_standard_units
from skfedem.participation import draw_active
from skfedem.solvers._loop import Options, run

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)

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
            result = run(problem._replace(solver=solver), start, options, clients, lambda row: None)
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
