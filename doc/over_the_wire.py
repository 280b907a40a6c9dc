"""A solver for a server and nodes that only exchange arrays and bytes.

The rounds are those of the simulation: nodes call the clients' half of the solver, the server calls
its own half. This file uses private functions of skfedem, which may change; the tests run it.
"""

import numpy as np

from skfedem._federation import Federation
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel
from skfedem.models.mixture.units import standard_units
from skfedem.solvers._base import (
    Broadcast,
    Problem,
    Received,
    ServerState,
    message_units_of,
    outer_loop_of,
    server_half,
)
from skfedem.solvers._loop import active_clients


class Node:
    """A client, whose rows and states never leave it."""

    def __init__(self, rows, index):
        self.rows, self.index = rows, index

    def mean(self):
        """First message of the set-up."""
        return self.rows.mean(axis=0)

    def second_moment(self, center):
        """Second message of the set-up, given the mean of all rows."""
        centered = self.rows - center
        return centered.T @ centered / len(centered)

    def join(self, solver, problem):
        """Receive the solver and the problem: model, operator, seed, α and so on."""
        n_clients, n_rows = problem.federation.n_clients, len(self.rows)
        alone = Federation(self.rows, np.array([0, n_rows]), np.ones(1))
        self.alone = problem._replace(federation=alone)
        self.states = solver.init(self.alone, self.alone.vectors.zeros())
        # The random numbers depend on the position among the clients, whose rows are elsewhere.
        offsets = np.where(np.arange(n_clients + 1) > self.index, n_rows, 0)
        federation = Federation(self.rows, offsets, problem.federation.weights)
        self.solver, self.problem = solver, problem._replace(federation=federation)

    def field(self, statistics):
        """Initial V_i, the field h_i(Ŝ_0), which is sent uncompressed before the first round."""
        model = self.alone.model
        parameters = model.maximization(statistics)
        estimate = model.all_rows(self.alone.federation, parameters, np.array([0]))
        field = estimate.statistics - model.reference(statistics)
        self.states = self.solver.init(self.alone, field)
        return field[0]

    def answer(self, round_index, outer_loop, statistics):
        """Quant(Δ_i) as bytes, given Ŝ."""
        model = self.problem.model
        parameters = model.maximization(statistics)
        broadcast = Broadcast(
            round_index,
            outer_loop,
            model.reference(statistics),
            parameters,
            message_units_of(self.problem, parameters),
        )
        me = np.array([self.index])
        message, self.states = self.solver.client_half(self.problem, broadcast, me, self.states)
        return self.problem.compressor.encode(message.sent[0])


def set_up(nodes, weights, n_components, operator, **options):
    """Problem in standard units, from two sums over the nodes; ``options`` are its other fields."""
    center = sum(w * node.mean() for w, node in zip(weights, nodes, strict=True))
    second = sum(w * node.second_moment(center) for w, node in zip(weights, nodes, strict=True))
    units = standard_units(center, second, "full", reg_covar=1e-6)
    model = GaussianMixtureModel(n_components, "full", units, reg_covar=1e-6)
    omega = operator.omega_for(model.n_statistics)
    nobody = Federation(np.empty((0, len(center))), np.zeros(len(nodes) + 1, dtype=int), weights)
    problem = Problem(model, nobody, operator, omega, **options)
    return problem._replace(control_step=1 / (1 + omega))


def fit(nodes, solver, problem, start, step_size, n_rounds):
    """State of the server after some rounds from Ŝ_0, and the number of bytes that nodes sent."""
    for node in nodes:
        node.join(solver, problem)
    model, weights, n_bytes = problem.model, problem.federation.weights, 0
    control = weights @ np.array([node.field(start) for node in nodes])
    server = ServerState(0, start, model.maximization(start), control)
    for _ in range(n_rounds):
        broadcast = server.round_index, outer_loop_of(problem, server), server.statistics
        active = active_clients(problem, server.round_index)  # those that happen to answer
        messages = [nodes[client].answer(*broadcast) for client in active]
        n_bytes += sum(map(len, messages))
        decoded = [problem.compressor.decode(data, len(start)) for data in messages]
        quantized = np.reshape(decoded, (-1, len(start)))
        units = message_units_of(problem, server.parameters)
        if units is not None:
            quantized = units.to_standard(quantized)
        server, _ = server_half(problem, server, Received(weights[active] @ quantized), step_size)
    return server, n_bytes
