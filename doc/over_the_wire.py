"""FedEM between a server and nodes that exchange nothing but arrays and bytes.

Rounds in which all take part, on all rows. What is called of skfedem here is private and may
change; the tests run this file.
"""

import numpy as np

from skfedem._federation import Federation
from skfedem.models.gaussian_mixture import GaussianMixtureModel
from skfedem.models.units import standard_units

ALL = np.array([0])  # a node is a federation of one client


class Node:
    """A client: its rows and its control variate never leave it."""

    def __init__(self, rows, seed):
        self.rows = rows
        self.random = np.random.default_rng(seed)

    def mean(self):
        """First message of the set-up."""
        return self.rows.mean(axis=0)

    def second_moment(self, center):
        """Second message, told the mean of all."""
        apart = self.rows - center
        return apart.T @ apart / len(apart)

    def join(self, model, operator):
        """Told the model's units and the operator, once."""
        self.model, self.operator = model, operator
        self.federation = Federation(self.rows, np.array([0, len(self.rows)]), np.ones(1))
        self.control = np.zeros((1, model.n_statistics))
        self.control_step = 1 / (1 + operator.omega_for(model.n_statistics))

    def answer(self, statistics):
        """Quant(s̄_i(T(Ŝ)) - Ŝ - V_i) as bytes, told Ŝ; lines 5-9 of Algorithm 1."""
        parameters = self.model.maximization(statistics)
        units = self.model.message_units(parameters)
        expected = self.model.all_rows(self.federation, parameters.natural, ALL).statistics
        innovation = units.to_components(expected - self.control - statistics)
        sent = self.operator.compress(innovation, self.random.random(innovation.shape))
        self.control = self.control + self.control_step * units.to_standard(sent)
        return self.operator.encode(sent[0])


def set_up(nodes, weights, n_components, operator):
    """Model in standard units, from two sums over the nodes."""
    center = sum(w * node.mean() for w, node in zip(weights, nodes, strict=True))
    second = sum(w * node.second_moment(center) for w, node in zip(weights, nodes, strict=True))
    units = standard_units(center, second, "full", reg_covar=1e-6)
    model = GaussianMixtureModel(n_components, "full", units, reg_covar=1e-6)
    for node in nodes:
        node.join(model, operator)
    return model


def fit(nodes, weights, model, operator, start, step_size, n_rounds):
    """Ŝ after some rounds, and how many bytes the nodes sent; lines 13-17 of Algorithm 1."""
    statistics, control = start, np.zeros(model.n_statistics)
    control_step = 1 / (1 + operator.omega_for(model.n_statistics))
    n_bytes = 0
    for _ in range(n_rounds):
        units = model.message_units(model.maximization(statistics))
        messages = [node.answer(statistics) for node in nodes]
        n_bytes += sum(map(len, messages))
        decoded = np.array([operator.decode(data) for data in messages])
        received = weights @ units.to_standard(decoded)
        field = control + received
        statistics = model.server_step(statistics, field, step_size, exact=False).statistics
        control = control + control_step * received
    return statistics, n_bytes
