"""Closed forms against their definitions: means, medians, and mixtures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

from skfedem.priors import GaussianPrior, LaplacePrior, MixturePrior, Shared, Update
from skfedem.priors._laplace import weighted_median
from skfedem.priors._mixture import responsibilities

GENERATOR = np.random.default_rng(0)
FOUND = GENERATOR.normal(size=(6, 3))
SIZES = np.array([1, 2, 1, 3, 1, 2])
WEIGHTS = np.array([1.0, 3.0, 0.5, 2.0, 0.7, 1.1])


def update_from(shared, models):
    shares = responsibilities(FOUND, shared.weights, 1.7 * SIZES)
    return Update(FOUND - shared.weights[models], models, SIZES, shares=shares)


def test_the_mean_of_clients():
    shared = Shared(GENERATOR.normal(size=(1, 3)))
    centre = GaussianPrior().closed_form(shared, update_from(shared, np.zeros(6, int)), WEIGHTS)
    assert_allclose(centre[0], np.average(FOUND, axis=0, weights=WEIGHTS), rtol=1e-13)


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(1, 4)), min_size=1, max_size=9))
def test_a_weighted_median_is_that_of_repeated_values(pairs):
    values, counts = np.array(pairs).T
    median = weighted_median(values[:, None].astype(float), counts.astype(float))
    assert_array_equal(median, np.median(np.repeat(values, counts)))


def test_the_median_minimises_the_penalty():
    shared, models = Shared(np.zeros((1, 3))), np.zeros(6, int)
    centre = LaplacePrior(2.0).closed_form(shared, update_from(shared, models), WEIGHTS)
    penalty = lambda w: WEIGHTS @ np.abs(FOUND - w).sum(axis=1)  # noqa: E731
    for step in 0.01 * GENERATOR.normal(size=(200, 3)):
        assert penalty(centre[0]) <= penalty(centre[0] + step)


def test_a_minority_does_not_move_the_median_far():
    honest = GENERATOR.normal(size=(11, 3))
    shared, weights = Shared(np.zeros((1, 3))), np.ones(16)
    for size in (1e3, 1e30):
        update = Update(
            np.vstack([honest, np.full((5, 3), size)]), np.zeros(16, int), np.ones(16, int)
        )
        median = LaplacePrior().closed_form(shared, update, weights)[0]
        assert (median <= honest.max(axis=0)).all()
        assert GaussianPrior().closed_form(shared, update, weights).min() > size / 4


def test_responsibilities_are_those_of_gaussians():
    centres = GENERATOR.normal(size=(2, 3))
    densities = np.transpose(
        [
            [multivariate_normal(centre, np.eye(3) / (1.7 * size)).pdf(row) for centre in centres]
            for row, size in zip(FOUND, SIZES, strict=True)
        ]
    )
    expected = np.transpose(densities) / np.sum(densities, axis=0)[:, None]
    assert_allclose(responsibilities(FOUND, centres, 1.7 * SIZES), expected, rtol=1e-12)
    far = responsibilities(FOUND * 1e6, centres, np.full(6, 1e6))
    assert_allclose(far.sum(axis=1), 1)


def test_the_m_step_of_a_mixture_is_that_of_em():
    prior, shared = MixturePrior(2, 1.7), Shared(GENERATOR.normal(size=(2, 3)))
    models = np.array([0, 1, 0, 1, 1, 0])
    centres = prior.closed_form(shared, update_from(shared, models), WEIGHTS)
    shares = WEIGHTS[:, None] * responsibilities(FOUND, shared.weights, 1.7 * SIZES)
    for k in range(2):
        assert_allclose(centres[k], np.average(FOUND, axis=0, weights=shares[:, k]), rtol=1e-12)


def test_a_model_of_nobody_stays():
    prior = MixturePrior(2, 1.7)
    shared = Shared(np.array([[0.0, 0.0, 0.0], [1e3, 1e3, 1e3]]))
    update = update_from(shared, np.zeros(6, int))
    centres = prior.closed_form(shared, update, WEIGHTS)
    assert_array_equal(centres[1], shared.weights[1])
    assert not prior.direction(shared, update, WEIGHTS)[1].any()


def test_permuting_components_permutes_the_result():
    prior, shared = MixturePrior(3, 1.7), Shared(GENERATOR.normal(size=(3, 3)))
    models, order = np.array([0, 1, 2, 1, 1, 0]), np.array([2, 0, 1])
    centres = prior.closed_form(shared, update_from(shared, models), WEIGHTS)
    other = Shared(shared.weights[order])
    places = np.argsort(order)[models]
    permuted = prior.closed_form(other, update_from(other, places), WEIGHTS)
    assert_allclose(permuted, centres[order], rtol=1e-13)


def test_equal_models_are_separated_by_the_first_clients():
    found = np.vstack([GENERATOR.normal(size=(4, 3)) + 5, GENERATOR.normal(size=(3, 3)) - 5])
    shared, weights = Shared(np.ones((2, 3))), np.arange(1.0, 8.0)
    update = Update(found - 1.0, np.zeros(7, int), np.ones(7, int), shares=np.full((7, 2), 0.5))
    centres = MixturePrior(2, 1.0).closed_form(shared, update, weights)
    means = [
        np.average(found[own], axis=0, weights=weights[own]) for own in (slice(4), slice(4, 7))
    ]
    assert_allclose(centres[np.argsort(-centres[:, 0])], means, rtol=1e-12)
    lonely = type(update)(*(None if own is None else own[:1] for own in update))
    centres = MixturePrior(2, 1.0).closed_form(shared, lonely, weights[:1])
    assert_allclose(centres, [found[0], [1.0, 1.0, 1.0]], rtol=1e-12)


@pytest.mark.parametrize(
    ("prior", "negative_log_density"),
    [
        (GaussianPrior(0.7), lambda d: 0.35 * (d**2).sum()),
        (LaplacePrior(0.7), lambda d: 0.7 * np.abs(d).sum()),
    ],
)
def test_proximal_steps_minimise_what_they_say(prior, negative_log_density):
    shared, rate = Shared(np.array([[0.3, -1.0, 2.0]])), 0.4
    local = prior.start(shared, np.zeros(1, int), np.ones(1, int))
    moved = np.array([[1.0, -1.1, 2.5]])
    found = prior.proximal(shared, local, moved, rate)[0]

    def objective(x):
        return ((x - moved[0]) ** 2).sum() / (2 * rate) + negative_log_density(
            x - shared.weights[0]
        )

    best = minimize(objective, found, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    assert_allclose(found, best.x, atol=1e-6)  # half of the digits, at a minimum
    stays = np.abs(moved[0] - shared.weights[0]) <= 0.7 * rate
    assert isinstance(prior, GaussianPrior) or (found == shared.weights[0])[stays].all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianPrior(-1.0), "Expected precision to be a number >= 0, got -1.0"),
        (lambda: MixturePrior(0), "Expected n_components to be an integer >= 1"),
        (lambda: MixturePrior(2, 0.0), "Expected precision to be a number > 0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
