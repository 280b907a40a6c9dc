"""Workers that are lost, interruptions, and checkpoints."""

import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skfedem import FederatedGaussianMixture
from workers import kill_a_worker, local_cluster

pytest.importorskip("pyarrow")
skfedem_dask = pytest.importorskip("skfedem.dask")
read_clients, NoWorkersError = skfedem_dask.read_clients, skfedem_dask.NoWorkersError

REDUCED = {"omega": 1.0, "participation": 0.7, "batch_size": 30, "solver": "vr_fedem"}

pytestmark = pytest.mark.filterwarnings("ignore:Not converged", "ignore:Interrupted")


def mixture(steps=lambda k: 0.1, **settings):
    """A mixture of which a function sees the rounds, as it gives their steps."""
    given = {"max_iter": 12, "random_state": 0, "tol": 0, **REDUCED, **settings}
    return FederatedGaussianMixture(3, step_size=steps, **given)


class Event:
    """Steps of 0.1, and something that happens before some rounds."""

    def __init__(self, *rounds, happens=None):
        self.rounds, self.happens = [*rounds], happens

    def __call__(self, k):
        if self.rounds and k == self.rounds[0]:
            self.rounds.pop(0)
            self.happens()
        return 0.1


def assert_same(got, want):
    for name in ("weights_", "means_", "covariances_"):
        assert_array_equal(getattr(got, name), getattr(want, name))
    for name, column in want.history_.items():
        own = got.history_[name]
        # Where a run was saved, it has been evaluated once more.
        both = ~(np.isnan(column) | np.isnan(own)) if column.ndim == 1 else ...
        assert_array_equal(own[both], column[both])


def test_two_lost_workers_change_no_bit(cluster, federation, tables):
    killed = []

    def kill():
        kill_a_worker(cluster)
        killed.append(1)

    # One after a snapshot, and one between two.
    got = mixture(Event(5, 8, happens=kill)).fit(federation)
    assert len(killed) == 2
    assert_same(got, mixture().fit(tables))


def test_an_interrupted_fit_is_that_of_one_process(federation, tables):
    def interrupt():
        raise KeyboardInterrupt

    got, want = (mixture(Event(7, happens=interrupt)).fit(X) for X in (federation, tables))
    assert got.n_iter_ == 6
    assert_same(got, want)


def test_a_checkpoint_goes_on_in_either_place(federation, tables, tmp_path):
    want = mixture().fit(tables)
    for k, (first, second) in enumerate([(federation, tables), (tables, federation)]):
        path = tmp_path / f"{k}.npz"
        mixture(max_iter=7, checkpoint=path).fit(first)
        assert_same(mixture().fit(second, resume_from=path), want)


@pytest.mark.slow
def test_a_cluster_without_workers_is_an_error_that_says_what_to_do(
    folder, tables, tmp_path, monkeypatch
):
    path, want = tmp_path / "saved.npz", mixture().fit(tables)
    with local_cluster(1) as client:
        monkeypatch.setattr(skfedem_dask._cluster, "patience", lambda: 2.0)
        federation = read_clients(client, f"{folder}/*.parquet")
        leaves = Event(6, happens=lambda: client.cluster.scale(0))
        model = mixture(leaves, checkpoint=path, checkpoint_every=2)
        with pytest.raises(NoWorkersError, match="Add workers"):
            model.fit(federation)
        assert not hasattr(model, "means_")
        assert_same(mixture(Event()).fit(tables, resume_from=path), want)
        client.cluster.scale(1)
        client.wait_for_workers(1, timeout=120)
        assert_same(mixture(Event()).fit(federation, resume_from=path), want)


def test_states_of_fits_that_ended_are_freed(cluster, federation):
    for _ in range(2):
        mixture().fit(federation)
    # A worker that was started again may have nothing, not even the module.
    kept = cluster.run(lambda: len(getattr(sys.modules.get("skfedem.dask._shard"), "_KEPT", ())))
    assert 0 < sum(kept.values()) <= len(federation.rows)


def test_a_cluster_that_was_restarted_has_lost_its_rows(cluster, folder):
    federation = read_clients(cluster, f"{folder}/*.parquet")
    cluster.cancel(federation.rows)
    with pytest.raises(NoWorkersError, match="Read the clients again"):
        mixture().fit(federation)
    assert np.isfinite(federation.lengths).all()
