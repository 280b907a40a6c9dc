"""Deployed fits over HTTP: threads and processes, certificates, deadlines, strangers."""

import http.client
import re
import shutil
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import ANYTHING, tables_of
from deployed_fits import KILLED, assert_same_fit
from kills import Processes, free_port
from skfedem import FederatedGaussianMixture
from skfedem._serialization import from_bytes
from skfedem.deploy import Client, Server
from skfedem.deploy import http as over_http
from skfedem.deploy._messages import Kind, seal, unseal
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
                    args=(client, served.url),
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
    monkeypatch.setattr(over_http, "_FAREWELL", 0.5)
    answer = Client.answer

    def silent(self, request):
        """One client disappears after the set-up."""
        if self.name == "b" and from_bytes(unseal(request).body)["ask"] == "round":
            raise Gone
        return answer(self, request)

    monkeypatch.setattr(Client, "answer", silent)
    # On a slow machine, deadlines pass before the others have answered.
    fitted, lines = fitted_over_http(tmp_path, timeout=0.1, min_replies=2)
    assert fitted.history_["n_active"].tolist() == [0, *[2] * 8]
    assert re.fullmatch("end: .*b did not hear that the fit has ended", lines[-1])


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


def test_a_refusal_is_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(over_http, "_REFUSED", 0.01)
    lines, said = [], []
    server = Server(mixture_of(), ["a"], tmp_path / "server")
    client = Patient("a", np.zeros((5, 2)), tmp_path / "a")  # fewer rows than its policy wants
    with HTTPServer(server, report=lines.append) as served:
        take_part(client, served.url, report=said.append)
    server.stop()
    reason = "policy: the table has less than 10 rows"
    assert server.faults_ == {"refused by the client": 3}
    assert lines == [f"reply of a not used: refused by the client: {reason}"]
    assert said == [f"refused: {reason}"]
    assert (tmp_path / "a" / "log.txt").read_text().count("refusal") == 1


# Clears the terminal, and begins a line.
FORGED = "\x1b[2J\x9b2J\nround 10: 3 of 3 replies \u202e\u2028"
SHOWN = "?[2J?2J?round 10: 3 of 3 replies ??"


class Forging(Server):
    """Says what forges lines."""

    def receive(self, name, data):
        verdict = super().receive(name, data)
        return verdict._replace(used=False, reason=verdict.reason + FORGED)


def test_the_other_side_cannot_forge_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(over_http, "_POLL", 0.1)
    lines, said = [], []
    server = Server(mixture_of(), ["a"], tmp_path / "server")
    client = Client("a", tables_of()[0], tmp_path / "a")
    reply = unseal(client.answer(server.request("a")))
    with HTTPServer(server, report=lines.append) as served:
        served.exchange("a", seal(reply._replace(kind=Kind.REFUSAL, body=FORGED.encode())))
    server.stop()
    assert lines == [f"reply of a not used: refused by the client: {SHOWN}"]
    server = Forging(mixture_of(), ["a"], tmp_path / "other")
    client = Client("a", tables_of()[0], tmp_path / "b")

    def report(line):
        said.append(line)
        raise Gone

    with HTTPServer(server, report=lambda line: None) as served:
        take_part(client, served.url, report=report)
    server.stop()
    assert said == [f"reply not used: {SHOWN}"]


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


class Connection:
    """Shows a certificate."""

    def __init__(self, *subject):
        self.subject = subject

    def getpeercert(self):
        return {"subject": self.subject}


def test_the_common_name_may_stand_beside_others():
    unit, name = ("organizationalUnitName", "x"), ("commonName", "a")
    assert over_http._common_name(Connection((unit, name))) == "a"
    assert over_http._common_name(Connection((unit,), (name,))) == "a"
    assert over_http._common_name(Connection((unit, unit))) is None


def test_addresses_and_certificates_have_to_match(tmp_path):
    client = Client("a", tables_of()[0], tmp_path)
    for url in ("https://localhost:1", "ftp://localhost:1", "localhost:1"):
        with pytest.raises(ValueError, match="Expected an address with https and certificates"):
            join(client, url)


PAGE = Path(__file__).parents[2] / "doc" / "deployment.rst"
# One that is valid no more, and one of another authority.
OTHERS = """
openssl verify -x509_strict -CAfile ca.pem a.pem server.pem  # as Python 3.13 and later do
openssl x509 -req -in a.csr -CA ca.pem -CAkey ca.key -days -1 -out expired.pem || rm expired.pem
mv ca.pem first.pem
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj "/CN=other"
sign other
mv ca.pem second.pem
mv first.pem ca.pem
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Function from a name to its ``Certificates``, as the page on deployment makes them."""
    if shutil.which("openssl") is None or not PAGE.exists():
        pytest.skip("openssl and the documentation make the certificates")
    folder = tmp_path_factory.mktemp("certificates")
    (block,) = re.findall(r"\n\n(   openssl req -x509.*?)\n\n\S", PAGE.read_text(), re.DOTALL)
    script = "set -e\n" + block + OTHERS
    subprocess.run(["bash", "-c", script], check=True, cwd=folder, capture_output=True)

    def made(name, key=None, authority="ca"):
        own = (folder / file for file in (f"{name}.pem", f"{key or name}.key", f"{authority}.pem"))
        return Certificates(*own)

    return made


@pytest.mark.slow
def test_certificates_of_both_sides_are_checked(tmp_path, certificates):
    got, _ = fitted_over_http(tmp_path, certificates=certificates)
    assert_array_equal(got.means_, mixture_of().fit(tables_of()).means_)
    server = Server(mixture_of(), ["a", "b"], tmp_path / "other")
    own = certificates("server")
    with HTTPServer(server, certificates=own, report=lambda line: None) as served:
        # Somebody without a certificate.
        port = int(served.url.rpartition(":")[2])
        context = ssl.create_default_context(cafile=own.authority)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.request("POST", "/a", b"")
            connection.getresponse()
        connection.close()
        # Somebody who speaks no TLS.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.request("POST", "/a", b"")
            connection.getresponse()
        connection.close()
    server.stop()


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (("other", "other"), "that the server accepts, got its refusal: unknown ca"),
        (("expired", "a"), "that the server accepts, got its refusal: certificate expired"),
        (("a", "a", "second"), "of the server .* got another: self-signed certificate in"),
        (("a",), "of the server .* got another: Hostname mismatch, .* 'localhost'"),
        (("b",), "the name of a client, got 'a': the certificate has another name"),
        (("a", "b"), "a certificate, its private key, .*key values mismatch"),
        (("ca", "a", "a"), "a certificate, its private key, .*key values mismatch"),
    ],
)
def test_a_client_with_a_wrong_certificate_ends(own, said, tmp_path, certificates):
    if own[0] == "expired" and not certificates("expired").certificate.exists():
        pytest.skip("this openssl signs no certificates of the past")
    server = Server(mixture_of(), ["a", "b"], tmp_path / "server")
    client, options = Client("a", tables_of()[0], tmp_path / "a"), {"report": lambda line: None}
    with HTTPServer(server, certificates=certificates("server"), **options) as served:
        url = served.url.replace("127.0.0.1", "localhost" if "localhost" in said else "127.0.0.1")
        for _ in range(5):  # whatever arrives first
            with pytest.raises(ValueError, match=f"Expected .*{said}"):
                join(client, url, certificates=certificates(*own), **options)
    server.stop()


def test_names_and_servers_without_tls_are_told_apart(tmp_path, certificates):
    server = Server(mixture_of(), ["a", "b"], tmp_path / "server")
    client, options = Client("z", tables_of()[0], tmp_path / "z"), {"report": lambda line: None}
    with HTTPServer(server, **options) as served:
        with pytest.raises(ValueError, match="the name of a client, got 'z': the roster has no"):
            join(client, served.url, **options)
        url = served.url.replace("http", "https")
        with pytest.raises(ValueError, match="Expected a server with TLS, got another: "):
            join(client, url, certificates=certificates("a"), **options)
    server.stop()


def test_a_server_that_is_away_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(over_http, "_AGAIN", 0.01)
    lines, url = [], f"http://127.0.0.1:{free_port()}"
    client = Client("a", tables_of()[0], tmp_path / "a")
    options = {"report": lines.append}
    thread = Thread(target=join, args=(client, url), kwargs=options, daemon=True)
    thread.start()
    while not lines:
        time.sleep(0.01)
    assert re.fullmatch(
        rf"no answer of the server at {url} \(.*refused.*\), trying again", lines[0]
    )
    server = Server(mixture_of(), ["a"], tmp_path / "server")
    with HTTPServer(server, port=int(url.rpartition(":")[2]), report=lambda line: None) as served:
        served.run()
        thread.join(10)
    assert lines[1:] == ["the fit has ended"]


def test_an_address_in_use_is_an_error(served, tmp_path):
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(OSError, match=f"Expected a free address, got 127.0.0.1:{port} "):
        HTTPServer(served.server, port=port)


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
