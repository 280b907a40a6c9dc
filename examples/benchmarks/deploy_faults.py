"""Does a deployed fit survive faults, hostile bytes and killed processes?

``faults``: the network loses, repeats, delays, reorders, damages and forges messages, processes die
at writes to the disk, and old files are restored. Without losses of state, the fit has to be that
of the simulation, bit for bit; with them, V = Σ w_i V_i has to hold. ``hostile``: classes of bytes
that nobody should send, and random ones, for the server and for a client, in each kind of phase.
``kills``: a server and three clients as processes over HTTP, which are killed by SIGKILL at random
times. ``rounds``: how long a round takes then without kills.

    python examples/benchmarks/deploy_faults.py faults [--n 10000]
    python examples/benchmarks/deploy_faults.py hostile [--n 500] [--n-random 100000]
    python examples/benchmarks/deploy_faults.py kills [--n 200]
    python examples/benchmarks/deploy_faults.py rounds
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from deployed_fits import CASES, KILLED, assert_same_fit
from faults import Faults
from hostile import ASKED, REPLIES, REQUESTS, deployment_at
from kills import Processes
from skfedem.deploy import _storage
from skfedem.deploy._messages import Kind, unseal


def is_same(got, want):
    """Whether fits are equal in all bits."""
    try:
        assert_same_fit(got, want)
    except AssertionError:
        return False
    return True


def faults(options):
    """Inject faults until there are enough."""
    counts, n_runs, n_same, n_reset, largest, seed = Counter(), 0, 0, 0, 0.0, 0
    while sum(counts.values()) < options.n:
        case, losses = [*CASES.values()][seed // 2 % len(CASES)](seed), seed % 2 == 1
        with TemporaryDirectory() as folder:
            run = Faults(*case[:2], folder, seed, 0.05, losses=losses, own=case.own, **case.server)
            _storage.synchronise = run.synchronise
            run.run()
            got, largest = run.server.result(), max(largest, run.check())
            counts += run.counts
            n_reset += sum(own["n_reset"] for own in run.server.history_)
            if not losses:
                n_runs, n_same = n_runs + 1, n_same + is_same(got, case.simulated())
        seed += 1
    for kind, count in counts.most_common():
        print(f"{count:6d} {kind}")
    print(f"{sum(counts.values()):6d} faults in {seed} fits of 4 clients: {', '.join(CASES)}")
    print(f"fits without lost states that equal the simulation: {n_same} of {n_runs}")
    print(f"clients that started afresh: {n_reset}; largest |V - sum w_i V_i|: {largest:.2g}")


def hostile(options):
    """Send bytes of each class in each kind of phase."""
    generator, used, changed, n = np.random.default_rng(0), 0, 0, 0
    for case, phase in ASKED:
        with TemporaryDirectory() as folder:
            deployment = deployment_at(case, phase, Path(folder))
            server, client = deployment.server, deployment.clients["a"]
            before, request = server.open(), server.request("a")
            reply, file = client.answer(request), Path(folder, "a", "client")
            state = file.read_bytes()
            noise = [lambda generator, data: generator.bytes(generator.integers(400))]
            noise *= options.n_random // (2 * len(ASKED))
            for make in [*REPLIES.values()] * -(-options.n // len(ASKED)) + noise:
                data = make(generator, reply)
                used, n = used + (data != reply and server.receive("a", data).used), n + 1
            for make in [*REQUESTS.values()] * -(-options.n // len(ASKED)) + noise:
                used += unseal(client.answer(make(generator, request))).kind != Kind.REFUSAL
                n += 1
            changed += server.open() != before or file.read_bytes() != state
            server.stop()
    print(
        f"{n} messages of {len(REPLIES)} classes of replies, {len(REQUESTS)} of requests, noise, "
        f"in {len(ASKED)} phases"
    )
    print(f"used or answered: {used}; phases in which a state changed: {changed}")


def kills(options):
    """Kill processes of fits of each kind at random times."""
    generator, n_killed, kinds, n_fits, n_same = (
        np.random.default_rng(0),
        Counter(),
        Counter(),
        0,
        0,
    )
    while n_killed.total() < options.n:
        name = [*KILLED][n_fits % len(KILLED)]
        case = KILLED[name](n_fits, n_clients=3, max_iter=300)
        with TemporaryDirectory() as folder:
            processes = Processes(Path(folder), case)
            while n_killed.total() < options.n:
                time.sleep(generator.uniform(0.05, 1.5))
                victim = str(generator.choice(["server", "a", "b", "c"]))
                if not processes.kill(victim):
                    break
                n_killed[victim], kinds[name] = n_killed[victim] + 1, kinds[name] + 1
            got = processes.result(600)
            processes.stop()
        n_fits, n_same = n_fits + 1, n_same + is_same(got, case.simulated())
    print(f"{n_killed.total()} kills {dict(n_killed)} in {n_fits} fits of 300 rounds {dict(kinds)}")
    print(f"fits that equal the simulation: {n_same} of {n_fits}")


def rounds(options):
    """Time of a round of three processes with d = 5, with every write on the disk."""
    generator = np.random.default_rng(0)
    case = KILLED["mixture"](0, n_clients=3, max_iter=300)
    case = case._replace(tables=[generator.normal(k, 1, (1000, 5)) for k in range(3)])
    with TemporaryDirectory() as folder:
        processes, times, size = Processes(Path(folder), case), [], 0
        while processes.running["server"].is_alive():
            if processes.n_phases() > size:
                size = processes.n_phases()
                times.append(time.perf_counter())
            time.sleep(0.0005)
        processes.result(60)
        processes.stop()
    taken = 1000 * np.diff(times)[10:]
    print(f"median of {len(taken)} phases: {np.median(taken):.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["faults", "hostile", "kills", "rounds"])
    parser.add_argument("--n", type=int)
    parser.add_argument("--n-random", type=int, default=100_000)
    options = parser.parse_args()
    if options.n is None:
        options.n = {"faults": 10_000, "hostile": 500, "kills": 200}.get(options.what)
    warnings.simplefilter("ignore")
    globals()[options.what](options)


if __name__ == "__main__":
    main()
