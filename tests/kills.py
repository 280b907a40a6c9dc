"""A fit by processes over HTTP, which are killed at random times and started again."""

import json
import os
import socket
import time
from multiprocessing import get_context

import joblib
import numpy as np

from skfedem._serialization import from_bytes

# Processes start from one that has imported everything.
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["skfedem.deploy.__main__"])


def command(arguments, folder, output):
    """What a terminal runs, in a process of its own."""
    from skfedem.deploy.__main__ import main

    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    main(arguments)


def plan_of(case, roster, port):
    """Plan of a fit, in TOML: its lines look like JSON."""
    defaults = type(case.estimator)().get_params()
    estimator = {"class": type(case.estimator).__name__}
    for name, value in case.estimator.get_params().items():
        if repr(value) != repr(defaults[name]):
            estimator[name] = value
    server = {"roster": roster, "port": port, "timeout": 120, **case.server}
    lines = []
    for section, options in (("estimator", estimator), ("server", server)):
        lines += [f"[{section}]", *(f"{key} = {json.dumps(own)}" for key, own in options.items())]
    return "\n".join(lines)


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


class Processes:
    """A server and its clients as processes, in a folder.

    Parameters
    ----------
    folder : Path
    case : Case
    """

    def __init__(self, folder, case):
        self.folder, port = folder, free_port()
        tables = dict(zip("abcd", case.tables, strict=False))
        (folder / "plan.toml").write_text(plan_of(case, [*tables], port))
        own = ["--server", f"http://127.0.0.1:{port}", "--max-rounds", "1000000", "--min-rows", "1"]
        own += ["--seed", str(case.estimator.random_state)]
        self.commands = {"server": ["serve", "plan.toml"]}
        for name, rows in tables.items():
            if isinstance(rows, np.ndarray):
                np.savetxt(folder / f"{name}.csv", rows, delimiter=",", fmt="%.17g")
            else:
                rows.to_csv(folder / f"{name}.csv", index=False)
            self.commands[name] = ["join", "--name", name, "--data", f"{name}.csv", *own]
        self.running = {}
        for name in self.commands:
            self.start(name)

    def start(self, name):
        """Start a process, again if need be; its output is appended to a file."""
        arguments = self.commands[name], self.folder, f"{name}.out"
        self.running[name] = _CONTEXT.Process(target=command, args=arguments)
        self.running[name].start()

    def kill(self, name):
        """Kill a process at once, unless it has ended; whether it was killed."""
        process = self.running[name]
        if not process.is_alive():
            return False
        process.kill()
        process.join()
        if not self.has_heard(name):  # else, it would wait for another fit
            self.start(name)
        return True

    def has_heard(self, name):
        """Whether a client has stored that the fit has ended."""
        path = self.folder / f"{name}-state" / "client"
        return path.exists() and from_bytes(path.read_bytes())[2]

    def n_phases(self):
        """Size of the journal, which grows with each phase."""
        path = self.folder / "server" / "journal"
        return path.stat().st_size if path.exists() else 0

    def result(self, seconds):
        """The fitted estimator, when all processes have ended."""
        end = time.monotonic() + seconds
        for name, process in self.running.items():
            process.join(max(0.1, end - time.monotonic()))
            output = (self.folder / f"{name}.out").read_text()
            assert process.exitcode == 0 or self.has_heard(name), (name, output[-2000:])
        return joblib.load(self.folder / "server" / "result.joblib")

    def stop(self):
        """Kill all that still run."""
        for process in self.running.values():
            process.kill()
            process.join()
            process.close()
