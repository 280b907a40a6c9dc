"""The list of priors, and tiny problems for hard EM.

A new prior gets the whole of ``priors/test_contract.py`` and ``solvers/test_hard_em.py`` by one row
here.
"""

import numpy as np

from skfedem._federation import Federation, offsets_of
from skfedem._parallel import Workers
from skfedem.models.perceptron import Perceptron
from skfedem.priors import GaussianPrior, LaplacePrior, MixturePrior, SpikeSlabPrior
from skfedem.solvers._local_training import Training
from skfedem.solvers.hard_em import (
    Task,
    active_clients,
    initial_server,
    initial_states,
    one_round,
)

PRIORS = {
    "FedAvg": GaussianPrior(),
    "FedProx": GaussianPrior(0.5),
    "median": LaplacePrior(),
    "Laplace": LaplacePrior(0.3),
    "ensemble": MixturePrior(2, precision=2.0),
    "one of an ensemble": MixturePrior(1, precision=0.5),
    "FedSparse": SpikeSlabPrior(warmup_rounds=0, l0_penalty=0.01),
    "FedSparse of features": SpikeSlabPrior(
        warmup_rounds=1, l0_penalty=0.02, gates="features", target_sparsity=0.3, precision=0.1
    ),
    "FedSparse of weights": SpikeSlabPrior(
        warmup_rounds=0, l0_penalty=0.05, gates="weights", cross_entropy=0.01
    ),
}
MODEL = Perceptron((3, 4, 2), "tanh")
# More and fewer rows than a minibatch, and a single one.
LENGTHS = (9, 4, 17, 1, 6, 11)


def bound(prior, model=MODEL):
    """Prior for the groups of a model."""
    if not prior.gated:
        return prior
    kind = prior.gates if prior.gates != "auto" else "units" if len(model.sizes) > 2 else "features"
    return prior.for_groups(model.groups(kind))


def federation(lengths=LENGTHS, n_features=3, n_classes=2, seed=0, weights=None):
    """Rows of unlike clients, and their classes."""
    generator = np.random.default_rng(seed)
    shifts = np.repeat(generator.normal(size=(len(lengths), n_features)), lengths, axis=0)
    rows = generator.normal(size=shifts.shape) + shifts
    targets = (rows.sum(axis=1) > 0).astype(int) + (n_classes > 2) * (rows[:, 0] > 0)
    offsets, sizes = offsets_of(lengths), np.array(lengths)
    weights = sizes / sizes.sum() if weights is None else np.asarray(weights)
    return Federation(rows, offsets, weights), targets


def task(prior=PRIORS["FedAvg"], model=MODEL, data=None, **settings):
    """Task whose messages are not rounded to 32 bits, unless told so."""
    rows, targets = federation(n_classes=max(2, model.sizes[-1])) if data is None else data
    chosen = {"local_epochs": 2, "batch_size": 5, "learning_rate": 0.1, "seed": 0}
    training = {name: settings.pop(name, value) for name, value in chosen.items()}
    settings = {"message_type": np.float64, **settings}
    return Task(rows, Training(model, targets, **training), bound(prior, model), **settings)


def begin(problem, centres=None):
    """Server's and clients' states before the first round."""
    if centres is None:
        first = problem.training.model.initial(problem.training.seed)
        centres = np.tile(first, (problem.prior.n_models, 1))
    return initial_server(problem, centres), initial_states(problem, np.float64)


def rounds(problem, n_rounds, state=None, n_jobs=1):
    """Yield the server's and clients' states and the summary of each round."""
    server, states = begin(problem) if state is None else state
    with Workers(n_jobs) as workers:
        for _ in range(n_rounds):
            active = active_clients(problem, server.round_index)
            server, states, info = one_round(problem, server, states, active, workers)
            yield server, states, info


def last(problem, n_rounds, **kwargs):
    """States after some rounds."""
    *_, outcome = rounds(problem, n_rounds, **kwargs)
    return outcome
