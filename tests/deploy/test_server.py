"""What a server does when clients are late, lost, wrong, or the fit fails."""

import shutil

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import Deployment, tables_of
from skfedem import FederatedGaussianMixture
from skfedem.deploy import Server
from skfedem.deploy._messages import seal, unseal
from skfedem.deploy._questions import ROUND

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def mixture_of(**parameters):
    noisy = {"omega": 1.0, "max_iter": 8, "random_state": 0}
    return FederatedGaussianMixture(2, **{**noisy, **parameters})


def gap(fitted):
    """|V - Σ w_i V_i|."""
    memory = fitted._memory
    return np.abs(memory.server.control - memory.weights @ memory.controls).max()


def test_requests_stay_the_same_until_a_phase_is_closed(tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path)
    server = deployment.server
    requests = server.open()
    assert [name for name, _ in requests] == ["a", "b", "c"]
    deployment.phase("c")
    assert server.open() == requests
    assert server.waiting == ["c"]
    assert not server.close()  # set-up needs all clients
    deployment.phase()
    assert server.waiting == []
    assert server.close()
    assert server.open() != requests


def test_a_round_closes_with_those_who_answered(tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path).until("round")
    deployment.phase("b")
    assert deployment.server.close()
    fitted = deployment.run().end()
    assert fitted.history_["n_active"].tolist()[:3] == [0, 2, 3]
    assert gap(fitted) < 1e-12
    assert_array_equal(deployment.controls(), fitted._memory.controls)


def test_an_exact_round_needs_all(tmp_path):
    deployment = Deployment(mixture_of(omega=0.0), tables_of(), tmp_path).until("round")
    deployment.phase("b")
    assert not deployment.server.close()
    deployment.phase()
    assert deployment.server.close()


def test_a_round_with_too_few_replies_is_void(tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path, min_replies=2).until("round")
    server = deployment.server
    requests = server.open()
    deployment.phase("b", "c")
    files = {name: (tmp_path / name / "client").read_bytes() for name in "bc"}
    n_phases = len(server.history_)
    assert not server.close()
    assert server.open() == requests and len(server.history_) == n_phases
    assert files == {name: (tmp_path / name / "client").read_bytes() for name in "bc"}
    deployment.phase("c")
    assert server.close()


def test_an_evaluation_is_that_of_those_who_answer(tmp_path):
    tables = [tables_of()[0]] * 2  # equal clients have equal likelihoods
    deployment = Deployment(mixture_of(), tables, tmp_path).until("evaluation")
    deployment.phase("b")
    assert deployment.server.close()
    history = deployment.run().end().history_
    want = Deployment(mixture_of(), tables, tmp_path / "all").run().end().history_
    # Half the sum, divided by a half: exact.
    assert_array_equal(history["log_likelihood"], want["log_likelihood"])


@pytest.mark.parametrize("n_phases", [0, 1, 3, 6, 9])
def test_a_restarted_server_goes_on(n_phases, tmp_path):
    want = Deployment(mixture_of(), tables_of(), tmp_path / "one").run().end()
    deployment = Deployment(mixture_of(), tables_of(), tmp_path / "two").run(n_phases)
    requests = deployment.server.open()
    deployment.server.stop()
    deployment.server = deployment.new_server()
    assert deployment.server.open() == requests
    assert len(deployment.server.history_) == n_phases
    got = deployment.run().end()
    assert_array_equal(got.means_, want.means_)
    again = deployment.new_server()  # of a run that has ended
    assert again.done
    assert_array_equal(again.result().means_, want.means_)


def test_a_restarted_server_draws_the_seed_of_the_first_start(tmp_path):
    mixture = mixture_of(random_state=None, init_params="random", participation=1)
    deployment = Deployment(mixture, tables_of(), tmp_path).run(7)
    requests = deployment.server.open()
    deployment.server.stop()
    assert deployment.new_server().open() == requests


def test_a_server_does_not_take_the_folder_of_another_run(tmp_path):
    Deployment(mixture_of(), tables_of()[:2], tmp_path).run(1).server.stop()
    for estimator, roster in ((mixture_of(tol=0.1), ["a", "b"]), (mixture_of(), ["a", "c"])):
        with pytest.raises(ValueError, match="got others. Give another folder, `state`,"):
            Server(estimator, roster, tmp_path / "server")
    with pytest.raises(TypeError, match="Expected random_state to be an int or None"):
        Server(mixture_of(random_state=np.random.RandomState(0)), ["a"], tmp_path / "new")


def test_a_plan_can_be_mended_until_all_have_agreed(tmp_path):
    tables = tables_of()[:2]
    deployment = Deployment(mixture_of(max_iter=3), tables, tmp_path)
    assert deployment.phase("b")["a"].used  # a has prepared its reply
    deployment.server.stop()
    deployment.estimator = mixture_of(max_iter=4)
    deployment.server = deployment.new_server()
    assert_array_equal(deployment.run().end().means_, mixture_of(max_iter=4).fit(tables).means_)


def test_bad_rosters_and_limits_are_refused(tmp_path):
    for roster in ([], ["a", "a"], ["a", 1], "ab"):
        with pytest.raises((TypeError, ValueError), match="Expected roster"):
            Server(mixture_of(), roster, tmp_path)
    with pytest.raises(ValueError, match="Expected min_replies"):
        Server(mixture_of(), ["a"], tmp_path, min_replies=-1)
    assert not [*tmp_path.iterdir()]


def test_another_journal_is_noticed(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        Deployment(mixture_of(random_state=seed), tables_of(), folder).run(6).server.stop()
    shutil.copy(tmp_path / "0" / "server" / "journal", tmp_path / "1" / "server" / "journal")
    with pytest.raises(ValueError, match="Expected the question of phase 0"):
        Server(mixture_of(random_state=1), ["a", "b", "c"], tmp_path / "1" / "server")


def test_a_client_that_lost_its_disk_starts_afresh(tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path).until("round").run(3)
    shutil.rmtree(tmp_path / "b")
    deployment.clients["b"] = deployment.client("b")
    verdicts = deployment.phase()
    assert verdicts["a"].used and verdicts["b"].reason.startswith("lost")
    assert deployment.server.waiting == ["b"]
    assert deployment.phase()["b"].used
    deployment.server.close()
    fitted = deployment.run().end()
    assert sum(own["n_reset"] for own in deployment.server.history_) == 1
    assert gap(fitted) < 1e-12
    assert_array_equal(deployment.controls(), fitted._memory.controls)


@pytest.mark.parametrize("n_lost", [1, 2, 5, 100])
def test_a_server_restored_from_old_files_is_noticed(n_lost, tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path).until("round").run(6)
    deployment.server.stop()
    journal = tmp_path / "server" / "journal"
    from skfedem.deploy._storage import Journal

    records = Journal(journal).read()
    journal.unlink()
    again = Journal(journal)
    for record in records[: max(0, len(records) - n_lost)]:
        again.append(record)
    deployment.server = deployment.new_server()
    while not deployment.server.done:
        deployment.phase()
        deployment.phase()  # those that start afresh
        deployment.server.close()
    fitted = deployment.end()
    n_reset = sum(own["n_reset"] for own in deployment.server.history_)
    assert n_reset == (0 if n_lost == 1 else 3)  # one phase back repairs itself
    assert gap(fitted) < 1e-12
    assert_array_equal(deployment.controls(), fitted._memory.controls)


def test_errors_of_the_fit_are_those_of_the_simulation(tmp_path):
    tables = [np.zeros((5, 2)), np.zeros((6, 2))]
    mixture = mixture_of(reg_covar=0.0)
    with pytest.raises(ValueError, match="positive definite") as want:
        mixture.fit(tables)
    deployment = Deployment(mixture, tables, tmp_path)
    with pytest.raises(ValueError, match="positive definite") as got:
        deployment.run()
    assert str(got.value) == str(want.value)
    assert deployment.server.done
    with pytest.raises(ValueError, match="positive definite"):
        deployment.end()
    assert all(client.over for client in deployment.clients.values())


def test_the_result_needs_a_fit_that_has_ended(tmp_path):
    deployment = Deployment(mixture_of(), tables_of(), tmp_path)
    with pytest.raises(ValueError, match="Expected a fit that has ended"):
        deployment.server.result()
    deployment.server.stop()


def test_warnings_of_the_fit_come_with_the_result(tmp_path):
    from sklearn.exceptions import ConvergenceWarning

    deployment = Deployment(mixture_of(max_iter=2, tol=1e-9), tables_of(), tmp_path).run()
    with pytest.warns(ConvergenceWarning, match="Not converged to tol=1e-09 after 2 rounds"):
        deployment.server.result()


def test_keys_protect_against_others(tmp_path):
    keys = {name: name.encode() * 16 for name in "abc"}
    deployment = Deployment(mixture_of(), tables_of(), tmp_path, keys=keys)
    requests = dict(deployment.server.open())
    reply = deployment.clients["a"].answer(requests["a"])
    assert deployment.server.receive("b", reply).reason.startswith("tag: ")
    assert deployment.server.receive("a", reply).used
    from skfedem.deploy._messages import unseal

    refusal = deployment.clients["b"].answer(requests["a"])
    assert b"tag" in unseal(refusal, keys["b"]).body
    deployment.phase()
    assert deployment.server.close()
    assert deployment.run().end().n_iter_ == 8
    with pytest.raises(ValueError, match="Expected a key for every client"):
        Server(mixture_of(), ["a", "b"], tmp_path / "new", keys={"a": b"x"})


@pytest.mark.parametrize("omega", [0.0, 1.0])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_likelihood_that_is_left_out_or_added_does_not_end_a_fit(omega, batch_size, tmp_path):
    mixture = mixture_of(omega=omega, batch_size=batch_size)
    deployment = Deployment(mixture, tables_of(), tmp_path).until("round")
    reply = unseal(deployment.clients["a"].answer(deployment.server.request("a")))
    n_expectations, has_likelihood, n_reported = ROUND.unpack_from(reply.body)
    content = reply.body[ROUND.size + 8 * has_likelihood :]
    head = ROUND.pack(n_expectations, not has_likelihood, n_reported)
    body = head + bytes(0 if has_likelihood else 8) + content
    verdict = deployment.server.receive("a", seal(reply._replace(body=body)))
    if omega == 0 and batch_size is None:  # the fit stops by likelihoods
        assert (verdict.used, verdict.reason) == (False, "likelihood")
        assert deployment.server.receive("a", seal(reply)).used
    else:
        assert verdict.used
    deployment.phase("a")
    assert deployment.server.close()
    assert deployment.server.question in ("round", "evaluation")
    assert deployment.server.history_[-1]["n_used"] == 3
    deployment.server.stop()
