"""LeNet-5 on MNIST: FedAvg, FedProx, FedDrop, FedL1 and FedSparse, with their bytes.

100 clients have 300 images each, whose digits follow a Dirichlet(0.3) distribution of their own.
Ten clients take part in each of 120 rounds, with one epoch of minibatches of 50 and a learning rate
of 0.05; the server uses Adam(0.003). With --validation, a sixth of the training images takes the
place of the test images, for choosing settings. Columns of the table, mean and range
over seeds: accuracy of the global model on all test images; mean accuracy of the clients' own
models on 100 test images with their client's distribution; share of the parameters that are pruned;
megabytes from and to the clients.

FedDrop (Caldas et al., "Expanding the reach of federated learning by reducing client resource
requirements", 2018) and FedL1, a group lasso, are baselines, which are only here.

    python examples/benchmarks/lenet.py [--data DATA] [--seeds 5] [--rows NAME ...] [--validation]
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from hard_em import options_and_images
from skfedem.priors import Prior, SpikeSlabPrior
from skfedem.priors._base import kept_differences, total
from skfedem.priors._gates import grouping
from skfedem.torch import FederatedTorchClassifier

SETTINGS = {
    "local_epochs": 1,
    "batch_size": 50,
    "learning_rate_init": 0.05,
    "server_optimizer": "adam",
    "server_learning_rate": 0.003,
    "participation": 10,
    "max_iter": 120,
    "n_jobs": 1,
}
N_CLIENTS, N_IMAGES = 100, 300


def lenet():
    """LeNet-5 for rows of 784 pixels."""
    nn = torch.nn
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


# ---- baselines


class Alive(NamedTuple):
    """Units that are not pruned."""

    alive: Any


@dataclass(frozen=True)
class OfUnits(Prior):
    """Base of priors whose clients leave out units."""

    units: Any = None
    gated = True
    corrects = False

    def for_network(self, network):
        return type(self)(**{**vars(self), "units": grouping(network.groups("units"))})

    def initial(self, centres):
        return super().initial(centres)._replace(gates=Alive(np.ones(self.units.n_groups, bool)))

    def groups(self, shared):
        return shared.gates.alive

    def survivors(self, kept):
        return self.units.survivors(kept)

    def closed_form(self, shared, update, weights):
        return shared.weights + self.direction(shared, update, weights)


@dataclass(frozen=True)
class FedDrop(OfUnits):
    """Each client trains a network without random units; the outputs of the others are scaled."""

    of_maps: float = 0.1
    of_units: float = 0.5

    def _scaled(self, keep):
        rates = np.where(self.units.layers < 2, self.of_maps, self.of_units)
        return self.units.spread(np.float32(keep / (1 - rates)))

    def relaxed(self, shared, local, uniforms):
        rates = np.where(self.units.layers < 2, self.of_maps, self.of_units)
        keep = uniforms >= rates if local.gates is None else local.gates
        return local.parameters * self._scaled(keep), keep

    def step(self, shared, local, gates, gradient, correction, learning_rate):
        scaled = gradient * self._scaled(gates)
        local = super().step(shared, local, gates, scaled, correction, learning_rate)
        return local._replace(gates=gates)

    def update(self, shared, local, uniforms):
        update = super().update(shared, local, uniforms)
        survivors = self.survivors(local.gates)
        return update._replace(kept=local.gates, survivors=survivors)

    def own_parameters(self, shared, local, update):
        return local.parameters * self._scaled(local.gates)

    def direction(self, shared, update, weights):
        return (weights @ kept_differences(update) / total(weights))[None]


@dataclass(frozen=True)
class FedL1(OfUnits):
    """Group lasso on the units: clients and server leave out those whose norm is small."""

    penalty: float = 1e-2
    threshold: float = 3e-3

    def _norms(self, parameters):
        return np.sqrt(self.units.add(parameters**2))

    def proximal(self, shared, local, moved, learning_rate):
        norms = np.maximum(self._norms(moved), 1e-12)
        factors = np.maximum(1 - learning_rate * self.penalty / norms, 0)
        return moved * self.units.spread(factors.astype(moved.dtype))

    def update(self, shared, local, uniforms):
        update = super().update(shared, local, uniforms)
        kept = (self._norms(local.parameters) > self.threshold) & shared.gates.alive
        return update._replace(kept=kept, survivors=self.survivors(kept))

    def own_parameters(self, shared, local, update):
        return np.where(update.survivors, local.parameters, 0)

    def direction(self, shared, update, weights):
        differences = np.where(update.survivors, update.differences, -shared.weights)
        return (weights @ differences / total(weights))[None]

    def after_step(self, shared, update, weights, centres):
        alive = shared.gates.alive & (self._norms(centres[0]) > self.threshold)
        survivors = self.survivors(alive)
        return shared._replace(weights=np.where(survivors, centres, 0), gates=Alive(alive))

    def sent(self, shared):
        return self.survivors(shared.gates.alive)

    def downlink_bytes(self, shared):
        return 4 * int(self.sent(shared).sum()) + -(-len(shared.gates.alive) // 8)


ROWS = {
    "FedAvg": {},
    "FedProx 0.1": {"prior_precision": 0.1},
    "FedDrop .1/.5": {"prior": FedDrop()},
    "FedDrop .1/.3": {"prior": FedDrop(of_units=0.3)},
    "FedL1": {"prior": FedL1()},
    "FedSparse .25": {"prior": SpikeSlabPrior(target_sparsity=0.25)},
    "FedSparse .45": {"prior": SpikeSlabPrior(target_sparsity=0.45)},
    "FedSparse .66": {"prior": SpikeSlabPrior(target_sparsity=0.66)},
}


# ---- data and figures


def split(generator, mixtures, y, n_rows):
    """Rows of clients, whose classes have these shares as long as there are rows of each."""
    pools = [generator.permutation(np.flatnonzero(y == k)).tolist() for k in range(10)]
    clients = []
    for shares in mixtures:
        own = []
        for _ in range(n_rows):
            left = np.array([len(pool) for pool in pools])
            odds = shares * (left > 0)
            odds = odds if odds.sum() > 1e-12 else left
            own.append(pools[generator.choice(10, p=odds / odds.sum())].pop())
        clients.append(np.array(own))
    return clients


def figures(settings, data, seed):
    """Figures of a row of the table for a seed."""
    X, y, X_test, y_test = data
    generator = np.random.default_rng(seed)
    mixtures = generator.dirichlet(np.full(10, 0.3), N_CLIENTS)
    train, test = (
        split(generator, mixtures, of, n)
        for of, n in ((y, N_IMAGES), (y_test, len(y_test) // N_CLIENTS))
    )
    clf = FederatedTorchClassifier(lenet, **SETTINGS, **settings, random_state=seed)
    clf.fit([X[rows] for rows in train], [y[rows] for rows in train])
    own = clf.predict([X_test[rows] for rows in test], personal=True)
    took_part = clf._memory.states.took_part
    hits = [(found == y_test[rows]).mean() for found, rows in zip(own, test, strict=True)]
    sent = {name: clf.history_[f"{name}_bits"].sum() / 8e6 for name in ("uplink", "downlink")}
    if isinstance(clf.prior, FedDrop):  # the server draws the units, and sends the others
        sent["downlink"] = sent["uplink"]
    return {
        "global": clf.score(X_test, y_test),
        "personal": np.mean(np.array(hits)[took_part]),
        "sparsity": clf.sparsity_,
        "up MB": sent["uplink"],
        "down MB": sent["downlink"],
    }


def main():
    options, data = options_and_images(__doc__, n_seeds=5)
    for name in options.rows or ROWS:
        runs = [figures(ROWS[name], data, seed) for seed in range(options.seeds)]
        parts = []
        for figure in runs[0]:
            values = [run[figure] for run in runs]
            digits = 4 if max(values) <= 1 else 1
            low, high = round(min(values), digits), round(max(values), digits)
            parts.append(f"{figure} {np.mean(values):.{digits}f} ({low} to {high})")
        print(f"{name}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
