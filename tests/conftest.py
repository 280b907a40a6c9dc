"""Fixtures that several files need: matplotlib for displays, small fits, and busy threads."""

import pytest
from sklearn.base import clone

from displays import counts_of_clients, rows_of_clients
from imputations import CLIENTS, EXACT, FRAMES, QUICK
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer, _parallel


@pytest.fixture
def paper():
    """matplotlib without a screen, for what is measured; figures are closed afterwards."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.fixture
def pyplot(paper, monkeypatch):
    """The same without layouts, most of the time that a figure takes, for all but what is measured.

    Axes stay where they are made; what is drawn in them does not depend on it.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)
    return paper


@pytest.fixture
def threads_always_pay(monkeypatch):
    """Three processors, and a clock that stands still: all calls but the first go to threads.

    The fixture is a list of how many workers shared each of these calls.
    """
    share, numbers = _parallel.Workers._share, []

    def noted(self, function, groups):
        numbers.append(self._n_workers)
        return share(self, function, groups)

    monkeypatch.setattr(_parallel.Workers, "_share", noted)
    monkeypatch.setattr(_parallel, "cpu_count", lambda: 3)
    monkeypatch.setattr(_parallel, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(_parallel, "_WORTH_SHARING", 0.0)
    return numbers


@pytest.fixture(scope="module")
def mixtures():
    """Runs with evaluations here and there, of unlike lengths in epochs and bits."""
    gm = FederatedGaussianMixture(3, omega=1.0, participation=0.7, max_iter=25, tol=0, eval_every=4)
    clients = rows_of_clients()
    with pytest.warns(Warning, match="Not converged"):
        return [clone(gm).set_params(random_state=seed).fit(clients) for seed in range(3)]


@pytest.fixture(scope="module")
def imputer():
    model = FederatedMatrixImputer(2, family="poisson", penalty=2.0, random_state=0)
    return model.fit(counts_of_clients())


@pytest.fixture(scope="module")
def fitted():
    """An imputer of ``impute/*.py``; ``test_mixture.py`` has a mixture of this name."""
    return FederatedMatrixImputer(**EXACT).fit(CLIENTS)


@pytest.fixture(scope="module")
def named():
    """An imputer that knows the names of sites and months."""
    return FederatedMatrixImputer(**QUICK).fit(FRAMES)
