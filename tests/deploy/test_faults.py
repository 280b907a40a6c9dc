"""Faults of the network and of processes do not change the fit."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.testing import assert_array_equal

from deployed import tables_of
from deployed_fits import CASES, NOISY, assert_same_fit, mixture
from faults import Faults
from skfedem.deploy import _storage

# Files in memory, if there are such: the disk is what takes time.
FOLDER = next((own for own in ("/dev/shm",) if Path(own).is_dir()), None)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def run_with_faults(case, folder, seed, monkeypatch, *, losses):
    faults = Faults(*case[:2], folder, seed, 0.08, losses=losses, own=case.own, **case.server)
    monkeypatch.setattr(_storage, "synchronise", faults.synchronise)
    faults.run()
    assert sum(faults.counts.values()) >= 60
    # |V - Σ w_i V_i|; statistics of a population are about 100, the others' about 1.
    assert faults.check() < 1e-12
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_faults_leave_the_bits_of_the_simulation(name, monkeypatch):
    case = CASES[name](2)
    with TemporaryDirectory(dir=FOLDER) as folder:
        faults = run_with_faults(case, folder, 1, monkeypatch, losses=False)
        assert_same_fit(faults.server.result(), case.simulated())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_faults_with_losses_keep_the_sum_of_control_variates(name, monkeypatch):
    n_reset = 0
    for seed in (3, 4):
        with TemporaryDirectory(dir=FOLDER) as folder:
            faults = run_with_faults(CASES[name](seed), folder, seed, monkeypatch, losses=True)
            n_reset += sum(own["n_reset"] for own in faults.server.history_)
    assert n_reset >= 1


class Schedules(RuleBasedStateMachine):
    """Any schedule of deliveries, crashes and restored files."""

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory(dir=FOLDER)
        noisy = mixture(1, **NOISY).estimator
        self.faults = Faults(noisy, tables_of(3), self.folder.name, rate=0.0)
        while self.faults.server.question != "round":
            self.faults.step()

    @rule()
    def all_goes_well(self):
        self.faults.step()

    names, numbers = st.sampled_from("abc"), st.integers(0, 10**6)

    @rule(name=names)
    def ask(self, name):
        for asked, request in self.faults.server.open():
            if asked == name:
                self.faults.network.append(("request", name, request, True))

    @precondition(lambda self: self.faults.network)
    @rule(at=numbers, kept=st.booleans(), lost=st.booleans())
    def deliver(self, at, kept, lost):
        network = self.faults.network
        kind, name, data, _ = network[at % len(network)]
        if not kept:
            del network[at % len(network)]
        if lost:
            return
        if kind == "reply":
            self.faults.server.receive(name, data)
        else:
            reply = self.faults.clients[name].answer(data)
            network.append(("reply", name, reply, True))

    @precondition(lambda self: self.faults.network)
    @rule(at=numbers, bit=numbers)
    def damage(self, at, bit):
        kind, name, data, _ = self.faults.network[at % len(self.faults.network)]
        damaged = bytearray(data)
        damaged[bit // 8 % len(data)] ^= 1 << bit % 8
        if kind == "reply":
            assert not self.faults.server.receive(name, bytes(damaged)).used
        else:
            self.faults.clients[name].answer(bytes(damaged))

    @rule()
    def close(self):
        if not self.faults.server.done:
            self.faults.server.close()

    @rule(name=names)
    def client_crashes(self, name):
        self.faults.clients[name] = self.faults.new_client(name)

    @rule()
    def server_crashes(self):
        self.faults.restart_server()

    @rule(name=names)
    def client_is_copied(self, name):
        path = Path(self.folder.name, name, "client")
        if path.exists():
            self.faults.copies[name] = path.read_bytes()

    @precondition(lambda self: self.faults.copies)
    @rule(name=names)
    def client_is_restored(self, name):
        if name in self.faults.copies:
            Path(self.folder.name, name, "client").write_bytes(self.faults.copies[name])
            self.faults.touched.add(name)
            self.client_crashes(name)

    @rule(n_lost=st.integers(1, 3))
    def server_is_restored(self, n_lost):
        self.faults.restore_server(n_lost)

    @invariant()
    def server_knows_control_variates(self):
        """A client that was not restored has the V_i that the server has added up."""
        server = self.faults.server
        remote = getattr(server, "_clients", None)
        if remote is None or not remote.controls.size:
            return
        for number, name in enumerate("abc"):
            client, mark = self.faults.clients[name], server._accepted[number]
            held, prepared = client._held, client._prepared
            if prepared is not None and prepared.mark == mark:
                held = type(held)(*prepared.after)
            if held.mark == mark and held.controls.size:
                assert_array_equal(held.controls[0], remote.controls[number])
            else:
                assert name in self.faults.touched

    def teardown(self):
        self.faults.finish()
        assert self.faults.check() < 1e-12
        self.folder.cleanup()


TestSchedules = pytest.mark.slow(Schedules.TestCase)
TestSchedules.settings = settings(
    max_examples=8, stateful_step_count=50, deadline=None, suppress_health_check=[*HealthCheck]
)
