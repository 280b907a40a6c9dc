"""Fixtures that several files need: models, small fits, and busy threads."""

import pytest

from imputations import CLIENTS, EXACT, FRAMES, QUICK
from problems import MODELS, ROW_MODELS, model_case
from skfedem import FederatedMatrixImputer, _parallel
from skfedem.models.matrix.low_rank import LowRankModel
from skfedem.models.mixture.gaussian_mixture import GaussianMixtureModel


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
def fitted():
    """An imputer of ``impute/*.py``; ``test_mixture.py`` has a mixture of this name."""
    return FederatedMatrixImputer(**EXACT).fit(CLIENTS)


@pytest.fixture(scope="module")
def named():
    """An imputer that knows the names of sites and months."""
    return FederatedMatrixImputer(**QUICK).fit(FRAMES)


@pytest.fixture(params=list(MODELS))
def case(request):
    """A model."""
    return model_case(request.param)


@pytest.fixture(params=ROW_MODELS)
def row_case(request):
    """A model whose clients have statistics of one length, which are means over their rows."""
    return model_case(request.param)


@pytest.fixture
def small_blocks(monkeypatch):
    """At most 60 rows at a time: several groups of clients, also when half are away."""
    for model in (GaussianMixtureModel, LowRankModel):
        monkeypatch.setattr(model, "block_rows", 60)
