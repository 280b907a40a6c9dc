"""Deployed fits over HTTP: threads and processes, certificates, deadlines, strangers."""

import http.client
import shutil
import ssl
import subprocess
import time
from contextlib import suppress
from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import ANYTHING, tables_of
from deployed_fits import KILLED, assert_same_fit
from kills import Processes
from skfedem import FederatedGaussianMixture
from skfedem.deploy import Client, Server
from skfedem.deploy import http as over_http
from skfedem.deploy.http import Certificates, HTTPServer, join

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def mixture_of(**parameters):
    return FederatedGaussianMixture(2, omega=1.0, max_iter=8, random_state=0, **parameters)


class Gone(BaseException):
    """A client disappears."""


def take_part(*arguments, **options):
    with suppress(Gone):
        join(*arguments, **options)


def fitted_over_http(folder, names="abc", tables=None, timeout=60.0, certificates=None, **server):
    """Fit by clients in threads; the result, and what the server reported."""
    lines, own = [], dict(zip("abc", tables_of(), strict=True))
    server = Server(mixture_of(), [*own], folder / "server", **server)
    threads = []
    with HTTPServer(
        server,
        timeout=timeout,
        certificates=certificates and certificates("server"),
        report=lines.append,
    ) as served:
        for name in names:
            client = Client(name, own[name], folder / name, seed=0, policy=ANYTHING)
            options = {"certificates": certificates and certificates(name)}
            threads.append(
                Thread(
                    target=take_part,
                    args=(client, served.url.replace("127.0.0.1", "localhost")),
                    kwargs={**options, "report": lambda line: None},
                    daemon=True,
                )
            )
            threads[-1].start()
        fitted = served.run()
        for thread in threads:
            thread.join(10)
    return fitted, lines


def test_threads_fit_what_is_simulated(tmp_path):
    got, lines = fitted_over_http(tmp_path)
    want = mixture_of().fit(tables_of())
    assert_array_equal(got.means_, want.means_)
    for name, column in want.history_.items():
        assert_array_equal(got.history_[name], column, err_msg=name)
    assert lines[0].startswith("plan: 3 of 3 replies, ")


def test_a_round_closes_at_its_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(over_http, "_FAREWELL", 0.1)
    answer = Client.answer

    def silent(self, request):
        """One client disappears after the set-up."""
        if self.name == "b" and self._held.n_rounds:
            raise Gone
        return answer(self, request)

    monkeypatch.setattr(Client, "answer", silent)
    fitted, lines = fitted_over_http(tmp_path, timeout=0.1)
    assert fitted.history_["n_active"].tolist() == [0, 3, *[2] * 7]
    assert "end: b did not hear that the fit has ended" in lines


def test_clients_hear_that_a_fit_failed(tmp_path):
    server = Server(mixture_of(reg_covar=0.0), ["a"], tmp_path / "server")
    client = Client("a", np.zeros((20, 2)), tmp_path / "a")
    with HTTPServer(server, report=lambda line: None) as served:
        options = {"report": lambda line: None}
        thread = Thread(target=join, args=(client, served.url), kwargs=options, daemon=True)
        thread.start()
        with pytest.raises(ValueError, match="positive definite"):
            served.run()
        thread.join(10)
    assert client.over


class Patient(Client):
    """Answers three times."""

    n_answers = 0

    def answer(self, request):
        self.n_answers += 1
        if self.n_answers > 3:
            raise Gone
        return super().answer(request)


def test_a_refusal_is_reported_once(tmp_path):
    lines, said = [], []
    server = Server(mixture_of(), ["a"], tmp_path / "server")
    client = Patient("a", np.zeros((5, 2)), tmp_path / "a")  # fewer rows than its policy wants
    with HTTPServer(server, report=lines.append) as served:
        take_part(client, served.url, report=said.append)
    server.stop()
    reason = "refused by the client: policy: the table has less than 10 rows"
    assert server.faults_ == {"refused by the client": 3}
    assert lines == [f"reply of a not used: {reason}"]
    assert said == [f"reply not used: {reason}"]


@pytest.fixture
def served(tmp_path):
    server = Server(mixture_of(), ["a", "b"], tmp_path / "server")
    with HTTPServer(server, report=lambda line: None) as own:
        yield own
    server.stop()


def test_strangers_are_turned_away(served):
    host, port = served.url.removeprefix("http://").split(":")
    assert host == "127.0.0.1"
    before = served.server.open()

    def status(method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    assert status("GET", "/a") == 501
    assert status("POST", "/nobody", b"x") == 404
    assert status("POST", "/", b"x") == 404
    assert status("POST", "/../a", b"x") == 404
    assert status("POST", "/a", b"", {"Content-Length": "1000000"}) == 413  # before it is read
    assert status("POST", "/a", b"", {"Content-Length": "-5"}) == 413
    assert status("POST", "/a", b"noise") == 200  # with a verdict, and the request
    assert served.server.open() == before
    assert served.server.faults_ == {"size": 1}


def test_addresses_and_certificates_have_to_match(tmp_path):
    client = Client("a", tables_of()[0], tmp_path)
    for url in ("https://localhost:1", "ftp://localhost:1", "localhost:1"):
        with pytest.raises(ValueError, match="Expected an address with https and certificates"):
            join(client, url)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Function from a name to its ``Certificates``, signed by one authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    new_key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")

    def made(name):
        if not (folder / f"{name}.pem").exists():
            (folder / "names").write_text("subjectAltName=DNS:localhost")
            openssl(
                "req",
                *new_key[:3],
                "-keyout",
                f"{name}.key",
                "-out",
                f"{name}.csr",
                "-subj",
                f"/CN={name}",
            )
            openssl(
                "x509",
                "-req",
                "-in",
                f"{name}.csr",
                "-CA",
                "ca.pem",
                "-CAkey",
                "ca.key",
                "-CAcreateserial",
                "-days",
                "2",
                "-extfile",
                "names",
                "-out",
                f"{name}.pem",
            )
        return Certificates(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")

    return made


@pytest.mark.slow
def test_certificates_of_both_sides_are_checked(tmp_path, certificates):
    got, _ = fitted_over_http(tmp_path, certificates=certificates)
    assert_array_equal(got.means_, mixture_of().fit(tables_of()).means_)
    server = Server(mixture_of(), ["a", "b"], tmp_path / "other")
    own = certificates("server")
    with HTTPServer(server, certificates=own, report=lambda line: None) as served:
        url = served.url.replace("127.0.0.1", "localhost")
        # Somebody with the certificate of another client.
        connection = over_http._connection(url, certificates("b"))
        with pytest.raises(http.client.HTTPException, match="403 the certificate has another name"):
            over_http._posted(connection, "a", b"")
        connection.close()
        # Somebody without one.
        port = int(url.rpartition(":")[2])
        context = ssl.create_default_context(cafile=own.authority)
        connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.request("POST", "/a", b"")
            connection.getresponse()
        connection.close()
        # Somebody who speaks no TLS.
        connection = http.client.HTTPConnection("localhost", port, timeout=10)
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.request("POST", "/a", b"")
            connection.getresponse()
        connection.close()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_killed_processes_fit_what_is_simulated(name, tmp_path):
    case = KILLED[name](0, n_clients=3, max_iter=60)
    processes = Processes(tmp_path, case)
    n_killed = 0
    try:
        for victim in ("server", "a"):
            before = processes.n_phases()
            for _ in range(600):  # until something has happened since the last kill
                if processes.n_phases() > before:
                    break
                time.sleep(0.05)
            n_killed += processes.kill(victim)
        got = processes.result(90)
    finally:
        processes.stop()
    assert n_killed == 2
    assert_same_fit(got, case.simulated())
