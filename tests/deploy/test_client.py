"""What a client answers, refuses, and writes into its log."""

import re

import numpy as np
import pytest

from deployed import ANYTHING, Deployment, tables_of
from deployed_fits import CASES, assert_same_fit
from skfedem import FederatedGaussianMixture
from skfedem._serialization import to_bytes
from skfedem.deploy import Client, Policy, Server
from skfedem.deploy._local_answers import LocalAnswers
from skfedem.deploy._messages import Kind, Message, digest_of, mark_of, seal, unseal
from skfedem.preprocessing import FederatedStandardScaler

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def mixture_of(**parameters):
    return FederatedGaussianMixture(
        2, random_state=0, **{"omega": 1.0, "max_iter": 8, **parameters}
    )


def refusal(client, server, name="a"):
    """Reason of a client not to answer."""
    verdict = server.receive(name, client.answer(dict(server.open())[name]))
    assert not verdict.used
    assert verdict.reason.startswith("refused by the client: ")
    return verdict.reason.partition(": ")[2]


@pytest.mark.parametrize(
    ("policy", "parameters", "reason"),
    [
        (Policy(min_rows=16), {}, "policy: the table has less than 16 rows"),
        (Policy(max_rounds=7), {}, "policy: expected at most 7 rounds"),
        (Policy(allow_estimators=("PCA",)), {}, "policy: FederatedGaussianMixture is not allowed"),
    ],
)
def test_a_policy_refuses_plans(policy, parameters, reason, tmp_path):
    server = Server(mixture_of(**parameters), ["a"], tmp_path / "server")
    client = Client("a", tables_of()[0], tmp_path / "a", policy=policy)
    assert refusal(client, server) == reason
    assert not (tmp_path / "a" / "client").exists()
    server.stop()


@pytest.mark.parametrize("init", ["random_from_data", "k-means++"])
def test_a_policy_refuses_starts_that_reveal_rows(init, tmp_path):
    deployment = Deployment(mixture_of(init_params=init), tables_of(), tmp_path, policy=Policy())
    deployment.run(4)  # plan, means, second moments, task
    for name, request in deployment.server.open():
        reason = deployment.server.receive(name, deployment.clients[name].answer(request)).reason
        assert reason == f"refused by the client: policy: init_params={init!r} is not allowed"
    deployment.server.stop()


def test_a_policy_limits_rounds_whatever_the_plan_says(tmp_path):
    mixture = mixture_of(max_iter=None, max_epochs=100, tol=0.0)
    policy = Policy(min_rows=1, max_rounds=3)
    deployment = Deployment(mixture, tables_of(), tmp_path, policy=policy)
    with pytest.raises(AssertionError, match="policy: 3 rounds were answered"):
        deployment.run()
    n_rounds = sum(own["question"] == "round" for own in deployment.server.history_)
    assert n_rounds == 3
    deployment.server.stop()


def test_columns_that_differ_are_named(tmp_path):
    pd = pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(20, 2))
    columns = ["age", "weight"]
    cases = {
        "columns: expected 'weight' as column 1, got 'height'": ["age", "height"],
        "columns: expected 'age' as column 0, got 'weight'": ["weight", "age"],
    }
    server = Server(mixture_of(), ["a", "b"], tmp_path / "server", columns=columns)
    for number, (reason, own) in enumerate(cases.items()):
        client = Client("a", pd.DataFrame(rows, columns=own), tmp_path / str(number))
        assert refusal(client, server) == reason
    client = Client("a", rows, tmp_path / "unnamed")
    assert refusal(client, server) == "columns: expected 2 with names, got 2 without names"
    server.stop()
    # Without columns, those of the first client are everybody's.
    server = Server(mixture_of(), ["a", "b"], tmp_path / "other")
    first = Client("a", pd.DataFrame(rows, columns=columns), tmp_path / "first")
    second = Client("b", pd.DataFrame(rows, columns=["age", "height"]), tmp_path / "second")
    requests = dict(server.open())
    assert server.receive("a", first.answer(requests["a"])).used
    verdict = server.receive("b", second.answer(requests["b"]))
    assert verdict.reason == "columns: expected 'weight' as column 1, got 'height'"
    server.stop()


@pytest.mark.parametrize("is_first", [False, True])
def test_a_client_with_a_corrected_table_is_used(is_first, tmp_path):
    tables, weights = tables_of(2), [np.ones(15), np.full(18, 2.0)]
    server = Server(mixture_of(), ["a", "b"], tmp_path / "server")

    def verdict(name, **own):
        k = "ab".index(name)
        client = Client(name, tables[k], tmp_path / name, seed=0, **own)
        return server.receive(name, client.answer(server.request(name)))

    given = {"sample_weight": weights[0]}, {"sample_weight": weights[1]}
    if is_first:  # others know only its mistake: the server starts again, too
        assert verdict("b").used
        assert verdict("a", **given[0]).reason.startswith("sample_weight: expected none")
        server.stop()
        server = Server(mixture_of(), ["a", "b"], tmp_path / "server")
        assert verdict("a", **given[0]).used
    else:
        assert verdict("a", **given[0]).used
        assert (
            verdict("b").reason
            == "sample_weight: expected one (--sample-weight), as other clients have, got none"
        )
    assert verdict("b", **given[1]).used
    assert server.close()
    server.stop()


def test_replies_are_stored_and_not_computed_again(tmp_path, monkeypatch):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path, seed=None).until("round")
    client, request = deployment.clients["a"], dict(deployment.server.open())["a"]
    reply = client.answer(request)
    monkeypatch.setattr(LocalAnswers, "compute", None)
    assert client.answer(request) == reply
    assert deployment.client("a").answer(request) == reply  # another process
    deployment.server.stop()


def test_a_client_takes_part_in_one_run_at_a_time(tmp_path):
    rows, roster = tables_of()[0], ["a"]
    client = Client("a", rows, tmp_path / "a", seed=0)
    first = Server(mixture_of(), roster, tmp_path / "first")
    second = Server(mixture_of(), roster, tmp_path / "second")
    assert first.receive("a", client.answer(first.open()[0][1])).used
    assert "takes part in" in refusal(client, second)
    first.close()
    for server in (first, second):  # one after the other
        while server.waiting or not server.done:
            for name, request in server.open():
                assert server.receive(name, client.answer(request)).used
            if not server.done:
                server.close()
    assert np.array_equal(first.result().means_, second.result().means_)


def test_a_late_request_changes_nothing(tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path).until("round")
    client = deployment.clients["a"]
    late = dict(deployment.server.open())["a"]
    deployment.phase("a")
    deployment.server.close()
    deployment.until("round")
    request = dict(deployment.server.open())["a"]
    reply = client.answer(request)
    assert unseal(client.answer(late)).kind == Kind.REFUSAL
    assert client.answer(request) == reply
    deployment.run().end()
    assert sum(own["n_reset"] for own in deployment.server.history_) == 0


def test_the_log_says_what_left(tmp_path):
    deployment = Deployment(mixture_of(max_iter=2), tables_of(), tmp_path)
    deployment.run().end()
    deployment.clients["a"].answer(b"noise")
    lines = (tmp_path / "a" / "log.txt").read_text().splitlines()
    line = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d phase (\d+) (.*): (\d+) bytes")
    phases, what, sizes = zip(*(line.fullmatch(own).groups() for own in lines), strict=True)
    assert [*map(int, phases[:-1])] == [*range(len(lines) - 1)]
    assert what[:4] == ("plan", "mean_of_rows", "second_moment", "task")
    assert what[-2:] == ("end", "refusal, size")
    assert int(sizes[1]) == 8 * 2 and int(sizes[2]) == 8 * 3


def test_bad_arguments_are_refused(tmp_path):
    rows = tables_of()[0]
    with pytest.raises(TypeError, match="Expected key to be bytes"):
        Client("a", rows, tmp_path, key="secret")
    with pytest.raises(TypeError, match="Expected name to be a string"):
        Client(1, rows, tmp_path)
    with pytest.raises(ValueError, match="Expected seed to be an integer >= 0"):
        Client("a", rows, tmp_path, seed=-1)
    for weights, said in (([1.0], "one number for each"), (np.full(15, -1.0), "to be >= 0")):
        with pytest.raises(ValueError, match=f"Expected sample_weight .*{said}"):
            Client("a", rows, tmp_path, sample_weight=weights)
    assert not [*tmp_path.iterdir()]


def agreed(estimator, folder, table):
    """A client that has agreed to a plan, and a function that asks it anything else."""
    client = Client("a", table, folder / "a", policy=Policy(min_rows=1))
    request = Server(estimator, ["a"], folder / "its server").open()[0][1]
    run, mark = unseal(request).run, mark_of(unseal(client.answer(request)))

    def asked(kind, question):
        body = to_bytes(question) if question else b""
        return unseal(client.answer(seal(Message(kind, run, 1, 0, mark, digest_of(body), body))))

    return client, asked


def test_only_what_the_estimator_of_the_plan_asks_is_answered(tmp_path):
    # As many centroids as rows are the rows.
    told = {"ask": "set-up", "message": "centroids_of_rows", "arguments": [15, 0], "start": 0}
    for k, (estimator, kind) in enumerate(
        [(FederatedStandardScaler(), Kind.REFUSAL), (mixture_of(), Kind.REPLY)]
    ):
        _, asked = agreed(estimator, tmp_path / str(k), tables_of()[0])
        assert asked(Kind.QUESTION, told).kind == kind


def test_a_fit_that_failed_has_no_result_of_an_earlier_one(tmp_path):
    deployment = Deployment(mixture_of(max_iter=2), tables_of()[:1], tmp_path)
    deployment.run().end()
    client = deployment.clients["a"]
    assert client.has_ended and client.result().n_components == 2
    client, asked = agreed(FederatedStandardScaler(), tmp_path, tables_of()[0])
    assert not client.has_ended
    asked(Kind.END, None)
    assert client.has_ended
    with pytest.raises(ValueError, match="Expected a fit that has ended well"):
        client.result()


def test_a_server_cannot_forge_lines_of_the_log(tmp_path):
    client, asked = agreed(mixture_of(), tmp_path, tables_of()[0])
    forged = "\x1b[2J\n2030-01-01 00:00:00 phase 1 plan"
    plan = {"estimator": forged, "parameters": {}}
    assert asked(Kind.QUESTION, {"ask": "plan", "plan": plan}).kind == Kind.REFUSAL
    shown = "estimator: ?[2J?2030-01-01 00:00:00 phase 1 plan is unknown"
    assert client.refusal == shown
    lines = (tmp_path / "a" / "log.txt").read_text().splitlines()
    assert len(lines) == 2 and shown in lines[1]


@pytest.mark.parametrize("secret", ["Maria Huber", float("inf")])
def test_a_refusal_does_not_tell_the_server_what_is_in_the_table(secret, tmp_path):
    table = np.zeros((20, 2), dtype=object)
    table[3, 1] = secret
    client = Client("a", table, tmp_path / "a")
    server = Server(mixture_of(), ["a"], tmp_path / "server")
    assert refusal(client, server) == "error: ValueError, which the client's log tells"
    server.stop()
    assert str(secret) in client.refusal
    assert client.refusal in (tmp_path / "a" / "log.txt").read_text()


def test_a_refusal_is_not_the_end_though_an_earlier_fit_has_ended(tmp_path):
    deployment = Deployment(mixture_of(max_iter=2), tables_of()[:1], tmp_path)
    deployment.run().end()
    client = Client("a", tables_of()[0], tmp_path / "a", policy=Policy(min_rows=1000))
    server = Server(mixture_of(), ["a"], tmp_path / "again")
    assert "less than 1000 rows" in refusal(client, server)
    assert client.over and not client.has_ended
    server.stop()


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"offset": np.zeros((15, 2))}, "offset: FederatedGaussianMixture takes none"),
        ({}, "sample_weight: expected one (--sample-weight), as other clients have, got none"),
    ],
)
def test_what_a_client_gives_has_to_fit(own, reason, tmp_path):
    server = Server(mixture_of(), ["a", "b"], tmp_path / "server")
    first = Client("b", tables_of()[1], tmp_path / "b", sample_weight=np.ones(18))
    assert server.receive("b", first.answer(dict(server.open())["b"])).used
    verdict = server.receive(
        "a", Client("a", tables_of()[0], tmp_path / "a", **own).answer(dict(server.open())["a"])
    )
    assert not verdict.used and verdict.reason.endswith(reason)
    server.stop()


def test_transformers_take_no_weights(tmp_path):
    server = Server(FederatedStandardScaler(), ["a"], tmp_path / "server")
    client = Client("a", tables_of()[0], tmp_path / "a", sample_weight=np.ones(15))
    assert refusal(client, server) == "sample_weight: FederatedStandardScaler takes none"
    server.stop()


@pytest.mark.parametrize("facts", [[0, 1, 15], [2, 1, 15], [1, 2, 1], [1, 1e149, 1e151]])
def test_weights_that_no_table_has_are_not_used(facts, tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path)
    reply = unseal(deployment.clients["a"].answer(deployment.server.request("a")))
    body = np.array(facts, "<f8").tobytes() + reply.body[24:]
    assert not deployment.server.receive("a", seal(reply._replace(body=body))).used
    assert deployment.server.receive("a", seal(reply)).used
    deployment.server.stop()


@pytest.mark.parametrize(
    "name", ["FedEM", "weights", "network", "imputer", "efforts", "population"]
)
def test_a_restarted_client_needs_the_table_of_the_fit(name, tmp_path):
    case = CASES[name](1)
    deployment = Deployment(case.estimator, case.tables, tmp_path, own=case.own, **case.server)
    server = deployment.until("round").server
    while server.question != "round" or "b" not in server.waiting:
        deployment.run(1)
    # Without its weights or efforts, or if there are none, with the table of another client.
    table = case.tables[1 if case.own else 0]
    client = Client("b", table, tmp_path / "b", seed=1, policy=ANYTHING)
    verdict = server.receive("b", client.answer(server.request("b")))
    assert "table: it is not the one with which the fit began" in verdict.reason
    deployment.clients["b"] = deployment.client("b")
    assert_same_fit(deployment.run().end(), case.simulated())


@pytest.mark.parametrize(
    ("columns", "n_rows", "weighted", "reason"),
    [
        (["v", "u"], 18, True, "columns: expected 'u' as column 0, got 'v'"),
        (["u", "v"], 18, False, "sample_weight: expected one (--sample-weight), as other clients"),
        (["u", "v"], 17, True, "table: expected 18 rows, as before, got 17"),
    ],
)
def test_a_client_that_starts_afresh_needs_a_table_as_before(
    columns, n_rows, weighted, reason, tmp_path
):
    pd = pytest.importorskip("pandas")
    tables = [pd.DataFrame(rows, columns=["u", "v"]) for rows in tables_of()]
    weights = [1.0 + np.arange(len(own)) % 3 for own in tables]
    own = {"sample_weight": weights}
    deployment = Deployment(mixture_of(participation=0.9), tables, tmp_path, own=own)
    server = deployment.until("round").server
    while server.question != "round" or "b" not in server.waiting:
        deployment.run(1)
    given = {"sample_weight": weights[1][:n_rows]} if weighted else {}
    other = Client("b", tables[1][columns][:n_rows], tmp_path / "new", seed=0, **given)
    assert server.receive("b", other.answer(server.request("b"))).reason.startswith("lost")
    verdict = server.receive("b", other.answer(server.request("b")))
    assert verdict.reason.startswith(f"refused by the client: {reason}")
    deployment.tables["b"] = tables[1]
    (tmp_path / "b" / "client").unlink()
    deployment.clients["b"] = deployment.client("b")
    assert server.receive("b", deployment.clients["b"].answer(server.request("b"))).used
    deployment.run().end()
    assert sum(each["n_reset"] for each in server.history_) == 1


@pytest.mark.parametrize("name", ["FedEM", "weights", "network", "imputer", "efforts"])
def test_a_table_that_was_described_stays(name, tmp_path):
    case = CASES[name](1)
    deployment = Deployment(case.estimator, case.tables, tmp_path, own=case.own, **case.server)
    deployment.run(1)  # only the plan: nothing but a description of the table was sent
    own = {key: each[1] for key, each in case.own.items()}
    table = case.tables[1].copy()
    if case.own:
        own = {key: each + 1 for key, each in own.items()}
    elif name == "network":
        table["label"] = 1 - table["label"]
    else:
        table[-1] += 1 if name == "FedEM" else [0, 0, 1]
    other = Client("b", table, tmp_path / "b", seed=1, policy=ANYTHING, **own)
    reasons = set()
    while deployment.server.question != "round" and not reasons:
        deployment.phase("b")
        request = deployment.server.request("b")
        reasons |= {deployment.server.receive("b", other.answer(request)).reason} - {""}
        deployment.server.close()
    said = "refused by the client: table: it is not the one with which the fit began"
    assert reasons == {said}
    deployment.clients["b"] = deployment.client("b")
    assert_same_fit(deployment.run().end(), case.simulated())
