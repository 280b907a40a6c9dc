"""Fits down a path of penalties, from the smallest one whose low-rank part is 0."""

from __future__ import annotations

from itertools import chain
from math import ceil
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import clone

from ._client_vectors import weighted_sum
from ._held_out import split_cells
from ._messages import kept_back, naming
from ._parallel import n_workers, single_threaded_libraries
from ._parameters import is_auto
from .models.low_rank_start import cell_federation, low_rank_model, start_run
from .models.low_rank_theta import zero_low_rank
from .models.thresholding import threshold_singular_values

# Shares that may be rounding: of what the scores of trials differ in, and of the scores themselves.
_ROUNDING = 1e-9
_EPS = 64 * np.finfo(np.float64).eps
# Patience, if "auto": a share of a path, as a dip of the scores is many penalties wide where they
# lie close together, and a number.
_PATIENCE, _LEAST_PATIENCE = 0.3, 3


def largest_penalty(imputer, cells):
    """Smallest penalty whose low-rank part is 0: the largest singular value of the residuals.

    The residuals are those of the effects alone, summed over the clients, who each send theirs once
    and uncompressed.

    Parameters
    ----------
    imputer : FederatedMatrixImputer
        Its ``family``, ``effects``, ``effects_penalty`` and ``client_weights`` are read.
    cells : CellData

    Returns
    -------
    penalty : float
    """
    observers = np.flatnonzero(np.diff(cells.offsets))
    federation = cell_federation(cells, observers, imputer.client_weights)
    base_measures = cells.log_base_measure[observers]
    model = low_rank_model(imputer, federation, cells.shape, base_measures)
    every = np.arange(federation.n_clients)
    theta = start_run(model, federation).parameters.natural
    residuals = model.all_rows(federation, theta, every).statistics
    field = weighted_sum(model.vectors(federation), federation.weights, residuals)
    pull = model.pooled.support.matrix(model.scale * field)
    low_rank, _ = threshold_singular_values(zero_low_rank(cells.shape), pull, 0.0, 1)
    return float(low_rank.singular_values.sum())


class Trial(NamedTuple):
    """A rank and two penalties; the arrays have one entry for each fold.

    Attributes
    ----------
    rank : int or None
    effects_penalty, penalty : float
    scores : ndarray
        Mean log-likelihood per held-out observation; nats.
    n_iter, n_factors, converged, uplink_bits : ndarray
        Of the fits.
    """

    rank: int | None
    effects_penalty: float
    penalty: float
    scores: np.ndarray
    n_iter: np.ndarray
    n_factors: np.ndarray
    converged: np.ndarray
    uplink_bits: np.ndarray

    @property
    def score(self):
        """Mean over the folds."""
        return float(self.scores.mean())


def path_trials(imputer, splits, penalties, patience):
    """Go down the path until ``patience`` penalties in a row were no better than the best.

    Those with which all fits are the effects alone do not count: they are all alike, and above the
    largest penalty of the folds there may be many.

    Parameters
    ----------
    imputer : FederatedMatrixImputer
        With ``warm_start=True``.
    splits : list of (training, held_out)
        Triplets.
    penalties : ndarray
        Decreasing.
    patience : int, "auto" or None

    Yields
    ------
    trial : Trial
    """
    if is_auto(patience):
        patience = max(_LEAST_PATIENCE, ceil(_PATIENCE * len(penalties)))
    imputers = [clone(imputer) for _ in splits]
    best, n_worse = -np.inf, 0
    for penalty in penalties.tolist():
        scores = []
        for fold, (training, held_out) in enumerate(splits):
            with naming(f"Without the cells of fold {fold}"):
                table, clients, shape = training
                _fit_step(imputers[fold], penalty, table, clients=clients, shape=shape)
                scores.append(imputers[fold].score(held_out.table))
        trial = Trial(
            imputer.rank,
            imputer.effects_penalty,
            penalty,
            np.array(scores),
            np.array([fit.n_iter_ for fit in imputers]),
            np.array([len(fit.singular_values_) for fit in imputers]),
            np.array([fit.converged_ for fit in imputers]),
            np.array([fit.history_["uplink_bits"].sum() for fit in imputers]),
        )
        yield trial
        is_worse = trial.n_factors.any() and not trial.score > best
        n_worse = n_worse + 1 if is_worse else 0
        best = max(best, trial.score)
        if n_worse == patience:
            return


def follow_paths(plans, cells, folds, patience, *, n_jobs, verbose):
    """Trials of paths, in their order.

    Parameters
    ----------
    plans : list of (imputer, penalties)
        As for ``path_trials``.
    cells : CellData
        With its observations.
    folds : ndarray of int, shape (n_cells,)
    patience : int, "auto" or None
    n_jobs : int or None
        Number of processes, as in joblib.
    verbose : int

    Returns
    -------
    trials : list of Trial
    """
    trials, n_jobs = [], min(n_workers(n_jobs, prefer="processes"), len(plans))
    # Around all paths: in threads, the end of one would free the libraries of the others.
    with single_threaded_libraries():
        if n_jobs > 1:
            found = Parallel(n_jobs, verbose=verbose)(
                delayed(_trials_in_worker)(imputer, cells, folds, penalties, patience)
                for imputer, penalties in plans
            )
        else:
            splits = _splits(cells, folds)
            found = (path_trials(imputer, splits, path, patience) for imputer, path in plans)
        for trial in chain.from_iterable(found):
            trials.append(trial)
            if verbose:
                print(
                    f"  Rank {trial.rank}, penalty {trial.penalty:.4g}, effects_penalty "
                    f"{trial.effects_penalty:.4g}: held-out log-likelihood {trial.score:.6g}"
                )
    return trials


def _splits(cells, folds):
    """Observations without the cells of each fold, and of these alone."""
    return [split_cells(cells, folds == fold) for fold in range(folds.max() + 1)]


def _trials_in_worker(imputer, cells, folds, penalties, patience):
    """Trials of a path, in a process that keeps no advice back and may have more threads."""
    with kept_back(), single_threaded_libraries():
        # Split here: cells are sent once, where the splits have each of them once a fold.
        return list(path_trials(imputer, _splits(cells, folds), penalties, patience))


def refit(imputer, best, path, X, **data):
    """Fit the best trial to all cells, down its path; return the advice of the last fit.

    Stopped from the keyboard, it ends with what it has reached, for the search was complete.
    """
    imputer.set_params(rank=best.rank, effects_penalty=best.effects_penalty)
    last = {**imputer.get_params(), "penalty": best.penalty}
    imputer.set_params(eval_every=None, verbose=0)
    # Where warnings are errors, they must not cost the search.
    with kept_back() as advice:
        try:
            with kept_back():
                for penalty in path[path > best.penalty].tolist():
                    _fit_step(imputer, penalty, X, **data)
            imputer.set_params(**last).fit(X, **data)
        except KeyboardInterrupt:
            imputer.set_params(**{**last, "max_iter": 0}).fit(X, **data)
            imputer.set_params(**last)
            imputer._stopped_by = "keyboard"
    imputer.set_params(warm_start=False)
    imputer._memory = None  # nobody goes on from it
    return advice


def _fit_step(imputer, penalty, X, **data):
    """Fit a step of a path. A fit that was stopped from the keyboard stops the search."""
    imputer.set_params(penalty=penalty).fit(X, **data)
    if imputer._stopped_by == "keyboard":
        raise KeyboardInterrupt


def index_of_best(trials):
    """Position of the best trial; of those that only rounding tells apart, of the first."""
    return int(np.argmin(_places(np.array([trial.score for trial in trials]))))


def tabulated(trials):
    """``cv_results_``, by the names that scikit-learn's GridSearchCV has for them."""
    scores = np.array([trial.scores for trial in trials])
    mean_scores = scores.mean(axis=1)
    names = "rank", "effects_penalty", "penalty"
    return {
        "params": [{name: getattr(trial, name) for name in names} for trial in trials],
        "param_rank": np.array([trial.rank for trial in trials], dtype=object),
        "param_effects_penalty": np.array([trial.effects_penalty for trial in trials]),
        "param_penalty": np.array([trial.penalty for trial in trials]),
        **{f"split{fold}_test_score": column for fold, column in enumerate(scores.T)},
        "mean_test_score": mean_scores,
        "std_test_score": _deviations(scores),
        "rank_test_score": _places(mean_scores),
        "mean_n_iter": np.array([trial.n_iter.mean() for trial in trials]),
        "mean_n_factors": np.array([trial.n_factors.mean() for trial in trials]),
        "n_converged": np.array([trial.converged.sum() for trial in trials]),
        "uplink_bits": np.array([trial.uplink_bits.sum() for trial in trials]),
    }


def _places(scores):
    """1 for the best scores, and so on; those that only rounding tells apart share a place."""
    sizes = np.abs(scores)
    # Of small cells a score is mostly the constant of the density, which is that of all trials.
    differing = np.minimum(sizes, scores.max() - scores.min())
    rounding = np.maximum(_ROUNDING * differing, _EPS * sizes)
    is_better = scores - scores[:, None] > rounding[:, None]
    return (1 + is_better.sum(axis=1)).astype(np.int32)


def _deviations(scores):
    """Standard deviation of each row, of numbers whose squares may overflow."""
    sizes = np.maximum(np.abs(scores).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return sizes[:, 0] * (scores / sizes).std(axis=1)
