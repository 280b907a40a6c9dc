"""Deployed fits in one process, without faults."""

import numpy as np

from skfedem.deploy import Client, Policy, Server

ANYTHING = Policy(
    min_rows=1, max_rounds=10**6, allow_init=("kmeans", "k-means++", "random", "random_from_data")
)


def tables_of(n_clients=3, d=2, seed=0, n_rows=15):
    """Rows of some clients around two centres, unequally shared."""
    generator = np.random.default_rng(seed)
    return [generator.normal(4 * (k % 2), 1, (n_rows + 3 * k, d)) for k in range(n_clients)]


class Deployment:
    """A server and clients whose messages all arrive.

    ``own`` are further arguments of the clients: lists with one for each.
    """

    def __init__(
        self,
        estimator,
        tables,
        folder,
        *,
        seed="as the estimator",
        policy=ANYTHING,
        own=None,
        **server,
    ):
        self.estimator, self.folder, self.options = estimator, folder, server
        self.tables = dict(zip("abcdefghij", tables, strict=False))
        self.own = own or {}
        self.seed = estimator.random_state if seed == "as the estimator" else seed
        self.policy = policy
        self.clients = {name: self.client(name) for name in self.tables}
        self.server = self.new_server()
        self.payloads = []

    def client(self, name):
        keys = self.options.get("keys") or {}
        return Client(
            name,
            self.tables[name],
            self.folder / name,
            seed=self.seed,
            policy=self.policy,
            key=keys.get(name, b""),
            **{key: each["abcdefghij".index(name)] for key, each in self.own.items()},
        )

    def new_server(self):
        return Server(self.estimator, [*self.tables], self.folder / "server", **self.options)

    def phase(self, *absent):
        """Ask all who are missing, except those who are absent; the verdicts."""
        waiting = {*self.server.waiting} - {*absent}
        verdicts = {}
        for name, request in self.server.open():
            if name in waiting:
                verdicts[name] = self.server.receive(name, self.clients[name].answer(request))
        return verdicts

    def run(self, n_phases=10**6):
        """Run phases until the fit ends; its result."""
        for _ in range(n_phases):
            if self.server.done:
                break
            verdicts = self.phase()
            assert all(own.used for own in verdicts.values()), verdicts
            assert self.server.close()
        return self

    def until(self, question):
        """Run phases until this question is open."""
        while self.server.question != question:
            self.run(1)
        return self

    def end(self):
        """Tell clients that the fit has ended; the result."""
        self.phase()
        assert not self.server.waiting
        return self.server.result()

    def controls(self):
        """V_i as the clients have them on their disks."""
        return np.concatenate([self.client(name)._held.controls for name in self.tables])
