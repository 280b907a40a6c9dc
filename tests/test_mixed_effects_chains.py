"""Population models with an E-step by Markov chains, as users fit them."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning

from problems import quiet_fit
from skfedem import FederatedNonlinearMixedEffects
from skfedem.datasets import load_theophylline
from skfedem.pharmacokinetics import one_compartment_oral

EXACT = 345.4348
# Exact maximum likelihood: logarithms of the fixed effects with standard errors, ω² and a.
MEANS, ERRORS = np.log([1.5794, 31.626, 2.7480]), np.array([0.194, 0.0461, 0.0838])
VARIANCES, RESIDUAL = np.array([0.3947, 0.01789, 0.07075]), 0.7380
START = {"ka": 1.0, "V": 20.0, "CL": 0.5}
SHORT = {"n_exploratory": 60, "n_smoothing": 60}


@pytest.fixture(scope="module")
def table():
    data = load_theophylline().data
    return data[data["time"] > 0]


def oral(**parameters):
    given = {"e_step": "mcmc", "random_state": 0, **parameters}
    return FederatedNonlinearMixedEffects(one_compartment_oral, START, **given)


def by_dose(table):
    """Four sites with three subjects each, sorted by dose."""
    doses = table.groupby("id")["dose"].first().sort_values(kind="stable")
    site = {subject: place // 3 for place, subject in enumerate(doses.index)}
    return table["id"].map(site).to_numpy()


def assert_same_rounds(got, want, tolerance):
    names = [name for name in want.history_ if not name.endswith("_bits") and name != "n_active"]
    for name in names:
        assert_allclose(got.history_[name], want.history_[name], rtol=tolerance, err_msg=name)


# ---- maximum likelihood


@pytest.mark.slow
def test_theophylline_is_near_its_maximum_likelihood_estimates(table):
    fit = oral().fit(table)
    assert fit.converged_
    assert fit.n_iter_ == 600
    assert -2 * fit.log_likelihood_ < EXACT + 0.10
    means = np.log(list(fit.population_parameters_.values()))
    assert (np.abs(means - MEANS) < 0.3 * ERRORS).all()
    # Standard errors of variances are about 45 to 55 per cent, that of the residual 7.2.
    variances = np.diagonal(fit.random_effects_cov_)
    assert (np.abs(variances / VARIANCES - 1) < 0.4 * np.array([0.446, 0.546, 0.482])).all()
    assert abs(fit.residual_["a"] / RESIDUAL - 1) < 0.4 * 0.072


def test_fewer_rounds_are_rougher(table):
    fit = quiet_fit(oral(**SHORT), table)
    assert -2 * fit.log_likelihood_ < EXACT + 0.5
    assert fit.n_iter_ == 120
    # Five rounds of simulation only, long steps, then k^-0.7.
    steps = fit.history_["step_size"][1:]
    assert_array_equal(steps[:60], [0.0] * 5 + [1.0] * 55)
    assert_allclose(steps[60:], np.arange(1.0, 61) ** -0.7)
    assert np.isnan(fit.history_["log_likelihood"]).all()


def test_variances_are_annealed_in_the_first_half_of_the_exploration(table):
    fit = quiet_fit(oral(**SHORT), table)
    columns = [fit.history_[name] for name in fit.history_ if name.startswith("omega2")]
    columns.append(fit.history_["residual_a"] ** 2)
    shares = np.array([column[1:] / column[:-1] for column in columns])
    assert (shares[:, :30] > 0.97 - 1e-9).all()
    assert shares[:, 30:].min() < 0.97


# ---- federation


@pytest.mark.filterwarnings("ignore:.*fewer than 3 subjects")
@pytest.mark.parametrize("split", ["ragged", "one each"])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_federation_has_the_rounds_of_the_pooled_subjects(split, n_jobs, table):
    ragged = np.repeat([0, 1, 2, 3], [5, 1, 4, 2])[table["id"] - 1]
    sites = ragged if split == "ragged" else table["id"].to_numpy()
    short = {"n_exploratory": 20, "n_smoothing": 20}
    want = quiet_fit(oral(**short), table)
    mixed = np.random.default_rng(0).permutation(len(table))
    got = quiet_fit(oral(**short, n_jobs=n_jobs), table.iloc[mixed], clients=sites[mixed])
    assert_same_rounds(got, want, 1e-10)
    order = np.argsort(got._memory.row_keys)
    for own, pooled in zip(got._memory.states, want._memory.states, strict=True):
        assert_array_equal(own[order], pooled)


@pytest.mark.slow
def test_absences_and_compression_are_made_up_for_by_control_variates(table):
    sites = by_dose(table)
    rough = {"omega": 1.0, "participation": 0.5, "n_exploratory": 200, "n_smoothing": 200}
    excess = {}
    for naive in (False, True):
        controls = {"control_step": 0.0} if naive else {}
        fit = quiet_fit(oral(**rough, **controls), table, clients=sites)
        excess[naive] = -2 * fit.log_likelihood_ - EXACT
    assert excess[False] < 0.1
    assert excess[True] > 3 * excess[False]


def test_the_fit_does_not_depend_on_who_is_computed_together(table):
    sites = by_dose(table)
    rough = {"omega": 1.0, "participation": 0.5, "n_exploratory": 20, "n_smoothing": 10}
    one, two = (quiet_fit(oral(**rough, n_jobs=n), table, clients=sites) for n in (1, 2))
    assert_same_rounds(two, one, 0)


def test_a_checkpoint_continues_a_run_to_the_bit(tmp_path, table):
    sites, path = by_dose(table), tmp_path / "run.npz"
    rough = {"omega": 1.0, "participation": 0.5, "n_exploratory": 20, "n_smoothing": 10}
    whole = quiet_fit(oral(**rough), table, clients=sites)
    quiet_fit(oral(**rough, max_iter=8, checkpoint=path), table, clients=sites)
    again = quiet_fit(oral(**rough), table, clients=sites, resume_from=path)
    assert_same_rounds(again, whole, 0)


def test_what_is_sent_once_is_counted(table):
    sites, weights = by_dose(table), table.assign(log_weight=np.log(table["weight"]))
    for e_step in ("quadrature", "mcmc"):
        given = {"e_step": e_step, "covariates": {"V": ["log_weight"]}, "max_iter": 7}
        fit = quiet_fit(oral(**given), weights, clients=sites)
        # Three facts of the table; numbers of observations, two moments of (1, x), and squared
        # residuals. Back come places for observations, the means, and θ at the start.
        assert fit.history_["uplink_bits"][0] == 64 * 4 * (3 + 3 + 1)
        q = 3 + 1 + 3 + 1
        assert fit.history_["downlink_bits"][0] == 64 * 4 * (1 + 3 + q)


# ---- warm starts


@pytest.mark.filterwarnings("ignore:.*fewer than 3 subjects")
def test_chains_follow_their_subjects_to_other_sites(table):
    sites = by_dose(table)
    rough = {"omega": 1.0, "participation": 0.5, "n_exploratory": 20, "n_smoothing": 10}
    first = quiet_fit(oral(**rough, warm_start=True), table, clients=sites)
    before, theta = first._memory, first._theta
    # Subject 3 is new, 5 has moved, and site 0 is now called 7.
    others = table.assign(id=table["id"].replace({3: 33}))
    moved = np.where(others["id"] == 5, 1, np.where(sites == 0, 7, sites))
    fit = first.set_params(max_iter=0)
    quiet_fit(fit, others, clients=moved)
    after = fit._memory
    for key, place in zip(after.row_keys.tolist(), range(12), strict=True):
        for one, other in zip(after.states, before.states, strict=True):
            if key == 33:
                assert not (one[place] == other).all(axis=(1, 2)).any()
            else:
                assert_array_equal(one[place], other[before.row_keys == key][0])
    for label, own in zip(after.ids.tolist(), after.controls, strict=True):
        if label == 7:
            assert_array_equal(own, 0)
        else:
            assert_array_equal(own, before.controls[before.ids == label][0])
    assert_allclose(fit._theta.covariance, theta.covariance, rtol=1e-12)


@pytest.mark.parametrize("e_step", ["mcmc", "quadrature"])
def test_a_warm_start_begins_at_the_estimates(e_step, table):
    fit = quiet_fit(oral(e_step=e_step, warm_start=True, max_iter=20), table)
    ended = {name: column[-1] for name, column in fit.history_.items() if name in START}
    again = quiet_fit(fit.set_params(max_iter=1, start={"ka": 3.0, "V": 9.0, "CL": 1.0}), table)
    for name, value in ended.items():
        assert_allclose(again.history_[name][0], value, rtol=1e-14)
    fresh = quiet_fit(fit.set_params(warm_start=False), table)
    assert fresh.history_["V"][0] == pytest.approx(9.0)
    with pytest.raises(ValueError, match="of the last fit with warm_start=True, got others"):
        fit.set_params(warm_start=True, covariance_type="full").fit(table)


# ---- more parameters than quadrature can have


TIMES = (np.arange(8) + 0.5) / 8
# Orthogonal at these times.
COSINES = np.cos(np.pi * TIMES[:, None] * np.arange(5))


def cosines(parameters, regressors):
    """Linear in five parameters."""
    time = regressors["time"]
    return sum(parameters[f"c{k}"] * np.cos(np.pi * k * time) for k in range(5))


def curves_of(n_subjects, seed=0):
    """Long table of noisy curves."""
    generator = np.random.default_rng(seed)
    coefficients = 1 + 0.5 * generator.standard_normal((n_subjects, 5))
    response = coefficients @ COSINES.T
    response += 0.3 * generator.standard_normal(response.shape)
    return pd.DataFrame(
        {
            "id": np.repeat(np.arange(n_subjects), 8),
            "time": np.tile(TIMES, n_subjects),
            "dv": response.ravel(),
        }
    )


def test_five_parameters_are_fitted_and_their_likelihood_is_sampled():
    data, start = curves_of(40), {f"c{k}": 0.0 for k in range(5)}
    shape = {"transform": "identity", "regressors": ["time"], "random_state": 0}
    with pytest.raises(ValueError, match='at most 4 parameters with e_step="quadrature", got 5'):
        FederatedNonlinearMixedEffects(cosines, start, **shape).fit(data)
    fit = FederatedNonlinearMixedEffects(
        cosines, start, **shape, e_step="mcmc", n_exploratory=60, n_smoothing=40
    )
    fit = quiet_fit(fit, data, clients=data["id"].to_numpy() % 3)
    design = COSINES
    covariance = design @ fit.random_effects_cov_ @ design.T + fit.residual_["a"] ** 2 * np.eye(8)
    mean = design @ list(fit.population_parameters_.values())
    want = multivariate_normal(mean, covariance).logpdf(data["dv"].to_numpy().reshape(40, 8)).sum()
    assert 0 < fit.log_likelihood_error_ < 0.2
    assert abs(fit.log_likelihood_ - want) < 4 * fit.log_likelihood_error_
    assert abs(40 * fit.score(data) - want) < 4 * fit.log_likelihood_error_
    # Posteriors are normal: means are modes, up to the errors of 5,000 draws.
    modes, means = (fit.individual_parameters(data, kind) for kind in ("mode", "mean"))
    assert_allclose(means[list(start)], modes[list(start)], atol=0.05)
    # With one design for all subjects, maximum likelihood is least squares of their mean.
    means = data["dv"].to_numpy().reshape(40, 8).mean(axis=0)
    best = np.linalg.lstsq(design, means, rcond=None)[0]
    error = np.sqrt(np.diagonal(np.linalg.inv(design.T @ np.linalg.solve(covariance, design))) / 40)
    got = np.array(list(fit.population_parameters_.values()))
    assert (np.abs(got - best) < 0.5 * error).all()


# ---- averages of parameters


def hospitals(n_sites=10, n_subjects=20, seed=0):
    """Hospitals whose patients differ in clearance."""
    generator = np.random.default_rng(seed)
    times, n = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0, 24.0]), n_sites * n_subjects
    sites = np.repeat(np.arange(n_sites), n_subjects)
    phi = np.log([1.5, 30.0, 2.7])[:, None] + np.sqrt([0.3, 0.03, 0.05])[
        :, None
    ] * generator.standard_normal((3, n))
    phi[2] += np.linspace(-0.5, 0.5, n_sites)[sites]
    regressors = {"time": times[:, None], "dose": 320.0}
    predicted = one_compartment_oral(
        dict(zip(("ka", "V", "CL"), np.exp(phi), strict=True)), regressors
    )
    response = predicted + 0.5 * generator.standard_normal(predicted.shape)
    return pd.DataFrame(
        {
            "id": np.repeat(np.arange(n), len(times)),
            "site": np.repeat(sites, len(times)),
            "time": np.tile(times, n),
            "dose": 320.0,
            "dv": response.T.ravel(),
        }
    )


def test_averages_of_parameters_lack_the_variance_between_sites():
    data = hospitals()
    best = oral(e_step="quadrature").fit(data, clients="site").random_effects_cov_[2, 2]
    found = {}
    for aggregate, n_local in (("statistics", 1), ("parameters", 1), ("parameters", 3)):
        fit = oral(aggregate=aggregate, n_local=n_local, n_exploratory=60, n_smoothing=40)
        fit = quiet_fit(fit, data, clients="site")
        found[aggregate, n_local] = fit.random_effects_cov_[2, 2] / best
    assert abs(found["statistics", 1] - 1) < 0.05
    assert found["parameters", 1] < 0.5
    assert found["parameters", 3] < 0.5


@pytest.mark.filterwarnings("ignore:.*fewer subjects than parameters")
def test_averaging_goes_on_from_checkpoints_and_on_any_number_of_workers(tmp_path, table):
    sites, path = by_dose(table), tmp_path / "run.npz"
    short = {"aggregate": "parameters", "n_local": 2, "n_exploratory": 12, "n_smoothing": 6}
    rough = {**short, "participation": 0.5}
    whole = quiet_fit(oral(**rough), table, clients=sites)
    quiet_fit(oral(**rough, max_iter=8, checkpoint=path), table, clients=sites)
    again = quiet_fit(oral(**rough, n_jobs=2), table, clients=sites, resume_from=path)
    assert_same_rounds(again, whole, 0)


def test_one_site_averages_nothing(table):
    fit = quiet_fit(oral(**SHORT, aggregate="parameters"), table)
    assert -2 * fit.log_likelihood_ < EXACT + 0.5


@pytest.mark.filterwarnings("ignore:.*fewer than 3 subjects")
def test_a_single_subject_has_no_covariance_of_random_effects(table):
    with pytest.warns(
        UserWarning, match=r"12 clients with .* parameters \+ 1 = 4 \(client 1 has 1"
    ):
        fit = quiet_fit(
            oral(**SHORT, aggregate="parameters", n_chains=1), table, clients=table["id"].to_numpy()
        )
    assert np.isfinite(fit.log_likelihood_)
    assert (np.diagonal(fit.random_effects_cov_) < 0.1 * VARIANCES).all()


@pytest.mark.parametrize("e_step", ["mcmc", "quadrature"])
def test_sites_that_show_persons_are_told(e_step, table):
    sites = np.repeat(["a", "b", "c"], [9, 2, 1])[table["id"] - 1]
    with pytest.warns(UserWarning, match="2 clients with fewer than 3 subjects .client 'c' has 1"):
        quiet_fit(oral(e_step=e_step, max_iter=1), table, clients=sites)


def test_a_schedule_is_run_to_its_end(table, capsys):
    quiet_fit(oral(n_exploratory=6, n_smoothing=6, verbose=1), table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip().split(":")[0] for line in lines[:1]] == ["Round 10"]
    assert lines[1].startswith("  Ended after 12 rounds, ")


# ---- bad input


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"e_step": "saem"}, "e_step to be one of 'quadrature', 'mcmc'"),
        ({"solver": "vr_fedem"}, 'solver="fedem" with e_step="mcmc", got "vr_fedem"'),
        ({"batch_size": 2}, 'batch_size=None with e_step="mcmc", got 2'),
        ({"n_chains": 0}, "n_chains to be an integer >= 1"),
        ({"n_exploratory": 5}, "n_exploratory to be an integer >= 6"),
        ({"n_smoothing": -1}, "n_smoothing to be an integer >= 0"),
        ({"smoothing_exponent": 0.5}, "smoothing_exponent to be a number > 0.5 and <= 1"),
        ({"aggregate": "models"}, "aggregate to be one of 'statistics', 'parameters'"),
        ({"aggregate": "parameters", "e_step": "quadrature"}, 'e_step="mcmc" with aggregate='),
        ({"aggregate": "parameters", "omega": 1.0}, "omega=0 with aggregate="),
        ({"aggregate": "parameters", "step_size": 0.5}, 'step_size="auto" with aggregate='),
        ({"aggregate": "parameters", "n_local": 0}, "n_local to be an integer >= 1"),
        ({"max_iter": 0.5}, "max_iter to be an integer >= 0"),
    ],
)
def test_errors_say_what_chains_need(parameters, message, table):
    with pytest.raises((TypeError, ValueError), match=message):
        oral(**parameters).fit(table)


def test_estimates_that_still_move_are_told(table):
    with pytest.warns(ConvergenceWarning, match="Increase n_exploratory"):
        fit = oral(n_exploratory=6, n_smoothing=4).fit(table)
    assert not fit.converged_
