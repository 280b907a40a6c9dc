"""The examples of the imputer: the dense baseline is the paper's algorithm, the plot is drawn."""

import importlib.util
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from literal_imputation import Cells, algorithm_7

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(path):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("step_size", [1.0, 0.3])
def test_dense_baseline_is_algorithm_7(step_size):
    dense = load(EXAMPLES / "benchmarks" / "dense_fedmissem.py")
    rng = np.random.default_rng(0)
    shape, rank, penalty, n_rounds = (9, 6), 2, 0.05, 4
    groups = []
    for n_observers in (1, 3, 2):
        group = []
        for _ in range(n_observers):
            rows, columns = np.divmod(rng.choice(54, size=20, replace=False), 6)
            group.append(Cells(rows, columns, rng.normal(size=20)))
        groups.append(group)
    weights = np.array([1, 3, 2]) / 6
    start = rng.normal(size=shape)
    literal = algorithm_7(groups, rank, penalty, start, weights, [step_size] * n_rounds)
    clients = [
        dense.dense_client(*map(np.concatenate, zip(*group, strict=True)), len(group), shape[1])
        for group in groups
    ]
    statistics, theta = start, dense.threshold_singular_values(start, penalty, rank)
    for expected_statistics, expected_theta in literal:
        statistics, theta = dense.dense_round(
            clients, weights, statistics, theta, rank, penalty, step_size
        )
        np.testing.assert_allclose(statistics, expected_statistics, atol=1e-13)
        np.testing.assert_allclose(theta, expected_theta, atol=1e-13)


@pytest.fixture
def run_plot(monkeypatch, tmp_path, capsys):
    """Runs the script as the main program, in an empty folder; returns what it prints."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("statsmodels")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        script = str(EXAMPLES / "plot_bird_trends.py")
        monkeypatch.setattr(sys, "argv", [script, *arguments, "--output", "bird_trends.png"])
        runpy.run_path(script, run_name="__main__")
        printed = capsys.readouterr().out
        assert "no LOESS curves" not in printed
        assert (tmp_path / "bird_trends.png").stat().st_size > 10_000
        return printed

    yield run
    pyplot.close("all")


@pytest.mark.slow
def test_plot_of_simulated_counts(run_plot):
    printed = run_plot("--sites", "120", "--months", "48", "--observations", "900")
    assert "120 sites x 48 months" in printed
    assert "correlation with the truth, year by year" in printed


def test_plot_of_an_ebird_file(run_plot, tmp_path):
    pytest.importorskip("pandas")
    columns = ["COMMON NAME", "SCIENTIFIC NAME", "OBSERVATION COUNT", "LOCALITY ID"]
    columns += ["OBSERVATION DATE", "OBSERVER ID", "SAMPLING EVENT IDENTIFIER", "GROUP IDENTIFIER"]
    rng = np.random.default_rng(0)
    lines = ["\t".join(columns)]
    for k in range(200):
        site, year, month, observer = rng.integers([1, 2018, 1, 1], [20, 2021, 13, 9])
        fields = ["Mallard", "Anas platyrhynchos", str(rng.poisson(4) + 1), f"L{site}"]
        fields += [f"{year}-{month:02d}-01", f"obsr{observer}", f"S{k}", ""]
        lines.append("\t".join(fields))
    (tmp_path / "ebd.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    printed = run_plot("--ebd", "ebd.txt", "--species", "mallard", "--clients", "4")
    assert "200 observations by 4 clients" in printed
    assert "truth" not in printed


def test_an_index_is_published(monkeypatch, tmp_path, capsys):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(tmp_path)  # without the file of the skylarks
    monkeypatch.delenv("SKFEDEM_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", ["plot_published_index.py"])
    runpy.run_path(str(EXAMPLES / "plot_published_index.py"), run_name="__main__")
    assert "a year: moderate increase" in capsys.readouterr().out  # 5 % were simulated
    assert len(pyplot.gcf().axes) == 1
    pyplot.close("all")
