"""The paper's figures: what each script computes, at a small size, is what its text claims."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from skfedem.datasets import make_fedem_mixture
from skfedem.theory import max_step_size

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def script(monkeypatch, tmp_path, capsys):
    """Runs a script as a gallery does, as the main program; returns its names and its output."""
    pytest.importorskip("matplotlib")
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert not list(tmp_path.iterdir()), "a file that nobody asked for"
        assert all(axis.lines for axis in names["figure"].axes)
        return names, capsys.readouterr().out

    yield run
    plt.close("all")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("plot_*.py")), ids=lambda path: path.stem)
def test_scripts_refuse_options_that_they_do_not_have_but_run_in_notebooks(path, monkeypatch):
    pytest.importorskip("matplotlib")
    lines = path.read_text("utf-8").splitlines()
    (at,) = (k for k, line in enumerate(lines) if line.startswith("options = "))
    parse = compile("\n".join(lines[: at + 1]), str(path), "exec")
    monkeypatch.setattr(sys, "argv", [str(path), "--ouput", "figure.png"])
    with pytest.raises(SystemExit):
        exec(parse, {"__name__": "__main__"})
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    exec(parse, names := {"__name__": "__main__"})
    assert names["options"].output is None


@pytest.fixture(scope="module")
def small():
    """Few clients with few rows: some hundred epochs are then a thousand cheap rounds."""
    return {
        how: make_fedem_mixture(12, 40, heterogeneity=heterogeneity, random_state=0)
        for how, heterogeneity in HOW.items()
    }


HOW = {"iid": 0.0, "one_component": 1.0}


@pytest.mark.slow
def test_figure_1_floor_of_fedem_and_none_of_vr_fedem(script, small, tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "figure_1.png"
    names, printed = script("plot_figure_1.py", "--epochs", "3", "--output", str(path))
    assert path.stat().st_size > 10_000
    assert "VR-FedEM" in printed and "epoch    6: " in printed
    levels = {}
    for name in ("FedEM", "VR-FedEM"):
        epochs, field, mean_field = names["trajectory"](small["iid"], name, 300, seed=0)
        assert np.isfinite(field[1:]).all() and np.isfinite(mean_field).mean() > 0.19
        levels[name] = [names["level"](epochs, values, 300) for values in (mean_field, field)]
    mean_field, field = levels["FedEM"]
    # H has the noise of one round; Ŝ averages over 1 / γ = 100 of them.
    assert mean_field > 1e-6 and field > 10 * mean_field
    mean_field, field = levels["VR-FedEM"]
    assert mean_field < 1e-7 and 1 / 3 < field / mean_field < 3


@pytest.mark.slow
def test_participation_raises_the_floor_and_nothing_else(script, small):
    names, printed = script("plot_slides_participation.py", "--epochs", "2", "--runs", "1")
    assert printed.count("times that of p = 1") == 4
    floors = {}
    for p in (0.1, 1.0):
        epochs, values = names["mean_over_runs"](small["iid"], p, 400 * p, n_runs=2)
        # The same number of rounds, which read p times as many rows: 960 messages of a run in place
        # of 9,600, whose number has a relative standard deviation of 0.03.
        assert epochs[-1] == pytest.approx(400 * p, rel=0.15)
        # Reached after half of them, which is twice as many values as the script's figure has.
        floors[p] = values[len(values) // 2 :].mean()
        assert floors[p] < 0.05 * values[0]
    # About 1 / p = 10 times: 8 to 17 with six seeds, which differ by a quarter.
    assert 4 < floors[0.1] / floors[1.0] < 30


@pytest.mark.slow
def test_compression_raises_the_floor_and_nothing_else(script, small):
    names, printed = script("plot_slides_compression.py", "--epochs", "4", "--runs", "1")
    assert printed.count("times that of omega = 0") == len(names["OMEGAS"])
    floors = {}
    for omega in (0.0, 8.0):
        epochs, values = names["mean_over_runs"](small["iid"], omega, 300, n_runs=2)
        assert values[-1] < 1e-2 * values[0]
        floors[omega] = names["floor"](epochs, values)
    # About 1 + ω = 9 times.
    assert 5 < floors[8.0] / floors[0.0] < 18


def test_mask_of_the_compression_script(script):
    names, _ = script("plot_slides_compression.py", "--epochs", "1", "--runs", "1")
    mask, rng = names["BernoulliMask"](omega=3.0), np.random.default_rng(0)
    x = np.array([1.0, -2.0, 0.5, 0.0])
    draws = mask.compress(np.tile(x, (40_000, 1)), rng.random((40_000, 4)))
    assert set(np.unique(draws)) == {-8.0, 0.0, 2.0, 4.0}
    # Five standard errors of a mean, and of a mean of squares (fourth moment at most 4³ x⁴).
    np.testing.assert_allclose(draws.mean(axis=0), x, atol=5 * np.sqrt(3 * 4 / 40_000))
    errors = ((draws - x) ** 2).sum(axis=1)
    assert errors.mean() == pytest.approx(mask.variance(x)[0], abs=5 * errors.std() / 200)
    assert mask.variance(x) == pytest.approx([3.0 * 5.25])
    np.testing.assert_allclose(mask.variance(x, lengths=[1, 3]), [3.0, 3 * 4.25])
    assert mask.omega_for(6) == 3.0 and mask.omega_for(np.array([1, 6])).tolist() == [3.0, 3.0]


@pytest.mark.slow
def test_naive_fedem_stalls(script, small):
    names, printed = script("plot_slides_naive.py", "--epochs", "3", "--runs", "1")
    assert printed.count("naive FedEM: error of the weight") == 4
    labels = names["data"]["one-component clients"].labels
    assert {len(set(components)) for components in labels} == {1}
    ending = {}
    for how in HOW:
        pooled = names["fit"](small[how], max_iter=1000, tol=1e-12).weights_[0]
        for algorithm in names["ALGORITHMS"]:
            runs = names["several_runs"](small[how], "all rows", algorithm, 150, n_runs=1)
            assert runs.shape[:2] == (1, 3)
            ending[how, algorithm] = *names["ending"](runs, pooled), runs[:, 2, -1].mean()
    for how in HOW:
        error, _, last = ending[how, "FedEM"]
        naive_error, naive_field, naive_last = ending[how, "naive FedEM"]
        assert last < 1e-7 and error < 1e-3
        assert naive_last > 1e3 * last and naive_error > 3 * error
        # It has stopped falling.
        assert naive_last > naive_field / 10
    assert ending["one_component", "naive FedEM"][1] > 3 * ending["iid", "naive FedEM"][1]


@pytest.mark.slow
def test_weights_of_vr_fedem_agree(script, small):
    names, printed = script("plot_slides_weights.py", "--epochs", "2", "--runs", "2")
    assert "weight by pooled EM: 0.40" in printed
    pooled = names["fit"](small["iid"], max_iter=1000, tol=1e-12).weights_[0]
    epochs = np.arange(1, 201)
    apart, error = {}, {}
    for solver in names["SOLVERS"]:
        runs = names["several_runs"](small["iid"], solver, epochs, 2)
        assert runs.shape == (2, 2, 200)
        late = runs[:, 0, 150:]
        apart[solver] = np.abs(late[1] - late[0]).mean()
        error[solver] = np.abs(late[:, -1] - pooled).max()
    assert apart["VR-FedEM"] < apart["FedEM"] / 10
    assert max(error.values()) < 0.03
    assert np.log10(runs[:, 1, 0] / runs[:, 1, -1]).min() > 4  # VR-FedEM's mean field


@pytest.mark.slow
def test_step_sizes_and_their_theory(script):
    sizes = ("--seeds", "1", "--halvings", "1", "--length", "1")
    names, printed = script("plot_step_size_theory.py", *sizes)
    assert "FedEM, against p" in printed and "VR-FedEM, against n" in printed
    for key, steps in names["measured"].items():
        assert len(steps) == len(names["bounds"][key]) == len(names["VALUES"][key[1]])

    # Many clients, little compression: EM's own step. Few clients, coarse messages: far from it.
    stable, longest = names["is_stable"], names["largest_stable_step"]
    assert longest("fedem", 12, 1.0, 1.0, 1, 4, 10.0) == 1.0
    setting = ("fedem", 3, 23.0, 1.0)
    step = longest(*setting, 2, 4, 6.0)
    assert names["in_theory"]("FedEM", *setting[1:]) < step < 0.2
    # Half of n / ω_p; one of four halvings, and runs of this length, are right to a factor 2.
    assert names["clients_per_noise"](*setting[1:]) == pytest.approx(3 / 23)
    assert 3 / 92 < step < 3 / 23
    assert stable(step, *setting, 2, 6.0)
    # Four halvings of the logarithms' interval.
    assert not stable(step * 64 ** (1 / 16) * 1.0001, *setting, 2, 6.0)
    # Too short a run for the field to fall a hundredfold.
    assert not stable(0.02, *setting, 1, 0.1)
    assert longest("fedem", 12, 2.0, 0.1, 1, 3, 5.0) < 0.5


def test_constants_of_the_step_size_theory(script):
    sizes = ("--seeds", "0", "--halvings", "0", "--length", "1")
    names, _ = script("plot_step_size_theory.py", *sizes)
    solution, clients, precision = names["in_standard_units"](6)
    rows = np.concatenate(clients)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(7), atol=1e-12)
    # Pooled EM stands still: its last step gained less than 1e-10 nats.
    fields = names["client_fields"](solution, clients, precision)
    shares = np.array([len(own) for own in clients]) / len(rows)
    np.testing.assert_allclose(shares @ fields, 0, atol=1e-4)
    assert np.abs(fields).max() > 0.1
    # The scale of s does not matter to T, so that h_i has the derivative -1 along s.
    lipschitz = names["field_lipschitz"](6)
    assert lipschitz >= 1
    assert names["in_theory"]("FedEM", 6, 5.0, 1.0) == pytest.approx(
        max_step_size(6, 5.0, v_min=1.0, gradient_lipschitz=1.0, field_lipschitz=lipschitz)
    )
    x = np.array([1.0, 2.0, 4.0])
    assert names["exponent"](x, 0.1 * x**1.5) == pytest.approx(1.5)
