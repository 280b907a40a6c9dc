"""What displays are drawn of: small data of clients and made-up histories."""

import numpy as np

NAN = np.nan
SHAPE = (14, 24)
COLUMNS = [f"{2000 + month // 12}-{month % 12 + 1:02d}" for month in range(SHAPE[1])]
# Sums of the same few hundred numbers in another order.
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


def rows_of_clients():
    generator = np.random.default_rng(0)
    return [generator.normal(center, 1, size=(30, 2)) for center in (-3, 0, 3)]


def counts_of_clients(n_clients=3):
    """Matrices with holes; some cells have several observers, column 5 and row 3 have none."""
    generator = np.random.default_rng(1)
    means = np.exp(generator.normal(1, 1, (SHAPE[0], 1)) + generator.normal(0, 0.3, SHAPE[1]))
    clients = []
    for _ in range(n_clients):
        table = generator.poisson(means).astype(float)
        table[generator.random(SHAPE) < 0.7] = NAN
        table[:, 5] = table[3] = NAN
        clients.append(table)
    return clients


def pooled_means(clients):
    """Mean of the observations of each cell, NaN without one, by plain loops."""
    pooled = np.full(SHAPE, NAN)
    for cell in np.ndindex(SHAPE):
        seen = [table[cell] for table in clients if not np.isnan(table[cell])]
        if seen:
            pooled[cell] = sum(seen) / len(seen)
    return pooled


def made_history(at, values, **others):
    """History with a series that has these values at these epochs."""
    at = np.asarray(at, dtype=float)
    return {"round": np.arange(len(at)), "epoch": at, "loss": np.asarray(values), **others}


def points(line):
    return np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
