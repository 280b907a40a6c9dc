"""A solver between a server and nodes that exchange nothing but arrays and bytes.

Rounds are those of the simulation: nodes call the clients' half of the solver, and the server its
own. What is called of skfedem here is private and may change; the tests run this file.
"""

import numpy as np

from skfedem._federation import Federation
from skfedem.models.gaussian_mixture import GaussianMixtureModel
from skfedem.models.units import standard_units
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
    """A client: its rows and what it keeps between rounds never leave it."""

    def __init__(self, rows, index):
        self.rows, self.index = rows, index

    def mean(self):
        """First message of the set-up."""
        return self.rows.mean(axis=0)

    def second_moment(self, center):
        """Second message, told the mean of all."""
        apart = self.rows - center
        return apart.T @ apart / len(apart)

    def join(self, solver, problem):
        """Told the solver and the problem, once: model, operator, seed, α and so on."""
        n_clients, n_rows = problem.federation.n_clients, len(self.rows)
        alone = Federation(self.rows, np.array([0, n_rows]), np.ones(1))
        self.alone = problem._replace(federation=alone)
        self.states = solver.init(self.alone, self.alone.vectors.zeros())
        # The place among the clients, whose rows are elsewhere, tells which random numbers to draw.
        offsets = np.where(np.arange(n_clients + 1) > self.index, n_rows, 0)
        federation = Federation(self.rows, offsets, problem.federation.weights)
        self.solver, self.problem = solver, problem._replace(federation=federation)

    def field(self, statistics):
        """h_i(Ŝ_0), which becomes V_i; uncompressed, before the first round."""
        model = self.alone.model
        natural = model.maximization(statistics).natural
        estimate = model.all_rows(self.alone.federation, natural, np.array([0]))
        field = estimate.statistics - model.reference(statistics)
        self.states = self.solver.init(self.alone, field)
        return field[0]

    def answer(self, round_index, outer_loop, statistics):
        """Quant(Δ_i) as bytes, told Ŝ."""
        model = self.problem.model
        parameters = model.maximization(statistics)
        broadcast = Broadcast(
            round_index,
            outer_loop,
            model.reference(statistics),
            parameters.natural,
            message_units_of(self.problem, parameters),
        )
        me = np.array([self.index])
        message, self.states = self.solver.client_half(self.problem, broadcast, me, self.states)
        return self.problem.compressor.encode(message.sent[0])


def set_up(nodes, weights, n_components, operator, **options):
    """Problem in standard units, from two sums over the nodes; ``options`` are further fields."""
    center = sum(w * node.mean() for w, node in zip(weights, nodes, strict=True))
    second = sum(w * node.second_moment(center) for w, node in zip(weights, nodes, strict=True))
    units = standard_units(center, second, "full", reg_covar=1e-6)
    model = GaussianMixtureModel(n_components, "full", units, reg_covar=1e-6)
    omega = operator.omega_for(model.n_statistics)
    nobody = Federation(np.empty((0, len(center))), np.zeros(len(nodes) + 1, dtype=int), weights)
    problem = Problem(model, nobody, operator, omega, **options)
    return problem._replace(control_step=1 / (1 + omega))


def fit(nodes, solver, problem, start, step_size, n_rounds):
    """Server's state after some rounds from Ŝ_0, and how many bytes the nodes sent in these."""
    for node in nodes:
        node.join(solver, problem)
    model, weights, n_bytes = problem.model, problem.federation.weights, 0
    control = weights @ np.array([node.field(start) for node in nodes])
    server = ServerState(0, start, model.maximization(start), control)
    for _ in range(n_rounds):
        told = server.round_index, outer_loop_of(problem, server), server.statistics
        active = active_clients(problem, server.round_index)  # who would answer
        messages = [nodes[client].answer(*told) for client in active]
        n_bytes += sum(map(len, messages))
        decoded = [problem.compressor.decode(data) for data in messages]
        quantized = np.reshape(decoded, (-1, len(start)))
        units = message_units_of(problem, server.parameters)
        if units is not None:
            quantized = units.to_standard(quantized)
        server, _ = server_half(problem, server, Received(weights[active] @ quantized), step_size)
    return server, n_bytes
