"""Every row of the lists in ``problems.py`` against its contract."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from problems import (
    COMPRESSORS,
    ESTIMATORS,
    MODELS,
    SETTINGS,
    SOLVERS,
    client_means,
    copied,
    make_problem,
    mean_field,
    mean_statistics,
    mixture_model,
    mixture_parameters,
    ragged_clients,
    run_rounds,
    stack,
    start_at,
)
from skfedem import _parallel
from skfedem._federation import read
from skfedem.solvers._base import Broadcast, Received, server_half
from skfedem.solvers._loop import Options, client_round, run

every_compressor = pytest.mark.parametrize("operator", COMPRESSORS, ids=repr)
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


@pytest.fixture(params=MODELS.values(), ids=list(MODELS))
def case(request):
    return request.param()


def pooled_log_likelihood(case, parameters):
    _, log_likelihoods = client_means(case.model, case.federation, parameters)
    return case.model.evaluated(case.federation.weights @ log_likelihoods, parameters)


def assert_same_parameters(got, want, **tolerance):
    assert type(got) is type(want)
    for name in want._fields:
        assert_allclose(getattr(got, name), getattr(want, name), err_msg=name, **tolerance)


def statistics_nearby(case, seed=0, n_statistics=30):
    """Statistics that the rows have under some θ, with a little noise; all in T's domain."""
    generator = np.random.default_rng(seed)
    for k in range(n_statistics):
        parameters = case.parameters[k % len(case.parameters)]
        statistics = mean_statistics(case.model, case.federation, parameters)
        noise = generator.standard_normal(len(statistics)) * np.abs(statistics)
        yield case.model.server_step(statistics, noise, 0.1, exact=False).statistics


# ---- models


def test_t_inverts_the_expected_statistic(case):
    # Both maps are a few operations on numbers of order 1, and a covariance of order 0.1 is a
    # difference of such: 1e-12 leaves three digits to spare.
    for parameters in case.parameters:
        found = case.model.maximization(case.model.statistics_of(parameters))
        assert_same_parameters(found, parameters, rtol=1e-12, atol=1e-12)


def test_sizes_are_as_the_contract_says(case):
    model, federation = case.model, case.federation
    features = model.features(federation.rows)
    sums = model.expectation(case.parameters[0].natural, features, federation.lengths)
    assert case.parameters[0].natural.shape == (model.n_statistics,)
    assert sums.statistics.shape == (federation.n_clients, model.n_statistics)
    assert sums.log_likelihood.shape == (federation.n_clients,)
    assert model.block_rows >= 1
    assert np.ndim(model.trace(case.parameters[0])) >= 1


def test_log_likelihood_is_that_of_the_raw_rows(case):
    federation = case.federation
    row_weights = np.repeat(federation.weights / federation.lengths, federation.lengths)
    for parameters in case.parameters:
        expected = row_weights @ case.log_likelihoods(parameters)
        # About 50 sums of numbers of order 10: 1e-12 is ten times their rounding.
        assert_allclose(pooled_log_likelihood(case, parameters), expected, rtol=1e-12)


def test_em_never_lowers_the_likelihood(case):
    parameters = case.parameters[0]
    values = [pooled_log_likelihood(case, parameters)]
    for _ in range(40):
        statistics = mean_statistics(case.model, case.federation, parameters)
        parameters = case.model.maximization(statistics)
        values.append(pooled_log_likelihood(case, parameters))
    # Log-likelihoods of order 5 are sums of 50 terms: rounding is below 50 * 5 * 1e-16.
    assert np.diff(values).min() > -1e-13
    assert values[-1] - values[0] > 1e-2


def test_the_surrogate_lies_below_the_log_likelihood(case):
    # What makes EM work: log p(θ') - log p(θ) >= Q(s̄(θ); θ') - Q(s̄(θ); θ), here for all pairs.
    for here in case.parameters:
        statistics = mean_statistics(case.model, case.federation, here)
        for there in case.parameters:
            gain = pooled_log_likelihood(case, there) - pooled_log_likelihood(case, here)
            promised = case.model.minorizer(statistics, there)
            promised -= case.model.minorizer(statistics, here)
            assert gain > promised - 1e-12
            assert (there is here) or gain > promised + 1e-4


def test_t_maximises_the_minorizer_of_any_statistic_of_its_domain(case):
    model = case.model
    statistics = list(statistics_nearby(case))
    for s in statistics:
        best = model.minorizer(s, model.maximization(s))
        for other in statistics:
            value = model.minorizer(s, model.maximization(other))
            # Differences below the rounding of sums of order 10 say nothing.
            assert value <= best + 1e-13
            if other is not s:
                assert value < best


def test_expectation_does_not_depend_on_how_rows_are_blocked(case):
    model, federation, natural = case.model, case.federation, case.parameters[0].natural
    clients = np.array([0, 2, 3, 5])
    whole = model.expectation(natural, model.features(federation.rows), federation.lengths)
    for n_rows in (1, 2, 7, 20, 1000):
        statistics = np.zeros((len(clients), model.n_statistics))
        log_likelihood = np.zeros(len(clients))
        for part, rows, lengths in read(federation, clients, n_rows):
            sums = model.expectation(natural, model.features(rows), lengths)
            statistics[part] += sums.statistics
            log_likelihood[part] += sums.log_likelihood
        # Sums over 17 rows of numbers of order 10, in another order.
        assert_allclose(statistics, whole.statistics[clients], rtol=1e-12, atol=1e-12)
        assert_allclose(log_likelihood, whole.log_likelihood[clients], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [(4, 4, 4), (5, 1, 6)], ids=["equal", "ragged"])
def test_expectation_takes_one_parameter_a_client(case, lengths):
    model = case.model
    natural = np.array([parameters.natural for parameters in case.parameters[:3]])
    rows, lengths = case.federation.rows[:12], np.array(lengths)
    together = model.expectation(natural, model.features(rows), lengths)
    pieces = np.split(rows, np.cumsum(lengths)[:-1])
    for k, piece in enumerate(pieces):
        alone = model.expectation(natural[k], model.features(piece), lengths[k : k + 1])
        assert_allclose(together.statistics[k], alone.statistics[0], rtol=1e-12, atol=1e-12)
        assert_allclose(together.log_likelihood[k], alone.log_likelihood[0], rtol=1e-12)
    repeated = np.repeat(natural[:1], 3, axis=0)
    same = model.expectation(repeated, model.features(rows), lengths)
    one = model.expectation(natural[0], model.features(rows), lengths)
    assert_allclose(same.statistics, one.statistics, rtol=1e-12, atol=1e-12)


def test_float32_rows_are_read_in_double_precision(case):
    model, natural = case.model, case.parameters[0].natural
    rows = case.federation.rows.astype(np.float32)
    low = model.expectation(natural, model.features(rows), case.federation.lengths)
    high = model.expectation(
        natural, model.features(rows.astype(np.float64)), case.federation.lengths
    )
    assert_array_equal(low.statistics, high.statistics)


@pytest.mark.parametrize("size", [0.1, 1.0, 1e3, 1e9])
def test_server_step_never_leaves_the_domain(case, size):
    model, generator = case.model, np.random.default_rng(0)
    shortened = 0
    for statistics in statistics_nearby(case):
        field = size * generator.standard_normal(model.n_statistics)
        for step_size in (0.1, 1.0):
            after, _, halvings, _ = model.server_step(statistics, field, step_size, exact=False)
            parameters = model.maximization(after)
            for value in parameters:
                assert np.isfinite(value).all()
            assert np.isfinite(pooled_log_likelihood(case, parameters))
            assert halvings > 0 or np.array_equal(after, statistics + step_size * field)
            shortened += halvings > 0
    # Random fields of this size do leave the domain: the test is not idle.
    assert size < 1 or shortened > 10


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_server_step_stays_where_a_field_is_not_finite(case, bad):
    statistics = next(statistics_nearby(case))
    field = np.zeros(case.model.n_statistics)
    field[-1] = bad
    after, _, halvings, _ = case.model.server_step(statistics, field, 0.5, exact=False)
    assert_array_equal(after, statistics)
    assert halvings > 0


def test_server_step_towards_what_data_have_is_taken_whole(case):
    # Up to a step of 1/2, where a step towards any data keeps half of what there was.
    here, *others = (mean_statistics(case.model, case.federation, p) for p in case.parameters)
    for there in others:
        for step_size in (0.01, 0.5):
            after, _, halvings, _ = case.model.server_step(
                here, there - here, step_size, exact=False
            )
            assert halvings == 0
            assert_array_equal(after, here + step_size * (there - here))


# ---- compressors: the statistical contract in brief; test_compression.py has the details


@every_compressor
def test_compression_is_unbiased_within_omega_and_decodable(operator):
    n_draws, size = 20000, 11
    # No coordinate so small that it is hardly ever sent, which would want more draws.
    vector = np.random.default_rng(1).uniform(0.2, 2.0, size) * (-1.0) ** np.arange(size)
    uniforms = np.random.default_rng(2).random((n_draws, size))
    sent = operator.compress(np.tile(vector, (n_draws, 1)), uniforms)
    # Five standard errors: each of 11 coordinates misses once in two million seeds. A norm that
    # travels as a float32 makes an outcome of probability 2^-23 of one that would be certain.
    error = 5 * sent.std(axis=0) / np.sqrt(n_draws) + 2**-22
    assert (np.abs(sent.mean(axis=0) - vector) <= error).all()
    squares = ((sent - vector) ** 2).sum(axis=1)
    error = 5 * squares.std() / np.sqrt(n_draws)
    variance = operator.variance(vector)[0]
    assert abs(squares.mean() - variance) <= error + 2**-20
    # Rounding that norm may exceed ω by 2^-23 of 1 + ω.
    omega = operator.omega_for(size)
    assert variance <= (omega + (1 + omega) * 2**-22) * (vector @ vector)
    data = operator.encode(sent[0])
    assert_array_equal(operator.decode(data), sent[0])
    assert operator.n_bytes(sent[:1])[0] == len(data)


# ---- solvers


@every_solver
@every_setting
def test_the_servers_control_is_the_weighted_sum_of_the_clients(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting, seed=3)
    start = start_at(case.model, case.federation, case.parameters[0])
    before, n_away = None, 0
    for now in run_rounds(solver, problem, start, n_rounds=12):
        pooled = case.federation.weights @ now.states.controls
        assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)
        if before is not None:
            away = np.setdiff1d(np.arange(case.federation.n_clients), now.active)
            n_away += len(away)
            for kept, was in zip(now.states, before.states, strict=True):
                assert_array_equal(kept[away], was[away])
        before = now
    assert (n_away > 0) == (setting.participation < 1)


@every_solver
@every_setting
def test_client_half_is_pure(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting)
    start = start_at(case.model, case.federation, case.parameters[0])
    *_, last = run_rounds(solver, problem, start, n_rounds=2)
    clients = np.array([0, 2, 3])
    states = type(last.states)(*(kept[clients] for kept in last.states))
    broadcast = Broadcast(2, last.server.statistics, last.server.parameters.natural)
    inputs = [*states, broadcast.reference, broadcast.natural, clients, *case.federation]
    before = [value.copy() for value in inputs]
    for value in inputs:
        value.setflags(write=False)
    first = solver.client_half(problem, broadcast, clients, states)
    second = solver.client_half(problem, broadcast, clients, states)
    for value, was in zip(inputs, before, strict=True):
        assert_array_equal(value, was)
    assert_array_equal(first[0].innovation, second[0].innovation)
    for one, two in zip(first[1], second[1], strict=True):
        assert_array_equal(one, two)


@every_solver
@every_setting
def test_a_client_does_alone_what_it_does_in_a_group(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting)
    start = start_at(case.model, case.federation, case.parameters[0])
    *_, last = run_rounds(solver, problem, start, n_rounds=2)
    broadcast = Broadcast(2, last.server.statistics, last.server.parameters.natural)
    clients = np.array([0, 1, 3, 5])
    mine = type(last.states)(*(kept[clients] for kept in last.states))
    together, after = solver.client_half(problem, broadcast, clients, mine)
    n_bytes = n_expectations = 0
    for k in range(len(clients)):
        own = type(last.states)(*(kept[k : k + 1] for kept in mine))
        alone, own = solver.client_half(problem, broadcast, clients[k : k + 1], own)
        # Products of other shapes may round otherwise. 1e-12 is far below a step of an operator.
        assert_allclose(alone.innovation[0], together.innovation[k], rtol=0, atol=1e-12)
        for one, every in zip(own, after, strict=True):
            assert_allclose(one[0], every[k], rtol=0, atol=1e-12)
        n_bytes, n_expectations = n_bytes + alone.n_bytes, n_expectations + alone.n_expectations
    assert (n_bytes, n_expectations) == (together.n_bytes, together.n_expectations)


@every_solver
@every_setting
def test_a_message_that_is_lost_leaves_no_trace(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting)
    start = start_at(case.model, case.federation, case.parameters[0])
    undisturbed = list(run_rounds(solver, problem, start, n_rounds=4))
    for k, now in enumerate(run_rounds(solver, problem, start, n_rounds=4)):
        broadcast = Broadcast(k, now.server.statistics, now.server.parameters.natural)
        lost, _ = solver.client_half(problem, broadcast, np.arange(6), now.states)
        assert lost.innovation.shape == (6, case.model.n_statistics)
        assert_array_equal(now.server.statistics, undisturbed[k].server.statistics)
        assert_array_equal(now.server.control, undisturbed[k].server.control)
        for kept, was in zip(now.states, undisturbed[k].states, strict=True):
            assert_array_equal(kept, was)
    assert k == 4


@every_solver
@every_setting
def test_server_half_is_pure_and_does_what_the_algorithm_says(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting)
    start = start_at(case.model, case.federation, case.parameters[0])
    *_, last = run_rounds(solver, problem, start, n_rounds=1)
    message = 0.01 * np.random.default_rng(0).standard_normal(case.model.n_statistics)
    for value in (message, last.server.statistics, last.server.control):
        value.setflags(write=False)
    after, info = server_half(problem, last.server, Received(message), 0.1)
    # One expression each, perhaps rounded in another order.
    field = last.server.control + message / setting.participation
    assert_allclose(info.field, field, rtol=1e-12, atol=1e-15)
    if not info.safeguarded:
        assert_allclose(after.statistics, last.server.statistics + 0.1 * field, rtol=1e-12)
    control = last.server.control + message / (1 + problem.omega)
    assert_allclose(after.control, control, rtol=1e-12, atol=1e-15)
    assert after.round_index == last.server.round_index + 1
    assert_same_parameters(
        after.parameters, case.model.maximization(after.statistics), rtol=1e-12, atol=1e-14
    )


@every_solver
def test_a_round_without_active_clients_follows_the_control(case, solver):
    problem = make_problem(case.model, case.federation, participation=1e-9)
    start = start_at(case.model, case.federation, case.parameters[0])
    before, first, second = run_rounds(solver, problem, start, n_rounds=2)
    assert first.received.n_active == first.received.n_bytes == first.received.n_expectations == 0
    assert_array_equal(first.info.field, before.server.control)
    assert_array_equal(second.server.control, before.server.control)
    for kept, was in zip(second.states, before.states, strict=True):
        assert_array_equal(kept, was)
    moved = before.server.statistics + 0.05 * before.server.control
    assert_allclose(first.server.statistics, moved, rtol=1e-14)


@every_solver
@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, "everything") for name in MODELS]
    + [(next(iter(MODELS)), setting) for setting in SETTINGS if setting != "exact"],
)
def test_the_field_is_unbiased_for_the_mean_field(name, setting, solver):
    case, n_draws = MODELS[name](), 800
    participation = SETTINGS[setting].participation
    problem = make_problem(case.model, case.federation, SETTINGS[setting], n_inner=10)
    start = start_at(case.model, case.federation, case.parameters[0])
    # Everyone takes part in round 0, so that every estimate is exact or, for variance-reduced
    # solvers, starts from an exact one. Controls and iterate are those of no fixed point.
    everyone = problem._replace(participation=1.0)
    _, (server, states, *_) = run_rounds(solver, everyone, start, n_rounds=1, step_size=0.2)
    fields = np.empty((n_draws, case.model.n_statistics))
    generator = np.random.default_rng(0)
    with _parallel.Workers(1) as workers:
        for draw in range(n_draws):
            drawn = problem._replace(seed=draw)
            active = np.flatnonzero(generator.random(len(states.controls)) < participation)
            received = client_round(solver, drawn, server, copied(states), active, workers)
            fields[draw] = server_half(drawn, server, received, 1e-6)[1].field
    expected = mean_field(problem, server)
    standard_error = fields.std(axis=0) / np.sqrt(n_draws)
    # At most 12 coordinates, each beyond 5 standard errors once in two million seeds.
    assert (np.abs(fields.mean(axis=0) - expected) <= 5 * standard_error + 1e-12).all()
    assert standard_error.max() > 1e-6


@every_solver
def test_reordering_clients_changes_nothing_where_nothing_is_drawn(case, solver):
    federation = case.federation
    order = np.array([3, 0, 5, 2, 4, 1])
    pieces = np.split(federation.rows, federation.offsets[1:-1])
    shuffled = stack([pieces[k] for k in order], federation.weights[order])
    start = start_at(case.model, federation, case.parameters[0])
    straight, mixed = (
        run_rounds(solver, make_problem(case.model, rows), start, n_rounds=20, step_size=0.7)
        for rows in (federation, shuffled)
    )
    for one, other in zip(straight, mixed, strict=True):
        assert_allclose(other.server.statistics, one.server.statistics, rtol=0, atol=1e-10)
        assert_allclose(other.states.controls, one.states.controls[order], rtol=0, atol=1e-10)


def many_clients():
    """2600 clients of one to three rows: two groups or more, also when half are away."""
    generator = np.random.default_rng(5)
    lengths = np.tile([1, 3, 2, 2], 650)
    rows = generator.standard_normal((lengths.sum(), 2))
    rows += 3.0 * generator.integers(2, size=len(rows))[:, None]
    return np.split(rows, np.cumsum(lengths)[:-1])


@every_solver
@every_setting
def test_results_are_bitwise_the_same_for_any_number_of_workers(solver, setting, monkeypatch):
    federation = stack(many_clients())
    model = mixture_model(federation, "full")
    problem = make_problem(model, federation, setting)
    start = start_at(model, federation, mixture_parameters(model))
    options = Options(step_size=lambda k: 0.05, max_iter=4, tol=0.0, eval_every=2)
    threads = set()

    def recorded(*args):
        threads.add(threading.get_ident())
        return solver.client_half(*args)

    spied = SimpleNamespace(PER_CLIENT=solver.PER_CLIENT, init=solver.init, client_half=recorded)
    results = []
    for n_jobs, threshold in ((1, 0.05), (2, 0.0), (3, 0.0)):
        monkeypatch.setattr(_parallel, "_WORTH_SHARING", threshold)
        threads.clear()
        with _parallel.Workers(n_jobs) as workers:
            results.append(run(spied, problem, start, options, workers, lambda row: None))
        assert (len(threads) > 1) == (n_jobs > 1)
    assert_same_runs(results[0], results[1:])


def assert_same_runs(first, others):
    for other in others:
        assert_array_equal(other.server.statistics, first.server.statistics)
        assert_array_equal(other.server.control, first.server.control)
        for kept, was in zip(other.states, first.states, strict=True):
            assert_array_equal(kept, was)
        for name, column in first.history.items():
            assert_array_equal(other.history[name], column, err_msg=name)


def test_linear_algebra_rounds_the_same_for_any_number_of_workers(monkeypatch):
    # Large enough for a threaded BLAS to split the products where it is allowed to.
    monkeypatch.setattr(_parallel, "_WORTH_SHARING", 0.0)
    federation = stack([np.random.default_rng(0).standard_normal((3000, 20))] * 2)
    model = mixture_model(federation, "full", n_components=10)
    problem = make_problem(model, federation)
    start = start_at(model, federation, mixture_parameters(model))
    options = Options(step_size=lambda k: 1.0, max_iter=3, tol=0.0)
    results = []
    for n_jobs in (1, 2):
        with _parallel.Workers(n_jobs) as workers:
            results.append(
                run(SOLVERS["fedem"], problem, start, options, workers, lambda row: None)
            )
    assert_same_runs(results[0], results[1:])


# ---- estimators


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_gives_the_same_fit_from_a_list_and_from_labels(estimator):
    clients = ragged_clients((30, 20, 40, 15))
    labels = np.repeat(np.arange(4), [30, 20, 40, 15])
    mixed = np.random.default_rng(0).permutation(len(labels))
    # A stable sort by label gives every client its rows in the order that they have here.
    rows = np.concatenate(clients)[mixed]
    own = [rows[labels[mixed] == k] for k in range(4)]
    from_list = ESTIMATORS[estimator]().set_params(max_iter=10).fit(own)
    from_labels = ESTIMATORS[estimator]().set_params(max_iter=10)
    from_labels.fit(rows, clients=labels[mixed])
    assert from_list.n_clients_ == 4
    for name, column in from_list.history_.items():
        assert_array_equal(from_labels.history_[name], column, err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_does_not_depend_on_the_number_of_workers(estimator, monkeypatch):
    monkeypatch.setattr(_parallel, "_WORTH_SHARING", 0.0)
    clients = many_clients()
    fits = [
        ESTIMATORS[estimator]()
        .set_params(max_iter=5, init_params="random", n_jobs=n_jobs)
        .fit(clients)
        for n_jobs in (None, 2, 3)
    ]
    for fit in fits[1:]:
        assert_array_equal(fit.means_, fits[0].means_)
        assert_array_equal(fit.covariances_, fits[0].covariances_)
        for name, column in fits[0].history_.items():
            assert_array_equal(fit.history_[name], column, err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_is_the_same_when_fitted_again(estimator):
    clients = ragged_clients((30, 20, 40, 15))
    first = ESTIMATORS[estimator]().set_params(max_iter=10).fit(clients)
    again = clone(first).fit(clients)
    refitted = clone(first).fit(clients[:2]).fit(clients)
    for other in (again, refitted):
        assert_array_equal(other.means_, first.means_)
        for name, column in first.history_.items():
            assert_array_equal(other.history_[name], column, err_msg=name)
