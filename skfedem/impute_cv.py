"""Choice of an imputer's rank and penalties by cross-validation on held-out cells."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Self

from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags

from ._data.cells import read_cells
from ._data.features import features_of, store
from ._imputer.covariates import GivenCovariates, check_client_effects
from ._imputer.fitted_matrix import tags_of_matrices
from ._parameters import check_number, check_rank, is_auto
from ._penalty_search.baselines import baselines_of
from ._penalty_search.fitted_search import FittedSearch
from ._penalty_search.held_out import check_minibatches_without_folds, fold_of_cells
from ._penalty_search.penalty_grid import Grid, SearchParameters, checked_grid
from ._penalty_search.penalty_path import (
    Trial,
    cv_results_of,
    index_of_best,
    refit,
    search_grid,
)
from ._random import seeds_of_runs
from ._typing import MatricesLike, Shape, Table
from ._warnings import collect_warnings, warn
from .impute import FederatedMatrixImputer
from .models.matrix.families import family_of
from .models.matrix.start import check_distribution
from .solvers._from_parameters import check_federated_parameters
from .solvers._parameters import FederatedParameters

# Last gain of a path, in nats per held-out cell, below which a bounded rank needs no smaller
# penalty: the remaining gain was then 0.2 to 0.7 times the last one.
_NEGLIGIBLE_GAIN = 0.1


@dataclass(eq=False, repr=False, kw_only=True)
class _Parameters(FederatedParameters, SearchParameters):
    """Parameters of the constructor, which sets them as attributes."""

    max_iter: int | None = 200
    tol: float = 1e-6


class FederatedMatrixImputerCV(FittedSearch, _Parameters):
    """FederatedMatrixImputer with rank and penalties chosen by cross-validation.

    The observed cells are split at random into ``n_splits`` folds, the same for all clients. For
    each rank and each penalty on the effects, models are fitted along a decreasing path of
    penalties on the low-rank part, which begins at the smallest penalty that makes this part 0.
    Each fit starts from the previous one, and is scored on the held-out fold by the mean
    log-likelihood per observation, of which each client reports the sum. The rank and penalties
    with the largest mean score are then fitted to all cells, again along the path. All fits are
    federated. Read more in :doc:`/imputation`.

    Parameters
    ----------
    ranks : list of (int or None), default=(None,)
        Bounds on the rank to choose from; None for no bound. With a few strong factors, a bound can
        predict far better (up to 27 % in simulated tables). For large matrices, only give bounds:
        without one, small penalties let the rank grow to nearly ``min(n_rows, n_columns)``.
    penalties : int or array-like of shape (n_penalties,), default=10
        Number of penalties on the path, equally spaced on a log scale; or the penalties themselves,
        which are tried from the largest to the smallest.
    effects_penalties : "auto" or list of float, default="auto"
        Ridge penalties on the effects to choose from; the search time grows with their number.
        "auto" tries 0.1 and 1, and then ten times the largest one as long as the largest is the
        best, up to 1e5. With ``effects="none"``, only the first one is used.
    eps : float in (0, 1), default=0.01
        Ratio of the last to the first penalty of the path, if ``penalties`` is a number.
    n_splits : int, default=5
        Number of folds, at least 2. All observations of a cell, by one client or by several, are in
        the same fold.
    patience : int, "auto" or None, default="auto"
        Number of consecutive penalties without an improvement of the best score after which a path
        ends; those with a low-rank part of 0 in all fits do not count. "auto" is three tenths of
        the number of penalties, and at least three; None follows every path to its end.
    period : int, default=None
        Number of columns after which seasons repeat, such as 12 for months, for ``baselines_``.
    family : {"gaussian", "bernoulli", "poisson", "negative_binomial"}, default="gaussian"
        Distribution of a cell: numbers with variance 1; the values 0 and 1; or counts.
    negative_binomial_size : float from 1e-6 to 1e9, or "auto", default="auto"
        Size k of negative binomial counts; "auto" is estimated in each fit.
    effects : {"both", "rows", "columns", "none"}, default="both"
        Main effects in addition to the intercept; "none" also omits the intercept.
    client_effects_penalty : float, "auto" or None, default=None
        Ridge penalty on effects of clients, which predict their own held-out cells; "auto" is
        estimated in each fit. None for no such effects.
    rows : {"shared", "disjoint"}, default="shared"
        Whether all clients in a list have the same rows (sites), or each has different ones.
    missing_values : number, default=numpy.nan
        Value that marks missing cells in dense matrices; it must not be stored in sparse ones.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm to use. This and the following parameters are explained in
        :class:`FederatedMatrixImputer`.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        Step size γ.
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of the control variates.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates of each fit.
    batch_size : int, default=None
        Number of observed cells that an active client reads in a round; None for all.
    replacement : bool, default=True
        Whether to draw minibatches with replacement.
    n_inner : int or "auto", default="auto"
        Number of VR-FedEM's inner rounds between two passes over all cells.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression.
    participation : float in (0, 1], or int, default=1.0
        Probability p that a client takes part in a round, or the number of clients that take part,
        drawn without replacement: 1.0 are all clients, 1 is one client.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight of a client in the fits: its number of observations, or the same weight for every
        client. In the score, all held-out observations have the same weight.
    max_iter : int or None, default=200
        Maximum number of rounds of each fit.
    max_epochs : float, default=None
        Maximum number of epochs of each fit.
    tol : float, default=1e-6
        Tolerance for the convergence of each fit.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations for the ``history_`` of the best estimator.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible folds and fits.
    n_jobs : int, default=None
        Number of processes that run the search, and of threads that simulate clients in the fit to
        all cells; as in joblib. The result does not depend on it.
    verbose : int, default=0
        Verbosity: 1 prints the score of each combination of rank and penalties, 2 also prints the
        rounds of the last fit.

    Attributes
    ----------
    best_estimator_ : FederatedMatrixImputer
        Imputer fitted to all cells with the best rank and penalties.
    best_params_ : dict
        ``{"rank": ..., "effects_penalty": ..., "penalty": ...}``.
    best_score_ : float
        Mean log-likelihood per held-out observation with ``best_params_``, in nats.
    best_index_ : int
        Index of ``best_params_`` in ``cv_results_``; the first one if several tie up to rounding.
    cv_results_ : dict of ndarray
        One entry for each combination of rank and penalties that was tried, in the order of
        ``ranks``, then of ``effects_penalties``, then of the path: ``params`` (a list of dicts),
        ``param_rank``, ``param_effects_penalty``, ``param_penalty``, ``split0_test_score`` and so
        on (mean log-likelihood per held-out observation of a fold, in nats), ``mean_test_score``,
        ``std_test_score``, ``rank_test_score`` (1 is the best), ``observed_to_expected`` (sum of
        all held-out observations over the sum of their predictions: above 1, totals of missing
        cells are too small), the means ``mean_n_iter`` (rounds) and ``mean_n_factors`` (rank of the
        fit), ``n_converged`` (fits that reached ``tol``), and the sum ``uplink_bits``.
    baselines_ : dict of ndarray
        What the scores should be compared with, under the names of ``cv_results_``; ``baseline`` is
        "effects alone" (no low-rank part, at the best of the penalties on the effects that were
        tried) and, with ``period``, "row and season means": the mean of the other observations of
        the row in the same season, with one more observation that has the mean of the row, and
        there with one that has the overall mean.
    n_iter_ : int
        Number of rounds of the last fit, the one to all cells.
    penalty_max_ : float
        Smallest penalty with which the low-rank part of the fit to all cells is 0, at the best
        penalty on the effects.
    n_splits_ : int
        Number of folds.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if the data had string names.

    See Also
    --------
    FederatedMatrixImputer : The imputer for one rank and one pair of penalties.

    Notes
    -----
    If the bound on the rank is below the rank that the penalty alone would yield, the problem is
    not convex: a fit along the path may reach another optimum than a fit from scratch.

    The bits of the search's fits are in ``cv_results_``, those of the last fit in the ``history_``
    of ``best_estimator_``. The observed cells, row sums and column sums are counted with the first
    fit of a path, and the messages for ``penalty_max_`` with that of the first path.
    :doc:`/what_leaves_a_client` says which messages are not counted.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedMatrixImputerCV
    >>> rng = np.random.default_rng(0)
    >>> sites, months = rng.normal(size=(30, 2)), rng.normal(size=(2, 12))
    >>> counts = rng.poisson(np.exp(1 + 0.7 * sites @ months)).astype(float)
    >>> observers = [np.where(rng.random(counts.shape) < 0.2, counts, np.nan) for _ in range(4)]
    >>> search = FederatedMatrixImputerCV(
    ...     family="poisson", penalties=4, n_splits=3, random_state=0
    ... )
    >>> search = search.fit(observers)
    >>> search.best_params_["penalty"] < search.penalty_max_
    True
    >>> search.best_estimator_.fitted_mean().shape
    (30, 12)
    >>> search.transform(observers)[0].shape
    (30, 12)
    """

    __metadata_request__fit = {"clients": True, "shape": True, "offset": True}
    __metadata_request__fit |= dict.fromkeys(GivenCovariates._fields, True)
    # Pipeline.score asks for sample_weight, and fails if no request for it is declared.
    __metadata_request__score = {"sample_weight": None, "offset": True}
    __metadata_request__transform = {"offset": True}

    def fit(
        self,
        X: MatricesLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        shape: Shape | None = None,
        offset: MatricesLike | None = None,
        row_covariates: Table | None = None,
        column_covariates: Table | None = None,
        row_groups: ArrayLike | None = None,
    ) -> Self:
        """Choose rank and penalties, and fit them to the observed cells of all clients.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            As in :meth:`FederatedMatrixImputer.fit`.
        y : Ignored
        clients : array-like of shape (n_rows,), default=None
            Client label of each row of X, if X is one matrix or one array of triplets.
        shape : tuple of two int, or of two array-likes, default=None
            Numbers of sites and months of triplets, or their names.
        offset : list of array-likes, or array-like, default=None
            Log efforts, as in :meth:`FederatedMatrixImputer.fit`.
        row_covariates, column_covariates, row_groups : array-like, default=None
            As in :meth:`FederatedMatrixImputer.fit`.

        Returns
        -------
        self : FederatedMatrixImputerCV

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; an earlier fit is then kept unchanged.
        KeyboardInterrupt
            If the search is interrupted from the keyboard; the final fit keeps what it has reached.

        Warns
        -----
        ConvergenceWarning
            If ``tol`` was not reached, in the search or in the final fit.
        UserWarning
            If the best penalty is the smallest of a path given by `penalties` and `eps`, unless the
            rank is bounded and the last step gained less than 0.1 nats per held-out cell.
        """
        given = GivenCovariates(row_covariates, column_covariates, row_groups)
        # The last fit gives the warnings about parameters and data.
        with collect_warnings():
            grid = self._checked_grid()
            (seed,) = seeds_of_runs(self.random_state, 1)
            cells = read_cells(
                clone(self),
                X,
                clients,
                shape=shape,
                family=family_of(self.family),
                keep_observations=True,
                offset=offset,
            )
            for rank in grid.ranks:
                check_rank("ranks", rank, cells.shape)
            shared = self.rows == "shared" and (clients is None or shape is not None)
            check_client_effects(self, share_rows=shared)
            folds = fold_of_cells(cells, self.n_splits, seed)
            check_minibatches_without_folds(self, cells, folds)
            imputer = self._imputer(seed)
            trials, largest, baselines = search_grid(
                imputer,
                cells,
                folds,
                grid,
                self.patience,
                given,
                period=self.period,
                n_jobs=self.n_jobs,
                verbose=self.verbose,
            )
        results, best_index = cv_results_of(trials), index_of_best(trials)
        best = trials[best_index]
        path = grid.path(largest[best.effects_penalty])
        data = {"clients": clients, "shape": shape, "offset": offset, **given._asdict()}
        advice = refit(imputer, best, path, X, **data)
        store(
            self,
            features_of(imputer),
            best_estimator_=imputer,
            best_params_=results["params"][best_index],
            best_score_=float(results["mean_test_score"][best_index]),
            best_index_=best_index,
            baselines_=baselines_of(baselines),
            cv_results_=results,
            penalty_max_=largest[best.effects_penalty],
            n_splits_=self.n_splits,
            n_iter_=imputer.n_iter_,
        )
        for message, category in advice:
            warn(message, category)
        if isinstance(self.penalties, Real) and len(path) > 1 and best.penalty == path[-1]:
            self._warn_of_smallest_penalty(best, gain=best.score - trials[best_index - 1].score)
        self._warn_of_convergence(trials)
        return self

    def __sklearn_tags__(self) -> Tags:
        """Accept NaN and sparse matrices."""
        return tags_of_matrices(super().__sklearn_tags__(), self.family)

    # ---- fitting

    def _checked_grid(self) -> Grid:
        """Ranks and penalties to try; raise for parameters that are out of range."""
        grid = checked_grid(
            self.ranks, self.penalties, self.eps, self.effects_penalties, self.effects
        )
        hint = "Each part of the cells is held out once."
        check_number("n_splits", self.n_splits, kind=Integral, low=2, hint=hint)
        if not (self.patience is None or is_auto(self.patience)):
            hint = 'Or give "auto", or None to try all penalties.'
            check_number("patience", self.patience, kind=Integral, low=1, hint=hint)
        if self.period is not None:
            hint = "Use 12 for months, or None."
            check_number("period", self.period, kind=Integral, low=1, hint=hint)
        check_distribution(self)
        check_federated_parameters(self)
        return grid

    def _imputer(self, seed: int) -> FederatedMatrixImputer:
        """Imputer that starts each fit of a path from the previous one."""
        names = FederatedMatrixImputer().get_params(deep=False)
        parameters = {name: getattr(self, name) for name in names if hasattr(self, name)}
        parameters.update(random_state=seed, warm_start=True, verbose=max(self.verbose - 1, 0))
        return FederatedMatrixImputer(**parameters)

    def _warn_of_smallest_penalty(self, best: Trial, gain: float) -> None:
        # With a suitable bound on the rank, hardly any penalty is needed.
        if best.rank is None or gain >= _NEGLIGIBLE_GAIN:
            warn(
                f"The best penalty, {best.penalty:.3g}, is the smallest that was tried: a smaller "
                f"eps (it was {self.eps:g}), or a bound in ranks, may predict better.",
                UserWarning,
            )

    def _warn_of_convergence(self, trials: list[Trial]) -> None:
        imputer, n_fits = self.best_estimator_, self.n_splits * len(trials)
        n_failed = n_fits - sum(trial.converged.sum() for trial in trials)
        if imputer._stopped_by == "keyboard":
            warn(
                "The search was complete, but the fit to all cells was stopped: fit "
                "FederatedMatrixImputer with best_params_ for more rounds.",
                ConvergenceWarning,
            )
        if n_failed:
            warn(
                f"{n_failed} of {n_fits} fits of the search did not converge to tol={self.tol} "
                '(cv_results_["n_converged"]): increase max_iter, max_epochs or tol, or leave out '
                "small penalties.",
                ConvergenceWarning,
            )
