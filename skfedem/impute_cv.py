"""Rank and penalties of a matrix imputer, chosen by cells that the clients hold out."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from itertools import product
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from ._fitted_matrix import tags_of_matrices
from ._held_out import deal_cells
from ._input.cells import check_cells
from ._input.clients import check_minibatches, features_of, store
from ._matrix_warnings import instead_of_more_rounds
from ._messages import either, kept_back, naming, plural, warn
from ._parameters import check_choice, check_number, check_rank, is_auto
from ._penalty_grid import checked_grid
from ._penalty_path import follow_paths, index_of_best, largest_penalty, refit, tabulated
from ._random import seeds_of_runs
from ._typing import (
    ClientWeights,
    CompressorName,
    ControlInit,
    EffectsName,
    FamilyName,
    FloatArray,
    MatricesLike,
    RowsName,
    Seed,
    SolverName,
    StepSize,
    Transformed,
)
from .compression import Compressor
from .impute import FederatedMatrixImputer
from .models.families import FAMILIES
from .solvers._options import check_federated_parameters
from .solvers._report import ways_to_less_noise

# A path whose last step gains less, in nats a held-out cell, has settled: below a bound, what was
# left to gain was less again, by a factor of 0.2 to 0.7.
_SETTLED = 0.1


class FederatedMatrixImputerCV(TransformerMixin, BaseEstimator):
    """FederatedMatrixImputer whose rank and penalties are chosen by cross-validation.

    The observed cells are dealt at random to ``n_splits`` folds, the same for all clients. For each
    rank and each penalty on the effects, fits go down a path of penalties on the low-rank part,
    from the smallest one with which that part is 0. Each fit starts from the one before. It is
    scored on the fold that it leaves out, by the mean log-likelihood per held-out observation:
    each client reports the sum of its own, and their number. The rank and penalties with the
    largest mean score over the folds are fitted to all cells, again down the path.

    All fits are federated as ``omega``, ``participation`` and the other parameters say. Read more
    in :doc:`/imputation`.

    Parameters
    ----------
    ranks : list of (int or None), default=(None,)
        Bounds on the rank to choose from; None for no bound. With a few strong factors, a bound
        predicts far better: in simulated tables, errors of missing cells were up to 27 % smaller
        with ``(1, 2, 3, 4, None)``, in three to four times the time; two real tables gained
        nothing. For large matrices give bounds alone: without a bound, small penalties let the
        rank, and with it time and memory, grow to most of ``min(n_rows, n_columns)``.
    penalties : int or array-like of shape (n_penalties,), default=10
        Number of penalties on the path, equally spaced on a log scale; or the penalties themselves,
        which are taken from the largest to the smallest.
    effects_penalties : "auto" or list of float, default="auto"
        Ridges on the effects to choose from; the time of the search grows with their number.
        "auto" tries 0.1 and 1, and ten times the largest one as long as that is the best, up to
        1e5. Without effects the first one is taken.
    eps : float in (0, 1), default=0.01
        Ratio of the last penalty of the path to its first, if ``penalties`` is a number. Decrease
        it where the best penalty is the last: strong signals want a smaller one.
    n_splits : int, default=5
        Number of folds, at least 2. A cell that was observed several times, by one client or by
        several, is held out or kept as a whole.
    patience : int, "auto" or None, default="auto"
        A path ends when this many penalties in a row have not improved on its best score. Penalties
        so large that no fit has a low-rank part do not count. "auto" is three in ten of all
        penalties, and at least three. None follows every path to its end.
    family : {"gaussian", "bernoulli", "poisson"}, default="gaussian"
        What a cell holds: numbers of variance 1, 0 and 1, or counts.
    effects : {"both", "rows", "columns", "none"}, default="both"
        Main effects beside an intercept; "none" has no intercept either.
    rows : {"shared", "disjoint"}, default="shared"
        Whether the clients of a list all have the same rows (sites), or each has its own.
    missing_values : number, default=numpy.nan
        Marks missing cells of dense matrices; may not be stored in sparse ones.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        This and the following are parameters of :class:`FederatedMatrixImputer`, explained there.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        γ.
    control_step : float in [0, 1], or "auto", default="auto"
        Step α of the control variates.
    control_init : {"field", "zeros"}, default="field"
        Control variates before the first round of each fit.
    batch_size : int, default=None
        Observed cells that an active client reads in a round; None for all.
    replacement : bool, default=True
        Whether a minibatch may hold a cell twice.
    n_inner : int or "auto", default="auto"
        Number of rounds between two of VR-FedEM's passes over all cells.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression.
    participation : float in (0, 1], default=1.0
        Probability p that a client takes part in a round.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        In the fits, clients are weighted by their numbers of observations, or all alike. In the
        score, all held-out observations count alike.
    max_iter : int or None, default=200
        Largest number of rounds of a fit.
    max_epochs : float, default=None
        Largest number of epochs of a fit.
    tol : float, default=1e-6
        Tolerance at which a fit stops.
    eval_every : int, "auto" or None, default="auto"
        Rounds between two evaluations for the ``history_`` of the best estimator.
    random_state : int, RandomState instance or None, default=None
        Pass an int for the same folds and fits every time.
    n_jobs : int, default=None
        Number of processes that follow the paths of the search, or fit their folds, and of threads
        that simulate clients in the fit to all cells; as in joblib. No result depends on it. A
        callable ``step_size`` and a ``Compressor`` have to be picklable to reach the processes.
    verbose : int, default=0
        1 prints the score of each rank and penalties, 2 the rounds of the last fit as well.

    Attributes
    ----------
    best_estimator_ : FederatedMatrixImputer
        Fitted to all cells with the best rank and penalties.
    best_params_ : dict
        ``{"rank": ..., "effects_penalty": ..., "penalty": ...}``.
    best_score_ : float
        Mean log-likelihood per held-out observation of ``best_params_``, in nats.
    best_index_ : int
        Index of ``best_params_`` in ``cv_results_``; the first of equals, up to rounding.
    cv_results_ : dict of ndarray
        One entry for each rank and penalties that were tried, in the order of ``ranks``, then of
        ``effects_penalties``, and down the path: ``params`` (a list of dicts), ``param_rank``,
        ``param_effects_penalty``, ``param_penalty``, ``split0_test_score`` and so on (mean
        log-likelihood per held-out observation of a fold, in nats), ``mean_test_score``,
        ``std_test_score``, ``rank_test_score`` (1 is the best); over the folds, the means
        ``mean_n_iter`` (rounds) and ``mean_n_factors`` (rank of the fit), ``n_converged`` (fits
        that reached ``tol``), and the sum ``uplink_bits``. Ridges that "auto" added come last.
    n_iter_ : int
        Number of rounds of the last fit.
    penalty_max_ : float
        Smallest penalty whose fit to all cells, with the best penalty on the effects, has a
        low-rank part of 0.
    n_splits_ : int
        Number of folds.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if the data had string names.

    See Also
    --------
    FederatedMatrixImputer : Takes a given rank and given penalties.

    Notes
    -----
    With a bound on the rank that is below what the penalty leaves, the objective is not convex: a
    fit down the path may end elsewhere than one from nothing.

    The bits of the search's fits are in ``cv_results_``, those of the last fit in the ``history_``
    of ``best_estimator_``. Cells and margins are sent, and counted, with the first fit of a path.
    :doc:`/what_leaves_a_client` says which messages are not counted.

    Gaussian cells have to spread by some 1e-7 or more: else rounding hides the differences between
    scores. Multiply such cells by a power of ten.

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

    best_estimator_: FederatedMatrixImputer
    best_params_: dict[str, Any]
    best_score_: float
    best_index_: int
    cv_results_: dict[str, Any]
    n_iter_: int
    penalty_max_: float
    n_splits_: int
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    __metadata_request__fit = {"clients": True, "shape": True}
    # Pipeline.score asks for sample_weight, and fails where no request is declared for it.
    __metadata_request__score = {"sample_weight": None}

    def __init__(
        self,
        ranks: Iterable[int | None] = (None,),
        penalties: int | ArrayLike = 10,
        *,
        effects_penalties: ArrayLike | Literal["auto"] = "auto",
        eps: float = 1e-2,
        n_splits: int = 5,
        patience: int | Literal["auto"] | None = "auto",
        family: FamilyName = "gaussian",
        effects: EffectsName = "both",
        rows: RowsName = "shared",
        missing_values: float = np.nan,
        solver: SolverName = "fedem",
        step_size: StepSize = "auto",
        control_step: float | Literal["auto"] = "auto",
        control_init: ControlInit = "field",
        batch_size: int | None = None,
        replacement: bool = True,
        n_inner: int | Literal["auto"] = "auto",
        compressor: CompressorName | Compressor | None = "dithering",
        omega: float = 0.0,
        participation: float = 1.0,
        client_weights: ClientWeights = "n_samples",
        max_iter: int | None = 200,
        max_epochs: float | None = None,
        tol: float = 1e-6,
        eval_every: int | Literal["auto"] | None = "auto",
        random_state: Seed = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.ranks = ranks
        self.penalties = penalties
        self.effects_penalties = effects_penalties
        self.eps = eps
        self.n_splits = n_splits
        self.patience = patience
        self.family = family
        self.effects = effects
        self.rows = rows
        self.missing_values = missing_values
        self.solver = solver
        self.step_size = step_size
        self.control_step = control_step
        self.control_init = control_init
        self.batch_size = batch_size
        self.replacement = replacement
        self.n_inner = n_inner
        self.compressor = compressor
        self.omega = omega
        self.participation = participation
        self.client_weights = client_weights
        self.max_iter = max_iter
        self.max_epochs = max_epochs
        self.tol = tol
        self.eval_every = eval_every
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self,
        X: MatricesLike,
        y: object = None,
        *,
        clients: ArrayLike | None = None,
        shape: tuple[int, int] | None = None,
    ) -> Self:
        """Choose rank and penalties, and fit them to the observed cells of all clients.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            As in :meth:`FederatedMatrixImputer.fit`.
        y : Ignored
            By scikit-learn's convention.
        clients : array-like of shape (n_rows,), default=None
            Client label of each row of X, when X is one matrix or one array of triplets.
        shape : tuple of two int, default=None
            Numbers of sites and months; dense 2-D arrays are then triplets.

        Returns
        -------
        self : FederatedMatrixImputerCV

        Raises
        ------
        TypeError, ValueError
            For invalid data or parameters; nothing is fitted then, and an earlier fit is kept.
        KeyboardInterrupt
            When the search is stopped from the keyboard. The fit to all cells, which follows it
            down the path of penalties, keeps what it has reached when it is stopped.

        Warns
        -----
        ConvergenceWarning
            When ``tol`` was not reached, in the search or at its end.
        UserWarning
            When the best penalty is the smallest of a path that followed from `penalties`, a
            number, and `eps`, and the rank has no bound or the last step gained more than 0.1 nats
            a held-out cell; and as given by :meth:`FederatedMatrixImputer.fit`.
        """
        # Warnings about parameters and data are left to the last fit.
        with kept_back():
            grid = self._checked_grid()
            (seed,) = seeds_of_runs(self.random_state, 1)
            cells = check_cells(
                clone(self),
                X,
                clients,
                shape=shape,
                family=FAMILIES[self.family],
                keep_observations=True,
            )
            for rank in grid.ranks:
                check_rank("ranks", rank, cells.shape)
            folds = deal_cells(cells, self.n_splits, seed)
            self._check_minibatches(cells, folds)
            imputer = self._imputer(seed)
            trials, paths, largest = self._search(imputer, cells, folds, grid)
        results, best_index = tabulated(trials), index_of_best(trials)
        best = trials[best_index]
        path = paths[best.effects_penalty]
        advice = refit(imputer, best, path, X, clients=clients, shape=shape)
        store(
            self,
            features_of(imputer),
            best_estimator_=imputer,
            best_params_=results["params"][best_index],
            best_score_=float(results["mean_test_score"][best_index]),
            best_index_=best_index,
            cv_results_=results,
            penalty_max_=largest[best.effects_penalty],
            n_splits_=self.n_splits,
            n_iter_=imputer.n_iter_,
        )
        for message, category in advice:
            warn(message, category)
        if isinstance(self.penalties, Real) and len(path) > 1 and best.penalty == path[-1]:
            self._warn_of_end(best, gain=best.score - trials[best_index - 1].score)
        self._warn_of_rounds(trials, imputer)
        return self

    def transform(self, X: MatricesLike) -> Transformed:
        """Fill the missing cells with their fitted means; observed cells are kept.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)

        Returns
        -------
        filled : ndarray of shape (n_rows, n_columns), or a tuple with one for each client
            As :meth:`FederatedMatrixImputer.transform` of ``best_estimator_`` gives it.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As :meth:`FederatedMatrixImputer.transform`.

        Warns
        -----
        UserWarning
            As :meth:`FederatedMatrixImputer.transform`.
        """
        check_is_fitted(self)
        # Given a tuple, scikit-learn would apply our set_output to the first client's table only.
        imputer = copy(self.best_estimator_)
        imputer._sklearn_output_config = getattr(self, "_sklearn_output_config", {})
        return imputer.transform(X)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns, as :meth:`FederatedMatrixImputer.get_feature_names_out` has them.

        Parameters
        ----------
        input_features : array-like of str, default=None

        Returns
        -------
        names : ndarray of str

        Raises
        ------
        NotFittedError
            Before ``fit``.
        ValueError
            For names that are not those of the fit.
        """
        check_is_fitted(self)
        return self.best_estimator_.get_feature_names_out(input_features)

    def fitted_mean(
        self, rows: ArrayLike | None = None, columns: ArrayLike | None = None
    ) -> FloatArray:
        """Fitted means of the fitted rows, or of some of them.

        Parameters
        ----------
        rows, columns : array-like of int, default=None
            Which rows and columns; None for all.

        Returns
        -------
        means : ndarray of shape (len(rows), len(columns))
            Expected values, probabilities or counts, by the family.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        IndexError, TypeError, ValueError
            As :meth:`FederatedMatrixImputer.fitted_mean`.

        Warns
        -----
        UserWarning
            As :meth:`FederatedMatrixImputer.transform`.
        """
        check_is_fitted(self)
        return self.best_estimator_.fitted_mean(rows, columns)

    def score(self, X: MatricesLike, y: object = None) -> float:
        """Mean log-likelihood per observation, in nats, under ``best_estimator_``.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            As in :meth:`FederatedMatrixImputer.score`.
        y : Ignored

        Returns
        -------
        log_likelihood : float

        Raises
        ------
        NotFittedError
            Before ``fit``.
        TypeError, ValueError
            As :meth:`FederatedMatrixImputer.score`.
        """
        check_is_fitted(self)
        return self.best_estimator_.score(X)

    def __sklearn_tags__(self) -> Tags:
        """Accept NaN and sparse matrices."""
        return tags_of_matrices(super().__sklearn_tags__(), self.family)

    # ---- fitting

    def _checked_grid(self):
        """What to try; raise for parameters that are out of range."""
        grid = checked_grid(
            self.ranks, self.penalties, self.eps, self.effects_penalties, self.effects
        )
        hint = "Each part of the cells is held out once."
        check_number("n_splits", self.n_splits, kind=Integral, low=2, hint=hint)
        if not (self.patience is None or is_auto(self.patience)):
            hint = (
                'None follows every path to its end, "auto" gives up after three in ten penalties.'
            )
            check_number("patience", self.patience, kind=Integral, low=1, hint=hint)
        check_choice("family", self.family, tuple(FAMILIES))
        check_federated_parameters(self)
        return grid

    def _imputer(self, seed):
        """Imputer that starts each fit of a path from the one before."""
        names = FederatedMatrixImputer().get_params(deep=False)
        parameters = {name: getattr(self, name) for name in names if hasattr(self, name)}
        parameters.update(random_state=seed, warm_start=True, verbose=max(self.verbose - 1, 0))
        return FederatedMatrixImputer(**parameters)

    def _check_minibatches(self, cells, folds):
        """Raise if a client cannot draw its minibatches when the cells of a fold are left out."""
        owners = np.repeat(np.arange(len(cells.ids)), np.diff(cells.offsets))
        for fold in range(self.n_splits):
            lengths = np.bincount(owners[folds != fold], minlength=len(cells.ids))
            seen = lengths > 0
            with naming(f"Without the cells of fold {fold}"):
                check_minibatches(self, lengths[seen], cells.ids[seen], "observed cells")

    def _search(self, imputer, cells, folds, grid):
        """Trials, and by penalty on the effects the paths and the largest penalties."""
        # Sites are shared by then, and nobody will look at the histories.
        imputer = clone(imputer).set_params(rows="shared", eval_every=None, verbose=0)
        trials, paths, largest, ridges = [], {}, {}, grid.ridges
        while ridges:
            for ridge in ridges:
                beginning = clone(imputer).set_params(effects_penalty=ridge)
                largest[ridge] = largest_penalty(beginning, cells)
                paths[ridge] = grid.path(largest[ridge])
            plans = [
                (clone(imputer).set_params(rank=rank, effects_penalty=ridge), paths[ridge])
                for rank, ridge in product(grid.ranks, ridges)
            ]
            trials += follow_paths(
                plans, cells, folds, self.patience, n_jobs=self.n_jobs, verbose=self.verbose
            )
            ridges = grid.larger_ridges(max(ridges), trials[index_of_best(trials)])
        return trials, paths, largest

    def _warn_of_end(self, best, gain):
        # Below a bound that fits, hardly any penalty is needed: scores settle.
        if best.rank is not None and gain < _SETTLED:
            return
        or_bound = " or a bound in ranks" if best.rank is None else ""
        warn(
            f"The best penalty, {best.penalty:.3g}, is the smallest that was tried. A smaller eps "
            f"(it was {self.eps:g}){or_bound} may predict better.",
            UserWarning,
        )

    def _warn_of_rounds(self, trials, imputer):
        if imputer._stopped_by == "keyboard":
            after = f"after {plural(imputer.n_iter_, 'round')}"
            warn(
                "The search itself was complete; the fit to all cells was stopped "
                f"{after if imputer.n_iter_ else 'on its way down the penalties'}. For more "
                "rounds, fit FederatedMatrixImputer with best_params_.",
                ConvergenceWarning,
            )
        n_fits = self.n_splits * len(trials)
        n_failed = n_fits - sum(trial.converged.sum() for trial in trials)
        if n_failed:
            given = [name for name in ("max_iter", "max_epochs") if getattr(self, name) is not None]
            longer = f"increase {' or '.join(given)}"
            ways = [*instead_of_more_rounds(self), longer, "leave small penalties out"]
            if less_noise := ways_to_less_noise(self):
                ways.insert(0, f"use {either(less_noise)}")
            advice = ", or ".join(ways) if self.tol else "increase tol"
            warn(
                f"{n_failed} of {n_fits} fits of the search did not converge to tol={self.tol}: "
                f'see cv_results_["n_converged"]. {advice[0].upper()}{advice[1:]}.',
                ConvergenceWarning,
            )
