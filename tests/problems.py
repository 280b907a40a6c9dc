"""The list of what there is: models, compressors, solvers, estimators, and tiny data for them.

A new model, compressor, solver or estimator gets all of the ``test_contract.py`` by one row here.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import literal_imputation as oracle
from low_rank_cells import model_of_cells
from populations import (
    linear_log_likelihoods,
    linear_model,
    linear_parameters,
    linear_subjects,
    means_of,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem._federation import Federation, offsets_of, positions_of, sample_weight_of
from skfedem._parallel import Workers
from skfedem._rows import take_rows
from skfedem.clients.local import LocalClients
from skfedem.compression import BlockQuantizer, Dithering, Identity, RandK
from skfedem.models._base import Model, RowModel, Start
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.pooled import LEAST_PENALTY
from skfedem.models.matrix.start import start_run
from skfedem.models.matrix.theta import Cells, Effects, LowRank, Theta
from skfedem.models.mixed_effects.subjects import pack
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture.parameters import in_row_units
from skfedem.models.mixture.units import standard_units
from skfedem.solvers import _from_parameters
from skfedem.solvers._loop import open_round
from skfedem.solvers._state import initial_state
from skfedem.solvers.base import ClientGroup, Problem, Task
from skfedem.solvers.fedem import FEDEM
from skfedem.solvers.server import server_half

LENGTHS = (9, 4, 17, 1, 6, 11)
# They do not follow the numbers of rows.
WEIGHTS = np.array([0.1, 0.3, 0.2, 0.05, 0.15, 0.2])
COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
KNOWN_COVARIANCE = np.array([[1.0, 0.5], [0.5, 1.0]])
# Columns of every history, beside the criterion and the trace.
HISTORY_COLUMNS = {
    "round",
    "epoch",
    "field_sq_norm",
    "mean_field_sq_norm",
    "step_size",
    "n_active",
    "uplink_bits",
    "downlink_bits",
    "safeguarded",
}

# ---- data


def ragged_clients(lengths=LENGTHS, seed=0):
    """Overlapping clusters in the plane, in unlike shares; neither centred nor of one scale."""
    generator = np.random.default_rng(seed)
    means = np.array([[-1.5, -1.0], [1.5, 1.0]])
    clients = []
    for k, length in enumerate(lengths):
        components = (generator.random(length) < (k + 1) / (len(lengths) + 1)).astype(int)
        noise = generator.standard_normal((length, 2)) * [1.0, 0.7 + 0.5 * k / len(lengths)]
        clients.append((means[components] + noise) * [1.0, 3.0] + [2.0, -5.0])
    return clients


def many_clients():
    """260 clients of one to three rows."""
    generator = np.random.default_rng(5)
    lengths = np.tile([1, 3, 2, 2], 65)
    rows = generator.standard_normal((lengths.sum(), 2))
    rows += 3.0 * generator.integers(2, size=len(rows))[:, None]
    return np.split(rows, np.cumsum(lengths)[:-1])


def stack(clients, weights=None):
    """Federation of some clients' rows; weighted by the number of rows unless told otherwise."""
    lengths = np.array([len(rows) for rows in clients])
    offsets = offsets_of(lengths)
    weights = lengths / lengths.sum() if weights is None else np.asarray(weights)
    return Federation(np.concatenate(clients), offsets, weights)


def lower_bounds(pooled, rows):
    """Mean log-likelihood at each iteration of scikit-learn's fitted GaussianMixture.

    What scikit-learn 1.7 and later keep as ``lower_bounds_``. The start has to be given.
    """
    bounds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # all but the last stop too early
        for max_iter in range(1, pooled.n_iter_ + 1):
            bounds.append(clone(pooled).set_params(max_iter=max_iter).fit(rows).lower_bound_)
    return bounds


class Observer(NamedTuple):
    """Distinct cells that a client observed, and all that it saw there, one value a time."""

    rows: np.ndarray
    columns: np.ndarray
    counts: np.ndarray
    values: np.ndarray


def observers(family, shape, lengths=LENGTHS, seed=0):
    """Clients that observed so many cells each, some of them several times, and others' too."""
    generator = np.random.default_rng(seed)
    factors = 0.6 * generator.standard_normal((shape[0], 2)), generator.standard_normal((2, 4))
    theta = 0.4 + 0.4 * generator.standard_normal((shape[0], 1))
    theta = theta + factors[0] @ np.resize(factors[1], (2, shape[1]))
    clients = []
    for length in lengths:
        rows, columns = np.divmod(generator.choice(theta.size, length, replace=False), shape[1])
        counts = generator.integers(1, 4, length, dtype=np.intp)
        means = np.repeat(oracle.mean(theta, family)[rows, columns], counts)
        values = {
            "gaussian": lambda means: generator.normal(means),
            "bernoulli": lambda means: generator.binomial(1, means).astype(float),
            "poisson": lambda means: generator.poisson(means).astype(float),
        }[family](means)
        clients.append(Observer(rows, columns, counts, values))
    return clients


def stack_cells(clients, weights, log_base_measure):
    """Federation of some observers' cells."""
    columns = (
        np.concatenate([client.rows for client in clients]).astype(np.int32),
        np.concatenate([client.columns for client in clients]).astype(np.int32),
        np.concatenate(
            [
                np.add.reduceat(client.values, np.cumsum(client.counts) - client.counts)
                / client.counts
                for client in clients
            ]
        ),
        np.concatenate([client.counts for client in clients]).astype(float),
    )
    offsets = np.cumsum([0] + [len(client.rows) for client in clients])
    return Federation(Cells(*columns), offsets, weights, log_base_measure=log_base_measure)


# ---- models


class ModelCase(NamedTuple):
    """A model, rows for it, and what is known about it independently.

    Attributes
    ----------
    model : Model
    federation : Federation
        Six clients, the fourth with a single row; 12 rows or more, but few. ``LENGTHS`` will do.
    parameters : tuple
        Four θ that T can give, or more.
    starts : tuple of Start
        Two points or more from which a run may begin, none of them a fixed point.
    criterion : callable
        From parameters to what ``model.criterion_value`` is to give, without the model's own code.
    reordered : callable
        From an order of the clients to the model and the federation with the clients so ordered.
    is_unbounded : bool
        Whether T has a value for any finite statistic, so that no step needs to be shortened.
    """

    model: Model
    federation: Federation
    parameters: tuple
    starts: tuple
    criterion: Callable
    reordered: Callable
    is_unbounded: bool = False


def row_model_case(model, federation, parameters, log_likelihoods):
    """Row of ``MODELS`` for a ``RowModel``.

    ``log_likelihoods(parameters)`` gives log p(y; θ) of each of the federation's rows, without the
    model's own code.
    """
    row_weights = np.repeat(federation.weights / federation.lengths, federation.lengths)
    pieces = np.split(federation.rows, federation.offsets[1:-1])
    return ModelCase(
        model,
        federation,
        parameters,
        starts=tuple(start_at(model, federation, theta) for theta in parameters),
        criterion=lambda theta: row_weights @ log_likelihoods(theta),
        reordered=lambda order: (
            model,
            stack([pieces[k] for k in order], federation.weights[order]),
        ),
    )


def mixture_log_likelihoods(rows, weights, means, covariances, covariance_type):
    """Log-density of each row in nats, by scipy; covariances in scikit-learn's shapes."""
    size, d = means.shape
    matrices = {
        "full": lambda: covariances,
        "tied": lambda: [covariances] * size,
        "diag": lambda: [np.diag(variances) for variances in covariances],
        "spherical": lambda: [variance * np.eye(d) for variance in covariances],
    }[covariance_type]()
    joint = [
        np.log(weights[g]) + multivariate_normal(means[g], matrices[g]).logpdf(rows)
        for g in range(size)
    ]
    return logsumexp(np.reshape(joint, (size, len(rows))), axis=0)


def mixture_model(federation, covariance_type, n_components=2, *, reg_covar=0.0, fixed=None):
    """Model in the standard units of some rows, as the estimator makes it."""
    row_weights = np.repeat(federation.weights / federation.lengths, federation.lengths)
    center = row_weights @ federation.rows
    centered = federation.rows - center
    second_moment = (row_weights[:, None] * centered).T @ centered
    rotates = covariance_type in ("full", "tied")
    units = standard_units(
        center, second_moment if rotates else np.diagonal(second_moment), covariance_type
    )
    return GaussianMixtureModel(
        n_components=n_components,
        covariance_type=covariance_type,
        units=units,
        reg_covar=reg_covar,
        second_moment=units.covariances_to_standard(second_moment) if rotates else None,
        fixed_cholesky=None if fixed is None else np.linalg.cholesky(fixed),
    )


def standard_rows(model, rows):
    """Rows in standard units, one a row."""
    return model.units.standardize(rows, np.array([len(rows)])).T


def standard_reg_covar(model):
    """What ``reg_covar`` is in standard units: a matrix where units rotate, else a vector."""
    if model.covariance_type in ("full", "tied"):
        return model.units.covariances_to_standard(model.reg_covar * np.eye(model.n_features))
    return model.reg_covar / model.units.scale**2


def mixture_parameters(model, seed=0, spread=0.5):
    """Some θ that T of a mixture can give: not too far from the rows, in standard units."""
    generator = np.random.default_rng(seed)
    size, d = model.n_components, model.n_features
    weights = generator.dirichlet(np.full(size, 5.0))
    means = spread * generator.standard_normal((size, d))
    factors = np.eye(d) + 0.3 * generator.standard_normal((size, d, d))
    matrices = factors @ factors.transpose(0, 2, 1)
    if model.fixed_covariance is not None:
        covariances = model.fixed_covariance
    elif model.covariance_type == "full":
        covariances = matrices
    elif model.covariance_type == "tied":
        between = (weights[:, None] * means).T @ means
        covariances = model.second_moment - between + standard_reg_covar(model)
    elif model.covariance_type == "diag":
        covariances = np.diagonal(matrices, axis1=1, axis2=2).copy()
    else:
        covariances = matrices[:, 0, 0]
    return model.parameters(weights, means, covariances)


def mixture_case(covariance_type, fixed=None):
    """Row of ``MODELS``: a mixture of two components."""
    federation = stack(ragged_clients(), WEIGHTS)
    model = mixture_model(federation, covariance_type, fixed=fixed)

    def log_likelihoods(parameters):
        return mixture_log_likelihoods(
            federation.rows, *in_row_units(model.units, parameters)[:3], covariance_type
        )

    parameters = tuple(mixture_parameters(model, seed) for seed in range(4))
    return row_model_case(model, federation, parameters, log_likelihoods)


LOW_RANK_SHAPE = (7, 5)
PENALTIES = {"gaussian": 1.5, "poisson": 2.0, "bernoulli": 0.5}


def theta_of_rank_2(shape, seed):
    """Some θ: main effects that sum to 0, and a matrix of rank 2."""
    generator = np.random.default_rng(seed)
    rows, columns = (0.3 * generator.standard_normal(size) for size in shape)
    left, right = (np.linalg.qr(generator.standard_normal((size, 2)))[0] for size in shape)
    singular_values = np.array([1.5, 0.8]) * generator.uniform(0.8, 1.2)
    low_rank = LowRank(left, singular_values, right)
    return Theta(Effects(0.3, rows - rows.mean(), columns - columns.mean()), low_rank)


def low_rank_objective(clients, weights, theta, penalty, family):
    """F(θ) in nats, by the dense oracle.

    A client's mean over its cells weighs as ``weights`` say, and an observation 1 on average.
    """
    low_rank = theta.low_rank.left * theta.low_rank.singular_values @ theta.low_rank.right.T
    effects = oracle.Effects(*theta.effects[:3])
    value = penalty * oracle.nuclear_norm(low_rank)
    value += LEAST_PENALTY / 2 * (np.sum(effects.rows**2) + np.sum(effects.columns**2))
    n_observations = np.array([client.counts.sum() for client in clients])
    shares = weights / [len(client.rows) for client in clients]
    shares *= n_observations.sum() / (shares @ n_observations)
    for client, share in zip(clients, shares, strict=True):
        seen = np.repeat([client.rows, client.columns], client.counts, axis=1)
        value -= share * oracle.log_likelihood(
            *seen, client.values, effects.matrix() + low_rank, family
        )
    return value


def low_rank_case(family):
    """Row of ``MODELS``: a matrix of rank 3 at most, beside effects of rows and columns."""
    clients = observers(family, LOW_RANK_SHAPE)
    penalty = PENALTIES[family]

    def reordered(order):
        base = [FAMILIES[family].log_base_measure(clients[k].values).sum() for k in order]
        own = [clients[k] for k in order]
        federation = stack_cells(own, WEIGHTS[order], np.array(base))
        imputer = FederatedMatrixImputer(3, family=family, penalty=penalty, effects_penalty=0.0)
        model = model_of_cells(imputer, federation, LOW_RANK_SHAPE)
        # Both ways to compute θ are tested; the cells of all clients are many here.
        assert model.is_dense
        return replace(model, is_dense=family != "bernoulli"), federation

    def criterion(parameters):
        return low_rank_objective(clients, WEIGHTS, parameters.natural, penalty, family)

    model, federation = reordered(np.arange(len(clients)))
    thetas = [theta_of_rank_2(LOW_RANK_SHAPE, seed) for seed in range(4)]
    starts = tuple(start_run(model, theta) for theta in thetas)
    parameters = tuple(start.parameters for start in starts)
    return ModelCase(model, federation, parameters, starts, criterion, reordered)


def mixed_effects_case(is_full):
    """Row of ``MODELS``: lines with random effects, of which a covariate acts on one."""
    subjects = linear_subjects(sum(LENGTHS))
    federation = stack(np.split(pack(subjects), np.cumsum(LENGTHS)[:-1]), WEIGHTS)
    constants = means_of(subjects, np.repeat(WEIGHTS / federation.lengths, federation.lengths))
    model = linear_model(subjects, constants, is_full)
    return row_model_case(
        model,
        federation,
        tuple(linear_parameters(model, seed) for seed in range(4)),
        lambda parameters: linear_log_likelihoods(federation.rows, model, parameters),
    )


MODELS = {
    "mixture-full": lambda: mixture_case("full"),
    "mixture-tied": lambda: mixture_case("tied"),
    "mixture-diag": lambda: mixture_case("diag"),
    "mixture-spherical": lambda: mixture_case("spherical"),
    "mixture-fixed": lambda: mixture_case("tied", fixed=KNOWN_COVARIANCE),
    "low-rank-gaussian": lambda: low_rank_case("gaussian"),
    "low-rank-poisson": lambda: low_rank_case("poisson"),
    "low-rank-bernoulli": lambda: low_rank_case("bernoulli"),
    "mixed-effects-diag": lambda: mixed_effects_case(is_full=False),
    "mixed-effects-full": lambda: mixed_effects_case(is_full=True),
}


def check_model_case(name, case):
    """Raise for a row of ``MODELS`` that lacks what the contract tests take for granted."""
    lengths = case.federation.lengths
    multiple = np.lcm.reduce(lengths.astype(object))  # draws of a minibatch of all rows
    for needed, holds, got in (
        ("six clients", len(lengths) == 6, len(lengths)),
        ("a fourth client with a single row", lengths[3:4].tolist() == [1], lengths.tolist()),
        ("12 rows or more", lengths.sum() >= 12, lengths.sum()),
        ("numbers of rows with a common multiple <= 100,000", multiple <= 10**5, multiple),
        ("four parameters or more", len(case.parameters) >= 4, len(case.parameters)),
        ("two starts or more", len(case.starts) >= 2, len(case.starts)),
    ):
        if not holds:
            raise ValueError(
                f"Expected {needed} in row {name!r} of MODELS, got {got}. ModelCase says what a "
                "row is made of."
            )


@cache
def model_case(name):
    """Row of ``MODELS``, made once for all tests, none of which may write into it."""
    case = MODELS[name]()
    check_model_case(name, case)
    read_only(tuple(vars(case.model).values()))
    return read_only(case)


# ---- compressors, solvers, estimators

COMPRESSORS = [
    Identity(),
    Dithering(levels=1),
    Dithering(levels=5),
    Dithering(levels=40, norm=np.inf),
    Dithering(omega=0.05),
    Dithering(omega=1.0),
    Dithering(omega=8.0),
    Dithering(omega=0.5, norm=np.inf),
    Dithering(omega=0.5, bucket_length=5),
    BlockQuantizer(block_length=1),
    BlockQuantizer(block_length=4),
    BlockQuantizer(block_length=7, norm=np.inf),
    BlockQuantizer(omega=1.0),
    BlockQuantizer(omega=3.0, norm=np.inf),
    RandK(k=1),
    RandK(k=5),
    RandK(omega=1.0),
    RandK(omega=0.3),
]

SOLVERS = dict(_from_parameters.SOLVERS)

_ROUGH = {"omega": 1.0, "participation": 0.6, "batch_size": 3}


class EstimatorCase(NamedTuple):
    """An estimator, and what tests that know nothing else of it need.

    ``fitted`` are attributes that tell one fit from another, ``quick`` parameters with which a
    start for thousands of clients takes no time, and ``rounding`` what the order of all rows may
    change relatively.
    """

    estimator: object
    fitted: tuple
    quick: dict
    rounding: float

    def make(self, **parameters):
        """A new estimator, with other values for some parameters."""
        return clone(self.estimator).set_params(**parameters)


def mixture_estimator(**parameters):
    """Row of ``ESTIMATORS``: rows are only ever read client by client, in the client's order."""
    estimator = FederatedGaussianMixture(2, random_state=0, **parameters)
    return EstimatorCase(estimator, ("means_", "covariances_"), {"init_params": "random"}, 0.0)


def imputer_estimator(**parameters):
    """Row of ``ESTIMATORS``: the order of the rows is that of sums on the server."""
    estimator = FederatedMatrixImputer(1, rows="disjoint", random_state=0, **parameters)
    return EstimatorCase(estimator, ("column_factors_", "row_effects_"), {}, 1e-8)


ESTIMATORS = {
    "mixture": mixture_estimator(),
    "mixture-tied": mixture_estimator(covariance_type="tied"),
    "mixture-fedem": mixture_estimator(covariance_type="diag", **_ROUGH),
    "mixture-vr_fedem": mixture_estimator(covariance_type="tied", solver="vr_fedem", **_ROUGH),
    "imputer": imputer_estimator(),
    "imputer-fedem": imputer_estimator(effects="columns", **_ROUGH),
    "imputer-vr_fedem": imputer_estimator(solver="vr_fedem", **_ROUGH),
}

# ---- running


class Setting(NamedTuple):
    """How the rounds of a run depart from exact ones."""

    compressor: object = Identity()
    participation: float | int = 1.0
    batch_size: int | None = None
    replacement: bool = True


# A client of every model has one row: without replacement, more do not fit a minibatch.
SETTINGS = {
    "exact": Setting(),
    "compressed": Setting(Dithering(omega=1.0)),
    "partial": Setting(participation=0.6),
    "three": Setting(participation=3),
    "minibatch": Setting(batch_size=3),
    "minibatch-distinct": Setting(batch_size=1, replacement=False),
    "everything": Setting(BlockQuantizer(omega=1.0), 0.6, 3),
    "everything-rand_k": Setting(RandK(omega=1.0), 0.5, 2),
}


def make_problem(model, federation, setting=SETTINGS["exact"], *, seed=0, n_inner=4, **changes):
    """Problem of a setting, with the control step that the estimators take.

    ``changes`` are other fields of the task or the problem.
    """
    lengths = model.message_lengths(federation.sizes)
    omega = float(np.max(setting.compressor.omega_for(lengths)))
    task = Task(
        model=model,
        compressor=setting.compressor,
        omega=omega,
        control_step=1 / (1 + omega),
        batch_size=setting.batch_size,
        replacement=setting.replacement,
        seed=seed,
    )
    task = task._replace(**{k: v for k, v in changes.items() if k in Task._fields})
    problem = Problem(task, federation.sizes, FEDEM, setting.participation, n_inner)
    return problem._replace(**{k: v for k, v in changes.items() if k not in Task._fields})


def problem_of_alike(n_clients=20, n_rows=10, **changes):
    """Problem of a mixture with diagonal covariances, whose clients have as many rows each."""
    federation = stack(ragged_clients((n_rows,) * n_clients))
    return make_problem(mixture_model(federation, "diag"), federation, **changes), federation


def client_means(model, federation, parameters):
    """s̄_i(θ) of each client, and the mean log-likelihood of each, up to the model's constant."""
    sums = model.expectation(
        parameters.natural, model.features(federation.rows), federation.lengths
    )
    lengths = federation.lengths
    return sums.statistics / lengths[:, None], sums.log_likelihood / lengths


def mean_statistics(model, federation, parameters):
    """s̄(θ) = Σ w_i s̄_i(θ)."""
    return federation.weights @ client_means(model, federation, parameters)[0]


def weighted_sum(model, federation, vectors):
    """Server's vector: the weighted sum of all clients' vectors, client by client."""
    layout = model.vectors(federation)
    total = np.zeros(layout.length)
    for client, weight in enumerate(federation.weights):
        if vectors.ndim == 2:
            total += weight * vectors[client]
        else:
            own = slice(federation.offsets[client], federation.offsets[client + 1])
            np.add.at(total, layout.positions[own], weight * vectors[own])
    return total


def mean_field(model, federation, server):
    """h(Ŝ), from all rows of all clients."""
    estimate = model.all_rows(federation, server.parameters, np.arange(federation.n_clients))
    fields = estimate.statistics - model.reference(server.statistics)
    return weighted_sum(model, federation, fields)


def start_at(model, federation, parameters):
    """Start from the statistic that rows have under θ, so that the broadcast is T of it."""
    statistics = mean_statistics(model, federation, parameters)
    return Start(statistics, model.maximization(statistics))


def federation_of(federation, clients):
    """Federation of some clients alone."""
    lengths = federation.lengths[clients]
    chosen, offsets = positions_of(federation.offsets[clients], lengths), offsets_of(lengths)
    weights = federation.sample_weight
    if weights is not None:
        weights = sample_weight_of(weights.values[chosen], offsets)
    rows = federation.rows
    rows = rows.take(chosen) if isinstance(rows, Cells) else take_rows(rows, chosen)
    base = federation.log_base_measure
    base = None if base is None else base[clients]
    own = federation.weights[clients]
    return Federation(rows, offsets, own, weights, log_base_measure=base)


def index_of(name, solver, model, federation, clients):
    """Index of what some clients keep in the controls or states of all."""
    clients, every = np.atleast_1d(clients), np.arange(federation.n_clients)
    if name in solver.per_client:
        return clients
    if name in solver.per_row:
        return positions_of(federation.offsets[clients], federation.lengths[clients])
    return model.vectors(federation).submask(every, np.isin(every, clients))


def kept_by(solver, model, federation, now, clients):
    """Copies of the controls and states that some clients have after a round, by their names."""
    kept = now.states._asdict()
    if now.controls.size:
        kept["controls"] = now.controls
    at = (solver, model, federation, clients)
    return {name: np.array(field[index_of(name, *at)]) for name, field in kept.items()}


def group_of(solver, model, federation, now, clients):
    """Group of some clients, as they are after a round."""
    clients = np.atleast_1d(clients)
    kept = kept_by(solver, model, federation, now, clients)
    controls = kept.pop("controls", now.controls)
    return ClientGroup(federation, clients, clients, controls, type(now.states)(**kept))


def arrays_in(value):
    """All arrays of nested tuples."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, tuple):
        return [array for part in value for array in arrays_in(part)]
    return []


def read_only(value):
    """The same nested tuples, with arrays that nobody may write into any more."""
    for array in arrays_in(value):
        array.setflags(write=False)
    return value


def same_bits(a, b):
    """Whether arrays are the same to the bit; 0.0 is not -0.0."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def fit_unconverged(estimator, *args, match="Not converged", **kwargs):
    """Fit where rounds are too few to converge, which is said."""
    with pytest.warns(ConvergenceWarning, match=match):
        return estimator.fit(*args, **kwargs)


def quiet_fit(estimator, *args, **kwargs):
    """Fit where rounds may be too few to converge, which does not matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(*args, **kwargs)


def assert_same_fit(got, want):
    """Same fit bit for bit, history included, whatever clients and features are called."""
    fitted = [name for name in vars(want) if name.endswith("_") and not name.startswith("_")]
    for name in set(fitted) - {"history_", "client_ids_", "feature_names_in_"}:
        assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
    assert got.history_.keys() == want.history_.keys()
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)


class AfterRound(NamedTuple):
    """What stands after a round."""

    server: NamedTuple
    controls: np.ndarray
    states: NamedTuple
    info: object = None
    aggregated: object = None
    active: np.ndarray = np.arange(0)


def copies(clients):
    """Copies of the controls and states of all clients, which a round overwrites."""
    controls, states = clients.save().values()
    return controls.copy(), type(states)(*(kept.copy() for kept in states))


def run_rounds(
    solver, problem, federation, start, n_rounds, step_size=0.05, control_init="field", places=None
):
    """Yield what stands before the first round, and after each.

    ``places(federation, workers)`` gives the clients, by default all of them in this process.
    """
    problem = problem._replace(solver=solver)
    with Workers(1) as workers:
        clients = (places or LocalClients)(federation, workers)
        clients.join(solver, problem.task)
        state = initial_state(problem, start, clients, control_init=control_init)
        server = state.server
        yield AfterRound(server, *copies(clients))
        for _ in range(n_rounds):
            broadcast, active = open_round(problem, server)
            aggregated = clients.round(broadcast, active)
            half = solver.server_half or server_half
            server, info = half(problem, server, aggregated, step_size)
            clients.commit(broadcast.round_index)
            yield AfterRound(server, *copies(clients), info, aggregated, active)


_FIRST_ROUNDS = {}


def first_rounds(case, solver, setting):
    """Problem, and what stands before its first round and after each of five; run once.

    As many tests read them, nobody may write into them: not even a client's half into the states,
    of which it returns others.
    """
    key = id(case.model), solver.name, setting  # the problem keeps the model alive
    if key not in _FIRST_ROUNDS:
        problem = make_problem(
            case.model, case.federation, setting, random_estimates=solver.is_random
        )
        rounds = tuple(run_rounds(solver, problem, case.federation, case.starts[0], n_rounds=5))
        _FIRST_ROUNDS[key] = problem, read_only(rounds)
    return _FIRST_ROUNDS[key]


# Models whose clients have statistics of one length, which are means over their rows.
ROW_MODELS = [name for name in MODELS if isinstance(model_case(name).model, RowModel)]
