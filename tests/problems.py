"""The list of what there is: models, compressors, solvers, estimators, and tiny data for them.

A new model, compressor, solver or estimator gets the whole of ``test_contracts.py`` by one row
here.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from skfedem import FederatedGaussianMixture
from skfedem._federation import Federation
from skfedem._parallel import Workers
from skfedem.compression import BlockQuantizer, Dithering, Identity, RandK
from skfedem.models._base import Model, Start
from skfedem.models.gaussian_mixture import GaussianMixtureModel, in_row_units
from skfedem.models.units import standard_units
from skfedem.solvers import fedem, vr_fedem
from skfedem.solvers._base import Problem, server_half
from skfedem.solvers._loop import Options, active_clients, client_round, initialise

COVARIANCE_TYPES = ("full", "tied", "diag", "spherical")
KNOWN_COVARIANCE = np.array([[1.0, 0.5], [0.5, 1.0]])

# ---- data


def ragged_clients(lengths=(9, 4, 17, 1, 6, 11), seed=0):
    """Overlapping clusters in the plane, in unlike shares; neither centred nor of one scale."""
    generator = np.random.default_rng(seed)
    means = np.array([[-1.5, -1.0], [1.5, 1.0]])
    clients = []
    for k, length in enumerate(lengths):
        components = (generator.random(length) < (k + 1) / (len(lengths) + 1)).astype(int)
        noise = generator.standard_normal((length, 2)) * [1.0, 0.7 + 0.5 * k / len(lengths)]
        clients.append((means[components] + noise) * [1.0, 3.0] + [2.0, -5.0])
    return clients


def stack(clients, weights=None):
    """Federation of some clients' rows; weighted by the number of rows unless told otherwise."""
    lengths = np.array([len(rows) for rows in clients])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    weights = lengths / lengths.sum() if weights is None else np.asarray(weights)
    return Federation(np.concatenate(clients), offsets, weights)


# ---- models


class ModelCase(NamedTuple):
    """A model, rows for it, and what is known about it independently.

    ``parameters`` are some θ that T can give. ``log_likelihoods(parameters)`` gives log p(y; θ) of
    each of the federation's rows, without the model's own code.
    """

    model: Model
    federation: Federation
    parameters: tuple
    log_likelihoods: Callable


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
        second_moment=units.matrices_to_standard(second_moment) if rotates else None,
        fixed_covariance=fixed,
    )


def standard_rows(model, rows):
    """Rows in standard units, one a row."""
    return model.units.standardize(rows).T


def standard_reg_covar(model):
    """What ``reg_covar`` is in standard units: a matrix where units rotate, else a vector."""
    if model.covariance_type in ("full", "tied"):
        return model.units.matrices_to_standard(model.reg_covar * np.eye(model.n_features))
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
    """Row of ``MODELS``: a mixture, with weights that do not follow the numbers of rows."""
    federation = stack(ragged_clients(), weights=[0.1, 0.3, 0.2, 0.05, 0.15, 0.2])
    model = mixture_model(federation, covariance_type, fixed=fixed)

    def log_likelihoods(parameters):
        return mixture_log_likelihoods(
            federation.rows, *in_row_units(model, parameters), covariance_type
        )

    parameters = tuple(mixture_parameters(model, seed) for seed in range(4))
    return ModelCase(model, federation, parameters, log_likelihoods)


MODELS = {
    "mixture-full": lambda: mixture_case("full"),
    "mixture-tied": lambda: mixture_case("tied"),
    "mixture-diag": lambda: mixture_case("diag"),
    "mixture-spherical": lambda: mixture_case("spherical"),
    "mixture-fixed": lambda: mixture_case("tied", fixed=KNOWN_COVARIANCE),
}

# ---- compressors, solvers, estimators

COMPRESSORS = [
    Identity(),
    Dithering(levels=2),
    Dithering(omega=1.0),
    Dithering(omega=0.5, norm=np.inf),
    Dithering(omega=1.0, bucket_length=3),
    BlockQuantizer(block_length=4),
    BlockQuantizer(omega=1.0),
    BlockQuantizer(omega=1.0, norm=np.inf),
    RandK(k=3),
    RandK(omega=1.0),
]

SOLVERS = {"fedem": fedem, "vr_fedem": vr_fedem}

_ROUGH = {"omega": 1.0, "participation": 0.6, "batch_size": 3}

ESTIMATORS = {
    "mixture": lambda: FederatedGaussianMixture(2, random_state=0),
    "mixture-tied": lambda: FederatedGaussianMixture(2, covariance_type="tied", random_state=0),
    "mixture-fedem": lambda: FederatedGaussianMixture(
        2, covariance_type="diag", random_state=0, **_ROUGH
    ),
    "mixture-vr_fedem": lambda: FederatedGaussianMixture(
        2, covariance_type="tied", solver="vr_fedem", random_state=0, **_ROUGH
    ),
}

# ---- running


class Setting(NamedTuple):
    """How the rounds of a run depart from exact ones."""

    compressor: object = Identity()
    participation: float = 1.0
    batch_size: int | None = None
    replacement: bool = True


# A client of ragged_clients has one row: without replacement, more do not fit a minibatch.
SETTINGS = {
    "exact": Setting(),
    "compressed": Setting(Dithering(omega=1.0)),
    "partial": Setting(participation=0.6),
    "minibatch": Setting(batch_size=3),
    "minibatch-distinct": Setting(batch_size=1, replacement=False),
    "everything": Setting(BlockQuantizer(omega=1.0), 0.6, 3),
    "everything-rand_k": Setting(RandK(omega=1.0), 0.5, 2),
}


def make_problem(model, federation, setting=SETTINGS["exact"], *, seed=0, n_inner=4, **changes):
    """Problem of a setting, with the control step that the estimators take."""
    omega = setting.compressor.omega_for(model.n_statistics)
    return Problem(
        model=model,
        federation=federation,
        vectors=model.vectors(federation),
        compressor=setting.compressor,
        omega=omega,
        participation=setting.participation,
        control_step=1 / (1 + omega),
        batch_size=setting.batch_size,
        replacement=setting.replacement,
        n_inner=n_inner,
        seed=seed,
    )._replace(**changes)


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


def mean_field(problem, server):
    """h(Ŝ), from all rows of all clients."""
    every = np.arange(problem.federation.n_clients)
    estimate = problem.model.all_rows(problem.federation, server.parameters.natural, every)
    return problem.federation.weights @ estimate.statistics - server.statistics


def start_at(model, federation, parameters):
    """Start from the statistic that rows have under θ, so that the broadcast is T of it."""
    statistics = mean_statistics(model, federation, parameters)
    return Start(statistics, model.maximization(statistics))


def copied(states):
    """Copy of the client states, which a round overwrites."""
    return type(states)(*(kept.copy() for kept in states))


class AfterRound(NamedTuple):
    """What stands after a round."""

    server: NamedTuple
    states: NamedTuple
    info: NamedTuple
    received: NamedTuple
    active: np.ndarray


def run_rounds(solver, problem, start, n_rounds, step_size=0.05, control_init="field"):
    """Yield what stands before the first round, and after each."""
    options = Options(lambda k: step_size, control_init=control_init, eval_every=None)
    with Workers(1) as workers:
        server, states, _ = initialise(solver, problem, start, options, workers)
        yield AfterRound(server, copied(states), None, None, np.arange(0))
        for _ in range(n_rounds):
            active = active_clients(problem, server.round_index)
            received = client_round(solver, problem, server, states, active, workers)
            server, info = server_half(problem, server, received, step_size)
            yield AfterRound(server, copied(states), info, received, active)
