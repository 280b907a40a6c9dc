"""Every model of rows in ``problems.MODELS`` against its contract."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from contracts import assert_same, skip_if_sampled
from problems import (
    mean_statistics,
)
from skfedem.models._base import RowModel


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
