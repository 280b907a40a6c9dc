"""Bytes that nobody should send are refused: nothing changes, nothing breaks, nothing is large."""

import tracemalloc

import numpy as np
import pytest

from deployed import Deployment
from deployed_fits import CASES, assert_same_fit
from hostile import ASKED, REPLIES, REQUESTS, deployment_at
from skfedem.deploy._messages import Kind, seal, unseal

N_EACH = 10
# Memory that does not depend on the message: exceptions and small objects.
SMALL = 2**15


@pytest.fixture(scope="module", params=ASKED, ids=":".join)
def asked(request, tmp_path_factory):
    """A deployment in a phase, with a genuine request and the reply to it."""
    deployment = deployment_at(*request.param, tmp_path_factory.mktemp("asked"))
    requested = deployment.server.request("a")
    reply = deployment.clients["a"].answer(requested)
    yield deployment, requested, reply
    deployment.server.stop()


def test_the_server_refuses(asked):
    deployment, _, reply = asked
    generator, server = np.random.default_rng(0), deployment.server
    before = server.open()
    q = 0 if server.question == "plan" else server._question.most // 8
    for kind in [*REPLIES] * N_EACH:
        data = REPLIES[kind](generator, reply)
        if data == reply:  # an empty body stays one
            continue
        tracemalloc.start()
        verdict = server.receive("a", data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert not verdict.used and verdict.reason, kind
        size = len(data) if isinstance(data, bytes) else 0
        assert peak <= 10 * size + 8 * q + SMALL, kind
    assert server.open() == before and "a" in server.waiting
    assert not server.receive("nobody", reply).used


def test_a_client_refuses(asked):
    deployment, request, reply = asked
    client, generator = deployment.clients["a"], np.random.default_rng(0)
    path = deployment.folder / "a" / "client"
    before = path.read_bytes()
    for kind in [*REQUESTS] * N_EACH:
        answer = unseal(client.answer(REQUESTS[kind](generator, request)))
        assert answer.kind == Kind.REFUSAL and answer.body, kind
    assert path.read_bytes() == before
    assert client.answer(request) == reply


def test_after_all_that_the_fit_goes_on(asked):
    deployment, _, reply = asked
    assert deployment.server.receive("a", reply).used
    assert deployment.server.receive("a", reply) == (False, "duplicate")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "name", ["weights", "network", "SCAFFOLD", "efforts", "negative binomial", "population"]
)
def test_bodies_of_another_length_are_refused_in_all_phases(name, tmp_path):
    case = CASES[name](1)
    deployment = Deployment(case.estimator, case.tables, tmp_path, own=case.own, **case.server)
    while not (server := deployment.server).done:
        asked = server.waiting[0]
        reply = unseal(deployment.clients[asked].answer(server.request(asked)))
        bodies = [reply.body + bytes(8)]
        if reply.body and server.question != "plan":  # which ends with a name
            bodies.append(reply.body[:-1])
        for body in bodies:
            verdict = server.receive(asked, seal(reply._replace(body=body)))
            assert not verdict.used and verdict.reason, server.question
        deployment.run(1)
    assert_same_fit(deployment.end(), case.simulated())
