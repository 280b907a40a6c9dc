"""Bytes that nobody should send: classes of replies and requests, made from genuine ones."""

import json
import struct

import numpy as np

import deployed_fits
from deployed import Deployment
from skfedem import FederatedMatrixImputer
from skfedem._serialization import from_bytes
from skfedem.datasets import make_site_counts
from skfedem.deploy import Policy
from skfedem.deploy._messages import HEADER_BYTES, TAG_BYTES, Kind, seal, unseal

# Offsets in a header: magic, version, kind, and the length at its end.
MAGIC, VERSION, KIND, LENGTH = 0, 4, 6, HEADER_BYTES - 4


def sealed_again(data, at, new):
    """A message with other bytes in its header, and a valid tag."""
    import hmac

    changed = data[:at] + new + data[at + len(new) : -TAG_BYTES]
    return changed + hmac.digest(b"", changed, "sha256")


def _changed(**fields):
    return lambda generator, data: seal(unseal(data)._replace(**fields))


def _body(function):
    def changed(generator, data):
        message = unseal(data)
        return seal(message._replace(body=function(generator, message.body)))

    return changed


def _numbers(value):
    """The body with one of its last numbers replaced, or numbers only if it is short."""

    def replaced(generator, body):
        return body[:-8] + struct.pack("<d", value) if len(body) >= 8 else struct.pack("<d", value)

    return _body(replaced)


HEADERS = {
    "nothing": lambda generator, data: b"",
    "few bytes": lambda generator, data: generator.bytes(generator.integers(1, 80)),
    "many bytes": lambda generator, data: generator.bytes(generator.integers(80, 5000)),
    "header, then noise": lambda generator, data: data[:HEADER_BYTES] + generator.bytes(100),
    "no bytes": lambda generator, data: [None, "text", 7, [1, 2]][generator.integers(4)],
    "flipped": lambda generator, data: _flipped(generator, data),
    "cut off": lambda generator, data: data[: generator.integers(len(data))],
    "extended": lambda generator, data: data + generator.bytes(generator.integers(1, 50)),
    "very long": lambda generator, data: data + bytes(10**6),
    "other magic": lambda generator, data: sealed_again(data, MAGIC, b"EVIL"),
    "later version": lambda generator, data: sealed_again(data, VERSION, b"\x02\x00"),
    "unknown kind": lambda generator, data: sealed_again(data, KIND, b"\x63\x00"),
    "declared too long": lambda generator, data: sealed_again(data, LENGTH, b"\xff\xff\xff\xff"),
    "declared too short": lambda generator, data: sealed_again(data, LENGTH, bytes(4)),
    "other run": _changed(run=b"otherrun"),
    "other digest": _changed(digest=bytes(16)),
}
REPLIES = {
    **HEADERS,
    "of the server": _changed(kind=Kind.QUESTION),
    "other client": _changed(client=1),
    "unknown client": _changed(client=2**32 - 1),
    "other phase": _changed(phase=10**6),
    "other state": _changed(accepted=12345),
    "refusal with noise": _changed(kind=Kind.REFUSAL, body=b"\xff\xfe\xfd"),
    "NaN": _numbers(np.nan),
    "huge": _numbers(1e300),
    "longer body": _body(lambda generator, body: body + bytes(8)),
    "shorter body": _body(lambda generator, body: body[:-1]),
    "no body": _body(lambda generator, body: b""),
    "body of noise": _body(lambda generator, body: generator.bytes(len(body) + 1)),
}


def question_of(record):
    """Bytes of a record that to_bytes would not write."""
    header = json.dumps(record).encode()
    return struct.pack("<Q", len(header)) + header


def _asked(*records):
    def changed(generator, data):
        body = records[generator.integers(len(records))]
        return _question(unseal(data), body if isinstance(body, bytes) else question_of(body))

    return changed


def _question(message, body):
    from skfedem.deploy._messages import digest_of

    return seal(message._replace(body=body, digest=digest_of(body)))


def _set_up(name, *arguments):
    items = {"items": [*arguments]}
    return {"dict": {"ask": "set-up", "message": name, "start": 0, "arguments": items}}


_NESTED = b"[" * 5000
REQUESTS = {
    **HEADERS,
    "of a client": _changed(kind=Kind.REPLY),
    "unknown question": _asked({"dict": {"ask": "rows"}}, {"dict": {}}, {"items": [1]}, 5),
    "unknown message": _asked(_set_up("rows"), _set_up("__class__"), _set_up("eval", "1")),
    "row by row": _asked(_set_up("random_rows", 5, 0), _set_up("row_far_from", 0, 0, 0)),
    "wrong arguments": _asked(_set_up("second_moment", "x", True), _set_up("mean_of_rows", 1)),
    "unknown type": _asked({"type": "Popen", "parts": {}}, {"type": "Task", "parts": {"a": 1}}),
    "no JSON": _asked(b"", b"\xff" * 20, struct.pack("<Q", 5000) + _NESTED, b"\x80\x04N."),
    "cut arrays": _asked({"array": "<f8", "shape": [10**12]}, {"array": "<f8", "shape": [-1]}),
    "objects": _asked({"array": "|O", "shape": [1]}, {"array": "V8", "shape": [1]}),
    "round of nothing": _asked({"dict": {"ask": "round", "arguments": {"dict": {}}}}),
}


def _flipped(generator, data):
    at, flipped = int(generator.integers(len(data))), bytearray(data)
    flipped[at] ^= 1 << int(generator.integers(8))
    return bytes(flipped)


def _imputer(**parameters):
    """Imputer of clients that have so many cells that noise is not taken for them."""
    data = make_site_counts(n_sites=40, n_months=10, n_clients=3, observed=0.4, random_state=0)
    estimator = FederatedMatrixImputer(1, **{"penalty": 1.0, "omega": 1.0, **parameters})
    estimator.set_params(random_state=0)
    return deployed_fits.Case(estimator, data.clients, {"shape": data.shape}, {}, None)


def _with_columns(case, *columns):
    """A server that knows the columns: else, the first client tells them, whatever they are."""
    return case._replace(server={**case.server, "columns": [*columns]})


CASES = {
    "mixture": lambda: deployed_fits.mixture(0, omega=1.0),
    "network": lambda: _with_columns(deployed_fits.network(0, participation=1.0), "u", "v"),
    "SCAFFOLD": lambda: _with_columns(
        deployed_fits.network(0, control_variates=True, omega=0.0, participation=1.0), "u", "v"
    ),
    "imputer": lambda: _imputer(family="poisson"),
    "gaussian": lambda: _imputer(family="gaussian"),
    "negative binomial": lambda: _imputer(family="negative_binomial", penalty="auto"),
    "population": lambda: _with_columns(
        deployed_fits.population(0, participation=1.0), "id", "dv", "time", "dose"
    ),
}
_CELLS = ("observed_cells", "numbers_of_observations", "row_sums", "column_sums")
ASKED = [
    (case, phase)
    for case, phases in {
        "mixture": (
            "plan",
            "mean_of_rows",
            "second_moment",
            "task",
            "statistics_of_nearest",
            "field",
            "round",
            "evaluation",
        ),
        "network": ("plan", "classes", "table", "task", "round"),
        "SCAFFOLD": ("round",),
        "imputer": ("plan", "table", *_CELLS, "log_base_measure", "field", "round", "evaluation"),
        "gaussian": ("table", *_CELLS, "round"),
        "negative binomial": ("cell_sums", "size_moments", "round"),
        "population": ("plan", "table", "squared_residuals", "field", "round"),
    }.items()
    for phase in phases
]
"""Phases that differ in what is sent, without centroids: a client may have none."""


def deployment_at(case, phase, folder):
    """A deployment whose server has asked so."""
    made = CASES[case]()
    policy = Policy(min_rows=1)
    deployment = Deployment(made.estimator, made.tables, folder, policy=policy, **made.server)
    while phase_of(deployment.server) != phase:
        deployment.run(1)
    return deployment


def phase_of(server):
    """Name of the question, or of the message that it asks for."""
    question = from_bytes(server._question.body)
    return question.get("message", question["ask"])
