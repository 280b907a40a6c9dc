"""Every row of ``problems.MODELS`` against the contract of models."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import (
    assert_same,
    skip_if_sampled,
)
from problems import (
    SOLVERS,
    arrays_in,
    check_model_case,
    make_problem,
    mean_field,
    model_case,
    ragged_clients,
    run_rounds,
    stack,
)

# Whether more of a criterion is better, or less.
SIGNS = {"log_likelihood": 1, "objective": -1}


def criterion_at(case, parameters):
    """Criterion by the model's own code, from all rows of all clients."""
    every = np.arange(case.federation.n_clients)
    estimate = case.model.all_rows(case.federation, parameters, every)
    return case.model.criterion_value(case.federation.weights @ estimate.log_likelihood, parameters)


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ({"lengths": (9, 4, 17, 1)}, "six clients in row 'mine' of MODELS, got 4"),
        ({"lengths": (9, 4, 17, 2, 6, 11)}, "a fourth client with a single row"),
        ({"lengths": (2, 2, 2, 1, 2, 2)}, "12 rows or more"),
        ({"lengths": (97, 89, 83, 1, 79, 73)}, "common multiple"),
        ({"parameters": (0, 1)}, "four parameters or more in row 'mine' of MODELS, got 2"),
        ({"starts": (0,)}, "two starts or more"),
    ],
)
def test_a_row_that_lacks_what_these_tests_need_is_told_so(lacks, message):
    case = model_case("mixture-full")
    check_model_case("mine", case)
    if "lengths" in lacks:
        lacks = {"federation": stack(ragged_clients(lacks["lengths"]))}
    with pytest.raises(ValueError, match=message):
        check_model_case("mine", case._replace(**lacks))


def test_sizes_are_as_the_contract_says(case):
    model, federation, parameters = case.model, case.federation, case.parameters[0]
    natural, vectors, sizes = parameters.natural, model.vectors(federation), federation.sizes
    every, some = np.arange(6), np.array([0, 2, 3])
    estimate = model.all_rows(federation, parameters, every)
    assert estimate.statistics.shape == vectors.zeros().shape
    assert estimate.log_likelihood.shape == (6,)
    assert estimate.n_expectations == federation.n_samples
    own = vectors.zeros()[vectors.indices(some)]
    assert model.all_rows(federation, parameters, some).statistics.shape == own.shape
    assert model.kept_natural(federation, natural, some).shape == own.shape
    minibatch = model.minibatch(federation, some, np.zeros((3, 2), dtype=int))
    assert model.minibatch_mean(natural, minibatch).shape == own.shape
    assert model.block_rows >= 1
    assert model.criterion in SIGNS
    assert 0 <= model.averaging_bound(sizes) < np.inf
    lengths = model.message_lengths(sizes)
    assert_array_equal(lengths, np.unique(lengths))
    assert model.uplink_numbers(sizes) == vectors.zeros().size
    noise, spider = model.noise_bound(sizes, 2, 0.0), model.spider_bound(sizes, 2, 0.0)
    assert noise is None or spider is None or (0 < noise < np.inf and 0 < spider < np.inf)
    if noise is not None:
        # Two messages of twice the variance tell as much as one.
        assert 0 < model.noise_bound(sizes, 2, 3.0) <= noise / 4
        assert model.spider_bound(sizes, 2, 3.0) == pytest.approx(spider / 2)


def test_the_criterion_is_that_of_the_raw_rows(case):
    for parameters in case.parameters:
        # About 100 sums of numbers of order 10: 1e-12 is ten times their rounding.
        assert_allclose(criterion_at(case, parameters), case.criterion(parameters), rtol=1e-12)


def test_all_rows_of_a_client_do_not_depend_on_company_or_blocks(case, monkeypatch):
    model, federation, parameters = case.model, case.federation, case.parameters[0]
    vectors, every, some = model.vectors(federation), np.arange(6), np.array([0, 2, 3, 5])
    whole = model.all_rows(federation, parameters, every)
    for n_rows in (1, 2, 7, 20, 1000):
        monkeypatch.setattr(type(model), "block_rows", n_rows)
        part = model.all_rows(federation, parameters, some)
        own = whole.statistics[vectors.indices(some)]
        # Sums over 17 rows of numbers of order 10, in another order.
        assert_allclose(part.statistics, own, rtol=1e-12, atol=1e-12)
        assert_allclose(part.log_likelihood, whole.log_likelihood[some], rtol=1e-12, atol=1e-12)
        assert part.n_expectations == federation.lengths[some].sum()


def test_a_minibatch_that_has_every_row_equally_often_tells_all_rows(case):
    model, federation = case.model, case.federation
    for clients in ([3], [1], [0, 2], [1, 3, 4], range(6)):
        clients = np.array(clients)
        lengths = federation.lengths[clients]
        size = np.lcm.reduce(lengths)
        batches = np.array([np.resize(np.arange(length), size) for length in lengths])
        minibatch = model.minibatch(federation, clients, batches)
        for parameters in case.parameters[:2]:
            mean = model.minibatch_mean(parameters.natural, minibatch)
            rows = model.all_rows(federation, parameters, clients).statistics
            # Up to 6732 draws a client: sums of so many numbers of order 10.
            assert_allclose(mean, rows, rtol=1e-11, atol=1e-11)


def test_what_clients_keep_of_the_parameters_serves_as_well(case):
    model, federation = case.model, case.federation
    vectors, clients = model.vectors(federation), np.array([0, 2, 3, 5])
    lengths = federation.lengths[clients]
    uniforms = np.random.default_rng(0).random((len(clients), 5))
    batches = (uniforms * lengths[:, None]).astype(int)
    minibatch = model.minibatch(federation, clients, batches)
    kept = [model.kept_natural(federation, p.natural, clients) for p in case.parameters]
    direct = [model.minibatch_mean(p.natural, minibatch) for p in case.parameters]
    # The same few operations, on arrays of other shapes.
    for own, mean in zip(kept, direct, strict=True):
        assert_allclose(model.minibatch_mean(own, minibatch), mean, rtol=1e-12, atol=1e-12)
    # Clients keep what they last saw, one this and one that.
    mixed, expected = kept[0].copy(), direct[0].copy()
    for k in range(len(clients)):
        own = vectors.submask(clients, np.arange(len(clients)) == k)
        mixed[own], expected[own] = kept[k][own], direct[k][own]
    assert_allclose(model.minibatch_mean(mixed, minibatch), expected, rtol=1e-12, atol=1e-12)
    assert np.abs(expected - direct[0]).max() > 1e-2


def as_floats(rows, dtype):
    """Rows with their floating-point numbers of another precision."""
    if isinstance(rows, tuple):
        return type(rows)(*(as_floats(column, dtype) for column in rows))
    return rows.astype(dtype) if rows.dtype.kind == "f" else rows


def test_float32_rows_are_read_in_double_precision(case):
    model, parameters, every = case.model, case.parameters[0], np.arange(6)
    low = case.federation._replace(rows=as_floats(case.federation.rows, np.float32))
    high = low._replace(rows=as_floats(low.rows, np.float64))
    estimates = [model.all_rows(federation, parameters, every) for federation in (low, high)]
    assert_array_equal(estimates[0].statistics, estimates[1].statistics)
    assert_array_equal(estimates[0].log_likelihood, estimates[1].log_likelihood)
    batches = np.zeros((6, 2), dtype=int)
    means = [
        model.minibatch_mean(parameters.natural, model.minibatch(federation, every, batches))
        for federation in (low, high)
    ]
    assert_array_equal(means[0], means[1])
    assert estimates[0].statistics.dtype == means[0].dtype == np.float64


def test_exact_rounds_never_worsen_the_criterion(case):
    skip_if_sampled(case.model)
    problem = make_problem(case.model, case.federation)
    rounds = list(
        run_rounds(SOLVERS["fedem"], problem, case.federation, case.starts[0], 30, step_size=1.0)
    )
    values = np.array([case.criterion(now.server.parameters) for now in rounds])
    gains = SIGNS[case.model.criterion] * np.diff(values)
    # Sums of 100 terms, no larger than the first: rounding is below 1e-14 of it.
    assert gains.min() > -1e-13 * abs(values[0])
    assert gains.sum() > 1e-3
    squares = [
        case.model.field_sq_norm(
            now.server.statistics, mean_field(case.model, case.federation, now.server)
        )
        for now in (rounds[0], rounds[-1])
    ]
    assert 0 <= squares[1] < 0.1 * squares[0]
    trace = np.array([case.model.trace(now.server.parameters) for now in rounds])
    assert trace.ndim >= 2 and np.isfinite(trace).all()


def test_the_surrogate_lies_below_the_criterion(case):
    # What makes EM work: the criterion gains at least what Q(s̄(θ); θ') - Q(s̄(θ); θ) promises, here
    # for all pairs. A low-rank model, which has nothing latent, keeps the promise exactly.
    skip_if_sampled(case.model)
    sign, problem = SIGNS[case.model.criterion], make_problem(case.model, case.federation)
    promises = []
    for start in case.starts:
        *_, last = run_rounds(SOLVERS["fedem"], problem, case.federation, start, 1, step_size=1.0)
        statistics, here = last.server.statistics, start.parameters
        for there in (*case.parameters, last.server.parameters):
            promised = case.model.surrogate(statistics, there)
            promised -= case.model.surrogate(statistics, here)
            gain = sign * (case.criterion(there) - case.criterion(here))
            # Differences of numbers up to 200, each a sum of 100 terms.
            assert gain > promised - 1e-11
            promises.append(promised)
        # The M-step is after the best promise.
        assert promises[-1] > 0
    assert min(promises) < -1e-2


def test_a_change_is_measured_in_the_units_of_tol(case):
    sign, change = SIGNS[case.model.criterion], case.model.change
    worse, better = sorted(
        (case.criterion(parameters) for parameters in case.parameters[:2]),
        key=lambda value: sign * value,
    )
    # Nats per row, or a share of the objective, as users read of tol: without its constant.
    if case.model.criterion == "log_likelihood":
        expected = better - worse
    else:
        constant = 0.0
        pooled = getattr(case.model, "pooled", None)
        if pooled is not None and pooled.family.name == "gaussian":
            constant = 0.5 * np.log(2 * np.pi) * case.federation.rows.counts.sum()
        expected = (worse - better) / (better - constant)
    assert_allclose(change(better, worse), expected, rtol=1e-12)
    assert change(better, worse) > 0 == change(better, better)
    assert change(worse, better) > 0


@pytest.mark.parametrize("size", [0.1, 1.0, 1e3, 1e9])
def test_server_step_always_leads_to_parameters(case, size):
    model, generator = case.model, np.random.default_rng(0)
    length = model.vectors(case.federation).length
    for start in case.starts:
        statistics = start.statistics
        for step_size in (0.1, 0.1, 0.1, 1.0):
            field = size * generator.standard_normal(length)
            step = model.server_step(statistics, field, step_size, exact=False)
            statistics = step.statistics
            parameters = model.maximization(statistics)
            for array in arrays_in(parameters):
                assert np.isfinite(array).all()
            assert np.isfinite(criterion_at(case, parameters))
            assert np.isfinite(model.surrogate(statistics, parameters))
            assert 0 <= step.step_taken <= step_size
            # Where it is too long, it is shortened, not refused.
            assert step.step_taken > 0 or size > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_server_step_stays_where_a_field_is_not_finite(case, bad):
    statistics = case.starts[0].statistics
    field = np.zeros(case.model.vectors(case.federation).length)
    field[-1] = bad
    step = case.model.server_step(statistics, field, 0.5, exact=False)
    assert_same(step.statistics, statistics)
    assert step.safeguarded > 0 == step.step_taken


def test_message_units_are_linear_and_lose_nothing(case):
    vectors, generator = case.model.vectors(case.federation), np.random.default_rng(0)
    one, other = (generator.standard_normal(vectors.zeros().shape) for _ in range(2))
    for parameters in case.parameters:
        units = case.model.message_units(parameters)
        if units is None:
            pytest.skip("messages of this model are compressed as they are")
        # Maps of a few numbers of order 1, there and back.
        there = units.to_components(one)
        assert_allclose(units.to_standard(there), one, rtol=0, atol=1e-11)
        assert_allclose(units.to_components(units.to_standard(one)), one, rtol=0, atol=1e-11)
        both = units.to_components(one + 3 * other)
        assert_allclose(both, there + 3 * units.to_components(other), rtol=1e-11, atol=1e-11)


def test_every_client_that_listens_is_counted_in_the_downlink(case):
    def numbers(clients):
        return case.model.downlink_numbers(case.federation.sizes, clients, case.parameters[0])

    every = np.arange(6)
    each = [numbers(every[k : k + 1]) for k in every]
    assert min(each) > 0
    assert numbers(every) == sum(each)
    assert numbers(every[:0]) == 0
