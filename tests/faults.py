"""A deployed fit under faults: a network that loses, repeats, delays, reorders, damages and forges
messages, and processes that crash at any write to the disk or are restored from old files."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from skfedem.deploy import Client, Policy, Server, _storage
from skfedem.deploy._messages import Kind, seal, unseal


class Crash(BaseException):
    """The process dies."""


class Faults:
    """Server and clients in one process, whose disks are folders.

    Parameters
    ----------
    estimator, tables, folder
    rate : float
        Probability of each kind of fault at each opportunity.
    losses : bool
        Whether rounds close without some of the replies, and old files are restored: the fit then
        differs from the simulation's.
    own : dict of lists
        Further arguments of the clients.
    **server
        Further arguments of ``Server``.
    """

    def __init__(
        self, estimator, tables, folder, seed=0, rate=0.05, *, losses=False, own=None, **server
    ):
        self.estimator, self.rate, self.losses = estimator, rate, losses
        self.options, self.own = server, own or {}
        self.folder, self.generator = Path(folder), np.random.default_rng(seed)
        self.tables = dict(zip("abcdefghij", tables, strict=False))
        self.counts, self.copies, self.touched = Counter(), {}, set()
        self.crashes, self.network = 0.0, []
        self.clients = {name: self.new_client(name) for name in self.tables}
        self.server = self.new_server()

    def new_client(self, name):
        policy = Policy(min_rows=1, max_rounds=10**6)
        seed = self.estimator.random_state
        own = {key: each["abcdefghij".index(name)] for key, each in self.own.items()}
        return Client(name, self.tables[name], self.folder / name, seed=seed, policy=policy, **own)

    def new_server(self):
        return Server(self.estimator, [*self.tables], self.folder / "server", **self.options)

    def happens(self, kind, rate=None):
        """Whether a fault is injected."""
        if self.generator.random() >= (self.rate if rate is None else rate):
            return False
        self.counts[kind] += 1
        return True

    # ---- processes

    def synchronise(self, file):
        """In place of fsync: the process may die before or after it."""
        if self.generator.random() < self.crashes:
            raise Crash

    def guarded(self, kind, action):
        """Result of an action of a process, or None if the process dies."""
        self.crashes = self.rate
        try:
            return action()
        except Crash:
            self.counts[f"{kind} crashes"] += 1
            return None
        finally:
            self.crashes = 0.0

    def restart_server(self):
        self.server.stop()
        self.server = self.new_server()

    def answered(self, name, request):
        """Reply of a client, which may die and be started again."""
        reply = self.guarded("client", lambda: self.clients[name].answer(request))
        if reply is None:
            self.clients[name] = self.new_client(name)
        return reply

    def closed(self):
        """Close the phase; the server may die at any write."""
        path = self.folder / "server" / "journal"
        before = path.stat().st_size if path.exists() else 0
        result = self.guarded("server", self.server.close)
        if result is None:
            if path.exists() and self.happens("record cut off", 0.5):
                data = path.read_bytes()  # shorter than before if a record that was cut off went
                size = self.generator.integers(min(before, len(data)), len(data) + 1)
                path.write_bytes(data[:size])
            self.restart_server()
        elif path.exists() and self.happens("server restored one phase back"):
            path.write_bytes(path.read_bytes()[:before])
            self.restart_server()
        elif self.losses and self.happens("server restored further back", self.rate / 3):
            self.restore_server(int(self.generator.integers(2, 5)))

    def restore_server(self, n_lost):
        """Restart the server from a journal without its last records.

        A client that is not asked again before the end stays ahead of the server.
        """
        self.touched |= {*self.tables}
        path = self.folder / "server" / "journal"
        records = _storage.Journal(path).read()
        path.unlink(missing_ok=True)
        journal = _storage.Journal(path)
        for record in records[: max(0, len(records) - n_lost)]:
            journal.append(record)
        self.restart_server()

    def maybe_restore_client(self, name):
        """Restore old files of a client, or lose all."""
        if self.happens("client restored", self.rate / 3) and name in self.copies:
            (self.folder / name / "client").write_bytes(self.copies[name])
            self.touched.add(name)
            self.clients[name] = self.new_client(name)
        if self.happens("client loses its disk", self.rate / 3):
            shutil.rmtree(self.folder / name)
            self.touched.add(name)
            self.clients[name] = self.new_client(name)
        path = self.folder / name / "client"
        if path.exists() and self.generator.random() < 0.2:
            self.copies[name] = path.read_bytes()

    # ---- network

    def send(self, kind, name, data):
        """Put a message on the network, perhaps twice, perhaps damaged, perhaps never."""
        if self.happens(f"{kind} lost"):
            return
        self.network.append((kind, name, data, True))
        if self.happens(f"{kind} repeated"):
            self.network.append((kind, name, data, True))
        for what, damaged in (("flipped", self.flipped), ("cut off", self.cut_off)):
            if self.happens(f"{kind} {what}"):
                self.network.append((kind, name, damaged(data), False))
        if kind == "reply" and self.happens("reply forged"):
            self.network.append((kind, name, self.forged(name, data), False))

    def flipped(self, data):
        at, flipped = int(self.generator.integers(len(data))), bytearray(data)
        flipped[at] ^= 1 << int(self.generator.integers(8))
        return bytes(flipped)

    def cut_off(self, data):
        return data[: int(self.generator.integers(len(data)))]

    def forged(self, name, data):
        """A reply with a valid tag that is not the client's."""
        message = unseal(data)
        body = message.body
        forgeries = [
            message._replace(client=message.client + 1),
            message._replace(phase=message.phase + 1),
            message._replace(run=bytes(8)),
            message._replace(accepted=message.accepted ^ 1),
            message._replace(digest=bytes(16)),
            message._replace(kind=Kind.REFUSAL, body=b"no"),
            message._replace(body=body + bytes(8)),
            message._replace(body=b"\xff" * max(8, len(body))),
        ]
        return seal(forgeries[int(self.generator.integers(len(forgeries)))])

    def deliver(self):
        """Deliver one of the messages on the way, or let it wait."""
        at = int(self.generator.integers(len(self.network)))
        kind, name, data, is_good = self.network[at]
        if self.happens("delayed"):
            return
        del self.network[at]
        if kind == "request":
            reply = self.answered(name, data)
            if reply is not None:
                self.send("reply", name, reply)
            return
        verdict = self.server.receive(name, data)
        assert is_good or not verdict.used, "a damaged or forged reply was used"

    # ---- a run

    def step(self):
        """Ask those who are missing, deliver some messages, and close the phase if possible."""
        waiting = {*self.server.waiting}
        for name, request in self.server.open():
            if name in waiting:
                self.send("request", name, request)
        for _ in range(2 * len(self.network)):
            if not self.network:
                break
            self.deliver()
        if self.losses:
            self.maybe_restore_client(str(self.generator.choice([*self.tables])))
        if self.server.done:
            return
        if not self.server.waiting or (self.losses and self.happens("deadline", 0.3)):
            self.closed()

    def run(self, most=10**5):
        """Run until the fit has ended; finish without faults."""
        for _ in range(most):
            if self.server.done:
                break
            self.step()
        self.finish()

    def finish(self):
        """End the run without further faults: all clients hear what was accepted."""
        self.rate, self.losses, self.network = 0.0, False, []
        while not self.server.done or self.server.waiting:
            self.step()
            if self.server.waiting and not self.server.done:
                self.step()  # those that start afresh
                self.server.close()  # without those who took part in a later phase already

    def check(self):
        """V = Σ w_i V_i, and the V_i of the server are those in the files of clients.

        A client that was restored, or lost its disk, after its last round has another one.
        """
        remote = self.server._clients
        for number, name in enumerate(self.clients):
            held = self.new_client(name)._held
            if held.mark == self.server._accepted[number]:
                own = remote.controls[remote.layout.indices(np.array([number]))]
                np.testing.assert_array_equal(held.controls.ravel(), own.ravel())
            else:
                assert name in self.touched
        memory = self.server.result()._memory  # after the last round: states may get lost later
        remote.controls = memory.controls
        return float(np.abs(memory.server.control - remote.control()).max())
