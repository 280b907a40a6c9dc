"""Clients that answer at a socket, and fits whose messages something else carries."""

import os
import stat
import subprocess
import sys
import time
from multiprocessing.connection import Client as connection_to
from socket import AF_UNIX, socket
from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import ANYTHING, tables_of
from skfedem import FederatedGaussianMixture
from skfedem.deploy import Client, Server, _phases, relay
from skfedem.deploy._phases import run_phases

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.skipif(os.name == "nt", reason="Windows has no Unix sockets"),
]
MIXTURE = FederatedGaussianMixture(2, omega=1.0, max_iter=4, tol=0, random_state=0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(_phases, "_LOOK", 0.002)
    monkeypatch.setattr(_phases, "_AGAIN", 0.01)


def client_of(name, table, folder):
    return Client(name, table, folder / f"{name}-state", seed=0, policy=ANYTHING)


class Sockets:
    """Transport over the sockets of clients, some of which fail."""

    def __init__(self, folder):
        self.folder, self.replies, self.fails = folder, [], set()

    def send(self, name, request, seconds):
        reply = b"" if name in self.fails else relay.ask(request, self.folder / name)
        self.replies.append((name, request, reply))

    def received(self):
        replies, self.replies = self.replies, []
        return replies


@pytest.fixture
def listening(tmp_path):
    """Clients in threads, and their tables."""
    tables = dict(zip("abc", tables_of(), strict=True))
    threads = []
    for name, table in tables.items():
        client = client_of(name, table, tmp_path)
        options = {"report": lambda line: None}
        threads.append(
            Thread(target=relay.listen, args=(client, tmp_path / name), kwargs=options, daemon=True)
        )
        threads[-1].start()
    while not all((tmp_path / name).exists() for name in tables):
        time.sleep(0.01)
    yield tables
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_fit_over_sockets_is_that_of_the_simulation(listening, tmp_path):
    server, lines = Server(MIXTURE, [*listening], tmp_path / "server"), []
    got = run_phases(server, Sockets(tmp_path), 60.0, lines.append)
    want = MIXTURE.fit([*listening.values()])
    assert_array_equal(got.means_, want.means_)
    for column, values in want.history_.items():
        assert_array_equal(got.history_[column], values, err_msg=column)
    controls = [client_of(*own, tmp_path)._held.controls[0] for own in listening.items()]
    assert_array_equal(controls, want._memory.controls)
    assert lines[0].startswith("plan: 3 of 3 replies, ")
    assert [line for line in lines if line.startswith("round 4: 3 of 3 replies, ")]


def test_rounds_close_without_a_client_whose_requests_fail(listening, tmp_path):
    server, sockets, lines = (
        Server(MIXTURE, [*listening], tmp_path / "server", min_replies=2),
        Sockets(tmp_path),
        [],
    )

    def report(line):
        lines.append(line)
        if line.startswith("field"):  # the set-up is over
            sockets.fails.add("b")
        if line.startswith("round 4"):
            sockets.fails.clear()

    got = run_phases(server, sockets, 0.3, report)
    assert np.isfinite(got.means_).all()
    used = [own["n_used"] for own in server.history_ if own["question"] == "round"]
    assert used == [2, 2, 2, 2]
    assert "reply of b not used: no reply" in lines


def test_a_client_that_lost_its_state_starts_afresh_while_another_is_away(listening, tmp_path):
    server, sockets, lines = (
        Server(MIXTURE, [*listening], tmp_path / "server", min_replies=2),
        Sockets(tmp_path),
        [],
    )
    afresh = client_of("a", listening["a"], tmp_path / "another disk")

    class Restored(Sockets):
        def send(self, name, request, seconds):
            if name == "a" and lines and lines[-1].startswith(("field", "round")):
                self.replies.append((name, request, afresh.answer(request)))
            else:
                super().send(name, request, seconds)

    sockets = Restored(tmp_path)

    def report(line):
        lines.append(line)
        if line.startswith("field"):
            sockets.fails.add("b")
        if line.startswith("round 1"):
            sockets.fails.clear()

    run_phases(server, sockets, 0.3, report)
    first = next(own for own in server.history_ if own["question"] == "round")
    assert (first["n_used"], first["n_reset"]) == (2, 1)


def test_phases_without_enough_replies_stay_open(tmp_path):
    server, lines = Server(MIXTURE, ["a"], tmp_path / "server"), []

    class Nobody:
        def send(self, name, request, seconds):
            assert seconds == 0.05

        def received(self):
            if len(lines) == 2:
                raise InterruptedError
            return []

    with pytest.raises(InterruptedError):
        run_phases(server, Nobody(), 0.05, lines.append)
    assert lines == ["plan: waiting for a"] * 2
    server.stop()


def test_only_the_user_may_connect_and_who_leaves_does_no_harm(listening, tmp_path):
    for name in listening:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        connection_to(os.fspath(tmp_path / name)).close()
    with connection_to(os.fspath(tmp_path / "a")) as connection:
        connection.send_bytes(b"noise")  # and no wait for the answer
    server = Server(MIXTURE, [*listening], tmp_path / "server")
    assert server.receive("a", relay.ask(dict(server.open())["a"], tmp_path / "a")).used
    run_phases(server, Sockets(tmp_path), 60.0, lambda line: None)


def test_a_socket_that_was_left_is_replaced_and_an_absent_client_is_an_error(tmp_path):
    with socket(AF_UNIX) as left:
        left.bind(f"{tmp_path}/a")
    with pytest.raises(OSError):
        relay.ask(b"", tmp_path / "a")
    with pytest.raises(OSError):
        relay.ask(b"", tmp_path / "b")
    client = client_of("a", tables_of()[0], tmp_path)
    thread = Thread(target=relay.listen, args=(client, tmp_path / "a"), daemon=True)
    thread.start()
    server = Server(MIXTURE, ["a"], tmp_path / "server")
    run_phases(server, Sockets(tmp_path), 60.0, lambda line: None)
    thread.join(5)
    assert not thread.is_alive()


def test_passing_messages_on_takes_no_numpy():
    code = """
import sys
import skfedem.deploy.flower, skfedem.deploy.nvflare
assert not {"numpy", "scipy", "sklearn"} & {*sys.modules}
"""
    without = "import sys; sys.modules.update(dict.fromkeys(['flwr', 'nvflare']))\n"
    subprocess.run([sys.executable, "-c", without + code], check=True)


def test_what_needs_a_framework_says_so(monkeypatch):
    from skfedem.deploy import nvflare

    monkeypatch.setitem(sys.modules, "nvflare", None)
    monkeypatch.setattr(nvflare, "Controller", object)
    for build in (nvflare.Relay, lambda: nvflare.FitController("")):
        with pytest.raises(ImportError, match="requires nvflare, which is not installed"):
            build()


def test_a_file_is_not_taken_for_a_socket(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    client, said = client_of("a", tables_of()[0], tmp_path), []

    def listen():
        with pytest.raises(OSError):
            relay.listen(client, tmp_path / "data.csv")
        said.append("refused")

    thread = Thread(target=listen, daemon=True)
    thread.start()
    thread.join(5)
    assert said == ["refused"]
    assert (tmp_path / "data.csv").read_text() == "1,2"
