"""The oracles against scikit-learn, against each other, and against numbers worked out by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.mixture import GaussianMixture

import literal

N_COMPONENTS = 2


def small_clients():
    """Three ragged clients in three dimensions, each with more rows of one component."""
    generator = np.random.default_rng(0)
    means = np.array([[-1.5, 0.5, 0.0], [1.5, -0.5, 1.0]])
    clients = []
    for n_samples, probability in [(9, 0.2), (14, 0.5), (7, 0.9)]:
        components = (generator.random(n_samples) < probability).astype(int)
        clients.append(means[components] + generator.standard_normal((n_samples, 3)))
    weights = np.array([len(rows) for rows in clients]) / sum(len(rows) for rows in clients)
    return clients, weights


def small_problem(covariance_type, reg_covar=0.0):
    clients, client_weights = small_clients()
    problem = literal.mixture_problem(clients, client_weights, covariance_type, reg_covar)
    spread = {"full": [np.eye(3)] * 2, "tied": np.eye(3), "diag": np.ones((2, 3))}
    start = literal.expected_statistics(
        np.concatenate(clients),
        [0.4, 0.6],
        [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        spread.get(covariance_type, np.ones(2)),
        covariance_type,
    )
    return clients, client_weights, *problem, start


def random_batches(clients, n_rounds, batch_size, seed):
    generator = np.random.default_rng(seed)
    return [
        [generator.integers(len(rows), size=batch_size) for rows in clients]
        for _ in range(n_rounds)
    ]


def noisy(k, i, vector, theta):
    """An unbiased operator whose noise depends on the round and the client only."""
    generator = np.random.default_rng([k, i])
    kept = generator.random(vector.shape) < 0.5
    return 2 * kept * vector


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("covariance_type", literal.COVARIANCE_TYPES)
def test_fedem_on_all_rows_is_sklearns_em(covariance_type):
    reg_covar = 1e-3
    clients, weights, client_statistics, m_step, start = small_problem(covariance_type, reg_covar)
    theta = m_step(start)
    precisions = (
        1 / theta.covariances
        if covariance_type in ("diag", "spherical")
        else np.linalg.inv(theta.covariances)
    )
    n_rounds = 5
    rounds = literal.fedem(
        client_statistics, m_step, start, controls=[np.zeros_like(start)] * len(clients),
        client_weights=weights, step_sizes=[1.0] * n_rounds, control_step=1.0, participation=1.0,
        active_sets=[range(len(clients))] * n_rounds, batches=[[None] * len(clients)] * n_rounds,
    )  # fmt: skip
    pooled = np.concatenate(clients)
    for max_iter, result in enumerate(rounds, start=1):
        expected = GaussianMixture(
            N_COMPONENTS, covariance_type=covariance_type, tol=0, reg_covar=reg_covar,
            max_iter=max_iter, weights_init=theta.weights, means_init=theta.means,
            precisions_init=precisions,
        ).fit(pooled)  # fmt: skip
        fitted = m_step(result.statistics)
        assert_allclose(fitted.weights, expected.weights_, rtol=1e-8)
        assert_allclose(fitted.means, expected.means_, rtol=1e-8)
        assert fitted.covariances.shape == expected.covariances_.shape
        assert_allclose(fitted.covariances, expected.covariances_, rtol=1e-8, atol=1e-8)
        assert_allclose(
            literal.log_likelihood(pooled, *fitted, covariance_type),
            expected.score(pooled),
            rtol=1e-8,
        )
        assert_allclose(
            literal.responsibilities(pooled, *fitted, covariance_type),
            expected.predict_proba(pooled),
            atol=1e-8,
        )
    assert max_iter == n_rounds


def test_statistics_of_one_component_are_moments():
    rows = [[1.0, 2.0, 0.0], [3.0, -1.0, 4.0]]
    moments = {
        "tied": [1, 2, 0.5, 2],
        "diag": [1, 2, 0.5, 2, 5, 2.5, 8],
        "spherical": [1, 2, 0.5, 2, 15.5],
        # y1 y1, y1 y2, y1 y3, y2 y2, y2 y3, y3 y3
        "full": [1, 2, 0.5, 2, 5, -0.5, 6, 2.5, -2, 8],
    }
    spread = {"full": [np.eye(3)], "tied": np.eye(3), "diag": np.ones((1, 3)), "spherical": [1.0]}
    for covariance_type, expected in moments.items():
        statistics = literal.expected_statistics(
            rows, [1.0], [[0.0, 0.0, 0.0]], spread[covariance_type], covariance_type
        )
        assert_allclose(statistics, [expected], rtol=1e-14)


@pytest.mark.parametrize("covariance_type", literal.COVARIANCE_TYPES)
def test_m_step_inverts_the_moments_of_given_parameters(covariance_type):
    weights, means = np.array([0.3, 0.7]), np.array([[1.0, -2.0], [0.5, 3.0]])
    covariances = {
        "full": np.array([[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.2], [-0.2, 3.0]]]),
        "tied": np.array([[2.0, 0.5], [0.5, 1.0]]),
        "diag": np.array([[2.0, 1.0], [1.0, 3.0]]),
        "spherical": np.array([2.0, 3.0]),
    }[covariance_type]
    matrices = literal.covariance_matrices(covariances, covariance_type, 2, 2)
    statistics, moment = [], 0.0
    for g in range(2):
        second = matrices[g] + np.outer(means[g], means[g])
        quadratic = {
            "full": [second[0, 0], second[0, 1], second[1, 1]],
            "tied": [],
            "diag": np.diag(second),
            "spherical": [np.trace(second)],
        }[covariance_type]
        statistics.append(weights[g] * np.array([1, *means[g], *quadratic]))
        moment = moment + weights[g] * second
    reg_covar = np.array([0.25, 0.75])
    fitted = literal.m_step(statistics, covariance_type, reg_covar, moment)
    added = {"diag": reg_covar, "spherical": 0.5}.get(covariance_type, np.diag(reg_covar))
    assert_allclose(fitted.weights, weights, rtol=1e-14)
    assert_allclose(fitted.means, means, rtol=1e-14)
    assert_allclose(fitted.covariances, covariances + added, rtol=1e-13, atol=1e-14)


def test_a_fixed_covariance_is_left_alone():
    statistics = np.array([[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]])
    known = np.array([[1.0, 0.5], [0.5, 1.0]])
    fitted = literal.m_step(statistics, "tied", 0.1, fixed_covariance=known)
    assert_array_equal(fitted.covariances, known)
    assert_array_equal(fitted.means, [[2.0, 0.0], [0.0, 2.0]])


ACTIVE_SETS = [{0, 1, 2}, {1}, set(), {0, 2}, {2}, {0, 1}]


def test_vr_fedem_on_all_rows_is_fedem():
    clients, weights, client_statistics, m_step, start = small_problem("tied", 0.1)
    shared = dict(
        controls=literal.client_fields(client_statistics, m_step, start, len(clients)),
        client_weights=weights, step_sizes=[0.1, 0.2, 0.1, 0.05, 0.1, 0.2], control_step=0.5,
        participation=0.75, active_sets=ACTIVE_SETS,
        batches=[[None] * len(clients)] * len(ACTIVE_SETS), quantise=noisy,
    )  # fmt: skip
    plain = literal.fedem(client_statistics, m_step, start, **shared)
    reduced = literal.vr_fedem(client_statistics, m_step, start, n_inner=4, **shared)
    n_rounds = 0
    for expected, result in zip(plain, reduced, strict=True):
        assert_allclose(result.statistics, expected.statistics, rtol=1e-12, atol=1e-13)
        assert_allclose(result.client_controls, expected.client_controls, rtol=1e-12, atol=1e-13)
        assert_allclose(result.control, expected.control, rtol=1e-12, atol=1e-13)
        assert_allclose(result.field, expected.field, rtol=1e-12, atol=1e-13)
        n_rounds += 1
    assert n_rounds == len(ACTIVE_SETS)


def test_vr_fedem_with_everyone_is_algorithm_2_as_printed():
    clients, weights, client_statistics, m_step, start = small_problem("diag", 0.1)
    n_inner, n_outer = 3, 2
    n_rounds = n_inner * n_outer
    shared = dict(
        controls=literal.client_fields(client_statistics, m_step, start, len(clients)),
        client_weights=weights,
        step_sizes=[0.1] * n_rounds,
        control_step=0.5,
        batches=random_batches(clients, n_rounds, batch_size=4, seed=1),
        n_inner=n_inner,
        quantise=noisy,
    )
    printed = list(
        literal.vr_fedem_full_participation(
            client_statistics, m_step, start, n_outer=n_outer, **shared
        )
    )
    general = list(
        literal.vr_fedem(
            client_statistics,
            m_step,
            start,
            participation=1.0,
            active_sets=[range(len(clients))] * n_rounds,
            **shared,
        )
    )
    assert len(printed) == len(general) == n_rounds
    for expected, result in zip(printed, general, strict=True):
        assert_allclose(result.statistics, expected.statistics, rtol=1e-12, atol=1e-13)
        assert_allclose(result.client_controls, expected.client_controls, rtol=1e-12, atol=1e-13)
        assert_allclose(result.field, expected.field, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("algorithm", [literal.fedem, literal.vr_fedem])
def test_the_servers_control_is_the_weighted_sum_of_the_clients(algorithm):
    clients, weights, client_statistics, m_step, start = small_problem("spherical", 0.1)
    controls = [np.full_like(start, 0.01 * i) for i in range(len(clients))]
    kwargs = {"n_inner": 4} if algorithm is literal.vr_fedem else {}
    before = controls
    for k, result in enumerate(
        algorithm(
            client_statistics,
            m_step,
            start,
            controls,
            weights,
            step_sizes=[0.05] * len(ACTIVE_SETS),
            control_step=0.5,
            participation=0.5,
            active_sets=ACTIVE_SETS,
            batches=random_batches(clients, len(ACTIVE_SETS), batch_size=4, seed=2),
            quantise=noisy,
            **kwargs,
        )
    ):
        pooled = sum(w * V_i for w, V_i in zip(weights, result.client_controls, strict=True))
        assert_allclose(result.control, pooled, rtol=1e-12, atol=1e-14)
        for i, V_i in enumerate(result.client_controls):
            assert np.array_equal(V_i, before[i]) == (i not in ACTIVE_SETS[k])
        before = result.client_controls
    assert k == len(ACTIVE_SETS) - 1
    assert_array_equal(controls[2], np.full_like(start, 0.02))


def test_without_active_clients_the_field_is_the_control():
    clients, weights, client_statistics, m_step, start = small_problem("tied")
    controls = literal.client_fields(client_statistics, m_step, start, len(clients))
    (result,) = literal.fedem(
        client_statistics, m_step, start, controls, weights, [0.1], 0.5, 0.5, [set()], [None]
    )
    field = sum(w * h for w, h in zip(weights, controls, strict=True))
    assert_allclose(result.field, field, rtol=1e-14)
    assert_allclose(result.statistics, start + 0.1 * field, rtol=1e-14)


@pytest.mark.parametrize("algorithm", [literal.fedem, literal.vr_fedem])
def test_the_field_is_unbiased_over_who_takes_part(algorithm):
    clients, weights, client_statistics, m_step, start = small_problem("full", 0.1)
    controls = [np.full_like(start, 0.1 * i) for i in range(3)]
    kwargs = {"n_inner": 4} if algorithm is literal.vr_fedem else {}
    expectation, participation = 0.0, 0.75
    for bits in np.ndindex(2, 2, 2):
        active = set(np.flatnonzero(bits))
        probability = participation ** len(active) * (1 - participation) ** (3 - len(active))
        (result,) = algorithm(
            client_statistics, m_step, start, controls, weights, step_sizes=[0.1], control_step=0.5,
            participation=participation, active_sets=[active], batches=[[None] * 3], **kwargs,
        )  # fmt: skip
        expectation = expectation + probability * result.field
    # Means over all rows and no quantisation: the mean field, whatever the controls.
    pooled = literal.expected_statistics(np.concatenate(clients), *m_step(start), "full")
    assert_allclose(expectation, pooled - start, rtol=1e-12, atol=1e-14)


def test_vr_fedem_is_unbiased_over_the_batches_also_after_an_absence():
    clients, weights, client_statistics, m_step, start = small_problem("diag", 0.1)
    controls = literal.client_fields(client_statistics, m_step, start, len(clients))
    # Client 1 has its refresh in round 0, is away in round 1, and draws one row in round 2.
    fields = []
    for row in range(len(clients[1])):
        rounds = literal.vr_fedem(
            client_statistics, m_step, start, controls, weights, step_sizes=[0.5] * 3,
            control_step=0.5, participation=0.5, active_sets=[{0, 1, 2}, {0}, {1}],
            batches=[[[0], [row], [0]]] * 3, n_inner=3,
        )  # fmt: skip
        _, before, last = rounds
        fields.append(last.field)
    exact = client_statistics(1, m_step(before.statistics), None)
    delta = exact - before.statistics - before.client_controls[1]
    assert_allclose(
        np.mean(fields, axis=0), before.control + weights[1] * delta / 0.5, rtol=1e-12, atol=1e-14
    )
    assert np.ptp(fields, axis=0).max() > 1e-3  # the batch did matter


def test_vr_fedem_asks_nothing_of_clients_that_are_away():
    clients, weights, client_statistics, m_step, start = small_problem("tied")
    asked = []

    def recorded(i, theta, batch):
        asked.append((i, None if batch is None else len(batch)))
        return client_statistics(i, theta, batch)

    rounds = literal.vr_fedem(
        recorded, m_step, start, [np.zeros_like(start)] * len(clients), weights,
        step_sizes=[0.05] * len(ACTIVE_SETS), control_step=0.5, participation=0.5,
        active_sets=ACTIVE_SETS,
        batches=random_batches(clients, len(ACTIVE_SETS), batch_size=4, seed=3), n_inner=4,
    )  # fmt: skip
    per_round = []
    for _ in rounds:
        per_round.append(asked[:])
        asked.clear()
    # None marks the mean over all rows: a client's first active round of an outer loop.
    assert per_round == [
        [(0, None), (1, None), (2, None)],
        [(1, 4), (1, 4)],
        [],
        [(0, 4), (0, 4), (2, 4), (2, 4)],
        [(2, None)],
        [(0, None), (1, None)],
    ]


def test_dithering_by_hand():
    # ‖x‖_2 = 5; 2|x|/5 = 1.2, 0, 1.6; floors of 1.2 + 0.7, 0 + 0.9 and 1.6 + 0.5
    result = literal.dither([3.0, 0.0, -4.0], [0.7, 0.9, 0.5], levels=2)
    assert_allclose(result, [2.5, 0.0, -5.0], rtol=1e-15)
    # ‖x‖_∞ = 4; |x|/4 = 0.75, 0, 1; floors of 0.75 + 0.2, 0.9 and 1 + 0.5
    result = literal.dither([3.0, 0.0, -4.0], [0.2, 0.9, 0.5], levels=1, order=np.inf)
    assert_array_equal(result, [0.0, 0.0, -4.0])
    assert_array_equal(literal.dither([0.0, 0.0], [0.5, 0.5], levels=3), [0.0, 0.0])


def test_dithering_is_unbiased():
    # The mean over uniforms on a midpoint grid is exact to the grid's step.
    vector = np.array([0.3, -1.2, 0.05])
    grid = (np.arange(2000) + 0.5) / 2000
    mean = np.mean([literal.dither(vector, [xi] * 3, levels=3) for xi in grid], axis=0)
    assert_allclose(mean, vector, atol=np.linalg.norm(vector) / 3 / 2000)
