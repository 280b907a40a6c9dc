"""The example of four hospitals, run once with a seed each: what it prints and says."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plot_mixed_effects_hospitals.py"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    picture = tmp_path_factory.mktemp("hospitals") / "figure.png"
    specification = importlib.util.spec_from_file_location("hospitals", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    arguments = ["--seeds", "1", "--rounds", "120", "--output", str(picture)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
        specification.loader.exec_module(module)
    plt.close("all")
    assert picture.stat().st_size > 10_000
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_only_without_control_variates_hospitals_miss_the_pooled_fit(example):
    ends = {
        kind: abs(example.excess(fit.log_likelihood_ / fit.n_subjects_))
        for kind, (fit,) in example.runs.items()
    }
    assert example.runs[example.AUTOMATIC][0].converged_
    assert ends[example.AUTOMATIC] < 1e-4
    assert ends[example.STEADY] < 1e-4
    late = example.runs[example.NAIVE][0].history_["log_likelihood"][60:]
    assert np.nanmean(example.excess(late)) > 0.1
