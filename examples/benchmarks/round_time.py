"""Time of a round of FedAvg in this package, in bare NumPy, and in Flower's simulation.

Logistic regression with 784 features and ten classes: ten clients of 512 rows take eight steps
each, on minibatches of 64 rows. There is one thread, but Flower's clients are processes, as many
as there are cores. The last row needs ``pip install "flwr[simulation]"``, and is left out without.

    FLWR_TELEMETRY_ENABLED=0 python examples/benchmarks/round_time.py [--rounds 40]
"""

import argparse
import time
from functools import cache
from importlib.util import find_spec

import numpy as np
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from skfedem import FederatedMLPClassifier

N_CLIENTS, N_ROWS, BATCH, RATE = 10, 512, 64, 0.05


@cache
def rows_of(client):
    """Rows of a client, and their classes as rows of zeros and a one."""
    generator = np.random.default_rng(client)
    X = generator.random((N_ROWS, 784), dtype=np.float32)
    return X, np.eye(10, dtype=np.float32)[generator.integers(10, size=N_ROWS)]


def trained(client, round_number, coefficients, intercepts):
    """Parameters after an epoch of minibatches."""
    X, classes = rows_of(client)
    order = np.random.default_rng((client, round_number)).permutation(N_ROWS)
    for own in order.reshape(-1, BATCH):
        error = softmax(X[own] @ coefficients + intercepts, axis=1) - classes[own]
        coefficients = coefficients - RATE / BATCH * (X[own].T @ error)
        intercepts = intercepts - RATE / BATCH * error.sum(axis=0)
    return coefficients, intercepts


def start():
    """Parameters before the first round."""
    return np.zeros((784, 10), np.float32), np.zeros(10, np.float32)


def this_package(n_rounds):
    """Seconds of a round of ``FederatedMLPClassifier``, with those of the set-up in the first."""
    tables, classes = zip(*map(rows_of, range(N_CLIENTS)), strict=True)
    targets = [own.argmax(axis=1) for own in classes]
    clf = FederatedMLPClassifier((), batch_size=BATCH, learning_rate_init=RATE, random_state=0)
    begin = time.perf_counter()
    clf.set_params(max_iter=n_rounds).fit([*tables], targets)
    return (time.perf_counter() - begin) / n_rounds


def bare_numpy(n_rounds):
    """Seconds of a round of ``trained``, and means over the clients."""
    parameters = start()
    begin = time.perf_counter()
    for round_number in range(n_rounds):
        found = [trained(client, round_number, *parameters) for client in range(N_CLIENTS)]
        parameters = [np.mean(own, axis=0) for own in zip(*found, strict=True)]
    return (time.perf_counter() - begin) / n_rounds


def flower(n_rounds):
    """Median of the seconds between the ends of two rounds, with ``trained`` at the clients."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app, ends = ClientApp(), ServerApp(), []

    @client_app.train()
    def train(message, context):
        from round_time import trained  # in a process of its own, which keeps its rows

        received = message.content["arrays"].to_numpy_ndarrays()
        number = message.content["config"]["server-round"]
        with threadpool_limits(1):
            found = trained(int(context.node_config["partition-id"]), number, *received)
        content = {
            "arrays": ArrayRecord([*found]),
            "metrics": MetricRecord({"num-examples": N_ROWS}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server_app.main()
    def main(grid, context):
        FedAvg(fraction_evaluate=0.0, min_available_nodes=N_CLIENTS).start(
            grid,
            initial_arrays=ArrayRecord([*start()]),
            num_rounds=n_rounds,
            evaluate_fn=lambda number, arrays: ends.append(time.perf_counter()),
        )

    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, N_CLIENTS, backend_config=backend)
    return float(np.median(np.diff(ends)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    n_rounds = parser.parse_args().rounds
    for own in (this_package, bare_numpy, flower):
        if own is flower and not (find_spec("flwr") and find_spec("ray")):
            print("flower: left out, flwr[simulation] is not installed")
            continue
        with threadpool_limits(1):
            seconds = [own(n_rounds) for _ in range(1 if own is flower else 5)]
        low, high = 1e3 * min(seconds), 1e3 * max(seconds)
        print(f"{own.__name__}: {1e3 * np.median(seconds):.1f} ms ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
