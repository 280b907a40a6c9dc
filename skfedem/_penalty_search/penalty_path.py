"""Fits along a decreasing path of penalties, whose first one makes the low-rank part 0."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice, product
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone

from .._data.cells import CellData
from .._error_messages import error_context
from .._imputer.covariates import (
    NO_COVARIATES,
    GivenCovariates,
    n_client_effects,
    read_given,
)
from .._parallel import Workers, n_workers, single_threaded_libraries
from .._parameters import is_auto
from .._typing import BoolArray, FloatArray, IntArray, MatricesLike
from .._warnings import Advice, collect_warnings
from ..clients.local import LocalClients
from ..impute import FederatedMatrixImputer
from ..models.matrix.families import family_of
from ..models.matrix.start import cell_federation, largest_penalty, low_rank_model
from .baselines import Baseline, Predicted, observed_to_expected, row_season_means
from .held_out import Split, split_cells
from .penalty_grid import Grid

# An imputer with the penalties of its path.
_Plan = tuple[FederatedMatrixImputer, FloatArray]
_Patience = int | Literal["auto"] | None

# Relative rounding errors: of differences between the scores of trials, and of the scores
# themselves.
_ROUNDING = 1e-9
_EPS = 64 * np.finfo(np.float64).eps
# Patience, if "auto": a share of the path, because a dip of the scores spans many penalties if
# these are close together, and a minimum.
_PATIENCE, _LEAST_PATIENCE = 0.3, 3


def largest_of_path(
    imputer: FederatedMatrixImputer, cells: CellData, given: GivenCovariates = NO_COVARIATES
) -> tuple[float, int]:
    """Smallest penalty whose low-rank part is 0, and the bits that clients send for it."""
    federation = cell_federation(cells, imputer.client_weights)
    with Workers(1) as workers:
        clients = LocalClients(federation, workers)
        n_clients = n_client_effects(imputer, cells)
        covariates = read_given(given, cells.shape, (None, None), imputer.effects, n_clients).design
        model = low_rank_model(imputer, clients, cells.shape, covariates=covariates)
        return largest_penalty(clients, model), clients.bits()[0]


class Trial(NamedTuple):
    """Results for a rank and two penalties; arrays have one entry per fold.

    ``scores`` are mean log-likelihoods per held-out observation, in nats, and ``sums`` those of the
    held-out observations and of their predictions.
    """

    rank: int | None
    effects_penalty: float
    penalty: float
    scores: FloatArray
    sums: FloatArray
    n_iter: IntArray
    n_factors: IntArray
    converged: BoolArray
    uplink_bits: IntArray

    @property
    def score(self) -> float:
        """Mean score over the folds."""
        return float(self.scores.mean())


class _Path(NamedTuple):
    """Penalties of a path, its last fit without each fold, and its trials so far."""

    penalties: FloatArray
    fits: list[FederatedMatrixImputer]
    trials: list[Trial]


def search_grid(
    imputer: FederatedMatrixImputer,
    cells: CellData,
    folds: IntArray,
    grid: Grid,
    patience: _Patience,
    given: GivenCovariates = NO_COVARIATES,
    *,
    period: int | None = None,
    n_jobs: int | None,
    verbose: int,
) -> tuple[list[Trial], dict[float, float], list[Baseline]]:
    """Trials of all paths, the largest penalty for each penalty on the effects, and baselines.

    A path ends when ``patience`` consecutive penalties have not improved on its best score. As many
    paths as there are processes (``n_jobs``, as in joblib) advance together, one penalty at a time,
    each without each fold. ``imputer`` has ``warm_start=True``, ``cells`` their observations.
    """
    # The cells are numbered by common sites already, and these histories are not shown.
    imputer = clone(imputer).set_params(rows="shared", eval_every=None, verbose=0)
    n_jobs = n_workers(n_jobs, prefer="processes")
    splits = [split_cells(cells, folds == fold, given) for fold in range(folds.max() + 1)]
    trials, largest, n_bits, ridges = [], {}, {}, grid.ridges
    # Arrays are not memory-mapped, because the next fit modifies those of the previous one. The
    # limit encloses all fits: in threads, the end of one would lift the limit for others.
    parallel = Parallel(n_jobs, batch_size=1, max_nbytes=None)
    with single_threaded_libraries(), parallel:
        while ridges:
            plans = []
            for rank, ridge in product(grid.ranks, ridges):
                first = clone(imputer).set_params(rank=rank, effects_penalty=ridge)
                if ridge not in largest:
                    largest[ridge], n_bits[ridge] = largest_of_path(first, cells, given)
                plans.append((first, grid.path(largest[ridge])))
            for start in range(0, len(plans), n_jobs):
                group = plans[start : start + n_jobs]
                trials += advance_together(group, splits, patience, parallel, verbose)
            ridges = grid.larger_ridges(max(ridges), trials[index_of_best(trials)].effects_penalty)
        tried = [trial.effects_penalty for trial in trials]
        for ridge in largest:  # with the first fits that begin there
            trials[tried.index(ridge)].uplink_bits[0] += n_bits[ridge]
        baselines = [_effects_alone(imputer, list(largest), splits, parallel)]
    if period is not None:
        size = imputer.negative_binomial_size
        family = family_of(imputer.family, np.inf if is_auto(size) else size)
        predicted = [row_season_means(split, family, period) for split in splits]
        scores, sums = map(np.array, zip(*predicted, strict=True))
        baselines.append(Baseline("row and season means", scores, sums))
    return trials, largest, baselines


def _effects_alone(
    imputer: FederatedMatrixImputer, ridges: list[float], splits: list[Split], parallel: Parallel
) -> Baseline:
    """Fits without a low-rank part, with the penalty on the effects that predicts best."""
    plans = [
        (clone(imputer).set_params(rank=0, effects_penalty=ridge), np.zeros(1)) for ridge in ridges
    ]
    trials = advance_together(plans, splits, None, parallel, verbose=0)
    best = trials[index_of_best(trials)]
    return Baseline("effects alone", best.scores, best.sums)


def advance_together(
    plans: list[_Plan], splits: list[Split], patience: _Patience, parallel: Parallel, verbose: int
) -> list[Trial]:
    """Trials of paths, which advance together, penalty by penalty."""
    paths = [_Path(penalties, [clone(start) for _ in splits], []) for start, penalties in plans]
    while active := [path for path in paths if _is_active(path, patience)]:
        fitted = iter(
            parallel(
                delayed(_fit_and_score)(fit, path.penalties[len(path.trials)], fold, split)
                for path in active
                for fold, (fit, split) in enumerate(zip(path.fits, splits, strict=True))
            )
        )
        for path in active:
            path.fits[:], predicted = zip(*islice(fitted, len(splits)), strict=True)
            path.trials.append(_trial(path.fits, predicted))
            if verbose:
                _print(path.trials[-1])
    return list(chain.from_iterable(path.trials for path in paths))


def _print(trial: Trial) -> None:
    print(
        f"  Rank {trial.rank}, penalty {trial.penalty:.4g}, effects_penalty "
        f"{trial.effects_penalty:.4g}: held-out log-likelihood {trial.score:.6g}"
    )


def _fit_and_score(
    imputer: FederatedMatrixImputer, penalty: float, fold: int, split: Split
) -> tuple[FederatedMatrixImputer, Predicted]:
    """Fit the next step of a path without a fold; return the imputer and its predictions there."""
    table, clients, shape, offset, covariates = split.train
    data = dict(clients=clients, shape=shape, offset=offset, **covariates._asdict())
    # Worker processes do not inherit the suppressed warnings and the limit of threads.
    with (
        collect_warnings(),
        single_threaded_libraries(),
        error_context(f"Without the cells of fold {fold}"),
    ):
        _fit_step(imputer, float(penalty), table, **data)
        table, clients, _, offset, _ = split.test
        log_likelihood, n_observations, *sums = imputer._held_out(table, clients, offset)
        return imputer, Predicted(log_likelihood / n_observations, np.array(sums))


def _trial(fits: list[FederatedMatrixImputer], predicted: Sequence[Predicted]) -> Trial:
    """Trial from the fits without each of the folds."""
    return Trial(
        rank=fits[0].rank,
        effects_penalty=fits[0].effects_penalty,
        penalty=float(fits[0].penalty),
        scores=np.array([own.score for own in predicted]),
        sums=np.array([own.sums for own in predicted]),
        n_iter=np.array([fit.n_iter_ for fit in fits]),
        n_factors=np.array([len(fit.singular_values_) for fit in fits]),
        converged=np.array([fit.converged_ for fit in fits]),
        uplink_bits=np.array([fit.history_["uplink_bits"].sum() for fit in fits]),
    )


def _is_active(path: _Path, patience: _Patience) -> bool:
    """Whether a path continues after its trials so far.

    Trials with a low-rank part of 0 in all fits do not count: they are equal, and there may be many
    of them.
    """
    if is_auto(patience):
        patience = max(_LEAST_PATIENCE, ceil(_PATIENCE * len(path.penalties)))
    best, n_worse = -np.inf, 0
    for trial in path.trials:
        is_worse = trial.n_factors.any() and not trial.score > best
        n_worse = n_worse + 1 if is_worse else 0
        best = max(best, trial.score)
    return n_worse != patience and len(path.trials) < len(path.penalties)


def refit(
    imputer: FederatedMatrixImputer, best: Trial, path: FloatArray, X: MatricesLike, **data: Any
) -> list[Advice]:
    """Fit the best trial to all cells along its path; return the warnings of the last fit.

    If interrupted from the keyboard, keep what was reached, because the search was complete.
    """
    chosen = {"rank": best.rank, "effects_penalty": best.effects_penalty, "penalty": best.penalty}
    last = imputer.set_params(**chosen).get_params()
    # If warnings are errors, they must not discard the search.
    with collect_warnings() as advice:
        try:
            imputer.set_params(eval_every=None, verbose=0)
            with collect_warnings():
                for penalty in path[path > best.penalty].tolist():
                    _fit_step(imputer, penalty, X, **data)
            imputer.set_params(**last).fit(X, **data)
        except KeyboardInterrupt:
            imputer.set_params(**(last | {"max_iter": 0})).fit(X, **data)
            imputer.set_params(**last)
            imputer._stopped_by = "keyboard"
    imputer.set_params(warm_start=False)
    imputer._memory = None  # not needed any more
    return advice


def _fit_step(
    imputer: FederatedMatrixImputer, penalty: float, X: MatricesLike, **data: Any
) -> None:
    """Fit a step of a path; raise KeyboardInterrupt if the fit was interrupted."""
    imputer.set_params(penalty=penalty).fit(X, **data)
    if imputer._stopped_by == "keyboard":
        raise KeyboardInterrupt


def index_of_best(trials: list[Trial]) -> int:
    """Index of the best trial; the first of those that tie up to rounding."""
    return int(np.argmin(_ranking(np.array([trial.score for trial in trials]))))


def cv_results_of(trials: list[Trial]) -> dict[str, Any]:
    """``cv_results_``, with names as in scikit-learn's GridSearchCV."""
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
        "std_test_score": scores.std(axis=1),
        "rank_test_score": _ranking(mean_scores),
        "observed_to_expected": np.array([observed_to_expected(trial.sums) for trial in trials]),
        "mean_n_iter": np.array([trial.n_iter.mean() for trial in trials]),
        "mean_n_factors": np.array([trial.n_factors.mean() for trial in trials]),
        "n_converged": np.array([trial.converged.sum() for trial in trials]),
        "uplink_bits": np.array([trial.uplink_bits.sum() for trial in trials]),
    }


def _ranking(scores: FloatArray) -> NDArray[np.int32]:
    """Ranks, 1 for the best score; scores that tie up to rounding share a rank."""
    sizes = np.abs(scores)
    # For small cells, scores mainly consist of the constant of the density, equal in all trials.
    differing = np.minimum(sizes, scores.max() - scores.min())
    rounding = np.maximum(_ROUNDING * differing, _EPS * sizes)
    is_better = scores - scores[:, None] > rounding[:, None]
    return (1 + is_better.sum(axis=1)).astype(np.int32)
