"""Clients that come late, or come back after rounds without them."""

from contextlib import suppress
from threading import Thread

import numpy as np
import pytest

from deployed import ANYTHING, Deployment
from deployed_fits import CASES, assert_same_fit
from skfedem.deploy import Client, Server
from skfedem.deploy.http import HTTPServer, join

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
KINDS = ["FedEM", "network", "efforts", "population"]


def deployed(case, folder):
    return Deployment(case.estimator, case.tables, folder, own=case.own, **case.server)


def with_all(case):
    """The same fit, in which all clients take part in each round."""
    case.estimator.set_params(participation=1.0)
    return case


def gap(deployment, fitted):
    """|V - Σ w_i V_i|, with the V_i of the clients' files."""
    remote = deployment.server._clients
    remote.controls = np.concatenate(
        [
            deployment.client(name)._held.controls.reshape(-1, *remote.controls.shape[1:])
            for name in deployment.tables
        ]
    )
    return np.abs(fitted._memory.server.control - remote.control()).max()


@pytest.mark.parametrize("name", KINDS)
def test_the_set_up_waits_for_a_client_that_starts_late(name, tmp_path):
    case = CASES[name](1)
    deployment = deployed(case, tmp_path)
    late = {**deployment.clients}.pop("d")
    requests = deployment.server.open()
    for _ in range(3):  # deadlines
        deployment.phase("d")
        assert not deployment.server.close()
    assert deployment.server.question == "plan"
    assert deployment.server.waiting == ["d"]
    assert deployment.server.open() == requests
    assert not (tmp_path / "d" / "client").exists()
    verdict = deployment.server.receive("d", late.answer(deployment.server.request("d")))
    assert verdict.used and deployment.server.close()
    assert_same_fit(deployment.run().end(), case.simulated())


@pytest.mark.parametrize("name", KINDS)
def test_rounds_go_on_without_a_client_that_comes_back(name, tmp_path):
    case = with_all(CASES[name](1))
    deployment = deployed(case, tmp_path)
    server = deployment.until("round").server
    n_absent = 0
    while n_absent < 3:  # gone after the set-up
        if server.question == "round":
            n_absent += 1
        deployment.phase("d")
        assert server.close()
    file = tmp_path / "d" / "client"
    before = file.read_bytes()
    deployment.clients["d"] = deployment.client("d")
    deployment.run()
    fitted = deployment.end()
    assert fitted.history_["n_active"].tolist() == [0, *[3] * 3, *[4] * (fitted.n_iter_ - 3)]
    assert sum(own["n_reset"] for own in server.history_) == 0
    assert file.read_bytes() != before
    assert gap(deployment, fitted) < 1e-12


class Gone(BaseException):
    """A client disappears."""


class Leaving(Client):
    """Disappears after a round."""

    def answer(self, request):
        if self._held.n_rounds:
            raise Gone
        return super().answer(request)


def take_part(client, url):
    with suppress(Gone):
        join(client, url, report=lambda line: None)


def fitted_with_late(case, folder, first, line, late):
    """Fit over HTTP by clients at first, and one that starts when the server reports a line."""
    lines, seed, threads = [], case.estimator.random_state, []
    server = Server(case.estimator, [*"abcd"], folder / "server", **case.server)

    def start(name, kind=Client):
        table = case.tables["abcd".index(name)]
        client = kind(name, table, folder / name, seed=seed, policy=ANYTHING)
        arguments = (client, own.url)
        threads.append(Thread(target=take_part, args=arguments, name=name, daemon=True))
        threads[-1].start()

    def report(said):
        lines.append(said)
        is_away = not any(own.name == late and own.is_alive() for own in threads)
        if line in said and is_away and own.timeout < 1:
            own.timeout = 60.0  # from now on, nobody misses a deadline
            start(late)

    with HTTPServer(server, timeout=0.2, report=report) as own:
        for name, kind in first.items():
            start(name, kind)
        fitted = own.run()
        for thread in threads:
            thread.join(10)
    return fitted, server, lines


def test_over_http_the_set_up_waits(tmp_path):
    case, first = CASES["FedEM"](1), dict.fromkeys("abc", Client)
    fitted, _, lines = fitted_with_late(case, tmp_path, first, "plan: waiting for d", "d")
    assert lines[0].startswith("plan: waiting for") and "d" in lines[0]
    assert_same_fit(fitted, case.simulated())


def test_over_http_a_client_comes_back(tmp_path):
    case = with_all(CASES["FedEM"](1))
    first = {**dict.fromkeys("abc", Client), "d": Leaving}
    fitted, server, _ = fitted_with_late(case, tmp_path, first, "3 of 4 replies", "d")
    n_active = fitted.history_["n_active"][1:]
    assert n_active.min() < 4 and n_active[-1] == 4
    assert sum(own["n_reset"] for own in server.history_) == 0
    memory = fitted._memory
    assert np.abs(memory.server.control - memory.weights @ memory.controls).max() < 1e-12
