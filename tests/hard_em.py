"""The list of priors, and tiny problems for hard EM.

A new prior gets the whole of ``priors/test_contract.py`` and ``solvers/test_hard_em.py`` by one row
here.
"""

from typing import NamedTuple

import numpy as np

from skfedem._federation import Federation, offsets_of
from skfedem._parallel import Workers
from skfedem._rows import LabelledRows
from skfedem.clients.local import LocalClients
from skfedem.compression import Identity
from skfedem.models.perceptron import Perceptron
from skfedem.priors import GaussianPrior, LaplacePrior, MixturePrior, SpikeSlabPrior
from skfedem.solvers._loop import open_round
from skfedem.solvers._state import first_server
from skfedem.solvers.base import Problem, Task
from skfedem.solvers.hard_em import HierarchicalModel, ServerOptimizer, hard_em, init, start_at

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
# Weights of clients that are not their shares of the rows.
WEIGHTS = np.array([0.1, 0.3, 0.2, 0.05, 0.15, 0.2])


def federation(lengths=LENGTHS, n_features=3, n_classes=2, seed=0, weights=None):
    """Rows of unlike clients, with their classes."""
    generator = np.random.default_rng(seed)
    shifts = np.repeat(generator.normal(size=(len(lengths), n_features)), lengths, axis=0)
    rows = generator.normal(size=shifts.shape) + shifts
    targets = (rows.sum(axis=1) > 0).astype(int) + (n_classes > 2) * (rows[:, 0] > 0)
    offsets, sizes = offsets_of(lengths), np.array(lengths)
    weights = sizes / sizes.sum() if weights is None else np.asarray(weights)
    return Federation(LabelledRows(rows, targets), offsets, weights)


class Case(NamedTuple):
    """A problem, and the rows of its clients."""

    problem: Problem
    federation: Federation

    @property
    def task(self):
        """What server and clients agree on."""
        return self.problem.task

    @property
    def prior(self):
        """The prior, for the groups of the network."""
        return self.problem.model.prior


def case_of(prior=PRIORS["FedAvg"], network=MODEL, data=None, **settings):
    """Case whose messages are not rounded to 32 bits, unless told so."""
    data = federation(n_classes=max(2, network.sizes[-1])) if data is None else data
    settings = {"local_epochs": 2, "batch_size": 5, "learning_rate": 0.1, "seed": 0, **settings}
    settings = {"message_type": "float64", "compressor": Identity(), "control_step": 0, **settings}
    of_model, of_task, of_server = (
        {name: settings.pop(name) for name in names if name in settings}
        for names in (
            ("local_epochs", "learning_rate", "control_variates", "keep_local", "message_type"),
            ("batch_size", "seed", "compressor", "control_step"),
            ("server_optimizer", "server_learning_rate", "server_momentum"),
        )
    )
    model = HierarchicalModel(network, prior, **of_model)
    omega = of_task["compressor"].omega_for(network.n_parameters)
    has_controls = model.control_variates or of_task["control_step"] > 0
    task = Task(model, omega=omega, has_controls=has_controls, **of_task)
    names = {"server_optimizer": "name"}
    optimizer = {names.get(k, k.removeprefix("server_")): v for k, v in of_server.items()}
    solver = hard_em(ServerOptimizer(**optimizer))
    return Case(Problem(task, data.sizes, solver, random_estimates=True, **settings), data)


class Kept(NamedTuple):
    """What all clients keep."""

    parameters: np.ndarray
    took_part: np.ndarray
    controls: np.ndarray


class Summary(NamedTuple):
    """Summary of a round."""

    loss: float
    n_active: int
    n_rows: int
    uplink_bytes: int
    downlink_bytes: int


def begin(case, centres=None):
    """Server's and clients' states before the first round."""
    model = case.problem.model
    if centres is None:
        first = model.network.initial(case.task.seed)
        centres = np.tile(first, (case.prior.n_models, 1))
    server = first_server(case.problem, start_at(model, centres))
    states = init(case.task, case.federation)
    shape = case.federation.n_clients, model.n_statistics
    return server, Kept(*states, np.zeros(shape if case.task.has_controls else 0))


def rounds(case, n_rounds, state=None, n_jobs=1, places=LocalClients):
    """Yield the server's and clients' states and the summary of each round."""
    problem, federation = case
    server, states = begin(case) if state is None else state
    with Workers(n_jobs) as workers:
        clients = places(federation, workers)
        clients.join(problem.solver, problem.task)
        *own, controls = (field.copy() for field in states)
        clients.restore({"controls": controls, "states": type(clients.states)(*own)})
        for _ in range(n_rounds):
            broadcast, active = open_round(problem, server)
            bits = problem.model.downlink_bits(problem.sizes, active, server.parameters)
            got = clients.round(broadcast, active)
            server, outcome = problem.solver.server_half(problem, server, got, 1.0)
            clients.commit(broadcast.round_index)
            told = got.n_active, got.n_expectations, got.n_bytes, bits // 8
            kept = (np.array(field) for field in (*clients.states, clients.controls))
            yield server, Kept(*kept), Summary(outcome.loss, *told)


def last(case, n_rounds, **kwargs):
    """States after some rounds."""
    *_, outcome = rounds(case, n_rounds, **kwargs)
    return outcome
