"""Servers tell as many numbers as the simulation counts."""

import struct

import pytest
from numpy.testing import assert_array_equal

from deployed import Deployment
from deployed_fits import CASES, NOISY, Case, network
from skfedem import FederatedMLPClassifier
from skfedem._history import FLOAT_BITS
from skfedem._serialization import from_bytes

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# Bytes of names, types and single numbers in the question of a round, as JSON.
LONGEST_HEADER = 1000


def asked(case, folder):
    """Deployed fit, and what was asked: name, question, number of clients, bytes of arrays."""
    deployment = Deployment(case.estimator, case.tables, folder, own=case.own, **case.server)
    server, questions = deployment.server, []
    while not server.done:
        name, body, clients, *_ = server._question
        (header,) = struct.unpack_from("<Q", body)
        assert header <= LONGEST_HEADER or name != "round"
        questions.append((name, from_bytes(body), len(clients), len(body) - 8 - header))
        deployment.run(1)
    return deployment.end(), questions, server


@pytest.mark.parametrize("name", ["EM", "FedEM", "VR-FedEM", "network", "SCAFFOLD", "population"])
def test_rounds_tell_as_many_bits_as_are_counted(name, tmp_path):
    fitted, questions, _ = asked(CASES[name](1), tmp_path)
    told = [8 * n_clients * size for name, _, n_clients, size in questions if name == "round"]
    assert_array_equal(fitted.history_["downlink_bits"][1:], told)
    assert max(told) > 0


@pytest.mark.parametrize("name", ["FedEM", "population"])
def test_fields_tell_as_many_bits_as_are_counted(name, tmp_path):
    fitted, questions, _ = asked(CASES[name](1), tmp_path)
    (field,) = [8 * n_clients * size for name, _, n_clients, size in questions if name == "field"]
    set_up = sum(own.downlink_bits for own in fitted.setup_messages_ if own.name != "site_sums")
    assert fitted.history_["downlink_bits"][0] == set_up + field


def test_matrices_are_told_as_factors_and_effects(tmp_path):
    # The simulation counts θ in the cells of a client where these are fewer numbers.
    fitted, questions, _ = asked(CASES["imputer"](1), tmp_path)
    counted = fitted.history_["downlink_bits"][1:]
    rounds = [own for own in questions if own[0] == "round"]
    for bits, (_, told, n_clients, size) in zip(counted, rounds, strict=True):
        (effects, low_rank, terms) = told["arguments"]["parameters"].natural
        n_numbers = (1 + len(low_rank.singular_values)) * (1 + 8 + 5)
        assert size == 8 * (n_numbers - 1)  # without the intercept, which is in the header
        assert bits <= n_clients * n_numbers * FLOAT_BITS
        assert terms is None and len(effects.coefficients) == 0


def test_terms_of_covariates_are_not_told(tmp_path):
    case = CASES["imputer"](1)
    known = {"row_covariates": [float(k) for k in range(8)], "row_groups": [*"aabbaabb"]}
    fitted, questions, _ = asked(case._replace(server=case.server | known), tmp_path)
    counted = case.estimator.fit(case.tables, **case.server, **known)
    assert_array_equal(fitted.history_["objective"], counted.history_["objective"])
    for name, told, _, size in questions:
        if name == "round":
            effects, low_rank, terms = told["arguments"]["parameters"].natural
            n_numbers = (1 + len(low_rank.singular_values)) * (1 + 8 + 5) - 1
            assert terms is None and size == 8 * (n_numbers + len(effects.coefficients))


@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_labels_of_classes_are_counted_on_both_sides(kind, tmp_path):
    case = network(1, n_clients=3)
    names = {0: "no", 1: "oui, très"} if kind == "text" else {0: 7, 1: 1234}
    tables = [own.assign(label=own["label"].map(names)) for own in case.tables]
    estimator = FederatedMLPClassifier((3,), max_iter=3, random_state=0, **NOISY)
    got, _, server = asked(Case(estimator, tables, case.server, {}, None), tmp_path)
    X, y = [own[["u", "v"]] for own in tables], [own["label"] for own in tables]
    assert sum(len(set(own)) for own in y) < 6  # not all clients have both
    want = estimator.fit(X, y)
    assert got.setup_messages_ == want.setup_messages_
    (labels,) = want.setup_messages_
    (asked_for,) = [own for own in server.history_ if own["question"] == "classes"]
    assert labels.name == "classes" and labels.uplink_bits == 8 * asked_for["uplink_bytes"]
    assert_array_equal(got.history_["uplink_bits"], want.history_["uplink_bits"])
    assert_array_equal(got.history_["downlink_bits"], want.history_["downlink_bits"])


def test_the_history_has_the_bytes_of_questions(tmp_path):
    _, questions, server = asked(CASES["FedEM"](1), tmp_path)
    for own, (name, _, n_clients, size) in zip(server.history_, questions, strict=True):
        assert own["question"] == name and own["n_asked"] == n_clients
        assert n_clients * size < own["downlink_bytes"] < n_clients * (size + LONGEST_HEADER)
