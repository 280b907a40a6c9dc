"""What displays have in common; their examples; nothing needs matplotlib but drawing."""

import doctest
import sys

import numpy as np
import pytest

from displays import made_history, points
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer
from skfedem.inspection import ConvergenceDisplay, ImputationDisplay, _convergence, _imputation


@pytest.mark.parametrize(
    ("options", "attribute", "value"),
    [
        ({"c": "red"}, "color", "red"),
        ({"ls": ":"}, "linestyle", ":"),
        ({"lw": 3}, "linewidth", 3),
        ({"mec": "red"}, "markeredgecolor", "red"),
    ],
)
def test_short_names_of_options_are_matplotlibs(
    pyplot, mixtures, imputer, options, attribute, value
):
    runs = ConvergenceDisplay.from_estimators(
        mixtures, labels=["a", "b", "b"], y="weights", line_kw=options
    )
    trend = ImputationDisplay.from_estimator(imputer, window=3, line_kw=options)
    for line in [*runs.lines_["weights"], trend.lines_[0]]:
        assert pyplot.getp(line, attribute) == value


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ("red", TypeError, "Expected line_kw to be a dict"),
        ({"nokey": 1}, ValueError, "options of matplotlib's Line2D, .*'nokey'"),
        ({"lw": 1, "linewidth": 2}, ValueError, "options of matplotlib's Line2D, .*'linewidth'"),
        ({"color": "no colour"}, ValueError, "not a valid value for color"),
    ],
)
def test_bad_options_leave_no_figure(options, error, says, pyplot, mixtures, imputer):
    with pytest.raises(error, match=says):
        ConvergenceDisplay.from_estimator(mixtures[0], line_kw=options)
    with pytest.raises(error, match=says):
        ImputationDisplay.from_estimator(imputer, line_kw=options)
    with pytest.raises(error, match="Expected fill_between_kw to"):
        ConvergenceDisplay.from_estimators(mixtures, fill_between_kw=options)
    assert not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (np.zeros((50, 50)), "ndarray"),
        (None, "NoneType"),
        (FederatedMatrixImputer, "the class FederatedMatrixImputer"),
    ],
)
def test_what_is_no_estimator_is_named_by_its_type(given, got, pyplot, imputer):
    says = f"Expected a fitted estimator, got {got}. Give the object"
    with pytest.raises(TypeError, match=says):
        ImputationDisplay.from_estimator(given, imputer)  # arguments in the wrong order
    with pytest.raises(TypeError, match=says):
        ConvergenceDisplay.from_estimator(given)
    with pytest.raises(TypeError, match=says):
        ConvergenceDisplay.from_estimators([given])


def test_large_options_are_shortened_in_messages(pyplot, mixtures, imputer):
    large = np.zeros((50, 50))
    for name in ("row_name", "line_kw"):
        with pytest.raises(TypeError, match=rf"Expected {name} .* got array.*\.\.\."):
            ImputationDisplay.from_estimator(imputer, **{name: large})
    for options in ({"line_kw": {"color": large}}, {"quantiles": large}, {"y": large}):
        with pytest.raises(ValueError, match=r"^Expected .* got [^\n]*array[^\n]*\.\.\.[^\n]*$"):
            ConvergenceDisplay.from_estimators(mixtures, **options)


def test_smallest_pictures(paper):
    zeros = np.zeros((1, 1))
    data = {"trend": [0.0], "fitted": zeros, "n_rows": 1, "observed": zeros}
    display = ImputationDisplay(**data, observed_share=np.ones(1), observed_total=np.zeros(1))
    for kind in ("trend", "heatmap"):
        display.plot(kind=kind).figure_.canvas.draw()
    assert points(display.plot().lines_[0])[1].tolist() == [0]
    one = ConvergenceDisplay(made_history([0], [1.0]), y="loss").plot()
    one.figure_.canvas.draw()
    # A single point is seen only if it is marked.
    assert one.lines_["loss"][0].get_marker() == "."


# ---- documentation, and no matplotlib


@pytest.mark.parametrize("module", [_convergence, _imputation])
def test_examples_of_the_docstrings(pyplot, module):
    result = doctest.testmod(module)
    assert result.attempted > 5
    assert result.failed == 0


def test_without_matplotlib_all_but_drawing_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it raises ImportError
    gm = FederatedGaussianMixture(random_state=0).fit(np.arange(20.0).reshape(10, 2))
    imputer = FederatedMatrixImputer(1, random_state=0).fit(np.eye(4))
    display = ConvergenceDisplay(gm.history_)
    drawing = {
        "ConvergenceDisplay.from_estimator": lambda: ConvergenceDisplay.from_estimator(gm),
        "ConvergenceDisplay.from_estimators": lambda: ConvergenceDisplay.from_estimators([gm]),
        "ConvergenceDisplay.plot": display.plot,
        "ImputationDisplay.from_estimator": lambda: ImputationDisplay.from_estimator(imputer),
        "ImputationDisplay.plot": ImputationDisplay(trend=[1.0], fitted=[[1.0]], n_rows=1).plot,
    }
    for caller, draw in drawing.items():
        says = f"^{caller} requires matplotlib.*pip install matplotlib"
        with pytest.raises(ImportError, match=says):
            draw()
