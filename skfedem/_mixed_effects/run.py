"""The fit of a population model, from the user's tables to the fitted attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from .._data.features import store
from .._federation import Federation, weights_of_clients
from .._parallel import Workers
from .._parameters import check_minibatches
from .._random import seeds_of_runs
from .._typing import ClientWeights, FilePath
from ..clients.local import LocalClients
from ..models.mixed_effects.subjects import pack
from ..solvers._fit_task import FitTask
from ..solvers._from_parameters import federated_problem, run_solver
from ..solvers._resume import seed_of
from .design import design_of
from .outcome import fitted_after, so_far_fitted, warn_of_fit
from .records import ClientRecords, read_clients
from .report import sums_of_sites
from .settings import checked_settings, n_chains_of, solver_of
from .start import model_of, start_of

if TYPE_CHECKING:
    from ..mixed_effects import FederatedNonlinearMixedEffects


def fit_population(
    estimator: FederatedNonlinearMixedEffects,
    X: Any,
    y: object,
    clients: str | ArrayLike | None,
    resume_from: FilePath | None,
) -> None:
    """Fit an estimator, which is changed at the end only."""
    design = design_of(estimator)
    settings = checked_settings(estimator, design)
    data = read_clients(X, clients, design)
    federation = _federation_of(data, settings.client_weights)
    check_minibatches(settings, federation.lengths, data.ids, "subjects")
    (seed,) = seeds_of_runs(estimator.random_state, 1)
    task = FitTask(estimator, X, y, settings.max_iter)
    n_chains = n_chains_of(settings, federation.n_samples)
    model = model_of(design, data, federation, settings.n_nodes, n_chains)
    seed = seed_of(settings, seed, resume_from)
    problem = federated_problem(settings, model, federation.sizes, seed, solver_of(settings))
    start = start_of(design, model, data, federation)
    with Workers(estimator.n_jobs) as workers:
        sites = LocalClients(federation, workers)
        tasks = task.begin_start(
            lambda run: so_far_fitted(design, data, run.server.parameters, run.n_rounds)
        )
        result = run_solver(settings, problem, start, sites, resume_from, tasks)
        parameters = result.server.parameters
        sums = sums_of_sites(model, federation, parameters, problem.task.seed, workers)
        drift = np.sqrt((sites.controls**2).sum(axis=1)) if sites.controls.size else 0.0
    every_drift = np.broadcast_to(drift, len(data.ids))
    fitted = fitted_after(settings, design, data, problem, result, sums, every_drift)
    store(estimator, {}, **fitted, _n_nodes=settings.n_nodes)
    task.end()
    warn_of_fit(settings, problem, result, converged=fitted["converged_"])


def _federation_of(data: ClientRecords, client_weights: ClientWeights) -> Federation:
    """Subjects of all clients, a row each."""
    lengths = data.offsets[1:] - data.offsets[:-1]
    weights = weights_of_clients(lengths, client_weights)
    return Federation(pack(data.subjects), data.offsets, weights, row_keys=data.keys)
