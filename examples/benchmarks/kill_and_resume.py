"""Is a run that is killed at random moments, and resumed, the run that was never killed?

Each trial starts a fit in a process of its own, kills it (SIGKILL) after a random time, goes on
from the checkpoint in another process, which may be killed as well, until the fit ends. Its
parameters and history are compared bit for bit with those of an uninterrupted fit.

    python examples/benchmarks/kill_and_resume.py --trials 200
"""

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FIT = """
import sys, warnings
import numpy as np
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
warnings.simplefilter("ignore")
kind, path, resume = sys.argv[1:]
generator = np.random.default_rng(0)
federated = dict(
    omega=1.0, participation=0.5, max_iter=300, tol=0, random_state=0, checkpoint=path,
    checkpoint_every=2,
)
if kind == "mixture":
    clients = [generator.normal(3.0 * (k % 2), 1.0, size=(50, 3)) for k in range(20)]
    estimator = FederatedGaussianMixture(
        3, solver="vr_fedem", batch_size=5, step_size=0.02, **federated
    )
else:
    counts = generator.poisson(4.0, size=(40, 30)).astype(float)
    clients = [np.where(generator.random(counts.shape) < 0.3, counts, np.nan) for _ in range(8)]
    estimator = FederatedMatrixImputer(3, family="poisson", **federated)
print("ready", flush=True)
estimator.fit(clients, resume_from=path if resume == "yes" else None)
fitted = {
    k: v
    for k, v in vars(estimator).items()
    if k.endswith("_") and k != "history_" and v is not None
}
np.savez(path + ".fit.npz", **fitted, **estimator.history_)
"""


def begin(kind, path):
    resume = "yes" if path.exists() else "no"
    process = subprocess.Popen(
        [sys.executable, "-c", FIT, kind, str(path), resume], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    return process


def finished(process, seconds=None):
    """Wait so long for a process, kill it then; whether it ended by itself."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    process.stdout.close()
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a fit failed with exit status {process.returncode}")
    return process.returncode == 0


def same(one, other):
    with np.load(one) as first, np.load(other) as second:
        return first.files == second.files and all(
            np.array_equal(first[name], second[name], equal_nan=True) for name in first.files
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds until a kill")
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    n_kills = n_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("mixture", "imputer"):
            whole = Path(folder, f"{kind}.npz")
            finished(begin(kind, whole))
            for trial in range(options.trials // 2):
                path = Path(folder, f"{kind}-{trial}.npz")
                while not finished(begin(kind, path), generator.uniform(0, options.longest)):
                    n_kills += 1
                n_wrong += not same(f"{whole}.fit.npz", f"{path}.fit.npz")
                for file in Path(folder).glob(f"{kind}-{trial}.npz*"):
                    file.unlink()
    print(f"{options.trials} runs, {n_kills} kills, {n_wrong} runs that differ")


if __name__ == "__main__":
    main()
