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
    ROW_MODELS,
    SETTINGS,
    SOLVERS,
    arrays_in,
    check_model_case,
    federation_of,
    first_rounds,
    group_of,
    kept_by,
    make_problem,
    mean_field,
    mean_statistics,
    mixture_model,
    mixture_parameters,
    model_case,
    ragged_clients,
    read_only,
    run_rounds,
    stack,
    start_at,
    weighted_sum,
)
from skfedem import _parallel
from skfedem._federation import offsets_of, sample_weight_of
from skfedem.clients.group import client_half
from skfedem.clients.local import LocalClients
from skfedem.models._base import RowModel
from skfedem.solvers._loop import Options, run
from skfedem.solvers.base import AggregatedMessages, broadcast_of, server_half

every_compressor = pytest.mark.parametrize("operator", COMPRESSORS, ids=repr)
every_estimator = pytest.mark.parametrize("case", ESTIMATORS.values(), ids=ESTIMATORS)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


# Whether more of a criterion is better, or less.
SIGNS = {"log_likelihood": 1, "objective": -1}


def with_settings(argument, names):
    """All settings of a model with vectors of one length and of one without, some of the others."""
    pairs = [
        (name, setting)
        for name in names
        for setting in SETTINGS
        if name in ("mixture-full", "low-rank-poisson") or setting in ("exact", "everything")
    ]
    ids = [f"{name}-{setting}" for name, setting in pairs]
    values = [(name, SETTINGS[setting]) for name, setting in pairs]
    return pytest.mark.parametrize((argument, "setting"), values, ids=ids, indirect=[argument])


every_setting = with_settings("case", MODELS)
every_setting_of_rows = with_settings("row_case", ROW_MODELS)


# ---- every model


def criterion_at(case, parameters):
    """Criterion by the model's own code, from all rows of all clients."""
    every = np.arange(case.federation.n_clients)
    estimate = case.model.all_rows(case.federation, parameters, every)
    return case.model.criterion_value(case.federation.weights @ estimate.log_likelihood, parameters)


def assert_same(got, want, **tolerance):
    """Nested tuples of arrays and numbers; the same bits unless tolerated otherwise."""
    if isinstance(want, tuple):
        assert type(got) is type(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other, **tolerance)
    elif want is None:
        assert got is None
    else:
        assert_allclose(got, want, **{"rtol": 0, **tolerance})


def frozen(*values):
    """All arrays of nested tuples, which nobody may write into any more, and their copies."""
    arrays = arrays_in(read_only(values))
    return arrays, [array.copy() for array in arrays]


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


def skip_if_sampled(model):
    if model.is_random:
        pytest.skip("a sampled E-step keeps this on average only")


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


# ---- models of rows


def statistics_nearby(case, seed=0, n_statistics=30):
    """Statistics that the rows have under some θ, with a little noise; all in T's domain."""
    generator = np.random.default_rng(seed)
    for k in range(n_statistics):
        parameters = case.parameters[k % len(case.parameters)]
        statistics = mean_statistics(case.model, case.federation, parameters)
        noise = generator.standard_normal(len(statistics)) * np.abs(statistics)
        yield case.model.server_step(statistics, noise, 0.1, exact=False).statistics


def test_whoever_writes_a_model_of_rows_is_told_to_invert_t():
    assert "statistics_of" in RowModel.__abstractmethods__


def test_t_inverts_the_expected_statistic(row_case):
    # Both maps are a few operations on numbers of order 1, and a covariance of order 0.1 is a
    # difference of such: 1e-12 leaves three digits to spare.
    for parameters in row_case.parameters:
        found = row_case.model.maximization(row_case.model.statistics_of(parameters))
        assert_same(found, parameters, rtol=1e-12, atol=1e-12)


def test_vectors_have_one_length(row_case):
    model, federation = row_case.model, row_case.federation
    features = model.features(federation.rows)
    sums = model.expectation(row_case.parameters[0].natural, features, federation.lengths)
    assert row_case.parameters[0].natural.shape == (model.n_statistics,)
    assert sums.statistics.shape == (federation.n_clients, model.n_statistics)
    assert sums.log_likelihood.shape == (federation.n_clients,)
    assert model.vectors(federation).zeros().shape == (federation.n_clients, model.n_statistics)


def test_the_surrogate_lies_strictly_below_where_something_is_latent(row_case):
    skip_if_sampled(row_case.model)
    for here in row_case.parameters:
        statistics = mean_statistics(row_case.model, row_case.federation, here)
        for there in row_case.parameters:
            gain = row_case.criterion(there) - row_case.criterion(here)
            promised = row_case.model.surrogate(statistics, there)
            promised -= row_case.model.surrogate(statistics, here)
            assert (there is here) or gain > promised + 1e-4


def slopes(case, function):
    """Derivatives of functions of θ at T(s), along T from each start's s towards the others'.

    ``function(s, there)`` gives their values at θ = there; the pairs of starts come first.
    """
    size = 1e-6
    for here in case.starts:
        for other in case.starts:
            if other is not here:
                way = size * (other.statistics - here.statistics)
                above, below = (
                    function(here.statistics, case.model.maximization(here.statistics + step))
                    for step in (way, -way)
                )
                yield np.subtract(above, below) / (2 * size)


# Values of order 10 round to 1e-14, and central differences of a millionth make 1e-8 of it. They
# leave out a sixth of the third derivative, up to 1e5 of variances that are near 0, times 1e-12.
SLOPE_ERROR = 1e-6


def expected_statistics(case, parameters):
    """s̄(θ); where the E-step is sampled, twenty means of twenty samples each.

    Samples follow from φ(θ): another one belongs to a φ that differs by a millionth.
    """
    if not case.model.is_random:
        return [mean_statistics(case.model, case.federation, parameters)]
    natural, generator = parameters.natural, np.random.default_rng(0)

    def sample(noise):
        nearby = SimpleNamespace(natural=natural * (1 + 1e-6 * noise))
        return mean_statistics(case.model, case.federation, nearby)

    noises = generator.standard_normal((20, 20, len(natural)))
    return [np.mean([sample(noise) for noise in group], axis=0) for group in noises]


def test_the_surrogate_touches_the_criterion_where_it_is_made(row_case):
    # Fisher's identity: at θ, Q(s̄(θ); .) rises as the log-likelihood does. What lies below it and
    # has the same value there does; a wrong posterior with the right likelihood does not.
    model = row_case.model
    expected = {
        start.statistics.tobytes(): expected_statistics(
            row_case, model.maximization(start.statistics)
        )
        for start in row_case.starts
    }

    def values(statistics, there):
        means = expected[statistics.tobytes()]
        return row_case.criterion(there), *(model.surrogate(mean, there) for mean in means)

    rises = np.array(list(slopes(row_case, values)))
    excess = rises[:, 1:] - rises[:, :1]
    # Six standard errors of twenty means, which a right sampler exceeds once in 1e5 times.
    error = SLOPE_ERROR
    if model.is_random:
        error += 6 * excess.std(axis=1, ddof=1) / np.sqrt(excess.shape[1])
    wrong = np.abs(excess.mean(axis=1)) - error
    assert wrong.max() <= 0, "s̄(θ) of `expectation` is not the posterior mean of the statistics"
    assert np.abs(rises).max() > 1e-2


def test_the_surrogate_is_level_where_t_puts_it(row_case):
    rises = list(slopes(row_case, row_case.model.surrogate))
    assert_allclose(rises, 0.0, rtol=0, atol=SLOPE_ERROR)


def test_t_maximises_the_surrogate_of_any_statistic_of_its_domain(row_case):
    model = row_case.model
    statistics = list(statistics_nearby(row_case))
    for s in statistics:
        best = model.surrogate(s, model.maximization(s))
        for other in statistics:
            value = model.surrogate(s, model.maximization(other))
            # Differences below the rounding of sums of order 10 say nothing.
            assert value <= best + 1e-13
            if other is not s:
                assert value < best


def test_expected_statistics_are_those_of_the_expectation(row_case):
    model, federation = row_case.model, row_case.federation
    features = model.features(federation.rows)
    naturals = np.array([parameters.natural for parameters in row_case.parameters])
    # One for all clients, and one for each.
    for natural in (*naturals, np.resize(naturals, (6, model.n_statistics))):
        sums = model.expectation(natural, features, federation.lengths)
        alone = model.expected_statistics(natural, features, federation.lengths)
        assert_allclose(alone, sums.statistics, rtol=1e-12, atol=1e-12)


def test_integer_weights_of_rows_are_repeated_rows(row_case):
    model, federation = row_case.model, row_case.federation
    natural = row_case.parameters[0].natural
    copies = np.random.default_rng(0).integers(1, 4, len(federation.rows))
    features = model.features(federation.rows)
    weighted = model.expectation(natural, features, federation.lengths, copies.astype(float))
    repeated = model.features(np.repeat(federation.rows, copies, axis=0))
    lengths = np.add.reduceat(copies, federation.offsets[:-1])
    plain = model.expectation(natural, repeated, lengths)
    # Sums over 51 rows of numbers of order 10, in another order.
    assert_allclose(weighted.statistics, plain.statistics, rtol=1e-12, atol=1e-12)
    assert_allclose(weighted.log_likelihood, plain.log_likelihood, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [(4, 4, 4), (5, 1, 6)], ids=["equal", "ragged"])
def test_expectation_takes_one_parameter_a_client(row_case, lengths):
    model = row_case.model
    natural = np.array([parameters.natural for parameters in row_case.parameters[:3]])
    rows, lengths = row_case.federation.rows[:12], np.array(lengths)
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


@pytest.mark.parametrize("size", [0.1, 1.0, 1e3, 1e9])
def test_server_step_is_taken_whole_or_shortened(row_case, size):
    model, generator = row_case.model, np.random.default_rng(0)
    shortened = 0
    for statistics in statistics_nearby(row_case):
        field = size * generator.standard_normal(model.n_statistics)
        for step_size in (0.1, 1.0):
            step = model.server_step(statistics, field, step_size, exact=False)
            for value in model.maximization(step.statistics):
                assert np.isfinite(value).all()
            # What rounding leaves of a sum of numbers of this size.
            whole = statistics + step.step_taken * field
            assert_allclose(step.statistics, whole, rtol=1e-15, atol=1e-15 * size)
            assert (step.step_taken < step_size) == (step.safeguarded > 0)
            assert_allclose(step.field_sq_norm, field @ field, rtol=1e-14)
            shortened += step.safeguarded > 0
    # Random fields of this size do leave the domain: the test is not idle.
    assert size < 1 or shortened > 10 or row_case.is_unbounded, (
        "No step was too long. If T has a value for any statistic, let this row of MODELS say so: "
        "case._replace(is_unbounded=True)"
    )
    assert not (row_case.is_unbounded and shortened)


def test_server_step_towards_what_data_have_is_taken_whole(row_case):
    # Up to a step of 1/2, where a step towards any data keeps half of what there was.
    model = row_case.model
    here, *others = (start.statistics for start in row_case.starts)
    for there in others:
        for step_size in (0.01, 0.5):
            step = model.server_step(here, there - here, step_size, exact=False)
            assert (step.safeguarded, step.noisy) == (0, False)
            assert_array_equal(step.statistics, here + step_size * (there - here))


# ---- compressors: the statistical contract in brief; test_compression.py has the details


def vectors_of_all_kinds(length):
    """Vectors that biased operators treat unlike, the first of them even."""
    generator = np.random.default_rng(length)
    even = generator.uniform(0.2, 2.0, length) * (-1.0) ** np.arange(length)
    like, alone = np.full(length, -0.7), np.eye(length)[0]
    gaussian = generator.standard_normal(length)
    sparse = gaussian * (np.arange(length) % 4 == 0)
    return even, like, alone, gaussian, gaussian**5, sparse, 1e-5 * gaussian, 1e6 * gaussian


@every_compressor
@pytest.mark.parametrize("length", [1, 11, 100])
def test_compression_is_unbiased(operator, length):
    n_draws = 20_000 if length < 11 else 200_000 // length
    uniforms = np.random.default_rng(2).random((n_draws, length))
    even, *others = vectors_of_all_kinds(length)
    for vector in (even, *others):
        sent = operator.compress(np.tile(vector, (n_draws, 1)), uniforms)
        variance, sq_norm = operator.variance(vector).item(), vector @ vector
        bias = sent.mean(axis=0) - vector
        # The mean square of this norm is variance / n_draws; coordinates so small that they are
        # hardly ever sent have no share in it. A norm that travels as a float32 makes an outcome of
        # probability levels / 2^24 of one that would be certain: most seeds have no draw of it, and
        # one is many standard errors, for which Bernstein's inequality adds five draws.
        furthest = np.linalg.norm(sent - vector, axis=1).max()
        error = 5 * np.sqrt(variance / n_draws) + 5 * furthest / n_draws
        error += 2**-22 * np.sqrt(sq_norm)
        assert np.linalg.norm(bias) <= error
        if vector is even:
            # Five standard errors: each of 112 coordinates misses once in two million seeds. An
            # outcome that hardly any draw has is unknown to them: all get a share of the largest.
            standard_error = sent.std(axis=0) / np.sqrt(n_draws)
            error = 5 * np.maximum(standard_error, 0.05 * standard_error.max()) + 2**-22
            assert (np.abs(bias) <= error).all()
        squares = ((sent - vector) ** 2).sum(axis=1)
        error = 5 * squares.std() / np.sqrt(n_draws) + 2**-20 * sq_norm
        assert abs(squares.mean() - variance) <= error


@every_compressor
def test_variance_is_within_omega_for_vectors_of_all_kinds(operator):
    generator = np.random.default_rng(0)
    for q in (1, 2, 11, 64, 300):
        peaked, heavy = np.ones(q), generator.standard_normal(q) ** 9
        peaked[0] = 1 + np.sqrt(q)  # what the maximum norm is worst for
        for vector in (peaked, heavy, *vectors_of_all_kinds(q)):
            variance, omega = operator.variance(vector)[0], operator.omega_for(q)
            # A norm that travels as a float32 may exceed ω by 2^-23 of 1 + ω.
            assert variance <= (omega + (1 + omega) * 2**-22) * (vector @ vector)


@every_compressor
def test_omega_is_told_for_one_length_or_many(operator):
    lengths = np.array([[0, 1, 2], [11, 64, 300]])
    each = [[operator.omega_for(q) for q in row] for row in lengths.tolist()]
    assert all(np.ndim(omega) == 0 and 0 <= omega < np.inf for row in each for omega in row)
    assert_array_equal(operator.omega_for(lengths), each)


@every_compressor
def test_omega_is_refused_for_what_is_no_length(operator):
    for length in (-3, 2.5, [4, -1], [0.5], "q"):
        with pytest.raises((TypeError, ValueError)):
            operator.omega_for(length)


@every_compressor
def test_compression_refuses_what_is_no_vector_or_no_draw(operator):
    vector, uniforms = vectors_and_draws(5)
    odd = [np.append(vector, bad) for bad in (np.nan, np.inf)]
    for values in (*odd, vector[0], vector[None, None], 1j * vector, "vector"):
        with pytest.raises((TypeError, ValueError)):
            operator.compress(values, np.full(np.shape(values), 0.5))
        with pytest.raises((TypeError, ValueError)):
            operator.variance(values)
    for bad in (1.0, -1e-9, np.nan):
        with pytest.raises(ValueError):
            operator.compress(vector, np.append(uniforms[1:], bad))
    for values in (np.append(vector, 1.0), np.tile(vector, (2, 1))):
        with pytest.raises(ValueError):
            operator.compress(values, uniforms)


@every_compressor
def test_lengths_that_do_not_add_up_are_refused(operator):
    vector, uniforms = vectors_and_draws(5)
    sent = operator.compress(vector, uniforms)
    for lengths in ([1, 1], [4], [5, 1], [6, -1], [2.5, 2.5], [[5]]):
        with pytest.raises((TypeError, ValueError)):
            operator.compress(vector, uniforms, lengths)
        with pytest.raises((TypeError, ValueError)):
            operator.variance(vector, lengths)
        with pytest.raises((TypeError, ValueError)):
            operator.n_bytes(sent, lengths)
    with pytest.raises(ValueError):
        operator.compress(vector[None], uniforms[None], [5])


def vectors_and_draws(*shape):
    """Vectors with large and small coordinates and some zeros, and as many uniform numbers."""
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal(shape) ** 3 * (generator.random(shape) < 0.8)
    return vectors, generator.random(shape)


def assert_same_bits(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


@every_compressor
def test_compression_leaves_its_inputs_alone(operator):
    lengths = np.array([5, 0, 18])
    for shape, where in (((23,), None), ((4, 23), None), ((23,), lengths)):
        vectors, uniforms = given = vectors_and_draws(*shape)
        copies = [array.copy() for array in given]
        sent = operator.compress(vectors, uniforms, where)
        kept = sent.copy()
        operator.send(vectors, uniforms, where)
        operator.variance(vectors, where)
        operator.n_bytes(sent, where)
        for array, copy in zip((*given, sent), (*copies, kept), strict=True):
            assert_same_bits(array, copy)
        assert not np.shares_memory(sent, vectors)


@every_compressor
@pytest.mark.parametrize("lengths", [[23] * 4, [0, 5, 0, 1, 17, 3, 40, 0]], ids=["equal", "unlike"])
def test_compression_of_a_vector_does_not_depend_on_its_neighbours(operator, lengths):
    vectors, uniforms = vectors_and_draws(sum(lengths))
    vectors[: lengths[0]] = 0
    cuts = np.cumsum(lengths)[:-1]
    own = list(zip(np.split(vectors, cuts), np.split(uniforms, cuts), strict=True))
    alone = [operator.compress(*each) for each in own]
    n_bytes = [operator.n_bytes(vector).item() for vector in alone]
    variances = [operator.variance(vector).item() for vector, _ in own]
    together = [(vectors, uniforms, np.array(lengths))]
    if len(set(lengths)) == 1:
        together.append((vectors.reshape(len(lengths), -1), uniforms.reshape(len(lengths), -1)))
    for values, numbers, *where in together:
        sent = operator.compress(values, numbers, *where)
        assert sent.shape == values.shape
        assert_same_bits(sent.ravel(), np.concatenate(alone))
        assert operator.n_bytes(sent, *where).tolist() == n_bytes
        # Sums of up to 40 squares, maybe in another order.
        assert_allclose(operator.variance(values, *where), variances, rtol=1e-14)
        at_once = operator.send(values, numbers, *where)
        assert_same_bits(at_once[0], sent)
        assert at_once[1].tolist() == n_bytes


@every_compressor
def test_compression_keeps_zeros_and_gives_none_a_sign(operator):
    # With the extreme draws, too: a random rounding of the norm may give one level more.
    for vector in (0.1 * np.eye(6)[2], [5e-324, 0, -1e-323], [-0.0, 0.3], [0.0, -0.0, -2.0, 1e-9]):
        vector = np.array(vector)
        for uniform in (0.0, 0.5, np.nextafter(1.0, 0.0)):
            sent = operator.compress(vector, np.full(len(vector), uniform))
            assert np.isfinite(sent).all()
            assert not sent[vector == 0].any()
            assert not np.signbit(sent[sent == 0]).any()


@every_compressor
def test_compression_is_told_by_bytes_bit_for_bit(operator):
    for length in (0, 1, 2, 11, 200):
        vector, uniforms = vectors_and_draws(length)
        for scale in (1.0, 0.0, 1e-320, 1e-160, 1e60, 1e200):
            sent = operator.compress(scale * vector, uniforms)
            sent.setflags(write=False)
            data = operator.encode(sent)
            assert isinstance(data, bytes)
            assert_same_bits(operator.decode(data, length), sent)
            assert operator.n_bytes(sent).tolist() == [len(data)]


@every_compressor
@pytest.mark.parametrize("length", [0, 1, 11])
def test_compression_refuses_damaged_bytes(operator, length):
    data = operator.encode(operator.compress(*vectors_and_draws(length)))
    damaged = [data[:n] for n in range(len(data))] + [data + b"\0", data + data]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for expected in {0, 1, length - 1, length + 1, 2**40} - {-1, length}:
        with pytest.raises(ValueError):
            operator.decode(data, expected)
    for other in damaged:
        with pytest.raises(ValueError):
            operator.decode(other, length)


@every_compressor
def test_what_compression_cannot_have_given_is_refused_or_told_by_bytes(operator):
    sent = operator.compress(*vectors_and_draws(5))
    for bad in (np.append(sent, np.nan), np.append(sent, -np.inf), sent[None], sent[0], "vector"):
        with pytest.raises((TypeError, ValueError)):
            operator.encode(bad)
    for vector in (*vectors_of_all_kinds(11), np.array([0.1, 0.3, 0.7, np.pi])):
        try:
            data = operator.encode(vector)
        except (TypeError, ValueError):
            continue
        assert_array_equal(operator.decode(data, len(vector)), vector)


def messages_of(operator):
    """What it sends of vectors of some lengths, and the lengths."""
    for q in (0, 1, 11, 200):
        yield operator.encode(operator.compress(*vectors_and_draws(q))), q


@every_compressor
def test_messages_of_other_classes_are_refused(operator):
    first = {data[0] for data, _ in messages_of(operator)}
    others = [other for other in COMPRESSORS if type(other) is not type(operator)]
    assert others
    for other in others:
        for data, length in messages_of(other):
            with pytest.raises(ValueError):
                operator.decode(data, length)
            # A checksum tells damage, not classes: the first byte names the class.
            assert first.isdisjoint({data[0]})
    assert len(first) == 1
    for data in ("message", 3.0, None):
        with pytest.raises(TypeError):
            operator.decode(data, 7)


# ---- solvers


@every_solver
@every_setting
def test_the_servers_control_is_the_weighted_sum_of_the_clients(case, solver, setting):
    problem, rounds = first_rounds(case, solver, setting)
    before, n_away = None, 0
    for now in rounds:
        pooled = weighted_sum(case.model, case.federation, now.controls)
        assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)
        if before is not None:
            away = np.setdiff1d(np.arange(case.federation.n_clients), now.active)
            n_away += len(away)
            kept, was = (
                kept_by(solver, case.model, case.federation, x, away) for x in (now, before)
            )
            for name, value in was.items():
                assert_array_equal(kept[name], value, err_msg=name)
        before = now
    assert (n_away > 0) == (problem.inclusion_probability < 1)
    assert np.abs(now.server.control).max() > 1e-3


@every_solver
@every_setting
def test_client_half_is_pure(case, solver, setting):
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    group = group_of(solver, case.model, case.federation, last, [0, 2, 3])
    broadcast = broadcast_of(problem, last.server)
    model = tuple(vars(case.model).values())
    inputs, before = frozen(group, broadcast, model)
    first = client_half(solver, problem.task, broadcast, group)
    second = client_half(solver, problem.task, broadcast, group)
    for value, was in zip(inputs, before, strict=True):
        assert_array_equal(value, was)
    assert len(inputs) >= 6
    assert_same(second, first)


@pytest.mark.usefixtures("cells_one_by_one")
@every_solver
@every_setting
def test_a_client_does_alone_what_it_does_in_a_group(case, solver, setting, rounding=0.0):
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    model, federation, broadcast = case.model, case.federation, broadcast_of(problem, last.server)
    clients = np.array([0, 1, 3, 5])
    group = group_of(solver, model, federation, last, clients)
    together, controls, states = client_half(solver, problem.task, broadcast, group)
    after = {"controls": controls, **states._asdict()}
    n_bytes = n_expectations = 0
    for k, client in enumerate(clients):
        group = group_of(solver, model, federation, last, client)
        alone, controls, states = client_half(solver, problem.task, broadcast, group)
        own = np.arange(len(clients)) == k
        here = model.vectors(federation).submask(clients, own)
        where = dict.fromkeys(solver.per_client, own)
        where |= dict.fromkeys(solver.per_row, np.repeat(own, federation.lengths[clients]))
        assert_same(alone.quantized, together.quantized[here], atol=rounding)
        for name, field in {"controls": controls, **states._asdict()}.items():
            assert_same(field, after[name][where.get(name, here)], atol=rounding)
        if together.log_likelihood is not None:
            one = together.log_likelihood[k : k + 1]
            assert_same(alone.log_likelihood, one, rtol=rounding)
        n_bytes, n_expectations = n_bytes + alone.n_bytes, n_expectations + alone.n_expectations
    assert (n_bytes, n_expectations) == (together.n_bytes, together.n_expectations)


@every_solver
@every_setting
def test_a_client_needs_nobody_elses_rows(case, solver, setting):
    # A node has its own rows, and knows its number among the clients.
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    broadcast = broadcast_of(problem, last.server)
    for client in range(6):
        group = group_of(solver, case.model, case.federation, last, client)
        want = client_half(solver, problem.task, broadcast, group)
        alone = federation_of(case.federation, group.clients)
        node = group._replace(federation=alone, clients=np.array([0]))
        got = client_half(solver, problem.task, broadcast, node)
        assert_same(got, want)


def message_of_three(case, solver, setting):
    """Problem, broadcast, clients and message of a later round."""
    problem, (_, _, last, *_) = first_rounds(case, solver, setting)
    broadcast, clients = broadcast_of(problem, last.server), np.array([0, 2, 3])
    group = group_of(solver, case.model, case.federation, last, clients)
    return problem, broadcast, clients, client_half(solver, problem.task, broadcast, group)[0]


@every_solver
@every_setting
def test_what_is_sent_is_what_the_server_reads_and_as_long_as_is_said(case, solver, setting):
    problem, broadcast, clients, message = message_of_three(case, solver, setting)
    vectors, compressor = case.model.vectors(case.federation), problem.task.compressor
    n_bytes, decoded = 0, np.empty_like(message.sent)
    for k in range(len(clients)):
        own = vectors.submask(clients, np.arange(len(clients)) == k)
        data = compressor.encode(message.sent[own].ravel())
        n_bytes, length = n_bytes + len(data), message.sent[own].size
        decoded[own] = compressor.decode(data, length)
    assert message.n_bytes == n_bytes
    units = broadcast.message_units
    assert_array_equal(units.to_standard(decoded) if units else decoded, message.quantized)


@every_solver
@pytest.mark.parametrize("control_step", [0.0, 0.3])
def test_clients_move_their_controls_by_the_step_of_the_problem(case, solver, control_step):
    setting = SETTINGS["everything"]
    problem = make_problem(case.model, case.federation, setting, control_step=control_step)
    *_, now = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=3)
    pooled = weighted_sum(case.model, case.federation, now.controls)
    assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)


@every_solver
@pytest.mark.parametrize("setting", ["exact", "everything"])
def test_without_controls_rounds_are_those_of_controls_that_stay_zero(case, solver, setting):
    problem = make_problem(case.model, case.federation, SETTINGS[setting], control_step=0.0)
    without = problem._replace(task=problem.task._replace(has_controls=False))
    runs = (
        run_rounds(solver, either, case.federation, case.starts[0], 5, control_init="zeros")
        for either in (problem, without)
    )
    for one, other in zip(*runs, strict=True):
        assert_same(other._replace(controls=one.controls), one)
        assert one.controls.size > other.controls.size == 0
        assert not (one.controls.any() or other.server.control.any())


@every_solver
@pytest.mark.parametrize("setting", ["exact", "minibatch", "everything"])
def test_rounds_with_integer_weights_of_rows_are_those_of_repeated_rows(row_case, solver, setting):
    federation = row_case.federation
    copies = np.random.default_rng(0).integers(1, 4, len(federation.rows))
    of_rows = sample_weight_of(copies.astype(float), federation.offsets)
    weighted = federation._replace(sample_weight=of_rows)
    repeated = federation._replace(
        rows=np.repeat(federation.rows, copies, axis=0), offsets=offsets_of(of_rows.totals)
    )
    runs = (
        run_rounds(
            solver,
            make_problem(row_case.model, rows, SETTINGS[setting]),
            rows,
            row_case.starts[0],
            n_rounds=5,
        )
        for rows in (weighted, repeated)
    )
    for one, other in zip(*runs, strict=True):
        # Sums over 51 rows of numbers of order 10, in another order; far below a level of the
        # operator.
        assert_same(one.server.statistics, other.server.statistics, atol=1e-11)
        assert_allclose(one.server.control, other.server.control, rtol=0, atol=1e-11)


@every_solver
@every_setting
def test_clients_tell_the_log_likelihood_of_all_their_rows(case, solver, setting):
    problem, broadcast, clients, message = message_of_three(case, solver, setting)
    # Convergence of exact rounds is judged by it; elsewhere it may be left out.
    assert message.log_likelihood is not None or not problem.exact
    if message.log_likelihood is not None:
        estimate = case.model.all_rows(case.federation, broadcast.parameters, clients)
        assert_allclose(message.log_likelihood, estimate.log_likelihood, rtol=1e-12)


@every_solver
@pytest.mark.parametrize("setting", ["compressed", "minibatch", "minibatch-distinct"])
def test_each_round_draws_anew(case, solver, setting):
    # After a first round, in which everyone takes part, so that nobody reads all rows any more.
    problem = make_problem(case.model, case.federation, SETTINGS[setting], n_inner=10)
    *_, now = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=1)
    group = group_of(solver, case.model, case.federation, now, np.arange(6))
    broadcast = broadcast_of(problem, now.server)
    one, other = (
        client_half(solver, problem.task, told, group)[0].quantized
        for told in (broadcast, broadcast._replace(round_index=broadcast.round_index + 1))
    )
    # Rows are of order 1, and parameters a step of 0.05 from the last: 1e-6 is far from both.
    assert np.abs(one - other).max() > 1e-6


def next_round(solver, task, broadcast, group):
    """Message of a group, and the group afterwards."""
    message, controls, states = client_half(solver, task, broadcast, group)
    return message, group._replace(controls=controls, states=states)


@every_solver
def test_a_client_that_was_away_is_unbiased_when_it_is_back(case, solver):
    # Client 3 has a single row: its minibatches are all rows, and nothing is random.
    problem = make_problem(case.model, case.federation, SETTINGS["minibatch"], n_inner=20)
    *_, now = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=0)
    broadcast, alone = broadcast_of(problem, now.server), np.array([3])
    rest = np.delete(np.arange(6), alone)
    mine, others = (
        group_of(solver, case.model, case.federation, now, group) for group in (alone, rest)
    )
    assert np.abs(mine.controls).max() > 1e-2
    for round_index in range(13):
        parameters = case.parameters[round_index % len(case.parameters)]
        told = broadcast._replace(round_index=round_index, parameters=parameters)
        _, others = next_round(solver, problem.task, told, others)
        if round_index in (0, 2, 3, 12):  # away for one round, and for eight
            before = mine.controls
            message, mine = next_round(solver, problem.task, told, mine)
            got = message.quantized + before + told.reference
            want = case.model.all_rows(case.federation, parameters, alone).statistics
            # A few additions of numbers of order 10, in each of four rounds.
            assert_allclose(got, want, rtol=0, atol=1e-12)
            assert_allclose(mine.controls, before + message.quantized, rtol=0, atol=1e-12)


@every_solver
@every_setting_of_rows
def test_the_cost_is_the_number_of_rows_that_e_steps_read(row_case, solver, setting, monkeypatch):
    problem, rounds = first_rounds(row_case, solver, setting)
    model, read = type(row_case.model), []

    def counting(e_step):
        def counted(self, natural, features, lengths, *rest):
            read.append(int(np.sum(lengths)))
            return e_step(self, natural, features, lengths, *rest)

        return counted

    monkeypatch.setattr(model, "expectation", counting(model.expectation))
    if model.expected_statistics is not RowModel.expected_statistics:  # which calls the other
        monkeypatch.setattr(model, "expected_statistics", counting(model.expected_statistics))
    for now in rounds[:3]:
        read.clear()
        group = group_of(solver, row_case.model, row_case.federation, now, [0, 2, 3])
        broadcast = broadcast_of(problem, now.server)
        message, *_ = client_half(solver, problem.task, broadcast, group)
        assert message.n_expectations == sum(read) > 0


@every_solver
def test_minibatches_have_no_noise_at_rest_if_the_solver_says_so(case, solver):
    # Told the same parameters again, a client knows its statistics: its differences are 0.
    problem = make_problem(case.model, case.federation, SETTINGS["minibatch"])
    every, start = np.arange(6), case.starts[0]
    *_, now = run_rounds(solver, problem, case.federation, start, 0)
    broadcast = broadcast_of(problem, now.server)
    group = group_of(solver, case.model, case.federation, now, every)
    all_rows = case.model.all_rows(case.federation, broadcast.parameters, every).statistics
    for round_index in range(3):
        told = broadcast._replace(round_index=round_index)
        before = group.controls
        message, group = next_round(solver, problem.task, told, group)
        errors = np.abs(message.quantized + before + told.reference - all_rows)
    assert solver.variance_reduced in (True, False)
    # A few additions of numbers of order 10.
    assert (errors.max() < 1e-12) == solver.variance_reduced


@every_solver
@every_setting
def test_a_round_that_is_not_committed_leaves_no_trace(case, solver, setting):
    problem, undisturbed = first_rounds(case, solver, setting)

    class Interrupted(LocalClients):
        """All clients, each of which computes every round twice, at first without a commit."""

        def round(self, broadcast, active):
            before = self.save()
            kept = frozen(before["controls"], before["states"])
            lost = super().round(broadcast, np.arange(6))
            self.commit(broadcast.round_index - 1)  # of another round
            assert lost.n_active == 6
            for value, was in zip(*kept, strict=True):
                assert_array_equal(value, was)
                value.setflags(write=True)
            assert self.save()["states"] is before["states"]
            return super().round(broadcast, active)

    rounds = run_rounds(
        solver, problem, case.federation, case.starts[0], n_rounds=4, places=Interrupted
    )
    for k, now in enumerate(rounds):
        assert_same(now, undisturbed[k])
    assert k == 4


class Lossy(LocalClients):
    """Clients some of whose messages are lost after they were computed."""

    def round(self, broadcast, active):
        """Everyone who is active computes; the server gets the messages of some."""
        super().round(broadcast, active)
        generator = np.random.default_rng(broadcast.round_index)
        self.accepted = active[generator.random(len(active)) < 0.5]
        return super().round(broadcast, self.accepted)


@every_solver
@every_setting
def test_controls_of_both_sides_agree_when_messages_are_lost(case, solver, setting):
    problem = make_problem(case.model, case.federation, setting, random_estimates=solver.is_random)
    lossy, before, n_lost = [], None, 0

    def places(federation, workers):
        lossy.append(Lossy(federation, workers))
        return lossy[0]

    for now in run_rounds(
        solver, problem, case.federation, case.starts[0], n_rounds=6, places=places
    ):
        pooled = weighted_sum(case.model, case.federation, now.controls)
        assert_allclose(now.server.control, pooled, rtol=0, atol=1e-12)
        if before is not None:
            assert now.aggregated.n_active == len(lossy[0].accepted)
            lost = np.setdiff1d(np.arange(6), lossy[0].accepted)
            n_lost += len(np.intersect1d(lost, now.active))
            for name, was in kept_by(solver, case.model, case.federation, before, lost).items():
                kept = kept_by(solver, case.model, case.federation, now, lost)[name]
                assert_array_equal(kept, was, err_msg=name)
        before = now
    assert n_lost > 6


def server_half_of_a_message(case, solver, setting):
    """Problem, the server before, the message, and what the server's half makes of them."""
    problem, (_, last, *_) = first_rounds(case, solver, setting)
    server = last.server._replace(step_limit=np.inf)  # the first step may have been cut
    length = case.model.vectors(case.federation).length
    message = aggregated(0.01 * np.random.default_rng(0).standard_normal(length))
    inputs, before = frozen(server, message, tuple(vars(case.model).values()))
    after, info = server_half(problem, server, message, 0.1)
    again = server_half(problem, server, message, 0.1)
    assert_same(again, (after, info))
    for value, was in zip(inputs, before, strict=True):
        assert_array_equal(value, was)
    return problem, server, message, after, info


def aggregated(message_sum):
    """Messages of six clients with this sum."""
    return AggregatedMessages(message_sum, n_active=6, n_bytes=0, n_expectations=0)


@every_solver
@every_setting
def test_server_half_is_pure_and_does_what_the_algorithm_says(case, solver, setting):
    problem, before, message, after, info = server_half_of_a_message(case, solver, setting)
    # One expression each, perhaps rounded in another order.
    field = before.control + message.message_sum / problem.inclusion_probability
    assert_allclose(info.field, field, rtol=1e-12, atol=1e-15)
    control = before.control + message.message_sum / (1 + problem.omega)
    assert_allclose(after.control, control, rtol=1e-12, atol=1e-15)
    step = case.model.server_step(before.statistics, field, 0.1, exact=problem.exact)
    assert_same(after.statistics, step.statistics, rtol=1e-12, atol=1e-14)
    assert_same(after.parameters, case.model.maximization(after.statistics), rtol=1e-12, atol=1e-14)
    assert after.round_index == before.round_index + 1
    assert info[1:] == step[1:4]
    shortened = 0.7 * 0.1 if step.safeguarded else np.inf
    noisy = 0.95 * 0.1 if step.noisy else np.inf
    for persistent, limit in ((False, shortened), (True, min(shortened, noisy))):
        other = problem._replace(persistent_noise=persistent)
        after, _ = server_half(other, before, message, 0.1)
        assert_allclose(after.step_limit, limit, rtol=1e-12)


@every_solver
def test_a_step_of_0_moves_nothing_but_the_control(case, solver):
    problem, before, message, moved, _ = server_half_of_a_message(
        case, solver, SETTINGS["compressed"]
    )
    problem = problem._replace(persistent_noise=True)
    after, info = server_half(problem, before, message, 0.0)
    assert after.statistics is before.statistics
    assert_array_equal(after.control, moved.control)
    assert info[1:] == (case.model.field_sq_norm(before.statistics, info.field), 0, 0.0)
    assert after.step_limit == np.inf  # it was not too long


@every_solver
def test_a_round_without_active_clients_follows_the_control(case, solver):
    problem = make_problem(case.model, case.federation, participation=1e-9)
    before, first, second = run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=2)
    sums = first.aggregated
    assert sums.n_active == sums.n_bytes == sums.n_expectations == 0
    assert_array_equal(first.info.field, before.server.control)
    assert_array_equal(second.server.control, before.server.control)
    assert_same(second.states, before.states)
    assert_array_equal(second.controls, before.controls)
    step = case.model.server_step(
        before.server.statistics, before.server.control, 0.05, exact=False
    )
    assert_same(first.server.statistics, step.statistics)
    assert np.abs(before.server.control).max() > 1e-3


# All settings on one model with vectors of one length and on one without.
@every_solver
@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, "everything") for name in MODELS]
    + [
        (name, setting)
        for name in ("mixture-full", "low-rank-poisson")
        for setting in SETTINGS
        if setting not in ("exact", "everything")
    ],
)
def test_the_field_is_unbiased_for_the_mean_field(name, setting, solver):
    case, n_draws, participation = model_case(name), 200, SETTINGS[setting].participation
    model, federation = case.model, case.federation
    problem = make_problem(model, federation, SETTINGS[setting], n_inner=10)
    # Everyone takes part in round 0, so that every estimate is exact or, for variance-reduced
    # solvers, starts from an exact one. Controls and iterate are those of no fixed point.
    everyone = problem._replace(participation=1.0)
    _, now = run_rounds(solver, everyone, federation, case.starts[0], n_rounds=1, step_size=0.2)
    server, share = now.server, problem.inclusion_probability
    fields = np.empty((n_draws, len(server.control)))
    generator = np.random.default_rng(0)
    with _parallel.Workers(1) as workers:
        clients = LocalClients(federation, workers)
        for draw in range(n_draws):
            clients.join(solver, problem.task._replace(seed=draw))
            clients.restore({"controls": now.controls, "states": now.states})
            if isinstance(participation, int):
                active = np.sort(generator.choice(6, participation, replace=False))
            else:
                active = np.flatnonzero(generator.random(6) < participation)
            aggregated = clients.round(broadcast_of(problem, server), active)
            fields[draw] = server.control + aggregated.message_sum / share
    expected = mean_field(model, federation, server)
    standard_error = fields.std(axis=0) / np.sqrt(n_draws)
    assert standard_error.max() > 1e-6
    # At most 28 coordinates, each beyond 5 standard errors once in two million seeds. A coordinate
    # that an operator hardly ever sends, being small, is known from a handful of draws: it gets a
    # share of the largest error.
    error = 5 * np.maximum(standard_error, 0.05 * standard_error.max())
    assert (np.abs(fields.mean(axis=0) - expected) <= error + 1e-12).all()


@every_solver
def test_reordering_clients_changes_nothing_where_nothing_is_drawn(case, solver):
    order = np.array([3, 0, 5, 2, 4, 1])
    model, federation = case.reordered(order)
    straight = run_rounds(
        solver, make_problem(case.model, case.federation), case.federation, case.starts[0], 15, 0.7
    )
    mixed = run_rounds(solver, make_problem(model, federation), federation, case.starts[0], 15, 0.7)
    for one, other in zip(straight, mixed, strict=True):
        assert_same(other.server.statistics, one.server.statistics, atol=1e-10)
        assert_allclose(other.server.control, one.server.control, rtol=0, atol=1e-10)
        for k, client in enumerate(order):
            here = kept_by(solver, model, federation, other, k)["controls"]
            there = kept_by(solver, case.model, case.federation, one, client)["controls"]
            assert_allclose(here, there, rtol=0, atol=1e-10)


def many_clients():
    """260 clients of one to three rows."""
    generator = np.random.default_rng(5)
    lengths = np.tile([1, 3, 2, 2], 65)
    rows = generator.standard_normal((lengths.sum(), 2))
    rows += 3.0 * generator.integers(2, size=len(rows))[:, None]
    return np.split(rows, np.cumsum(lengths)[:-1])


def run_of(solver, problem, federation, start, options, workers):
    """Run of a solver with the clients in this process."""
    clients = LocalClients(federation, workers)
    clients.join(solver, problem.task)
    return run(solver, problem, start, options, clients, lambda row: None)


def assert_workers_change_nothing(problem, federation, solver, start, numbers):
    """Runs with so many workers, which are sure to work, are those of one, bit for bit."""
    options = Options(step_size=lambda k: 0.05, max_iter=3, tol=0.0, eval_every=2)
    main, threads = threading.get_ident(), set()

    def recorded(*args):
        threads.add(threading.get_ident())
        if threading.get_ident() != main:
            helped.set()
        elif n_jobs > 1:
            helped.wait(60)  # not all of it before the others are awake
        return solver.estimate(*args)

    spied, results = solver._replace(estimate=recorded), []
    for n_jobs in (1, *numbers):
        threads.clear()
        helped = threading.Event()
        with _parallel.Workers(n_jobs) as workers:
            workers._seconds["round"] = np.inf  # the first round, too
            results.append(run_of(spied, problem, federation, start, options, workers))
        assert (len(threads) > 1) == (n_jobs > 1)
    assert_same_runs(results[0], results[1:])


@every_solver
@every_setting
def test_results_are_bitwise_the_same_for_any_number_of_workers(
    case, solver, setting, monkeypatch, threads_always_pay
):
    # At most three rows at a time: groups of a few clients, and the larger ones read in pieces.
    monkeypatch.setattr(type(case.model), "block_rows", 3)
    problem = make_problem(case.model, case.federation, setting)
    assert_workers_change_nothing(problem, case.federation, solver, case.starts[0], (2,))


@every_solver
@pytest.mark.parametrize("setting", ["exact", "everything"])
def test_many_clients_are_bitwise_the_same_for_any_number_of_workers(
    solver, setting, small_blocks, threads_always_pay
):
    federation = stack(many_clients())
    model = mixture_model(federation, "full")
    problem = make_problem(model, federation, SETTINGS[setting])
    start = start_at(model, federation, mixture_parameters(model))
    assert_workers_change_nothing(problem, federation, solver, start, (2, 3))


def assert_same_runs(first, others):
    for other in others:
        assert_same(other.server, first.server)
        assert_array_equal(other.clients["controls"], first.clients["controls"])
        assert_same(other.clients["states"], first.clients["states"])
        want, got = first.history.as_dict(), other.history.as_dict()
        assert got.keys() == want.keys()
        for name, column in want.items():
            assert_array_equal(got[name], column, err_msg=name)


def test_linear_algebra_rounds_the_same_for_any_number_of_workers(threads_always_pay):
    # Large enough for a threaded BLAS to split the products where it is allowed to.
    federation = stack([np.random.default_rng(0).standard_normal((3000, 20))] * 2)
    model = mixture_model(federation, "full", n_components=10)
    problem = make_problem(model, federation)
    start = start_at(model, federation, mixture_parameters(model))
    options = Options(step_size=lambda k: 1.0, max_iter=3, tol=0.0)
    results = []
    for n_jobs in (1, 2):
        with _parallel.Workers(n_jobs) as workers:
            results.append(run_of(SOLVERS["fedem"], problem, federation, start, options, workers))
    assert threads_always_pay == [2, 2]  # the first of three rounds is done alone
    assert_same_runs(results[0], results[1:])


# ---- estimators


def assert_same_history(got, want, rounding=0.0):
    assert got.history_.keys() == want.history_.keys()
    for name, column in want.history_.items():
        assert_allclose(got.history_[name], column, rtol=rounding, atol=rounding, err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_gives_the_same_fit_from_a_list_and_from_labels(case):
    clients = ragged_clients((30, 20, 40, 15))
    labels = np.repeat(np.arange(4), [30, 20, 40, 15])
    mixed = np.random.default_rng(0).permutation(len(labels))
    # A stable sort by label gives every client its rows in the order that they have here.
    rows = np.concatenate(clients)[mixed]
    own = [rows[labels[mixed] == k] for k in range(4)]
    from_list = case.make(max_iter=10).fit(own)
    from_labels = case.make(max_iter=10).fit(rows, clients=labels[mixed])
    assert from_list.n_clients_ == 4
    assert_same_history(from_labels, from_list, case.rounding)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_does_not_depend_on_the_number_of_workers(case, small_blocks, threads_always_pay):
    clients = many_clients()
    fits = [
        case.make(max_iter=3, n_jobs=n_jobs, **case.quick).fit(clients) for n_jobs in (None, 2, 3)
    ]
    assert set(threads_always_pay) == {2, 3}
    for fit in fits[1:]:
        for name in case.fitted:
            assert_array_equal(getattr(fit, name), getattr(fits[0], name))
        assert_same_history(fit, fits[0])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@every_estimator
def test_estimator_is_the_same_when_fitted_again(case):
    clients = ragged_clients((30, 20, 40, 15))
    first = case.make(max_iter=10).fit(clients)
    again = clone(first).fit(clients)
    refitted = clone(first).fit(clients[:2]).fit(clients)
    for other in (again, refitted):
        for name in case.fitted:
            assert_array_equal(getattr(other, name), getattr(first, name))
        assert_same_history(other, first)
