"""The Gaussian mixture as a model: its E-step, blocks of rows, constants, streams."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import literal
from mixture_models import every_covariance_type, plain, small_model, table
from problems import (
    client_means,
    mixture_log_likelihoods,
    mixture_model,
    mixture_parameters,
    stack,
    standard_rows,
)
from skfedem.models._base import Start
from skfedem.models.mixture.parameters import in_row_units
from skfedem.models.mixture.stream_moments import for_stream


@every_covariance_type
def test_expected_statistics_are_the_literal_ones(covariance_type):
    model, federation = small_model(covariance_type)
    parameters = mixture_parameters(model)
    rows = standard_rows(model, federation.rows)
    statistics, _ = client_means(model, federation, parameters)
    pieces = np.split(rows, federation.offsets[1:-1])
    for own, found in zip(pieces, statistics, strict=True):
        expected = literal.expected_statistics(own, *plain(model, parameters), covariance_type)
        assert_allclose(table(model, found), expected, rtol=1e-11, atol=1e-13)


@every_covariance_type
def test_features_are_the_literal_ones_in_standard_units(covariance_type):
    model, federation = small_model(covariance_type)
    features = model.features(federation.rows)
    rows = standard_rows(model, federation.rows)
    expected = np.transpose([literal.features(row, covariance_type) for row in rows])
    assert features.shape == (model.n_functions, 40)
    assert_allclose(features, expected, rtol=1e-13, atol=1e-15)


@every_covariance_type
def test_log_likelihood_of_any_parameters_is_scipys(covariance_type):
    # Also of covariances that T would not give: what a user may start from.
    model, federation = small_model(covariance_type)
    weights, means, covariances = plain(model, mixture_parameters(model, seed=3, spread=0.2))
    parameters = model.parameters(weights, means, 1.7 * covariances)
    in_rows = in_row_units(model.units, parameters)[:3]
    expected = mixture_log_likelihoods(federation.rows, *in_rows, covariance_type).mean()
    _, log_likelihoods = client_means(model, federation, parameters)
    found = model.criterion_value(federation.weights @ log_likelihoods, parameters)
    assert_allclose(found, expected, rtol=1e-12)


def test_log_likelihood_far_in_the_tails_does_not_underflow():
    model, federation = small_model("full")
    parameters = mixture_parameters(model)
    far = federation._replace(rows=federation.rows + 1e4 * model.units.scale)
    statistics, log_likelihoods = client_means(model, far, parameters)
    assert np.isfinite(statistics).all()
    in_rows = in_row_units(model.units, parameters)[:3]
    expected = mixture_log_likelihoods(far.rows, *in_rows, "full").mean()
    found = model.criterion_value(federation.weights @ log_likelihoods, parameters)
    # Squares of 1e4 of either sign: eight of sixteen digits, at worst.
    assert_allclose(found, expected, rtol=1e-8)


@every_covariance_type
def test_rounding_does_not_change_the_constants(covariance_type):
    # Seconds since 1970, of one day; and a feature that is another's but for a millionth.
    rng = np.random.default_rng(0)
    rows = np.column_stack([1.7e9 + rng.uniform(0, 86400, 100), rng.normal(size=100)])
    rows = np.column_stack([rows, rows[:, 1] + 1e-6 * rng.normal(size=100)])
    # Half zeros, half ones: the mean is the standard deviation; and ten times that.
    halves = np.arange(100) % 2
    rows = np.column_stack([rows, halves, 9 + 2 * halves])

    def constants(rows):
        return mixture_model(stack([rows]), covariance_type).constants()

    first = constants(rows)
    for _ in range(20):
        nudged = rows * (1 + 1e-15 * rng.normal(size=rows.shape))
        assert_array_equal(constants(nudged), first)
    assert not np.array_equal(constants(1.001 * rows), first)


@pytest.mark.parametrize("has_quadratic_forms", [False, True])
@pytest.mark.parametrize(("n_features", "n_components"), [(2, 1), (20, 5), (50, 3), (300, 2)])
def test_blocks_fit_into_memory(has_quadratic_forms, n_features, n_components):
    model = replace(small_model("full")[0], n_components=n_components)
    units = model.units._replace(center=np.zeros(n_features))
    model = replace(model, units=units, has_quadratic_forms=has_quadratic_forms)
    # 64 MB of statistics if every row belongs to another client, 4 MB of features.
    assert model.block_rows == 64 or model.block_rows * model.n_statistics <= 2**23
    assert model.block_rows == 64 or model.block_rows * n_features <= 2**19


@pytest.mark.parametrize("is_known", [False, True])
def test_clients_of_a_stream_know_the_second_moment_of_their_rows(is_known):
    # In a fit, the server knows that of all rows, and its term of the log-likelihood.
    model, federation = small_model("tied")
    if is_known:
        model = replace(model, fixed_cholesky=np.tril([[2.0, 0, 0], [1, 3, 0], [0, 1, 1]]))
    parameters, every = mixture_parameters(model), np.arange(federation.n_clients)
    in_fit = model.all_rows(federation, parameters, every)
    assert in_fit.uncompressed is None
    of_stream, start = for_stream(model, Start(model.statistics_of(parameters), parameters))
    in_stream = of_stream.all_rows(federation, start.parameters, every)
    assert_array_equal(in_stream.statistics, in_fit.statistics)
    means = [
        each.criterion_value(federation.weights @ estimate.log_likelihood, theta)
        for each, estimate, theta in (
            (model, in_fit, parameters),
            (of_stream, in_stream, start.parameters),
        )
    ]
    # Here and below: sums of 40 logarithms, or products, of order 10.
    assert means[1] == pytest.approx(means[0], rel=1e-13)
    parts = [of_stream.all_rows(federation, start.parameters, every[[i]]) for i in every]
    log_likelihoods = np.concatenate([part.log_likelihood for part in parts])
    assert_allclose(log_likelihoods, in_stream.log_likelihood, rtol=1e-13)
    assert of_stream.n_uncompressed == (0 if is_known else 6)
    if is_known:  # the scatter is not sent
        assert in_stream.uncompressed is None
        return
    sent = np.concatenate([part.uncompressed for part in parts])
    assert sent.shape == (federation.n_clients, 6)
    assert_allclose(sent, in_stream.uncompressed, rtol=1e-13, atol=1e-13)


def test_errors_of_an_estimate_are_in_the_second_moment_too_and_cancel():
    # After a whole step, whatever the field, the covariance is the rows' scatter about the means
    # that were broadcast, less that of the new means about these: products of errors.
    model, federation = small_model("tied")
    parameters = mixture_parameters(model)
    model, start = for_stream(model, Start(model.statistics_of(parameters), parameters))
    statistics, parameters = start.statistics, start.parameters
    field = 0.05 * np.random.default_rng(0).standard_normal(model.n_statistics)
    sent = model.all_rows(federation, parameters, np.arange(federation.n_clients))
    scatter = federation.weights @ sent.uncompressed
    whole = model.stream_field(parameters, statistics, field, scatter, 1.0)
    assert_array_equal(whole[: model.n_statistics], field)
    assert model.field_sq_norm(statistics, whole) == model.field_sq_norm(statistics, field)
    found = model.maximization(statistics + whole)
    rows, (_, means, _) = standard_rows(model, federation.rows), plain(model, parameters)
    shares = np.array(literal.responsibilities(rows, *plain(model, parameters), "tied"))
    shares *= np.repeat(federation.row_weights, federation.lengths)[:, None]
    apart = rows[:, None] - means
    expected = np.einsum("ig,igj,igl->jl", shares, apart, apart)
    mass, moved = table(model, model.reference(statistics) + field)[:, 0], found.means - means
    expected -= (mass[:, None] * moved).T @ moved
    # Sums of 40 products of order 1. The field moves them by a hundredth.
    assert_allclose(found.covariances, expected, rtol=0, atol=1e-12)
