"""Cells that several observers saw, and what the low-rank model makes of them."""

import numpy as np
import pytest

import literal_imputation as oracle
from skfedem import FederatedMatrixImputer
from skfedem._federation import Federation, offsets_of
from skfedem._parallel import Workers
from skfedem.clients.local import LocalClients
from skfedem.compression import Identity
from skfedem.models.matrix.families import FAMILIES
from skfedem.models.matrix.pooled import Margins, Support
from skfedem.models.matrix.start import low_rank_model, start_run
from skfedem.models.matrix.theta import Cells, Effects
from skfedem.solvers._loop import Options, run
from skfedem.solvers._step_size import automatic_n_inner, automatic_step_size
from skfedem.solvers.base import Problem, Task
from skfedem.solvers.fedem import FEDEM

SHAPE = (14, 9)


PENALTIES = {"gaussian": 1.5, "bernoulli": 0.6, "poisson": 4.0}


def observations(family, overlap, n_clients=5, seed=0):
    """(rows, columns, values, owners); with `overlap`, cells are seen by several, or twice."""
    generator = np.random.default_rng(seed)
    low_rank = generator.standard_normal((SHAPE[0], 2)) @ generator.standard_normal((2, SHAPE[1]))
    theta = 0.5 + 0.6 * generator.standard_normal(SHAPE[0])[:, None] + 0.5 * low_rank
    cells = generator.permutation(SHAPE[0] * SHAPE[1])[:85]
    # Whoever is never seen has no effect in the oracle.
    cells = np.union1d(cells, np.arange(SHAPE[0]) * SHAPE[1] + np.arange(SHAPE[0]) % SHAPE[1])
    if overlap:
        cells = np.concatenate([cells, generator.choice(cells, 60), cells[:4], cells[:4]])
    rows, columns = np.divmod(cells, SHAPE[1])
    mean = oracle.mean(theta, family)[rows, columns]
    if family == "gaussian":
        values = mean + generator.standard_normal(len(cells))
    elif family == "bernoulli":
        values = (generator.random(len(cells)) < mean).astype(float)
        # A row or column with one value only has no best effect.
        first_in_row, first_in_column = (
            np.unique(k, return_index=True)[1] for k in (rows, columns)
        )
        for first, labels in ((first_in_row, rows), (first_in_column, columns)):
            alike = np.array([np.ptp(values[labels == labels[k]]) == 0 for k in first])
            values[first[alike]] = 1 - values[first[alike]]
    else:
        values = generator.poisson(mean).astype(float)
    owners = np.sort(generator.integers(n_clients, size=len(cells)))
    order = generator.permutation(len(cells))
    return rows[order], columns[order], values[order], owners


def federate(rows, columns, values, owners, client_weights="n_samples"):
    """Federation of the observers' cells; what one saw twice is one cell."""
    code = (owners * SHAPE[0] + rows) * SHAPE[1] + columns
    distinct, inverse = np.unique(code, return_inverse=True)
    counts = np.bincount(inverse).astype(float)
    cells = Cells(
        (distinct // SHAPE[1] % SHAPE[0]).astype(np.int32),
        (distinct % SHAPE[1]).astype(np.int32),
        np.bincount(inverse, values) / counts,
        counts,
    )
    lengths = np.bincount(distinct // (SHAPE[0] * SHAPE[1]))
    weights = lengths / lengths.sum()
    if client_weights == "uniform":
        # Of the means over cells, in which a cell seen twice counts twice.
        weights = lengths / np.bincount(distinct // (SHAPE[0] * SHAPE[1]), counts)
        weights /= weights.sum()
    return Federation(cells, offsets_of(lengths), weights)


def model_of_cells(imputer, federation, shape):
    """Model of an imputer, from what the observers send before the first round."""
    with Workers(1) as workers:
        clients, adaptive = LocalClients(federation, workers), imputer.step_size == "auto"
        return low_rank_model(imputer, clients, shape, adaptive)


def problem_of(
    data, family, *, penalty=None, rank=None, effects="both", adaptive=True, compressor=None,
    participation=1.0, batch_size=None, n_inner=None, seed=0, client_weights="n_samples",
):  # fmt: skip
    """Problem of the observers' cells, and their federation."""
    lengths = np.bincount(data[3])
    base = np.bincount(data[3], FAMILIES[family].log_base_measure(data[2]))[lengths > 0]
    federation = federate(*data, client_weights)._replace(log_base_measure=base)
    imputer = FederatedMatrixImputer(
        rank,
        family=family,
        penalty=PENALTIES[family] if penalty is None else penalty,
        effects=effects,
        effects_penalty=0.0,
        step_size="auto" if adaptive else 1.0,
    )
    model = model_of_cells(imputer, federation, SHAPE)
    compressor = Identity() if compressor is None else compressor
    omega = float(np.max(compressor.omega_for(model.message_lengths(federation.sizes))))
    if n_inner is None:
        n_inner = automatic_n_inner(
            federation.n_clients, federation.n_samples, omega, participation
        )
    task = Task(model, compressor, omega, 1 / (1 + omega), batch_size=batch_size, seed=seed)
    return Problem(task, federation.sizes, FEDEM, participation, n_inner), federation


def support_of(rows, columns, shape, counts=None):
    """Cells in the order of their rows, of a matrix whose every row and column was observed."""
    counts = np.ones(len(rows)) if counts is None else counts
    everywhere = Margins(np.ones(shape[0], bool), np.ones(shape[1], bool))
    row_starts = np.searchsorted(rows, np.arange(shape[0] + 1))
    return Support(rows, columns, counts, row_starts, everywhere, shape)


def all_cells(shape, counts=None):
    """Support of a matrix whose every cell was observed."""
    return support_of(*np.divmod(np.arange(np.prod(shape)), shape[1]), shape, counts)


def no_effects(shape, intercept=0.0):
    return Effects(intercept, np.zeros(shape[0]), np.zeros(shape[1]))


def dense(low_rank):
    return low_rank.left * low_rank.singular_values @ low_rank.right.T


def fitted(problem, federation, *, solver=FEDEM, step_size=None, max_iter=3000, tol=0.0):
    """State at the end of a run, with automatic steps unless one is given."""
    is_noisy = problem.task.batch_size is not None and not solver.variance_reduced
    problem = problem._replace(persistent_noise=is_noisy)
    if step_size is None:
        schedule = automatic_step_size(problem)
    else:
        schedule = lambda k: step_size  # noqa: E731
    options = Options(schedule, step_size is None, "field", max_iter, None, tol, "auto")
    with Workers() as workers:
        clients = LocalClients(federation, workers)
        clients.join(solver, problem.task)
        start = start_run(problem.model)
        return run(problem._replace(solver=solver), start, options, clients, lambda row: None)


every_family = pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
