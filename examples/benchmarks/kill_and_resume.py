"""Does a fit that is killed at random times and resumed equal an uninterrupted fit?

Each trial starts a fit in its own process, kills it (SIGKILL) after a random time, and resumes from
the checkpoint in another process, which may be killed as well, until the fit ends. Its parameters
and history are compared bit for bit with those of an uninterrupted fit.

    python examples/benchmarks/kill_and_resume.py --trials 200
"""

import argparse
import multiprocessing
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from skfedem import FederatedGaussianMixture, FederatedMatrixImputer

KINDS = ("mixture", "imputer")


def federation(kind):
    """Estimator and clients."""
    generator = np.random.default_rng(0)
    federated = {"omega": 1.0, "participation": 0.5, "max_iter": 300, "tol": 0, "random_state": 0}
    if kind == "mixture":
        clients = [generator.normal(3.0 * (k % 2), 1.0, size=(50, 3)) for k in range(20)]
        minibatches = {"solver": "vr_fedem", "batch_size": 5, "step_size": 0.02}
        return FederatedGaussianMixture(3, **minibatches, **federated), clients
    counts = generator.poisson(4.0, size=(40, 30)).astype(float)
    clients = [np.where(generator.random(counts.shape) < 0.3, counts, np.nan) for _ in range(8)]
    return FederatedMatrixImputer(3, family="poisson", **federated), clients


def fit(kind, path):
    """Fit, or go on, and save what was fitted beside the checkpoint."""
    warnings.simplefilter("ignore")
    estimator, clients = federation(kind)
    estimator.set_params(checkpoint=path, checkpoint_every=2)
    estimator.fit(clients, resume_from=path if path.exists() else None)
    fitted = {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and name != "history_" and value is not None
    }
    np.savez(f"{path}.fit.npz", **fitted, **estimator.history_)


def ends(processes, kind, path, seconds=None):
    """Run a fit, kill it after some seconds; return whether it ended by itself."""
    process = processes.Process(target=fit, args=(kind, path))
    process.start()
    process.join(seconds)
    if killed := process.exitcode is None:
        process.kill()
        process.join()
    elif process.exitcode:
        raise RuntimeError(f"a fit failed with exit status {process.exitcode}")
    return not killed


def same(one, other):
    """Whether two files hold the same arrays, bit for bit."""
    with np.load(one) as first, np.load(other) as second:
        return first.files == second.files and all(
            np.array_equal(first[name], second[name], equal_nan=True) for name in first.files
        )


def main():
    """Print how many runs were killed, and how many of them differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--longest", type=float, default=2.0, help="seconds until a kill")
    options = parser.parse_args()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        parser.error("processes are forked, which needs Linux or another Unix system")
    # Processes begin with everything imported.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["skfedem"])
    generator = np.random.default_rng(0)
    n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            n_kills = 0
            whole = Path(folder, f"{kind}.npz")
            ends(processes, kind, whole)
            for trial in range(options.trials // 2):
                path = Path(folder, f"{kind}-{trial}.npz")
                while not ends(processes, kind, path, generator.uniform(0, options.longest)):
                    n_kills += 1
                n_wrong += not same(f"{whole}.fit.npz", f"{path}.fit.npz")
                for file in Path(folder).glob(f"{path.name}*"):
                    file.unlink()
            print(f"{kind}: {options.trials // 2} runs, {n_kills} kills", flush=True)
    print(f"{n_wrong} runs differ from the uninterrupted one")
    return n_wrong > 0


if __name__ == "__main__":
    sys.exit(main())
