"""Runs that are saved, killed and resumed."""

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from checkpoints import ROUGH, assert_same_fit, every_case, make_clients
from skfedem import FederatedGaussianMixture, _checkpoint
from skfedem.clients.local import LocalClients

pytestmark = pytest.mark.filterwarnings("ignore:Not converged")


@every_case
@pytest.mark.parametrize("stopped_after", [0, 1, 7])
def test_a_resumed_fit_is_the_uninterrupted_one(estimator, data, stopped_after, tmp_path):
    path = tmp_path / "run.npz"
    clients = data()
    # Evaluations at the end of a run are no part of a longer one.
    whole = clone(estimator).set_params(random_state=0, eval_every=None).fit(clients)
    saved = clone(whole).set_params(max_iter=stopped_after, checkpoint=path, checkpoint_every=3)
    saved.fit(clients)
    assert saved.n_iter_ == stopped_after
    resumed = clone(whole).fit(clients, resume_from=path)
    assert_same_fit(resumed, whole)
    # Without a seed of its own, a fit goes on with that of the run.
    anew = clone(whole).set_params(random_state=None).fit(clients, resume_from=path)
    assert_array_equal(anew.history_["uplink_bits"], whole.history_["uplink_bits"])


def test_a_converged_run_does_not_go_on(tmp_path):
    path = tmp_path / "run.npz"
    saved = FederatedGaussianMixture(2, checkpoint=path, random_state=0).fit(make_clients())
    assert saved.converged_
    resumed = clone(saved).set_params(max_iter=1000).fit(make_clients(), resume_from=path)
    assert (resumed.n_iter_, resumed.converged_) == (saved.n_iter_, True)
    assert_same_fit(resumed, saved)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_resumed_fit_knows_what_its_start_was_worth(tmp_path):
    # Without a history, only the file has it.
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(60, 2)) + shift for shift in (-3, 3, 0)]
    optimum = FederatedGaussianMixture(2, random_state=0).fit(clients)
    gm = FederatedGaussianMixture(
        2, weights_init=optimum.weights_, means_init=optimum.means_,
        precisions_init=optimum.precisions_, batch_size=2, step_size=0.9, tol=0, max_iter=30,
        eval_every=None, random_state=0, checkpoint=tmp_path / "run.npz",
    ).fit(clients)  # fmt: skip
    with pytest.warns(ConvergenceWarning, match="below its value at the start: do not use"):
        gm.set_params(max_iter=60).fit(clients, resume_from=tmp_path / "run.npz")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_is_saved_goes_with_a_version(tmp_path):
    # Change this list and the version together: files of others would be read as if they had it.
    path = tmp_path / "run.npz"
    names = set()
    for kwargs in ({}, {"omega": 1.0}):
        gm = FederatedGaussianMixture(2, max_iter=3, tol=0, checkpoint=path, **kwargs)
        gm.fit([np.random.default_rng(0).normal(size=(20, 2))] * 3)
        names |= {name.removeprefix("state.") for name in _checkpoint._read(path)[1]}
    kept = {name for name in names if not name.startswith(("history.", "stopping.parameters."))}
    server = "round_index statistics control step_limit has_field n_restarts frozen_until"
    gains = "latest criterion step_size next_criterion"
    sweep = "outer_loop step_sum n_rounds n_messages n_quiet quiet_since converged"
    assert _checkpoint._VERSION == 10
    run = "n_expectations converged trace criteria_before initial_criterion clients.controls"
    assert kept == {
        *run.split(),
        *(f"server.{name}" for name in server.split()),
        *(f"stopping.{name}" for name in f"{gains} {sweep}".split()),
    }
    # A number that is missing is no number.
    with pytest.raises(KeyError):
        _checkpoint._rebuilt("state", {"initial_criterion": 0.0}, {})


def test_what_is_none_in_a_save_is_none_again(tmp_path):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"factor": None, "round": 3})
    assert _checkpoint.load(path, {}, {"factor": np.eye(2), "round": 0}) == {
        "factor": None,
        "round": 3,
    }


@every_case
def test_a_checkpoint_of_a_machine_of_another_byte_order_is_resumed(estimator, data, tmp_path):
    path = tmp_path / "run.npz"
    whole = clone(estimator).set_params(random_state=0, eval_every=None).fit(data())
    clone(whole).set_params(max_iter=5, checkpoint=path).fit(data())
    with np.load(path) as file:
        swapped = {name: file[name].astype(file[name].dtype.newbyteorder()) for name in file.files}
    path.unlink()
    _checkpoint._write(path, swapped, like=path)
    assert all(array.dtype.isnative for array in _checkpoint._read(path)[1].values())
    assert_same_fit(clone(whole).fit(data(), resume_from=path), whole)


# ---- stopped from the keyboard


@every_case
@pytest.mark.parametrize("n_rounds", [2, 7])
def test_a_fit_stopped_from_the_keyboard_leaves_the_save_before(
    estimator, data, n_rounds, tmp_path, monkeypatch
):
    path = tmp_path / "run.npz"
    clients = data()
    whole = clone(estimator).set_params(random_state=0, eval_every=None).fit(clients)
    n_calls, client_round = 0, LocalClients.round

    def interrupted(*args):
        nonlocal n_calls
        n_calls += 1
        aggregated = client_round(*args)
        if n_calls == n_rounds + 1:
            raise KeyboardInterrupt  # clients have prepared new control variates
        return aggregated

    stopped = clone(whole).set_params(checkpoint=path, checkpoint_every=3)
    with monkeypatch.context() as patched:
        patched.setattr(LocalClients, "round", interrupted)
        with pytest.warns(ConvergenceWarning, match=f"keyboard after {n_rounds} rounds"):
            stopped.fit(clients)
    assert stopped.n_iter_ == n_rounds
    if n_rounds < 3:
        assert not list(tmp_path.iterdir())
        return
    with np.load(path) as file:
        assert file["state.server.round_index"] == 6
    assert_same_fit(clone(whole).fit(clients, resume_from=path), whole)


# ---- killed

# Every line of its input begins a run in a process of its own; what they import is imported once.
SCRIPT = """
import os, pickle, sys
with open(sys.argv[1], "rb") as file:
    estimator, clients = pickle.load(file)
for resume_from in sys.stdin:
    process = os.fork()
    if not process:
        estimator.fit(clients, resume_from=resume_from.strip() or None)
        os._exit(0)
    print(process, flush=True)
    sys.stdin.readline()
    print(os.waitpid(process, 0)[1], flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, which needs POSIX")
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(tmp_path):
    path, script = tmp_path / "run.npz", tmp_path / "run.pickle"
    clients = make_clients(20)
    endless = FederatedGaussianMixture(
        3, max_iter=10**6, **ROUGH, random_state=0, checkpoint=path, checkpoint_every=5
    )
    script.write_bytes(pickle.dumps((endless, clients)))

    def rounds_saved():
        if not path.exists():
            return 0
        with np.load(path) as file:
            return int(file["state.server.round_index"])

    n_rounds = [0]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as parent:
        for enough in (20, 60, 120):
            print(path if path.exists() else "", file=parent.stdin)
            process = int(parent.stdout.readline())
            try:
                deadline = time.monotonic() + 60
                seen = [rounds_saved()]
                while seen[-1] < enough and time.monotonic() < deadline:
                    time.sleep(0.003)
                    seen.append(rounds_saved())
            finally:
                os.kill(process, signal.SIGKILL)
            print("killed", file=parent.stdin)
            assert int(parent.stdout.readline()) == signal.SIGKILL
            # It went on where the one before was killed: a run begun anew saves its fifth round.
            assert min(seen) >= n_rounds[-1]
            n_rounds.append(rounds_saved())
            assert n_rounds[-1] >= enough
    # It ends where nobody knows of the processes before, not even by its seed of hashes.
    whole = clone(endless).set_params(checkpoint=None, max_iter=n_rounds[-1] + 20)
    assert_same_fit(clone(whole).fit(clients, resume_from=path), whole.fit(clients))
