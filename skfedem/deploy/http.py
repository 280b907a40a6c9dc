"""Server and clients over HTTP, with TLS if certificates are given; Python's standard library only.

A client posts its last reply to ``/name``, and gets the next request when there is one for it.
Only the server listens; clients need no open port.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from .._typing import FilePath
from ._client import Client
from ._messages import printable
from ._server import Server

# Seconds that a client's post waits for the next request, and that a connection may be silent.
_POLL = 20.0
_SILENCE = 60.0
# Seconds until a client tries again if the server is away, or does not use its reply, and until it
# answers a question again that it has refused.
_AGAIN = 0.5
_REFUSED = 5.0
# Header with the verdict on the reply that was posted.
_VERDICT = "Skfedem-Verdict"
# Seconds in which clients can hear that the fit has ended.
_FAREWELL = 30.0


class Certificates(NamedTuple):
    """Files in PEM format for TLS in which both sides show certificates.

    Attributes
    ----------
    certificate, private_key : path-like
        Of this side. The common name of a client's certificate is its name in the roster.
    authority : path-like
        Certificates that have to have signed that of the other side.
    """

    certificate: FilePath
    private_key: FilePath
    authority: FilePath

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """TLS 1.2 or later; the other side needs a certificate, too."""
        for path in self:
            Path(path).read_bytes()  # errors of ssl do not name the file
        try:
            context = ssl.create_default_context(purpose, cafile=self.authority)
            context.load_cert_chain(self.certificate, self.private_key)
        except ssl.SSLError as error:
            raise ValueError(
                "Expected a certificate, its private key, and an authority in PEM format, got "
                f"{', '.join(map(str, self))} ({_cause(error)})."
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class HTTPServer:
    """Serves a ``Server`` over HTTP, from a thread, until it is closed; a context manager.

    Parameters
    ----------
    server : Server
    host : str, default="127.0.0.1"
        Address to listen at; by default only this machine can connect.
    port : int, default=0
        0 for any free port, see ``url``.
    timeout : float, default=60.0
        Seconds after which a round closes with the replies that have come.
    certificates : Certificates, default=None
        For TLS; None for HTTP without encryption.
    report : callable, default=print
        Called with lines on the progress.
    """

    def __init__(
        self,
        server: Server,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        timeout: float = 60.0,
        certificates: Certificates | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        self.server, self.timeout, self.report = server, timeout, report
        self.changed = Condition()
        self.is_tls = certificates is not None
        self._refusals: dict[str, str] = {}  # last reason by client, which is reported once
        context = certificates and certificates.context(ssl.Purpose.CLIENT_AUTH)
        handler = type("Handler", (_Handler,), {"owner": self})
        try:
            self._http = _Listener((host, port), handler)
        except OSError as error:
            raise OSError(f"Expected a free address, got {host}:{port} ({error}).") from error
        if context is not None:
            # Without a handshake, which would let a silent client block all others.
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = Thread(target=self._http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Address for clients."""
        host, port = self._http.server_address[:2]
        return f"http{'s' * self.is_tls}://{host!s}:{port}"

    def __enter__(self) -> HTTPServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._http.shutdown()
        self._http.server_close()

    def run(self) -> Any:
        """Close phases until the fit has ended, and clients know; its result."""
        try:
            while not self.server.done:
                self._run_phase()
        finally:
            if self.server.done:  # also if the fit failed
                self._say_goodbye()
        return self.server.result()

    def _run_phase(self) -> None:
        """Wait for replies until all have come, or the deadline has; close the phase."""
        server, start = self.server, time.monotonic()
        question, n_asked = server.question, len(server.open())
        with self.changed:
            self.changed.wait_for(lambda: not server.waiting, self.timeout)
            missing = server.waiting
            try:
                is_closed = server.close()
            finally:
                self.changed.notify_all()
        self._report_phase(question, n_asked, missing if not is_closed else [], start)

    def _report_phase(self, question: str, n_asked: int, missing: list[str], start: float) -> None:
        """Report who is missing, and the set-up and every tenth round when they are over."""
        history = self.server.history_
        n_rounds = sum(own["question"] == "round" for own in history)
        if question == "round":
            question = f"round {n_rounds + bool(missing)}"
        is_told = question != "evaluation" and (n_rounds < 2 or n_rounds % 10 == 0)
        if missing:
            self.report(f"{question}: waiting for {', '.join(missing)}")
        elif is_told or history[-1]["n_used"] < n_asked:
            taken = 1000 * (time.monotonic() - start)
            self.report(f"{question}: {history[-1]['n_used']} of {n_asked} replies, {taken:.0f} ms")

    def _say_goodbye(self) -> None:
        """Tell clients that the fit has ended."""
        with self.changed:
            is_heard = self.changed.wait_for(lambda: not self.server.waiting, _FAREWELL)
            if not is_heard:
                missing = ", ".join(self.server.waiting)
                self.report(f"end: {missing} did not hear that the fit has ended")

    def exchange(self, name: str, reply: bytes) -> tuple[bytes, str]:
        """Take a reply, if there is one; the next request, if there is one, and the verdict."""
        with self.changed:
            verdict = ""
            if reply:
                used, reason = self.server.receive(name, reply)
                verdict = "used" if used else reason
                self.changed.notify_all()
                if reason not in ("", self._refusals.get(name)):
                    self.report(f"reply of {name} not used: {reason}")
                self._refusals[name] = reason
                if used and self.server.done:
                    return b"", verdict
            self.changed.wait_for(lambda: name in self.server.waiting, _POLL)
            return self.server.request(name), verdict

    def longest_reply(self) -> int:
        """Largest number of bytes that is read."""
        with self.changed:
            return self.server.longest_reply


class _Listener(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections break, and strangers knock."""


class _Handler(BaseHTTPRequestHandler):
    """A connection of a client."""

    owner: HTTPServer
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the server reports phases."""

    def do_POST(self) -> None:
        """Take a reply and answer by a request."""
        owner, name = self.owner, unquote(self.path[1:])
        length = self.headers.get("Content-Length", "")
        if name not in owner.server.roster:
            self._answer(404, said="the roster has no such name")
        elif owner.is_tls and name != _common_name(self.connection):
            self._answer(403, said="the certificate has another name")
        elif not length.isdecimal() or int(length) > owner.longest_reply():
            self._answer(413)
        else:
            request, verdict = owner.exchange(name, self.rfile.read(int(length)))
            self._answer(200, request, verdict)

    def _answer(
        self, status: int, body: bytes = b"", verdict: str = "", said: str | None = None
    ) -> None:
        self.close_connection = status != 200  # a body may be unread
        self.send_response(status, said)
        self.send_header("Content-Length", str(len(body)))
        self.send_header(_VERDICT, quote(verdict))
        self.end_headers()
        self.wfile.write(body)


def _common_name(connection: Any) -> str | None:
    """Name in the certificate of the other side, which TLS has verified."""
    names = (connection.getpeercert() or {}).get("subject", ())
    return next((value for own in names for key, value in own if key == "commonName"), None)


def join(
    client: Client,
    url: str,
    *,
    certificates: Certificates | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Take part in a fit until it has ended, however often the server is away meanwhile.

    Parameters
    ----------
    client : Client
    url : str
        Address of the server.
    certificates : Certificates, default=None
        For an address that begins with ``https``.
    report : callable, default=print
        Called with lines on the progress.

    Raises
    ------
    ValueError
        If the address and the certificates do not fit, one side does not accept the certificate of
        the other, or the roster has no such client.
    """
    with closing(_connection(url, certificates)) as connection:
        _take_part(client, connection, url, report)
    report(client.ending)


def _take_part(
    client: Client, connection: http.client.HTTPConnection, url: str, report: Callable[[str], None]
) -> None:
    """Answer requests until the server says that the fit has ended."""
    reply, said, has_ended = b"", "", False
    while True:
        say = ""
        try:
            request, verdict = _posted(connection, client.name, reply)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            say = f"no answer of the server at {url} ({printable(str(error))}), trying again"
            request = b""
        else:
            if client.refusal:
                say = f"refused: {client.refusal}"
            elif verdict not in ("", "used", "duplicate"):
                say = f"reply not used: {verdict}"
        if has_ended:
            return
        if say:
            if say != said:
                report(say)
            said = say
            time.sleep(_REFUSED if client.refusal else _AGAIN)
        reply = client.answer(request) if request else b""
        has_ended = bool(request) and client.has_ended


def _connection(url: str, certificates: Certificates | None) -> http.client.HTTPConnection:
    """Connection to a server, which is opened by the first post."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "http" and certificates is None:
        return http.client.HTTPConnection(host, port, timeout=_SILENCE)
    if parts.scheme != "https" or certificates is None:
        raise ValueError(
            f"Expected an address with https and certificates, or with http and none, got {url!r}."
        )
    context = certificates.context(ssl.Purpose.SERVER_AUTH)
    return http.client.HTTPSConnection(host, port, timeout=_SILENCE, context=context)


def _posted(connection: http.client.HTTPConnection, name: str, reply: bytes) -> tuple[bytes, str]:
    """Next request and the verdict on a reply."""
    is_new = connection.sock is None
    try:
        if is_new:
            connection.connect()
        with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            # A server that does not accept a certificate says so, and hangs up meanwhile.
            connection.request("POST", f"/{quote(name, safe='')}", reply)
        response = connection.getresponse()
        body = response.read()
    except ssl.SSLError as error:
        if is_new and not isinstance(error, ssl.SSLEOFError):
            raise ValueError(_disagreement(error)) from error
        raise
    if response.status in (403, 404):
        said = printable(response.reason)
        raise ValueError(f"Expected the name of a client, got {name!r}: {said}.")
    if response.status != 200:
        raise http.client.HTTPException(f"{response.status} {response.reason}")
    return body, printable(unquote(response.headers.get(_VERDICT, "")))


def _disagreement(error: ssl.SSLError) -> str:
    """Why there can be no TLS with a server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            "Expected a certificate of the server for its address, valid, and signed by the "
            f"authority, got another: {_cause(error)}."
        )
    if "ALERT" in (error.reason or ""):
        return f"Expected a certificate that the server accepts, got its refusal: {_cause(error)}."
    return f"Expected a server with TLS, got another: {_cause(error)}."


def _cause(error: ssl.SSLError) -> str:
    """What OpenSSL says, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    reason = error.reason or str(error)
    return reason.rpartition("ALERT_")[2].replace("_", " ").lower()
