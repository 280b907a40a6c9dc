"""Annotations: everything public has some, they are true, and a type checker reads them."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import get_tags

from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    FederatedMatrixImputerCV,
    FederatedNonlinearMixedEffects,
)
from skfedem._imputer.imputation import MatrixImputation
from skfedem._mixture.prediction import FittedMixture
from skfedem.compression import BlockQuantizer, Compressor, Dithering, RandK
from skfedem.inspection import ImputationDisplay
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient
from skfedem.solvers._parameters import FederatedParameters, ResumableParameters

ROOT = Path(__file__).parents[1]
# What users import or inherit with it, and what those who extend the package write against.
PUBLIC = (
    "skfedem",
    "skfedem._client_vectors",
    "skfedem._federation",
    "skfedem._imputer.imputation",
    "skfedem._mixture.prediction",
    "skfedem._penalty_search.fitted_search",
    "skfedem._random",
    "skfedem.clients.group",
    "skfedem.clients.local",
    "skfedem.clients.sums",
    "skfedem.compression",
    "skfedem.datasets",
    "skfedem.inspection",
    "skfedem.models._base",
    "skfedem.participation",
    "skfedem.preprocessing",
    "skfedem.solvers._step_size",
    "skfedem.solvers.base",
    "skfedem.solvers.fedem",
    "skfedem.solvers.messages",
    "skfedem.solvers.server",
    "skfedem.solvers.vr_fedem",
    "skfedem.theory",
)


ROWS = np.random.default_rng(0).normal(size=(20, 3))
MIXTURE = FederatedGaussianMixture(random_state=0).fit(ROWS)
IMPUTER = FederatedMatrixImputer(random_state=0).fit(ROWS)


def public_functions():
    """Every public function and method, ``__init__`` included, by name."""
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if name.startswith("_") or not getattr(value, "__module__", "").startswith(module_name):
                continue
            if inspect.isfunction(value):
                yield f"{module_name}.{name}", value
            elif inspect.isclass(value):
                for method in public_methods(value):
                    yield f"{module_name}.{name}.{method.__name__}", method


def public_methods(cls):
    """Functions behind the public methods and properties that a class itself writes."""
    for name, attribute in vars(cls).items():
        if name.startswith("_") and name != "__init__":
            continue
        for wrapped in ("fget", "fn", "__func__"):  # property, available_if, classmethod
            attribute = getattr(attribute, wrapped, attribute)
        method = inspect.unwrap(attribute) if callable(attribute) else None
        if inspect.isfunction(method) and method.__module__ == cls.__module__:
            yield method


def without_annotation(function):
    """Parameters, and "return", that lack one."""
    signature = inspect.signature(function)
    names = [
        name
        for position, (name, parameter) in enumerate(signature.parameters.items())
        if parameter.annotation is parameter.empty
        and not (position == 0 and name in ("self", "cls"))
    ]
    return names + ["return"] * (signature.return_annotation is signature.empty)


def test_everything_public_is_annotated():
    functions = dict(public_functions())
    assert {
        "skfedem.FederatedMatrixImputer.fit",
        "skfedem._imputer.imputation.MatrixImputation.transform",
        "skfedem._mixture.prediction.FittedMixture.predict",
        "skfedem.clients.group.client_half",
        "skfedem.compression.Compressor.decode",
        "skfedem.inspection.ConvergenceDisplay.from_estimator",
        "skfedem.models._base.BaseModel.block_rows",
        "skfedem.preprocessing.PerClient.inverse_transform",
        "skfedem.solvers.fedem.estimate",
        "skfedem.theory.vr_cost",
    } <= functions.keys()
    lacking = {name: without_annotation(function) for name, function in functions.items()}
    assert not {name: names for name, names in lacking.items() if names}


@pytest.mark.parametrize(
    ("estimator", "inherited"),
    [
        (FederatedGaussianMixture, ResumableParameters),
        (FederatedMatrixImputer, ResumableParameters),
        (FederatedMatrixImputerCV, FederatedParameters),
        (FederatedNonlinearMixedEffects, ResumableParameters),
    ],
)
def test_estimators_have_the_parameters_that_solvers_read(estimator, inherited):
    # A type checker cannot tell, as classes of scikit-learn, which they inherit, have no types.
    parameters = inspect.signature(estimator.__init__).parameters
    assert typing.get_type_hints(inherited).keys() <= parameters.keys()


# What users call; the rest is for those who extend the package.
CALLED = (
    "compression",
    "datasets",
    "inspection",
    "participation",
    "pharmacokinetics",
    "preprocessing",
    "theory",
)


def containers_of(name, function):
    """Module of a function, and the class of a method."""
    module = sys.modules[function.__module__]
    *_, class_name, _ = name.split(".")
    return module, getattr(module, class_name, None)


def test_everything_that_users_call_says_what_it_raises():
    called = re.compile(
        rf"skfedem\.([A-Z]|_(mixture|imputer|mixed_effects)\.(fitted|prediction|imputation)\.[A-Z]"
        rf"|_penalty_search\.fitted_search\.[A-Z]|({'|'.join(CALLED)})\.)"
    )
    # A section of a class or a module holds for all that is in it.
    documents = {
        name: "\n\n".join(
            inspect.getdoc(place) or "" for place in (function, *containers_of(name, function))
        )
        for name, function in public_functions()
        if called.match(name) and not name.endswith("__init__")
    }
    assert {
        "skfedem.FederatedGaussianMixture.partial_fit",
        "skfedem._mixture.prediction.FittedMixture.sample",
        "skfedem.compression.Compressor.omega_for",
        "skfedem.theory.vr_cost",
    } <= documents.keys()
    silent = {name for name, text in documents.items() if "\nRaises\n------\n" not in text}
    # One takes no arguments, and reads no file; the others raise what ``predict`` raises.
    as_predict = ("predict_proba", "transform", "score_samples", "score", "aic", "bic")
    assert silent == {
        "skfedem.datasets.load_theophylline",
        *(f"skfedem._mixture.prediction.FittedMixture.{name}" for name in as_predict),
    }


def test_the_compressor_that_the_documentation_shows_could_move_here(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "doc"))
    methods = list(public_methods(importlib.import_module("bernoulli_mask").BernoulliMask))
    assert {"omega_for", "compress", "decode"} <= {method.__name__ for method in methods}
    assert not any(map(without_annotation, methods))


@pytest.mark.parametrize(
    ("raising", "documented", "error"),
    [
        (lambda: RandK(), RandK, ValueError),
        (lambda: Dithering(levels=0.5), Dithering, TypeError),
        (lambda: BlockQuantizer(block_length=0), BlockQuantizer, ValueError),
        (lambda: RandK(k=2).level_for(-1), RandK.level_for, ValueError),
        (lambda: Dithering(omega=1).level_for(2.5), Dithering.level_for, TypeError),
        (lambda: Dithering(omega=1e-13).level_for(2), Dithering.level_for, ValueError),
        (lambda: RandK(k=2).omega_for("q"), Compressor, TypeError),
        (lambda: RandK(k=2).compress([np.nan], [0.0]), Compressor, ValueError),
        (lambda: RandK(k=2).compress([1.0], [1.0]), Compressor, ValueError),
        (lambda: RandK(k=2).send("values", [0.0]), Compressor, TypeError),
        (lambda: RandK(k=2).variance([np.inf]), Compressor, ValueError),
        (lambda: RandK(k=1).n_bytes([[1.0, 2.0]], [1]), Compressor, ValueError),
        (lambda: Dithering(levels=1).n_bytes([0.1, 0.3]), Compressor, ValueError),
        (lambda: MIXTURE.predict([ROWS, ROWS * np.nan]), FittedMixture.predict, ValueError),
        (lambda: MIXTURE.sample(1.5), FittedMixture.sample, TypeError),
        (lambda: IMPUTER.transform("matrix"), MatrixImputation.transform, TypeError),
        (lambda: IMPUTER.fitted_mean([99]), MatrixImputation.fitted_mean, IndexError),
        (lambda: IMPUTER.fitted_mean([0.5]), MatrixImputation.fitted_mean, TypeError),
        (lambda: clone(MIXTURE).predict(ROWS), FittedMixture.predict, NotFittedError),
        (lambda: PerClient(MinMaxScaler()).fit(ROWS).transform(ROWS[0]), PerClient.transform,
         ValueError),
        (lambda: ImputationDisplay(trend=np.ones(2), fitted=np.ones((1, 2)), n_rows=1, family="?"),
         ImputationDisplay, ValueError),
    ],
)  # fmt: skip
def test_what_is_raised_is_documented(raising, documented, error):
    with pytest.raises(error):
        raising()
    section = inspect.getdoc(documented).split("\nRaises\n------\n")[1].split("\n\n")[0]
    assert re.search(rf"^([A-Z]\w+, )*{error.__name__}\b", section, re.MULTILINE)


# ---- fitted attributes


def is_of(value, hint):
    """Whether a value is of a type, as far as the package's own annotations go."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return True
    if hasattr(origin, "__value__"):  # NumPy 2.5's NDArray is an alias made by a type statement
        return is_of(value, origin.__value__[arguments])
    if origin in (typing.Union, types.UnionType):
        return any(is_of(value, argument) for argument in arguments)
    if origin is np.ndarray:
        (kind,) = typing.get_args(arguments[1])
        kind = typing.get_origin(kind) or kind
        return isinstance(value, np.ndarray) and (
            kind is typing.Any or issubclass(value.dtype.type, kind)
        )
    if origin is dict:
        return isinstance(value, dict) and all(
            is_of(key, arguments[0]) and is_of(entry, arguments[1]) for key, entry in value.items()
        )
    if origin is list:
        return isinstance(value, list) and all(is_of(entry, arguments[0]) for entry in value)
    assert origin is None, f"is_of does not know {hint}"
    return isinstance(value, hint)


def test_is_of_tells_types_apart():
    assert is_of(1, int) and not is_of(np.int64(1), int)
    floats = np.typing.NDArray[np.float64]
    assert is_of(np.ones(2), floats) and not is_of(np.ones(2, np.float32), floats)
    assert is_of(None, floats | None) and not is_of([1.0], floats | None)
    assert not is_of({"a": [1]}, dict[str, list[float]])


def wrong_attributes(fitted, names, hints):
    """Attributes that are not of the annotated type."""
    values = {name: getattr(fitted, name) for name in names}
    return {name: value for name, value in values.items() if not is_of(value, hints[name])}


# What only partial_fit sets.
STREAM_ONLY = {"new_client_ids_"}

ESTIMATORS = [
    FederatedGaussianMixture(2, max_iter=500, random_state=0),
    FederatedMatrixImputer(1),
    FederatedMatrixImputer(1, rows="disjoint"),
    FederatedMatrixImputerCV(penalties=[1.0], n_splits=2, random_state=0),
    FederatedPCA(2),
    FederatedStandardScaler(),
    FederatedStandardScaler(with_mean=False, with_std=False),
    PerClient(MinMaxScaler()),
]


def annotations_of(cls):
    """Types of the attributes that ``fit`` sets, by name."""
    hints = typing.get_type_hints(cls)
    return {name: hint for name, hint in hints.items() if name[-1] == "_" and name[0] != "_"}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_fitted_attributes_are_what_their_annotations_say(estimator):
    rng = np.random.default_rng(0)
    clients = [pd.DataFrame(rng.normal(size=(25, 3)), columns=list("abc")) for _ in range(3)]
    if get_tags(estimator).input_tags.allow_nan:
        clients[0].iloc[0, 0] = np.nan
    hints = annotations_of(type(estimator))
    assert not [name for name in hints if hasattr(estimator, name)]
    fitted = clone(estimator).fit(clients)
    assert wrong_attributes(fitted, hints.keys() - STREAM_ONLY, hints) == {}
    if hasattr(fitted, "partial_fit"):
        assert wrong_attributes(fitted.partial_fit(clients), hints.keys(), hints) == {}


@pytest.mark.parametrize("cls", sorted({type(e) for e in ESTIMATORS}, key=repr))
def test_annotated_attributes_are_the_documented_ones(cls):
    _, _, after = inspect.getdoc(cls).partition("Attributes\n----------\n")
    lines = re.split(r"\n\n[A-Z][\w ]+\n---", after)[0].splitlines()
    documented = {
        name
        for line in lines
        if re.match(r"\w+_\b", line)
        for name in line.partition(" : ")[0].split(", ")
    }
    assert annotations_of(cls).keys() == documented


# ---- a user's type checker


# mypy has to report the lines that end in "# wrong", and no others.
A_USERS_SCRIPT = """
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import skfedem
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer, FederatedMatrixImputerCV
from skfedem.compression import Compressor, Dithering
from skfedem.datasets import client_labels, make_federated_mixture, make_site_counts, split_clients
from skfedem.inspection import ConvergenceDisplay, ImputationDisplay
from skfedem.participation import draw_active
from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient
from skfedem.theory import max_step_size

rng = np.random.default_rng(0)
table = rng.normal(size=(80, 2))
clients: list[NDArray[np.float64]] = split_clients(table, 3, scheme="dirichlet", y=[0, 1] * 40)

# ---- mixtures
gm = FederatedGaussianMixture(2, covariance_type="tied", compressor="block", omega=1, max_iter=None)
gm.set_params(tol=1e-2)
gm = gm.fit(clients)
gm.fit(table, clients=["here"] * 80).fit([[0.0, 1.0], [2.0, 3.0]]).fit((table, table.tolist()))
weights: NDArray[np.float64] = gm.weights_[gm.predict(table)]


class Frame:  # a table that is no array, as DataFrames are
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return table


of_frame: tuple[int, ...] = gm.predict(Frame()).shape + gm.fit_predict(Frame()).shape
likely_of_frame: float = gm.predict_proba(Frame()).max() + gm.score_samples(Frame()).min()
largest = int(gm.fit_predict(table).max())
likely: float = gm.predict_proba(table).max() + gm.score_samples(table).min() + gm.score(clients)
for labels in gm.predict(clients):
    print(np.bincount(labels))
rows, components = gm.sample(10)
last = gm.history_["log_likelihood"][-1]

# ---- preprocessing
scaler = FederatedStandardScaler().fit(clients)
scaled = scaler.transform(clients)
pca = FederatedPCA(n_components=0.9, whiten=True).fit(table, clients=client_labels(table, 3))
axes: NDArray[np.float64] = pca.components_
row_score: float = pca.score_samples(table).max()
sizes = [len(scores) for scores in pca.score_samples(clients)]
names = PerClient(scaler).fit(clients).set_output(transform="pandas").get_feature_names_out()

# ---- matrices
counts = make_site_counts(30, 12, n_clients=3, family="poisson", random_state=0)
imputer = FederatedMatrixImputer(1, family="poisson", effects="rows", checkpoint=Path("run"))
imputer = imputer.fit(counts.clients, shape=counts.shape)
imputer.fit([[[1.0, np.nan], [2.0, 3.0]]], clients=None)
means: NDArray[np.float64] = imputer.fitted_mean(rows=[0, 1])
rounds: int = imputer.n_iter_
objective = imputer.history_["objective"].min()
search = FederatedMatrixImputerCV(ranks=[1, None], penalties=[1.0, 0.1], max_epochs=20)
search = search.fit(counts.clients, shape=(30, 12))
fitted: float = search.best_estimator_.score(counts.clients)

# ---- plots and theory
display = ConvergenceDisplay.from_estimator(imputer, x="bits", y="objective").plot(yscale="log")
display.figure_.savefig("convergence.png")
ImputationDisplay.from_estimator(imputer, counts.clients, kind="heatmap", max_rows=50)
step: float = max_step_size(10, 1.0, 0.5, v_min=1, gradient_lipschitz=1, field_lipschitz=2)
inner: int = skfedem.theory.vr_n_inner(100, omega=1.0)
active = draw_active(rng, 10, participation=0.5).tolist()


class Doubled(Dithering):
    def compress(
        self, values: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        return 2 * super().compress(values, uniforms, lengths)


message: bytes = Doubled(levels=3).encode([1.0, 2.0])
FederatedMatrixImputer(compressor=Doubled(levels=3), omega=1.0, step_size=lambda k: 1 / k)


class Half(Compressor):
    def encode(self, values: ArrayLike) -> str:  # wrong
        return "no bytes"


# ---- what is wrong
skfedem.FederatedGausianMixture  # wrong
skfedem.datasets.split_client  # wrong
FederatedGaussianMixture(n_component=2)  # wrong
FederatedGaussianMixture(covariance_type="round")  # wrong
FederatedGaussianMixture(omega="large")  # wrong
gm.fit(clients, labels=[0, 1])  # wrong
gm.predict(clients).shape  # wrong
gm.fit_predict(clients).shape  # wrong
gm.weights_.means()  # wrong
gm.bic()  # wrong
PerClient(scaler).fit(clients).inverse_transform()  # wrong
Half()  # wrong
Dithering(level=3)  # wrong
FederatedMatrixImputer(family="poison")  # wrong
FederatedMatrixImputer(rank=1, penalti=0.1)  # wrong
FederatedMatrixImputer(1, "poisson")  # wrong
imputer.fit(counts.clients, shape=30)  # wrong
row: str = imputer.fitted_mean()  # wrong
imputer.converged_.sum()  # wrong
FederatedMatrixImputerCV(penalties=10, patience="never")  # wrong
FederatedPCA(n_components="mle")  # wrong
pca.score_samples(table).shapes  # wrong
FederatedStandardScaler(with_mean="no")  # wrong
split_clients(table, 3, scheme="sorted")  # wrong
make_federated_mixture(heterogeneity="some")  # wrong
max_step_size(10, 1.0, 0.5)  # wrong
display.plot(xscale="square")  # wrong
"""


def test_a_type_checker_reads_the_annotations_of_the_installed_package(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(A_USERS_SCRIPT, encoding="utf-8")
    # On PYTHONPATH the package is where installed ones are: without py.typed nothing is read.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MYPYPATH", None)
    command = [sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    run = subprocess.run(
        [*command, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    reported = {int(line) for line in re.findall(r"script\.py:(\d+): error", run.stdout)}
    lines = A_USERS_SCRIPT.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) > 10
    assert reported == wrong, run.stdout + run.stderr
