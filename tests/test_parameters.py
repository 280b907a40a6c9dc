"""Parameters: numbers, names, compressors and starts that are refused, and what stands for them."""

import copy
import re
import warnings
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from refusals import (
    CLIENTS,
    FITTED,
    GOOD,
    OWNERS,
    X,
    assert_unchanged,
    check_refused,
    fitted_attributes,
)
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.compression import RandK
from skfedem.datasets import (
    make_fedem_mixture,
    make_federated_mixture,
    make_site_counts,
    split_clients,
)
from skfedem.participation import draw_active
from skfedem.preprocessing import FederatedPCA, PerClient

# ---- numbers

NAN, INFINITY = float("nan"), float("inf")
NOT_NUMBERS = ("x", True, [0.5], 1 + 1j)
NOT_INTEGERS = (*NOT_NUMBERS, 2.5, 2.0, NAN)
BAD_NUMBERS = {
    "n_components": (">= 1", (0, -1), (*NOT_INTEGERS, None)),
    "n_init": (">= 1", (0, -1), (*NOT_INTEGERS, None)),
    "batch_size": (">= 1", (0, -1, 10**400), NOT_INTEGERS),
    "n_inner": (">= 1", (0, -1, 10**400), (*NOT_INTEGERS, None)),
    "max_iter": (">= 0", (-1,), NOT_INTEGERS),
    "eval_every": (">= 1", (0, -1), NOT_INTEGERS),
    "step_size": ("> 0 and <= 1", (0, -0.1, 1.5, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "control_step": (">= 0 and <= 1", (-0.1, 1.5, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "omega": (">= 0", (-1, -1e-9, NAN, INFINITY, 2**1024), (*NOT_NUMBERS, None)),
    "participation": ("> 0 and <= 1", (0.0, -0.5, 1.1, NAN, INFINITY), ("x", [0.5], 1 + 1j, None)),
    "max_epochs": ("> 0", (0, -1, NAN, INFINITY), NOT_NUMBERS),
    "tol": (">= 0", (-1e-3, NAN, INFINITY, 2**1024), (*NOT_NUMBERS, None)),
    "reg_covar": (">= 0", (-1e-6, NAN, INFINITY), (*NOT_NUMBERS, None)),
    "verbose": (">= 0", (-1, NAN), ("x", [0.5], None)),
    "n_jobs": ("other than 0", (0,), ()),
}


def bad_numbers(which):
    return [(name, case[0], value) for name, case in BAD_NUMBERS.items() for value in case[which]]


@pytest.mark.parametrize(("name", "bounds", "value"), bad_numbers(1))
def test_numbers_out_of_bounds(name, bounds, value):
    got = f"got {value!r}"[:100]  # long ones are cut
    says = [f"Expected {name} to be an? (finite number|number|integer) {bounds}", got]
    check_refused(ValueError, says, CLIENTS, **{name: value})


@pytest.mark.parametrize(("name", "bounds", "value"), bad_numbers(2))
def test_what_is_no_number(name, bounds, value):
    kind = type(value).__name__
    says = [
        f"Expected {name} to be an? (finite number|number|integer) {bounds}",
        re.escape(f"got {value!r}"),
        kind,
    ]
    check_refused(TypeError, says, CLIENTS, **{name: value})


@pytest.mark.parametrize(("error", "value"), [(ValueError, 0), (ValueError, -1), (TypeError, True)])
def test_what_is_no_number_of_clients_a_round(error, value):
    says = [f"Expected participation to be an integer >= 1, got {value}", "as a float"]
    check_refused(error, says, CLIENTS, participation=value)
    check_refused(ValueError, "at most the number of clients", CLIENTS, participation=10**6)


@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_what_is_no_number_of_threads(value):
    says = ["Expected n_jobs to be an integer", re.escape(f"got {value!r}"), "-1 for all", "None"]
    check_refused(TypeError, says, CLIENTS, n_jobs=value)


def test_verbose_may_be_a_switch(capsys):
    FederatedGaussianMixture(**GOOD, verbose=True).fit(CLIENTS)
    assert "onverged after" in capsys.readouterr().out
    FederatedGaussianMixture(**GOOD, verbose=np.False_).fit(CLIENTS)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", ["step_size", "control_step", "n_inner", "eval_every"])
def test_numbers_or_auto_say_so(name):
    says = ['Or give "auto"']
    check_refused(ValueError, says, CLIENTS, **{name: -1})
    check_refused(TypeError, says, CLIENTS, **{name: np.array([0.1, 0.2])})


@pytest.mark.parametrize(
    "number", [np.int8, np.uint8, np.int16, np.float32, np.longdouble, Fraction]
)
def test_numbers_of_any_type_are_used_as_pythons(number):
    # 100 * 3 clients leaves 8 bits, 2**19 doubles 16: only counts of these types, and no others.
    is_count = issubclass(number, np.integer)
    counts = {"n_components": 2, "batch_size": 100, "max_iter": 7}
    shares = {"step_size": 0.25, "participation": 0.5, "omega": 1.5, "reg_covar": 2.0**-20}
    odd = {name: number(value) for name, value in (counts if is_count else shares).items()}
    got, want = (
        FederatedGaussianMixture(**{**counts, **shares, **parameters}, tol=0, random_state=0)
        for parameters in (odd, {})
    )
    with warnings.catch_warnings():
        # No convergence, and no client has so many rows.
        warnings.simplefilter("ignore", UserWarning)
        got.fit(CLIENTS), want.fit(CLIENTS)
        assert_unchanged(fitted_attributes(got), fitted_attributes(want))
        got.partial_fit(CLIENTS), want.partial_fit(CLIENTS)
    assert_unchanged(fitted_attributes(got), fitted_attributes(want))
    assert all(type(got.get_params()[name]) is number for name in odd)


def test_numpy_numbers_are_numbers():
    gm = FederatedGaussianMixture(
        n_components=np.int32(2),
        batch_size=np.int64(4),
        step_size=np.float32(0.03125),
        omega=np.float64(0.5),
        participation=np.float32(0.5),
        max_iter=np.int16(3000),
        tol=np.float64(10.0),
        covariance_type=np.str_("tied"),
        random_state=0,
    )
    assert gm.fit(CLIENTS).converged_


def test_minibatches_larger_than_a_client_without_replacement():
    large = {"batch_size": 8, "replacement": False, "solver": "vr_fedem"}
    says = ["batch_size=8", "replacement=False", "got 7 for client 2", "replacement=True"]
    check_refused(ValueError, says, CLIENTS, **large)
    says = ["batch_size=8", "got 7 for client '?cedar", "at most 7"]
    check_refused(ValueError, says, X, OWNERS, **large)
    large["batch_size"] = 10
    check_refused(ValueError, ["got 9 for client 0", "batch_size of at most 7"], CLIENTS, **large)
    FederatedGaussianMixture(**GOOD, batch_size=7, replacement=False, tol=10.0, max_iter=5000).fit(
        CLIENTS
    )


@pytest.mark.parametrize(
    ("value", "error"), [(2.0, ValueError), (0, ValueError), (NAN, ValueError), (None, TypeError)]
)
def test_a_function_that_gives_no_step_size(value, error):
    def step_size(round_number):
        return 0.5 if round_number < 3 else value

    says = [r"step_size\(3\)", "> 0 and <= 1", f"got {value!r}"]
    check_refused(error, says, CLIENTS, step_size=step_size, tol=0.0)


# ---- names and switches

CHOICES = {
    "covariance_type": ("full", "tied", "diag", "spherical"),
    "solver": ("fedem", "vr_fedem"),
    "control_init": ("field", "zeros"),
    "compressor": ("dithering", "block", "rand_k"),
    "client_weights": ("n_samples", "uniform"),
    "init_params": ("kmeans", "k-means++", "random_from_data", "random"),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["unknown", "", 3, True, ["full"]])
def test_unknown_names(name, value):
    names = [re.escape(repr(choice)) for choice in CHOICES[name]]
    says = [f"Expected {name} to be one of", *names]
    check_refused(ValueError, [*says, re.escape(f"got {value!r}")], CLIENTS, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [("solver", "FedEM", "fedem"), ("init_params", "k-means+", "k-means++"),
     ("compressor", "ditherng", "dithering"), ("covariance_type", "Full", "full")],
)  # fmt: skip
def test_misspelt_names(name, value, meant):
    check_refused(ValueError, re.escape(f"Did you mean {meant!r}?"), CLIENTS, **{name: value})
    check_refused(ValueError, "Give one of these", CLIENTS, **{name: "xyz"})


@pytest.mark.parametrize("scheme", ["non-iid", "noniid", "Non_IID"])
def test_the_opposite_of_a_name_is_not_suggested(scheme):
    with pytest.raises(ValueError, match=r"Give one of these\.$"):
        split_clients(X, 3, scheme=scheme)


@pytest.mark.parametrize("name", sorted(set(CHOICES) - {"compressor"}))
def test_none_is_no_name(name):
    check_refused(ValueError, [f"Expected {name}", "got None"], CLIENTS, **{name: None})


@pytest.mark.parametrize("value", ["no", None, 2])
@pytest.mark.parametrize("name", ["replacement", "warm_start"])
def test_switches_are_true_or_false(name, value):
    # "no" would be read as True.
    says = [f"Expected {name}", "True or False", re.escape(f"got {value!r}")]
    check_refused(TypeError, says, CLIENTS, **{name: value})


def test_something_must_bound_the_fit():
    says = ["max_iter or max_epochs", "None for both", "Give one"]
    check_refused(ValueError, says, CLIENTS, max_iter=None)


# ---- seeds

SEEDED = {
    "a mixture": lambda seed: FederatedGaussianMixture(random_state=seed).fit(CLIENTS),
    "rows of a mixture": lambda seed: copy.copy(FITTED).set_params(random_state=seed).sample(2),
    "an imputer": lambda seed: FederatedMatrixImputer(random_state=seed).fit(X),
    "a search": lambda seed: FederatedMatrixImputerCV(random_state=seed).fit(X),
    "clients": lambda seed: split_clients(X, 3, random_state=seed),
    "a simulated mixture": lambda seed: make_federated_mixture(random_state=seed),
    "the paper's mixture": lambda seed: make_fedem_mixture(random_state=seed),
    "counts": lambda seed: make_site_counts(random_state=seed),
}
NO_SEEDS = [
    (-1, "got -1. Give an integer"),
    (np.int64(2**32), "got 4294967296. Give an integer"),
    ("x", "got 'x'. Give an integer"),
    (np.random.default_rng(0), "got Generator.* Draw an integer from it"),
]


@pytest.mark.parametrize("case", SEEDED)
@pytest.mark.parametrize(("seed", "got"), NO_SEEDS)
def test_what_is_no_seed(case, seed, got):
    expected = r"Expected random_state to be an integer from 0 to 2\*\*32 - 1, .* or None, "
    with pytest.raises(ValueError, match=expected + got):
        SEEDED[case](seed)


# ---- how messages show what they got

WRONG_NUMPY_SCALARS = [
    ({"n_components": np.int64(0)}, ValueError, "got 0."),
    ({"n_components": np.float64(2)}, TypeError, "got 2.0 of type float64"),
    ({"tol": np.float64(-1)}, ValueError, "got -1.0."),
    ({"step_size": lambda k: np.float32(-1)}, ValueError, "got -1.0."),
    ({"covariance_type": np.str_("Full")}, ValueError, "got 'Full'"),
    ({"warm_start": np.int64(1)}, TypeError, "got 1."),
]


@pytest.mark.parametrize(("parameters", "error", "got"), WRONG_NUMPY_SCALARS)
def test_numpy_scalars_are_shown_as_a_person_writes_them(parameters, error, got):
    check_refused(error, re.escape(got), CLIENTS, **parameters)


LONG_LIST, LONG_TEXT = [np.float64(-1)] * 10_000, "1,2\n" * 10_000
LONG_VALUES = {
    "penalties": lambda: FederatedMatrixImputerCV(penalties=LONG_LIST).fit(X),
    "one effects penalty": lambda: FederatedMatrixImputerCV(effects_penalties=np.float64(1)).fit(X),
    "missing_values": lambda: FederatedMatrixImputer(missing_values=pd.DataFrame(X)).fit(X),
    "shape": lambda: FederatedMatrixImputer().fit(X, shape=tuple(LONG_LIST)),
    "shape of no integers": lambda: FederatedMatrixImputer().fit(X, shape=(np.int64(0), 2)),
    "a file's text": lambda: FederatedGaussianMixture().fit(LONG_TEXT),
    "labels": lambda: FederatedGaussianMixture().fit(X, clients=LONG_TEXT),
    "a checkpoint": lambda: FederatedGaussianMixture(checkpoint=LONG_LIST).fit(X),
    "resume_from": lambda: FederatedGaussianMixture().fit(X, resume_from=LONG_LIST),
    "tables for a transformer": lambda: PerClient(CLIENTS).fit(CLIENTS),
    "a share of the variance": lambda: FederatedPCA(np.float64(1.5)).fit(X),
    "shares of components": lambda: make_federated_mixture(weights=["x"] * 10_000),
    "two levels": lambda: RandK(k=np.int64(2), omega=np.float64(1)),
    "no generator": lambda: draw_active(LONG_LIST, 3, 0.5),
}


@pytest.mark.parametrize("case", LONG_VALUES)
def test_long_values_are_cut(case):
    with pytest.raises((TypeError, ValueError)) as caught:
        LONG_VALUES[case]()
    message = str(caught.value)
    assert "got" in message
    assert len(message) < 600
    assert "np." not in message
    assert "\n" not in message


# ---- compressors


def test_compression_without_a_compressor():
    says = ["omega=0 with compressor=None", "omega=1.5", "dithering"]
    check_refused(ValueError, says, CLIENTS, compressor=None, omega=1.5)


def test_a_compressor_of_what_is_no_number():
    class Wrong(RandK):
        def compress(self, values, uniforms, lengths=None):
            return np.full_like(values, NAN)

        def n_bytes(self, values, lengths=None):
            return np.full(3, 100)

    says = ["finite values from Wrong.compress, got NaN", "Correct this class"]
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=10.0, step_size=0.1)


@pytest.mark.parametrize(
    ("omega", "says"),
    [
        (NAN, "a finite number >= 0 from Wrong.omega_for, got nan for messages of 12"),
        (INFINITY, "got inf for messages of 12"),
        (-1.0, "got -1.0 for messages of 12"),
        (None, r"a number, or an array of shape \(1,\), from Wrong.omega_for, got None"),
        ("high", "got 'high'"),
        ([1.0, 2.0], r"got \[1.0, 2.0\]"),
    ],
)
def test_a_compressor_without_an_omega(omega, says):
    class Wrong(RandK):
        def omega_for(self, length):
            return omega

    says = [says, "Correct this class"]
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=5.0)


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (lambda sent: None, "NoneType"),
        (lambda sent: sent[..., 1:], r".*64 of shape \(.*\)"),
        (list, "list"),
    ],
    ids=["nothing", "too short", "a list"],
)
@pytest.mark.parametrize("method", ["compress", "n_bytes"])
def test_a_compressor_that_returns_something_else(method, wrong, got):
    class Wrong(RandK):
        """One of its methods returns something else."""

    right = getattr(RandK, method)
    setattr(Wrong, method, lambda *arguments: wrong(right(*arguments)))
    array = {"compress": r"float64 of shape \(3, 12\)", "n_bytes": r"integers of shape \(3,\)"}
    says = f"an array of {array[method]} from Wrong.{method}, got {got}. Correct this class"
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=5.0)


def test_a_compressor_without_loss_whose_lengths_are_none():
    class Wrong(RandK):
        def omega_for(self, length):
            return 0.0

        def n_bytes(self, values, lengths=None):
            """Return nothing."""

    says = r"an array of integers of shape \(3,\) from Wrong.n_bytes, got NoneType"
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=5.0)


@pytest.mark.parametrize("dtype", [int, complex, object])
def test_a_compressor_that_returns_no_floats(dtype):
    class Wrong(RandK):
        def compress(self, values, uniforms, lengths=None):
            return super().compress(values, uniforms, lengths).astype(dtype)

        def n_bytes(self, values, lengths=None):
            return np.full(3, 100)

    says = ["float64 .* from Wrong.compress", np.dtype(dtype).name, "Correct this class"]
    check_refused(ValueError, says, CLIENTS, compressor=Wrong(k=3), omega=10.0, step_size=0.1)


@pytest.mark.parametrize(
    ("length", "says"),
    [
        (-1, "lengths >= 0 from Wrong.n_bytes, got -1"),
        (7.5, "integers .* from Wrong.n_bytes, got float64 .*"),
    ],
)
def test_a_compressor_whose_lengths_are_none(length, says):
    class Wrong(RandK):
        def n_bytes(self, values, lengths=None):
            return np.full(3, length)

    rows = np.random.default_rng(0).normal(size=(3, 10, 2))
    gm = FederatedGaussianMixture(2, compressor=Wrong(k=3), omega=10.0, step_size=0.1)
    with pytest.raises(ValueError, match=f"{says}. Correct this class"):
        gm.fit(list(rows))


def test_a_class_as_compressor():
    says = ["to be an object, got the class RandK", r"Call it, as in RandK\(omega=1.0\)"]
    check_refused(TypeError, says, CLIENTS, compressor=RandK, omega=1.0)
    check_refused(ValueError, "subclass of skfedem.compression", CLIENTS, compressor=3)


# ---- starts

BAD_STARTS = {
    "too few weights": ({"weights_init": [1.0]}, [r"shape \(2,\)", r"got \(1,\)"]),
    "weights that do not sum to 1": ({"weights_init": [0.5, 0.6]}, ["sum of 1.1", "Normalise"]),
    "negative weights": ({"weights_init": [1.5, -0.5]}, ["non-negative", "-0.5"]),
    "NaN weights": ({"weights_init": [0.5, NAN]}, ["weights_init", "NaN"]),
    "weights that are words": ({"weights_init": ["a", "b"]}, ["weights_init"]),
    "means for another number of components": (
        {"means_init": np.zeros((3, 2))},
        ["means_init", r"shape \(2, 2\)", r"got \(3, 2\)"],
    ),
    "no means": ({"means_init": []}, ["means_init", r"shape \(2, 2\)", r"got \(0,\)"]),
    "other features": ({"means_init": np.zeros((2, 1))}, ["means_init", r"\(2, 2\)", r"\(2, 1\)"]),
    "infinite means": ({"means_init": [[0, 0], [0, INFINITY]]}, ["means_init", "infinity"]),
    "precisions of another type": (
        {"precisions_init": np.eye(2)},
        ["precisions_init", r"\(2, 2, 2\)", r"got \(2, 2\)"],
    ),
    "precisions that are not symmetric": (
        {"precisions_init": [[1, 0.5], [0, 1]], "covariance_type": "tied"},
        ["precisions_init", "symmetric and positive definite", "from its transpose by up to 0.5"],
    ),
    "a negative precision": (
        {"precisions_init": np.stack([np.eye(2), np.diag([1.0, -3.0])])},
        ["precisions_init", "positive definite", "got -3 on a diagonal. Give positive"],
    ),
    "precisions that are not positive definite": (
        {"precisions_init": np.stack([np.eye(2), [[1.0, 2.0], [2.0, 1.0]]])},
        ["precisions_init", "symmetric and positive definite", "eigenvalue -1"],
    ),
    "precisions that are not positive": (
        {"precisions_init": [[1, 1], [1, 0]], "covariance_type": "diag"},
        ["positive", "precisions_init", "got 0", "give 1 / variance"],
    ),
    "negative spherical precisions": (
        {"precisions_init": [1, -2], "covariance_type": "spherical"},
        ["positive", "precisions_init", "got -2"],
    ),
    "NaN precisions": (
        {"precisions_init": [1, NAN], "covariance_type": "spherical"},
        ["precisions_init", "NaN"],
    ),
    "a fixed covariance that is not tied": (
        {"fixed_covariance": np.eye(2)},
        ["covariance_type='tied'|covariance_type=\"tied\"", "fixed_covariance", "got 'full'"],
    ),
    "a fixed covariance and precisions": (
        {
            "fixed_covariance": np.eye(2),
            "precisions_init": np.eye(2),
            "covariance_type": "tied",
        },
        ["precisions_init=None", "fixed_covariance", "got both"],
    ),
    "a fixed covariance of another size": (
        {"fixed_covariance": np.eye(3), "covariance_type": "tied"},
        ["fixed_covariance", r"\(2, 2\)", r"got \(3, 3\)"],
    ),
    "a singular fixed covariance": (
        {"fixed_covariance": np.ones((2, 2)), "covariance_type": "tied"},
        ["fixed_covariance", "positive definite"],
    ),
    "a fixed covariance with a variance of 0": (
        {"fixed_covariance": np.diag([0.0, 1.0]), "covariance_type": "tied"},
        ["fixed_covariance", "positive definite", "eigenvalue 0 with"],
    ),
    "a fixed covariance in small units that is not symmetric": (
        {"fixed_covariance": [[1e-10, 9e-11], [0, 1e-10]], "covariance_type": "tied"},
        ["fixed_covariance", "symmetric", "from its transpose by up to 9e-11"],
    ),
    "a fixed covariance with holes": (
        {"fixed_covariance": [[1, NAN], [NAN, 1]], "covariance_type": "tied"},
        ["fixed_covariance", "NaN"],
    ),
    "a fixed covariance that is a word": (
        {"fixed_covariance": "identity", "covariance_type": "tied"},
        ["fixed_covariance"],
    ),
    "complex means": (
        {"means_init": np.eye(2) + 1j},
        ["Expected means_init to be real numbers, got dtype complex128"],
    ),
    "means that are far beyond the rows": (
        {"means_init": [[0, 0], [1e100, 0]], "covariance_type": "tied", "omega": 1.0},
        [r"means_init within 1e\+37 standard deviations", r"got \[1e\+100, 0.0\] for component 1"],
    ),
    "means whose squares are no doubles": (
        {"means_init": [[1e200, -1e200], [0, 0]]},
        ["means_init within", "for component 0", "in the units of the rows"],
    ),
    "precisions whose inverses are no doubles": (
        {"precisions_init": [1e-320, 1e-320], "covariance_type": "spherical"},
        [r"precisions_init with variances within a factor of 1e\+74", "from inf to inf"],
    ),
    "precision matrices whose inverses are no doubles": (
        {"precisions_init": [[1e-320, 0], [0, 1]], "covariance_type": "tied"},
        ["precisions_init with variances within", "from 1 to inf", "in the units of the rows"],
    ),
    "precisions that are too large for messages": (
        {"precisions_init": 1e200 * np.eye(2), "covariance_type": "tied", "omega": 1.0},
        ["precisions_init with variances within", "from 1e-200 to 1e-200"],
    ),
    "a fixed covariance whose inverse is no double": (
        {"fixed_covariance": 1e-320 * np.eye(2), "covariance_type": "tied"},
        ["fixed_covariance with variances within", "from 1e-320 to 1e-320"],
    ),
    "a fixed covariance whose double is no double": (
        {"fixed_covariance": 1e308 * np.eye(2), "covariance_type": "tied"},
        ["fixed_covariance with variances within", r"from 1e\+308 to 1e\+308"],
    ),
}


@pytest.mark.parametrize(("parameters", "says"), BAD_STARTS.values(), ids=list(BAD_STARTS))
def test_bad_starts(parameters, says):
    check_refused(ValueError, says, CLIENTS, **parameters)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"n_components": 3}, "n_components=2, as in the last fit, got 3"),
        ({"covariance_type": "tied"}, "covariance_type='full', as in the last fit, got 'tied'"),
    ],
)
def test_a_fit_does_not_go_on_after_a_change_of_shape(changed, says):
    gm = FederatedGaussianMixture(**GOOD, warm_start=True).fit(CLIENTS)
    attributes = fitted_attributes(gm)
    gm.set_params(**changed)
    advice = r"\. Call fit with warm_start=False, or partial_fit on a clone, after such a change\.$"
    with pytest.raises(ValueError, match=says + advice):
        gm.fit(CLIENTS)
    # A stream goes on whatever warm_start is.
    with pytest.raises(ValueError, match=says + advice):
        gm.set_params(warm_start=False).partial_fit(CLIENTS)
    assert_unchanged(fitted_attributes(gm), attributes)


def test_a_fit_does_not_go_on_with_other_features():
    gm = FederatedGaussianMixture(2, warm_start=True, random_state=0).fit(CLIENTS)
    with pytest.raises(ValueError, match="n_features=2, as in the last fit, got 1. Call fit with"):
        gm.fit([client[:, :1] for client in CLIENTS])
