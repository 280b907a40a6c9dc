"""Rounds of the imputer: history, bits, how fits end, warm starts, randomness, workers."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from imputations import (
    CLIENTS,
    EXACT,
    FAMILIES,
    FITTED,
    N_CLIENTS,
    N_COLUMNS,
    QUICK,
    SEEN,
    SHAPE,
    STOCHASTIC,
    assert_finite,
    of_family,
)
from problems import HISTORY_COLUMNS, assert_same_fit, fit_unconverged
from skfedem import FederatedMatrixImputer
from skfedem._compat import SEEDED_ARPACK
from watched import said_by

N_OBSERVATIONS = sum(seen.sum() for seen in SEEN)


# ------------------------------------------------------------------ rounds and history


@pytest.mark.parametrize("parameters", [EXACT, STOCHASTIC], ids=["exact", "stochastic"])
def test_history_is_a_table(parameters):
    imputer = FederatedMatrixImputer(**parameters).fit(CLIENTS)
    history, n_rows = imputer.history_, imputer.n_iter_ + 1
    assert set(history) == HISTORY_COLUMNS | {"objective", "singular_values"}
    assert {len(column) for column in history.values()} == {n_rows}
    for name in ("round", "n_active", "uplink_bits", "downlink_bits", "safeguarded"):
        assert history[name].dtype == np.int64
    assert history["round"].tolist() == list(range(n_rows))
    assert history["singular_values"].shape == (n_rows, 4)
    n_factors = len(imputer.singular_values_)
    assert_array_equal(history["singular_values"][-1, :n_factors], imputer.singular_values_)
    # Nobody steps before the first round, which starts from the effects alone.
    assert np.isnan(history["step_size"][0])
    assert np.isnan(history["field_sq_norm"][0])
    assert not history["singular_values"][0].any()
    assert history["n_active"][0] == 0
    effects = FederatedMatrixImputer(**{**parameters, "max_iter": 0}).fit(CLIENTS)
    assert_allclose(history["objective"][0], effects.objective_, rtol=1e-12)
    assert_allclose(history["objective"][-1], imputer.objective_, rtol=1e-12)


def test_exact_rounds_tell_everything_and_never_lose():
    imputer = FederatedMatrixImputer(**{**EXACT, "tol": 1e-10}).fit(CLIENTS)
    history = imputer.history_
    # Rounding of a sum of 150 terms aside.
    assert np.diff(history["objective"]).max() <= 1e-12 * history["objective"][0]
    assert history["objective"][0] - history["objective"][-1] > 10
    assert_array_equal(history["epoch"], history["round"])
    assert_array_equal(history["n_active"][1:], N_CLIENTS)
    assert_array_equal(history["step_size"][1:], 1)
    assert not history["safeguarded"].any()
    assert history["mean_field_sq_norm"][-1] < 1e-5 * history["mean_field_sq_norm"][0]


def test_bits_of_uncompressed_rounds():
    imputer = FederatedMatrixImputer(**{**EXACT, "control_init": "zeros"}).fit(CLIENTS)
    uplink = imputer.history_["uplink_bits"]
    # A residual for each observed cell, and a few bytes around each client's.
    residuals = 64 * N_OBSERVATIONS
    assert len(np.unique(uplink[1:])) == 1
    assert residuals < uplink[1] <= residuals + N_CLIENTS * 64
    # Before: cell numbers (7 bits of 96 cells, in whole bytes of each client), a byte for each
    # count; as doubles, margins and, of each client, log ρ(y), Σ y, Σ N and Σ of visits.
    codes = sum(-(-7 * int(seen.sum()) // 8) for seen in SEEN)
    margins = sum(seen.any(axis=axis).sum() for seen in SEEN for axis in (0, 1))
    assert uplink[0] == 8 * (codes + N_OBSERVATIONS) + 64 * (4 * N_CLIENTS + margins)
    # θ goes to everybody in every round, and for the first control variates: cells, or factors.
    downlink = imputer.history_["downlink_bits"]
    n_cells = np.array([seen.sum() for seen in SEEN])
    n_factors = np.count_nonzero(imputer.history_["singular_values"][:-1], axis=1)
    n_numbers = np.minimum(n_cells, (1 + n_factors[:, None]) * (1 + sum(SEEN[0].shape)))
    assert_array_equal(downlink[1:], 64 * n_numbers.sum(axis=1))
    # Before, the origin of the values.
    assert downlink[0] == 64 * N_CLIENTS < downlink[1] < downlink[-1]
    noisy = FederatedMatrixImputer(**STOCHASTIC).fit(CLIENTS)
    assert noisy.history_["downlink_bits"][0] == downlink[0] + downlink[1]


@pytest.mark.parametrize(("shape", "width"), [((4, 4), 8), ((1, 17), 16)])
def test_cells_are_numbered_from_0(shape, width):
    # The last of 16 cells is the 15th, of 4 bits; two of them fill a byte.
    seen = np.full(shape, np.nan)
    seen[0, :2] = 0.0, 1.0
    imputer = FederatedMatrixImputer(1, effects="none", penalty=1.0, max_iter=0).fit([seen])
    # And a byte for each count, and four sums.
    assert imputer.history_["uplink_bits"][0] == width + 2 * 8 + 4 * 64


def test_counts_of_observations_take_bytes_of_7_bits():
    def bits(n_times):
        visits = np.full((n_times, 2, 2), np.nan)
        visits[:, 0, 0] = np.arange(n_times) % 2
        visits[0, 1, 1] = 1
        imputer = FederatedMatrixImputer(1, effects="none", max_iter=0)
        return imputer.fit([visits]).history_["uplink_bits"][0]

    assert bits(128) == bits(127) + 8


@pytest.mark.parametrize("compressor", ["dithering", "rand_k"])
def test_control_variates_follow_the_worst_message(compressor):
    # 17 numbers have a smaller ω than 16: levels are whole numbers.
    cells = np.random.default_rng(0).permutation(96)[: 16 + 16 + 17]
    triplets = np.column_stack([*np.divmod(cells, N_COLUMNS), cells % 5])
    clients = np.split(triplets.astype(float), [16, 32])
    noisy = {"omega": 1.0, "compressor": compressor, "step_size": 0.3, "max_iter": 5, "tol": 0.0}
    means = []
    for alpha in ("auto", 1 / (1 + 1.0)):
        imputer = FederatedMatrixImputer(**noisy, control_step=alpha, random_state=0)
        with pytest.warns(ConvergenceWarning, match="Not converged"):
            means.append(imputer.fit(clients, shape=SHAPE).fitted_mean())
    assert_array_equal(*means)


@pytest.mark.parametrize("compressor", ["dithering", "block", "rand_k"])
def test_compression_saves_bits_and_reaches_the_same(compressor, fitted):
    compressed = FederatedMatrixImputer(**{**EXACT, "tol": 1e-4}, omega=1.0, compressor=compressor)
    compressed.fit(CLIENTS)
    assert compressed.converged_
    assert compressed.history_["uplink_bits"][1] < 0.6 * fitted.history_["uplink_bits"][1]
    assert abs(compressed.objective_ - fitted.objective_) < 1e-3 * fitted.objective_


def test_looking_changes_neither_the_fit_nor_its_cost():
    def evaluated(imputer):
        return np.flatnonzero(~np.isnan(imputer.history_["objective"])).tolist()

    fits = {
        eval_every: FederatedMatrixImputer(
            **{**STOCHASTIC, "tol": 1e-2}, eval_every=eval_every
        ).fit(CLIENTS)
        for eval_every in (None, 7, "auto")
    }
    n_iter = fits["auto"].n_iter_
    assert evaluated(fits[None]) == []
    assert evaluated(fits[7]) == sorted({*range(0, n_iter + 1, 7), n_iter})
    assert 1 < len(evaluated(fits["auto"])) < n_iter
    for eval_every in (None, 7):
        for name in FITTED:
            assert_array_equal(getattr(fits[eval_every], name), getattr(fits["auto"], name))
        for name in ("epoch", "uplink_bits", "downlink_bits"):
            assert_array_equal(fits[eval_every].history_[name], fits["auto"].history_[name])
    exact = FederatedMatrixImputer(**QUICK, eval_every=None).fit(CLIENTS)
    assert evaluated(exact) == []
    assert np.isfinite(exact.objective_)


def test_verbose(capsys):
    parameters = {**EXACT, "tol": 0.0, "max_iter": 25}
    fit_unconverged(FederatedMatrixImputer(**parameters), CLIENTS)
    assert capsys.readouterr().out == ""
    fit_unconverged(FederatedMatrixImputer(**parameters, verbose=1), CLIENTS)
    lines = capsys.readouterr().out.splitlines()
    steps = ["Round 10", "Round 20", "Not converged after 25 rounds"]
    assert [line.partition(":")[0].partition(",")[0].strip() for line in lines] == steps
    assert all("objective before it 2" in line for line in lines[:2])
    fit_unconverged(FederatedMatrixImputer(**parameters, verbose=2), CLIENTS)
    assert len(capsys.readouterr().out.splitlines()) == 26
    # After the first round the objective still falls fast: that of the round before is another.
    parameters["max_iter"] = 1
    fitted = fit_unconverged(FederatedMatrixImputer(**parameters, verbose=1), CLIENTS)
    assert capsys.readouterr().out.endswith(f": objective {fitted.objective_:.6g}\n")
    fit_unconverged(FederatedMatrixImputer(**parameters, verbose=1, eval_every=None), CLIENTS)
    assert "objective" not in capsys.readouterr().out


def test_no_rounds_are_the_effects():
    imputer = FederatedMatrixImputer(**{**EXACT, "max_iter": 0}).fit(CLIENTS)  # warns nothing
    assert imputer.n_iter_ == 0
    assert not imputer.converged_
    assert imputer.singular_values_.size == 0
    assert_finite(imputer)


def test_max_epochs_ends_with_the_round_that_completes_them():
    parameters = {**STOCHASTIC, "tol": 0.0, "max_iter": None, "max_epochs": 4.5}
    imputer = fit_unconverged(FederatedMatrixImputer(**parameters), CLIENTS)
    assert imputer.history_["epoch"][-1] >= 4.5 > imputer.history_["epoch"][-2]


@pytest.mark.parametrize("parameters", [EXACT, {**EXACT, "omega": 1.0, "participation": 0.75}])
def test_tol_governs_the_rounds(parameters):
    fits = [
        FederatedMatrixImputer(**{**parameters, "tol": tol, "max_iter": 2000}).fit(CLIENTS)
        for tol in (1e-2, 1e-4, 1e-6)
    ]
    assert fits[0].n_iter_ < fits[1].n_iter_ < fits[2].n_iter_
    assert all(fit.converged_ for fit in fits)
    best = FederatedMatrixImputer(**{**EXACT, "tol": 1e-12, "max_iter": 2000}).fit(CLIENTS)
    # What is left is more than one round's gain: a factor of thirty.
    assert fits[1].objective_ - best.objective_ < 30 * 1e-4 * best.objective_
    assert fits[2].objective_ - best.objective_ < 30 * 1e-6 * best.objective_


def test_tol_is_relative_to_the_objective():
    imputer = FederatedMatrixImputer(**EXACT).fit(CLIENTS)
    changes = np.abs(np.diff(imputer.history_["objective"])) / imputer.history_["objective"][1:]
    # Five in a row, of the objectives before the last step, as the clients' messages tell them.
    small = changes[:-1] < 1e-6
    assert small[-5:].all()
    assert not any(small[k : k + 5].all() for k in range(len(small) - 5))


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"max_iter": 3}, r"tol=1e-06 after 3 rounds\. Increase max_iter or tol\.$"),
        ({"max_iter": 20, "batch_size": 5}, r"20 rounds\. Use solver='vr_fedem'\.$"),
        ({"max_iter": 5, "max_epochs": 9}, r"Increase max_iter or tol\.$"),
        ({"max_iter": 9, "max_epochs": 5}, r"Increase max_epochs or tol\.$"),
        ({"max_iter": None, "max_epochs": 5}, r"Increase max_epochs or tol\.$"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "fit_transform"])
def test_a_fit_that_did_not_converge_says_what_to_do(parameters, says, method):
    imputer = FederatedMatrixImputer(**{**EXACT, **parameters})
    with pytest.warns(ConvergenceWarning, match=says) as caught:
        getattr(imputer, method)(CLIENTS)
    assert [warning.filename for warning in caught] == [__file__]
    assert not imputer.converged_


def test_a_fit_that_runs_away_says_so():
    rng = np.random.default_rng(0)
    clients = [np.where(rng.random((30, 20)) < 0.3, rng.normal(size=(30, 20)), np.nan)] * 3
    imputer = FederatedMatrixImputer(
        rank=2, penalty=1.0, omega=4.0, compressor="rand_k", control_step=1.0, max_iter=100,
        random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit(clients)
    message = " ".join(str(warning.message) for warning in caught)
    assert re.search(
        r"objective ended at .*e\+\d+, above .* do not use this fit. Use control_step='auto', a "
        r"smaller step_size or a smaller omega\.",
        message,
    )


@pytest.mark.filterwarnings("ignore:Not converged")
def test_a_step_that_runs_away_is_told_of_and_automatic_ones_do_not():
    rng = np.random.default_rng(0)
    clients = [np.where(rng.random((17, 6)) < 0.4, rng.normal(size=(17, 6)), np.nan)] * 4
    imputer = FederatedMatrixImputer(step_size=1.0, batch_size=1, max_iter=60, random_state=0)
    with pytest.warns(ConvergenceWarning, match="do not use this fit. Use a smaller step_size"):
        imputer.fit(clients)
    begun = imputer.history_["objective"][0]
    imputer.set_params(step_size="auto").fit(clients)
    assert imputer.objective_ < begun


def test_a_fit_that_runs_away_to_infinity_says_so(capfd):
    rng = np.random.default_rng(0)
    means = rng.normal(size=(57, 2)) @ rng.normal(size=(2, 13))
    table = np.where(rng.random(means.shape) < 0.6, means + rng.normal(size=means.shape), np.nan)
    owner = rng.integers(5, size=table.shape)
    imputer = FederatedMatrixImputer(
        rank=2, penalty=10.0, solver="vr_fedem", batch_size=10, omega=3.0, compressor="rand_k",
        step_size=1.0, max_iter=700, random_state=0,
    )  # fmt: skip
    with pytest.warns(ConvergenceWarning) as caught:
        imputer.fit([np.where(owner == k, table, np.nan) for k in range(5)])
    assert imputer.objective_ > 1e290
    assert {warning.category for warning in caught} == {ConvergenceWarning}
    said = [str(warning.message) for warning in caught]
    assert any("do not use this fit" in message for message in said)
    assert not any("Not converged" in message for message in said)  # more rounds would not help
    assert "DLASCL" not in capfd.readouterr().out


@pytest.mark.parametrize(("control_init", "is_told"), [("field", True), ("zeros", False)])
def test_a_fit_above_its_start_is_told_of_without_a_history(control_init, is_told):
    rng = np.random.default_rng(0)
    counts = rng.poisson(5.0, (4, 30, 20))
    clients = [np.where(rng.random((30, 20)) < 0.3, own, np.nan) for own in counts]
    rough = {"omega": 50.0, "compressor": "rand_k", "participation": 0.3, "control_step": 1.0}
    imputer = FederatedMatrixImputer(
        3, family="poisson", penalty=0.1, **rough, step_size=1.0, max_iter=30, random_state=0
    ).set_params(eval_every=None, control_init=control_init)
    said = said_by(imputer.fit, clients)
    assert any("do not use this fit" in message for message in said) == is_told


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_of_a_given_size_are_plain_proximal_steps(family):
    X = of_family(family)
    parameters = {"rank": 2, "family": family, "penalty": 0.7, "tol": 1e-7, "max_iter": 3000}
    plain = FederatedMatrixImputer(**parameters, step_size=1.0).fit(X)
    objective = plain.history_["objective"]
    assert np.diff(objective).max() <= 1e-12 * objective[0]
    assert_array_equal(plain.history_["step_size"][1:], 1.0)
    automatic = FederatedMatrixImputer(**parameters).fit(X)
    assert_allclose(plain.objective_, automatic.objective_, rtol=1e-4)
    assert automatic.n_iter_ < plain.n_iter_


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_have_arrived_are_not_too_long(seed):
    # The first step ends at the optimum, the table itself. Rounding of later ones is not too long.
    table = 10 * np.random.default_rng(seed).standard_normal((24, 6))
    imputer = FederatedMatrixImputer(None, penalty=0, effects="none", step_size=1.0).fit([table])
    assert imputer.converged_
    assert_array_equal(imputer.history_["step_size"][1:], 1.0)
    assert not imputer.history_["safeguarded"].any()


def test_step_size_may_be_a_function_of_the_round():
    asked = []

    def step_size(round_number):
        asked.append(round_number)
        return 1 / round_number**0.5

    parameters = {**EXACT, "step_size": step_size, "max_iter": 8}
    imputer = fit_unconverged(FederatedMatrixImputer(**parameters), CLIENTS)
    assert asked == list(range(1, 9))
    assert_allclose(imputer.history_["step_size"][1:], np.arange(1, 9) ** -0.5)
    with pytest.raises(ValueError, match=r"Expected step_size\(1\) to be a number > 0 and <= 1"):
        FederatedMatrixImputer(step_size=lambda k: 2.0).fit(CLIENTS)


def test_variance_reduction_reaches_the_optimum_that_minibatches_alone_miss(fitted):
    reduced = FederatedMatrixImputer(**STOCHASTIC).fit(CLIENTS)
    assert reduced.converged_
    assert abs(reduced.objective_ - fitted.objective_) < 1e-3 * fitted.objective_
    alone = FederatedMatrixImputer(**{**STOCHASTIC, "solver": "fedem", "tol": 0.0})
    alone.set_params(max_iter=reduced.n_iter_)
    fit_unconverged(alone, CLIENTS)
    assert alone.objective_ > reduced.objective_


def test_warm_start_goes_on_where_the_last_fit_ended(fitted):
    imputer = FederatedMatrixImputer(**EXACT, warm_start=True).fit(CLIENTS)
    objective = imputer.objective_
    imputer.fit(CLIENTS)
    assert imputer.n_iter_ < fitted.n_iter_ / 2
    assert imputer.objective_ <= objective
    assert_allclose(imputer.history_["objective"][0], objective, rtol=1e-12)
    cold = FederatedMatrixImputer(**{**EXACT, "penalty": 1.5}).fit(CLIENTS)
    imputer.set_params(penalty=1.5).fit(CLIENTS)
    assert imputer.n_iter_ < cold.n_iter_
    assert_allclose(imputer.objective_, cold.objective_, rtol=1e-4)
    stochastic = FederatedMatrixImputer(**STOCHASTIC, warm_start=True).fit(CLIENTS)
    objective = stochastic.objective_
    stochastic.fit(CLIENTS)
    assert_allclose(stochastic.history_["objective"][0], objective, rtol=1e-12)


def test_warm_start_with_other_parameters():
    imputer = FederatedMatrixImputer(**EXACT, warm_start=True).fit(CLIENTS)
    assert len(imputer.singular_values_) == 4
    # A smaller rank keeps the leading factors.
    imputer.set_params(rank=1).fit(CLIENTS)
    assert imputer.singular_values_.shape == (1,)
    assert imputer.history_["singular_values"].shape[1] == 1
    for effects in ("none", "rows", "columns", "both"):
        imputer.set_params(effects=effects).fit(CLIENTS)
        cold = FederatedMatrixImputer(**{**EXACT, "rank": 1, "effects": effects}).fit(CLIENTS)
        assert_allclose(imputer.objective_, cold.objective_, rtol=1e-3)
        for own, name in ((imputer.row_effects_, "rows"), (imputer.column_effects_, "columns")):
            assert own.any() == (effects in ("both", name))


# ------------------------------------------------------------------ randomness


@pytest.mark.skipif(not SEEDED_ARPACK, reason="ARPACK draws from a state of the process")
@pytest.mark.parametrize("shape", [(30, 12), (12, 30)], ids=["tall", "wide"])
def test_a_seed_gives_the_same_fit_where_fewer_singular_values_are_found_than_asked_for(shape):
    # Ten cells: the residuals have a smaller rank than the 5 + 5 directions that are followed.
    rng = np.random.default_rng(0)
    notes = np.column_stack([*(rng.integers(size, size=10) for size in shape), rng.poisson(6, 10)])
    imputer = FederatedMatrixImputer(
        5, family="poisson", penalty=0.3, effects="none", random_state=0
    )
    first, second = (clone(imputer).fit([notes], shape=shape) for _ in range(2))
    assert_same_fit(first, second)


def test_another_seed_is_another_fit():
    parameters = {**STOCHASTIC, "max_iter": 5, "tol": 0.0}
    one, other = (
        fit_unconverged(FederatedMatrixImputer(**parameters | {"random_state": seed}), CLIENTS)
        for seed in (0, 1)
    )
    assert one.objective_ != other.objective_


def test_a_random_state_advances():
    imputer = FederatedMatrixImputer(
        **{**STOCHASTIC, "tol": 1e-2, "random_state": np.random.RandomState(5)}
    )
    first = imputer.fit(CLIENTS).objective_
    assert imputer.fit(CLIENTS).objective_ != first
    imputer.set_params(random_state=np.random.RandomState(5))
    assert imputer.fit(CLIENTS).objective_ == first
