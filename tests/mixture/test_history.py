"""What is told of the rounds of a fit: its history, epochs, bits, and what it prints."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from mixtures import (
    CENTERS,
    CLIENTS,
    EXACT,
    N_CLIENTS,
    N_SAMPLES,
    STOCHASTIC,
    Recording,
    X,
    evaluated_rows,
)
from problems import COVARIANCE_TYPES, HISTORY_COLUMNS, fit_unconverged, quiet_fit
from skfedem import FederatedGaussianMixture
from skfedem.compression import BlockQuantizer, Dithering, Identity, RandK

# ------------------------------------------------------------------ history


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_history_is_a_table(parameters):
    gm = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    assert isinstance(gm.history_, dict)
    assert set(gm.history_) == HISTORY_COLUMNS | {"log_likelihood", "weights"}
    assert {len(column) for column in gm.history_.values()} == {gm.n_iter_ + 1}
    columns = {name: column for name, column in gm.history_.items() if name != "weights"}
    frame = pd.DataFrame(columns)
    assert frame.shape == (gm.n_iter_ + 1, 10)
    assert frame["round"].tolist() == list(range(gm.n_iter_ + 1))
    for name in ("n_active", "uplink_bits", "downlink_bits", "safeguarded", "round"):
        assert frame[name].dtype.kind == "i"
    assert gm.history_["weights"].shape == (gm.n_iter_ + 1, 3)
    assert_allclose(gm.history_["weights"][-1], gm.weights_)
    assert_allclose(gm.history_["weights"].sum(axis=1), 1)
    # Nobody steps before the first round.
    assert np.isnan(frame["step_size"][0])
    assert np.isnan(frame["field_sq_norm"][0])
    assert frame["n_active"][0] == 0
    # But for the pass that the first control variates take, where there are any.
    assert frame["epoch"][0] == (0 if parameters == EXACT else 1)
    assert frame[["step_size", "field_sq_norm"]][1:].notna().all(axis=None)


def test_exact_rounds_tell_everything_for_free():
    gm = FederatedGaussianMixture(**EXACT).fit(CLIENTS)
    assert evaluated_rows(gm) == list(range(gm.n_iter_ + 1))
    assert evaluated_rows(gm, "mean_field_sq_norm") == list(range(gm.n_iter_ + 1))
    # The field of a round is the mean field where it began.
    assert_array_equal(gm.history_["field_sq_norm"][1:], gm.history_["mean_field_sq_norm"][:-1])
    assert_array_equal(gm.history_["epoch"], gm.history_["round"])
    assert_array_equal(gm.history_["n_active"][1:], N_CLIENTS)
    assert_array_equal(gm.history_["step_size"][1:], 1)
    # As in scikit-learn the bound is that of the last E-step; the fit is one M-step further.
    assert_array_equal(gm.lower_bounds_, gm.history_["log_likelihood"][:-1])
    assert gm.lower_bound_ == gm.lower_bounds_[-1]
    assert len(gm.lower_bounds_) == gm.n_iter_
    assert_allclose(gm.history_["log_likelihood"][-1], gm.score(X))
    assert (np.diff(gm.history_["log_likelihood"]) > -1e-12).all()


@pytest.mark.parametrize("control_init", ["field", "zeros"])
def test_eval_every_so_many_rounds(control_init):
    gm = FederatedGaussianMixture(**STOCHASTIC, eval_every=7, control_init=control_init)
    gm.fit(CLIENTS)
    assert gm.n_iter_ == 30
    assert evaluated_rows(gm) == [0, 7, 14, 21, 28, 30]
    assert evaluated_rows(gm, "mean_field_sq_norm") == [0, 7, 14, 21, 28, 30]
    assert_allclose(gm.lower_bound_, gm.score(X))
    assert_array_equal(gm.lower_bounds_, gm.history_["log_likelihood"][evaluated_rows(gm)])


def test_eval_every_epoch():
    gm = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    epoch = gm.history_["epoch"]
    # The first row at or after each whole epoch, the start, and the end.
    wanted = {int(np.searchsorted(epoch, k)) for k in range(int(epoch[-1]) + 1)}
    assert len(wanted) > 3
    assert evaluated_rows(gm) == sorted(wanted | {gm.n_iter_})


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"max_iter": 0},
        {"omega": 1.0},
        {"omega": 1.0, "control_init": "zeros"},
        {"participation": 0.5, "control_init": "zeros"},
    ],
)
def test_a_start_that_no_statistic_gives_has_no_field(setting, capsys):
    # "tied" covariances are what the means leave of all rows' moments: those of all rows are not.
    # Then Ŝ_0 is s̄(θ), and 0 would be drawn 30 decades below the next values.
    start = {"means_init": X[:3], "precisions_init": np.linalg.inv(np.cov(X.T))}
    setting = {"max_iter": 4, "eval_every": 1, "tol": 0, "random_state": 0, **setting}
    gm = FederatedGaussianMixture(3, covariance_type="tied", **setting, verbose=2)
    history = quiet_fit(gm.set_params(**start), CLIENTS).history_
    assert "nan" not in capsys.readouterr().out
    assert np.isnan(history["mean_field_sq_norm"][0]) and np.isfinite(history["log_likelihood"][0])
    assert np.isnan(history["field_sq_norm"][:2]).all()
    assert np.isfinite(history["mean_field_sq_norm"][1:]).all()
    assert np.isfinite(history["field_sq_norm"][2:]).all()


def test_never_evaluated():
    gm = FederatedGaussianMixture(**STOCHASTIC, eval_every=None, control_init="zeros")
    gm.fit(CLIENTS)
    assert evaluated_rows(gm) == []
    assert evaluated_rows(gm, "mean_field_sq_norm") == []
    assert_allclose(gm.lower_bound_, gm.score(X))
    exact = FederatedGaussianMixture(**EXACT, eval_every=None).fit(CLIENTS)
    assert evaluated_rows(exact) == []
    assert exact.lower_bounds_ == FederatedGaussianMixture(**EXACT).fit(CLIENTS).lower_bounds_


@pytest.mark.parametrize("eval_every", [None, 1, 7, "auto"])
def test_looking_changes_neither_the_fit_nor_its_cost(eval_every):
    want = FederatedGaussianMixture(**STOCHASTIC).fit(CLIENTS)
    got = FederatedGaussianMixture(**STOCHASTIC, eval_every=eval_every).fit(CLIENTS)
    assert_array_equal(got.means_, want.means_)
    for name in ("epoch", "uplink_bits", "downlink_bits", "field_sq_norm", "step_size"):
        assert_array_equal(got.history_[name], want.history_[name], err_msg=name)


def test_epochs_of_minibatches():
    batch_size = 8
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "solver": "fedem", "batch_size": batch_size, "step_size": 0.02}
    ).fit(CLIENTS)
    assert len(set(gm.history_["n_active"][1:])) > 1
    # The first control variates, h_i(Ŝ_0), took one pass over all rows.
    expectations = batch_size * gm.history_["n_active"]
    assert_allclose(gm.history_["epoch"], 1 + np.cumsum(expectations) / N_SAMPLES)


@pytest.mark.parametrize("n_inner", [1, 4])
def test_epochs_of_variance_reduction(n_inner):
    batch_size = 3
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "participation": 1.0, "n_inner": n_inner, "batch_size": batch_size}
    ).fit(CLIENTS)
    # All rows at the start of an inner loop, else a minibatch for each of two iterates.
    expectations = [
        N_SAMPLES if k % n_inner == 0 else 2 * batch_size * N_CLIENTS for k in range(gm.n_iter_)
    ]
    assert_allclose(gm.history_["epoch"][1:], 1 + np.cumsum(expectations) / N_SAMPLES)


def test_automatic_n_inner():
    batch_size, omega = 3, RandK(omega=1.0).omega_for(9)
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "participation": 1.0, "batch_size": batch_size, "compressor": "rand_k"}
    ).fit(CLIENTS)
    passes = np.flatnonzero(np.isclose(np.diff(gm.history_["epoch"]), 1.0))
    # k_in = (1 + omega) sqrt(m / 2), rounded up, with m the mean number of rows.
    n_inner = int(np.ceil((1 + omega) * np.sqrt(N_SAMPLES / N_CLIENTS / 2)))
    assert_array_equal(passes, np.arange(0, gm.n_iter_, n_inner))


def test_epochs_of_absent_clients_are_not_counted():
    clients = [X[i : i + 10] for i in range(0, 100, 10)]
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "batch_size": None, "control_init": "zeros"}
    ).fit(clients)
    assert len(set(gm.history_["n_active"][1:])) > 1
    assert_allclose(gm.history_["epoch"], np.cumsum(gm.history_["n_active"]) / len(clients))


def test_rounds_without_anyone_are_rounds():
    gm = FederatedGaussianMixture(
        **{**STOCHASTIC, "participation": 0.2, "step_size": 0.02, "batch_size": None}
    ).fit(CLIENTS)
    idle = np.flatnonzero(gm.history_["n_active"][1:] == 0) + 1
    assert len(idle) > 10
    for column in ("uplink_bits", "downlink_bits"):
        assert_array_equal(gm.history_[column][idle], 0)
    assert_array_equal(np.diff(gm.history_["epoch"])[idle - 1], 0)
    assert np.isfinite(gm.history_["weights"]).all()


# ------------------------------------------------------------------ bits


FLOAT = 64
N_FUNCTIONS = {"full": 6, "tied": 3, "diag": 5, "spherical": 4}  # of a row with two features


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_bits_of_uncompressed_rounds(covariance_type):
    gm = FederatedGaussianMixture(
        **{**EXACT, "covariance_type": covariance_type, "participation": 0.6, "tol": 10.0}
    ).fit(CLIENTS)
    n_statistics = 3 * N_FUNCTIONS[covariance_type]
    # The floats, and a few bytes around them: format, length and checksum.
    message = 8 * len(Identity().encode(np.ones(n_statistics)))
    assert FLOAT * n_statistics < message <= FLOAT * (n_statistics + 1)
    active = gm.history_["n_active"][1:]
    assert len(set(active)) > 1
    assert_array_equal(gm.history_["uplink_bits"][1:], message * active)
    assert_array_equal(gm.history_["downlink_bits"][1:], FLOAT * n_statistics * active)


@pytest.mark.parametrize(
    "operator",
    [Dithering(levels=2), Dithering(omega=3.0), BlockQuantizer(block_length=4), RandK(k=2)],
    ids=repr,
)
def test_bits_of_compressed_rounds_are_those_of_the_bytes(operator):
    recording = Recording(operator)
    parameters = {
        **STOCHASTIC,
        "compressor": recording,
        "omega": 4.0,
        "step_size": 0.05,
        "participation": 1.0,
        "batch_size": None,
    }
    gm = FederatedGaussianMixture(**parameters).fit(CLIENTS)
    # Few clients are one group: one call of the compressor a round.
    assert [len(messages) for messages in recording.sent] == [N_CLIENTS] * gm.n_iter_
    for row, messages in enumerate(recording.sent, start=1):
        n_bytes = sum(len(operator.encode(message)) for message in messages)
        assert gm.history_["uplink_bits"][row] == 8 * n_bytes


ONE_OFF = {"n_components": 3, "max_iter": 0, "random_state": 0}


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_bits_before_the_first_round_of_a_given_start(covariance_type):
    precisions = {
        "full": np.stack([np.eye(2)] * 3),
        "tied": np.eye(2),
        "diag": np.ones((3, 2)),
        "spherical": np.ones(3),
    }
    gm = FederatedGaussianMixture(
        **ONE_OFF,
        covariance_type=covariance_type,
        weights_init=np.full(3, 1 / 3),
        means_init=CENTERS / 2,
        precisions_init=precisions[covariance_type],
    ).fit(CLIENTS)
    # Each client sends its mean and its second moment (an upper triangle where rows are whitened,
    # else a variance a feature), and is told those of all, then the start.
    moments = 2 + (3 if covariance_type in ("full", "tied") else 2)
    start = 3 * N_FUNCTIONS[covariance_type]
    assert gm.history_["uplink_bits"][0] == FLOAT * N_CLIENTS * moments
    assert gm.history_["downlink_bits"][0] == FLOAT * N_CLIENTS * (moments + start)


def test_bits_of_a_start_that_is_wide_beside_the_rows():
    start = {"weights_init": np.full(3, 1 / 3), "means_init": CENTERS, "covariance_type": "diag"}

    def uplink_bits(precision):
        gm = FederatedGaussianMixture(
            **ONE_OFF, **start, precisions_init=np.full((3, 2), precision)
        ).fit(CLIENTS)
        return gm.history_["uplink_bits"][0]

    # Expected statistics on top of the moments, from some hundred standard deviations on.
    moments, statistics = 4, 15
    assert uplink_bits(1e-3) == FLOAT * N_CLIENTS * moments
    assert uplink_bits(1e-7) == FLOAT * N_CLIENTS * (moments + statistics)


def test_bits_of_given_means():
    gm = FederatedGaussianMixture(**ONE_OFF, means_init=CENTERS).fit(CLIENTS)
    # Moments, then the statistics of the rows nearest to each mean, for means and a start.
    moments, means, statistics = 5, 6, 18
    assert gm.history_["uplink_bits"][0] == FLOAT * N_CLIENTS * (moments + statistics)
    assert gm.history_["downlink_bits"][0] == FLOAT * N_CLIENTS * (moments + means + statistics)


def test_bits_of_the_inits():
    def bits(init_params):
        gm = FederatedGaussianMixture(**ONE_OFF, init_params=init_params).fit(clients)
        history = gm.history_
        # Without the moments (5 floats) and the statistics of the first assignment (18).
        everyone = FLOAT * len(clients)
        return (
            history["uplink_bits"][0] - everyone * (5 + 18),
            history["downlink_bits"][0] - everyone * 5,
        )

    # Every client has all three components, far apart and many rows of each: three centroids.
    clients = [X[k::4] for k in range(4)]
    assert bits("kmeans") == (FLOAT * 4 * 3 * (2 + 1), FLOAT * 4 * 6)
    # The first row and three tries for each of two more, and from
    # every client a sum of distances for each of them.
    # Centres and tries, for the sums by all, centres for the tries by one client each.
    told = 4 * ((0 + 2) + (2 + 6) + (4 + 6)) + (1 * 0 + 3 * 2 + 3 * 4) + 4 * 6
    assert bits("k-means++") == (FLOAT * (7 * 2 + 7 * 4), FLOAT * told)
    assert bits("random_from_data") == (FLOAT * 3 * 2, FLOAT * 4 * 6)
    assert bits("random") == (0, 0)


def test_bits_of_the_first_control_variates():
    with_field, without = (
        FederatedGaussianMixture(**STOCHASTIC, control_init=how).fit(CLIENTS).history_
        for how in ("field", "zeros")
    )
    n_statistics = 9
    more = with_field["uplink_bits"][0] - without["uplink_bits"][0]
    assert more == FLOAT * N_CLIENTS * n_statistics
    # Clients compute them at Ŝ_0, which all are told first.
    told = with_field["downlink_bits"][0] - without["downlink_bits"][0]
    assert told == FLOAT * N_CLIENTS * n_statistics


# ------------------------------------------------------------------ what is printed


def test_verbose(capsys):
    parameters = {**EXACT, "tol": 0.0, "max_iter": 25}
    fit_unconverged(FederatedGaussianMixture(**parameters), CLIENTS)
    assert capsys.readouterr().out == ""
    fit_unconverged(FederatedGaussianMixture(**parameters, verbose=1), CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    steps = ["Round 10", "Round 20", "Not converged after 25 rounds"]
    assert [line.partition(":")[0].partition(",")[0].strip() for line in lines] == steps
    fit_unconverged(FederatedGaussianMixture(**parameters, verbose=2), CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 26
    assert not any("nan" in line for line in lines)
    # An exact round yields the log-likelihood of the parameters that it began with.
    start = FederatedGaussianMixture(**parameters).set_params(max_iter=0).fit(CLIENTS)
    assert lines[0].endswith(f"log-likelihood before it {start.lower_bound_:.6g}")
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "tol": 1.0}, verbose=1).fit(CLIENTS)
    n_bytes = gm.history_["uplink_bits"].sum() / 8
    assert gm.converged_
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"  Converged after {gm.n_iter_} rounds, {n_bytes:,.0f} bytes sent by clients: "
        f"log-likelihood {gm.score(X):.6g}"
    )


def test_rounds_that_are_not_evaluated_are_printed_without(capsys):
    gm = FederatedGaussianMixture(**{**STOCHASTIC, "eval_every": 7}, verbose=2).fit(CLIENTS)
    lines = [line for line in capsys.readouterr().out.splitlines() if "Round" in line]
    assert len(lines) == gm.n_iter_
    assert "nan" not in "".join(lines)
    assert "log-likelihood" in lines[6]
    assert "log-likelihood" not in lines[5]


def test_messages_outside_of_rounds_are_listed():
    gm = FederatedGaussianMixture(2, n_init=2, random_state=0, warm_start=True).fit(CLIENTS)
    units = ["mean_of_rows", "second_moment", "second moment"]
    start = ["centroids_of_rows", "statistics_of_nearest"]
    assert [message.name for message in gm.setup_messages_] == units + 2 * start
    first = [message for k, message in enumerate(gm.setup_messages_) if k < 3 or k >= 5]
    other = gm.setup_messages_[:5]
    bits = {sum(own.uplink_bits for own in messages) for messages in (first, other)}
    assert gm.history_["uplink_bits"][0] in bits
    # Later, all clients say how many of their rows are too far away.
    gm.fit(CLIENTS)
    assert gm.setup_messages_[0].name == "n_rows_too_far"
    assert gm.history_["uplink_bits"][0] == sum(own.uplink_bits for own in gm.setup_messages_)
    gm.partial_fit(CLIENTS)
    assert [message.name for message in gm.setup_messages_] == ["n_rows_too_far"]
    assert gm.setup_messages_[0].uplink_bits == 0  # nobody has such rows
