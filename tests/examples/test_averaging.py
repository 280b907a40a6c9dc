"""The example of averaged parameters, run once at a small size."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plot_mixed_effects_averaging.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_averages_of_parameters_lack_the_variance_between_hospitals(tmp_path, monkeypatch):
    plt, picture = pytest.importorskip("matplotlib.pyplot"), tmp_path / "figure.png"
    plt.switch_backend("agg")
    arguments = ["--rounds", "40", "--patients", "10", "--output", str(picture)]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    specification = importlib.util.spec_from_file_location("averaging", EXAMPLE)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    plt.close("all")
    assert picture.stat().st_size > 10_000
    best = example.best.random_effects_cov_[2, 2]
    statistics, *parameters = (fit.random_effects_cov_[2, 2] for fit in example.fits.values())
    assert abs(statistics / best - 1) < 0.1
    assert max(parameters) < 0.6 * best
    assert abs(parameters[0] / example.expected - 1) < 0.25
