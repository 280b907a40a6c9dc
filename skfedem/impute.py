"""Imputation of matrices with missing cells by federated EM."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Self

from numpy.typing import ArrayLike
from sklearn.utils import Tags

from ._callbacks import CallbackSupportMixin, with_callbacks
from ._data.cells import read_cells
from ._data.features import features_of
from ._estimators.fit import fit
from ._imputer.covariates import GivenCovariates
from ._imputer.fit_steps import MatrixFit, known_attributes
from ._imputer.fitted_matrix import tags_of_matrices
from ._imputer.uncertainty import MatrixWithErrors
from ._parameters import (
    check_choice,
    check_number,
    check_rank,
    check_switch,
    is_auto,
    read_parameters,
    unfitted,
)
from ._typing import FilePath, MatricesLike, Shape, Table
from .models.matrix.families import family_of
from .models.matrix.pooled import EFFECTS
from .models.matrix.start import (
    MatrixParameters,
    cell_federation,
    check_distribution,
)
from .solvers._from_parameters import check_federated_parameters
from .solvers._parameters import ResumableParameters
from .solvers._resume import check_checkpoint_parameters


@dataclass(eq=False, repr=False, kw_only=True)
class _Parameters(ResumableParameters, MatrixParameters):
    """Parameters of the constructor, which sets them as attributes."""

    max_iter: int | None = 500
    tol: float = 1e-6
    warm_start: bool = False


class FederatedMatrixImputer(CallbackSupportMixin, MatrixWithErrors, _Parameters):
    """Low-rank model of a matrix whose cells were observed by several clients.

    FedMissEM, Appendix F.2 of [1]_, for counts, presences or measurements, say of sites by months.
    Cell (j, l) has the natural parameter

    ``theta = intercept + row_effects[j] + column_effects[l] + low_rank[j, l]``

    The objective, in nats, is the negative log-likelihood of all observations of all clients, plus
    ``penalty`` times the nuclear norm of the low-rank part, plus ``effects_penalty`` / 2 times the
    sum of squares of the effects. Missing cells are ignored, not treated as zeros. A matrix of more
    than a million cells is never formed.

    The clients are simulated on this machine. First, they send which cells they observed and how
    often, and the row sums and column sums of their observations, which determine the effects. In
    each round, the active clients send compressed residuals, and the server takes a proximal step.
    This provides no privacy: with the fitted values, a residual reveals the observation.

    Read more in :doc:`/imputation`.

    Parameters
    ----------
    rank : int or None, default=2
        Maximum rank r of the low-rank part; None for no bound, 0 for effects alone.
    family : {"gaussian", "bernoulli", "poisson", "negative_binomial"}, default="gaussian"
        Distribution of a cell: numbers of variance 1 (mean ``theta``), 0 or 1 (log-odds ``theta``),
        or counts up to 1e13 (mean ``m = exp(theta)``), whose variance is m for "poisson", and
        ``m + m**2 / negative_binomial_size`` for "negative_binomial".
    negative_binomial_size : float from 1e-12 to 1e12, or "auto", default="auto"
        Size k of negative binomial counts: ``size`` of R's ``dnbinom``, ``theta`` of MASS::glm.nb,
        ``1 / alpha`` of statsmodels. "auto" is the most likely size around effects alone, between
        1e-6 and 1e6 for the mean effort, for which clients send derivatives before the first round.
    penalty : float or "auto", default="auto"
        Nuclear-norm penalty λ >= 0, on the scale of softImpute [2]_: the log-likelihood is a sum
        over observations, not a mean. "auto" is a quarter of the smallest penalty without low-rank
        part, for which clients send the residuals of a fit of effects alone, once, uncompressed;
        FederatedMatrixImputerCV chooses a penalty.
    effects : {"both", "rows", "columns", "none"}, default="both"
        Main effects in addition to the intercept. "none" also omits the intercept, as in
        soft-impute.
    effects_penalty : float, default=0.1
        Ridge penalty on the effects, equivalent to a normal prior of variance ``1 /
        effects_penalty``; 0 means 1e-7. With about ten observations per row or column or fewer, 1
        usually predicts better.
    client_effects_penalty : float, "auto" or None, default=None
        Ridge penalty τ on effects u_i of clients, such as observers, in whose cells θ is larger by
        u_i: the objective has ``τ / 2 Σ u_i²``. It is the inverse of their variance, which "auto"
        estimates. Means and scores are those of a client with u = 0. None for no such effects.
    rows : {"shared", "disjoint"}, default="shared"
        Whether all clients in a list have the same rows (sites), or each has different ones.
    missing_values : number, default=numpy.nan
        Value that marks missing cells in dense matrices. NaN also covers None and ``pandas.NA``. In
        sparse matrices, cells that are not stored are missing, and this value must not be stored.
    solver : {"fedem", "vr_fedem"}, default="fedem"
        Algorithm to use: FedEM or VR-FedEM, Algorithms 1 and 2 of [1]_. Without ``batch_size``,
        both give the same fit.
    step_size : float in (0, 1], "auto" or callable, default="auto"
        Step size γ. With "auto", the natural step η follows the curvature of the objective; exact
        rounds have γ = 1 and momentum, others follow :doc:`/step_sizes`. A number, or the number
        that a callable returns for a round, multiplies the safe natural step, without momentum: the
        inverse of the largest curvature of a cell (its number of observations times ψ'').
    control_step : float in [0, 1], or "auto", default="auto"
        Step size α of the control variates; "auto" is 1 / (1 + ω), with the operator's largest
        variance ω over the lengths of the messages. Much larger steps diverge.
    control_init : {"field", "zeros"}, default="field"
        Initial control variates: the residuals at the start, sent uncompressed; or zeros.
    batch_size : int, default=None
        Number b of observed cells that an active client reads in a round; None for all.
    replacement : bool, default=True
        Whether to draw minibatches with replacement; if not, all clients need ``batch_size`` cells.
    n_inner : int or "auto", default="auto"
        Number k_in of VR-FedEM's inner rounds between two passes over all cells. "auto" is (1 + ω)
        sqrt(m / 2) / ``participation``, rounded up; m is the mean number of cells per client.
    compressor : {"dithering", "block", "rand_k"}, Compressor or None, default="dithering"
        Operator that compresses the messages, see ``skfedem.compression``. Ignored if ``omega=0``.
    omega : float >= 0, default=0.0
        Relative variance ω of the compression: E||Quant(x)||² <= (1 + ω)||x||²; 0 disables it. An
        operator given by its name uses the coarsest level within this bound; a ``Compressor``
        object keeps its own level.
    participation : float in (0, 1], or int, default=1.0
        Probability p that a client takes part in a round, or the number of clients that take part,
        drawn without replacement: 1.0 are all clients, 1 is one client.
    client_weights : {"n_samples", "uniform"}, default="n_samples"
        Weight of a client: its number of observations, so that the objective is that of the pooled
        observations, or the same weight for every client.
    max_iter : int or None, default=500
        Maximum number of rounds. 0 returns the initial parameters; None sets no limit and requires
        ``max_epochs``.
    max_epochs : float, default=None
        Maximum number of epochs. An epoch is as many evaluations as there are observed cells.
    tol : float, default=1e-6
        Tolerance for convergence. Exact rounds stop when the relative change of the objective is
        less than ``tol`` times γ, five times in a row; random rounds after three windows of rounds
        without progress, see the user guide. 0 runs all rounds.
    eval_every : int, "auto" or None, default="auto"
        Number of rounds between evaluations for ``history_``; "auto" evaluates once per epoch, None
        never. Exact rounds need none.
    random_state : int, RandomState instance or None, default=None
        Pass an int for reproducible results, up to rounding also on other machines.
    n_jobs : int, default=None
        Number of threads that simulate the clients, as in joblib; short rounds use one. The result
        does not depend on it.
    verbose : int, default=0
        Verbosity: 1 prints every tenth round and how a run ended, 2 prints every round.
    checkpoint : path-like, default=None
        File in which to save the run for ``fit(..., resume_from=path)``. The previous save is kept,
        with ``.previous`` appended to its name.
    checkpoint_every : int, default=100
        Number of rounds between saves. The last round is saved too, unless interrupted.
    warm_start : bool, default=False
        Whether to start from the θ of the last fit. If that also had ``warm_start=True`` and the
        same observations, clients keep their control variates; with unchanged rank, penalties and
        effects, without covariates or effects of clients, the run continues as if uninterrupted.

    Attributes
    ----------
    row_factors_ : ndarray of shape (n_rows, n_factors)
        Left singular vectors of the low-rank part, ``n_factors <= rank``.
    singular_values_ : ndarray of shape (n_factors,)
        Singular values of the low-rank part, in decreasing order.
    column_factors_ : ndarray of shape (n_columns, n_factors)
        Right singular vectors of the low-rank part.
    row_effects_ : ndarray of shape (n_rows,)
        Row effects, with mean 0.
    column_effects_ : ndarray of shape (n_columns,)
        Column effects, with mean 0.
    penalty_, client_effects_penalty_ : float
        Penalties λ and τ of the fit; the second is None without effects of clients.
    negative_binomial_size_ : float
        Size k of the fit; infinite for other families.
    intercept_ : float
        Intercept of the natural parameter; 0 with ``effects="none"``.
    client_effects_ : ndarray of shape (`n_clients_`,), or None
        Effects u_i, 0 without observed cells. A client is told its own alone.
    row_coef_ : ndarray of shape (n_row_covariates,)
        Coefficients of `row_covariates`, per unit of each.
    column_coef_ : ndarray of shape (n_column_covariates,), or (n_groups, n_column_covariates)
        Coefficients of `column_covariates`, of each group of rows if there are groups.
    group_effects_ : ndarray of shape (n_groups, n_columns), or None
        Effects of the columns in each group of rows, in addition to `column_effects_`.
    row_covariate_names_, column_covariate_names_ : ndarray of str
        Names of the covariates; those of indicators are like "habitat=dunes".
    row_groups_ : ndarray of shape (n_groups,)
        Sorted labels of the groups of rows; empty without groups.
    objective_ : float
        Final value of the objective, in nats.
    dispersion_ : float
        Mean square of the Pearson residuals of the clients' cells, over cells minus parameters; NaN
        if there are not more cells. 1 if the family's variance holds. With a low-rank part, the
        number of parameters is an effective one, given the penalties, up to 1,500 parameters;
        beyond, they are counted as if none were penalised, and the dispersion is too large.
    serial_correlation_ : float
        Correlation of residuals of a client in consecutive columns of a row.
    n_iter_ : int
        Number of rounds.
    converged_ : bool
        Whether ``tol`` was reached.
    setup_messages_ : list of SetUpMessage
        What clients sent and received outside of rounds: the name of each message, the number of
        clients, and all their bits up and down; see :doc:`/what_leaves_a_client`.
    history_ : dict of ndarray
        History of the fit: row 0 is the start, row r the state after round r. The entries are
        ``round``, ``epoch``, ``objective`` (nats), ``field_sq_norm`` (squared norm of the change of
        the low-rank part divided by the step size), ``mean_field_sq_norm`` (the same for exact
        residuals; only comparable within a fit: with automatic steps, values are approximate, up to
        a fifth off at first), ``step_size`` (the γ that was applied), ``n_active`` (number of
        clients that took part), ``uplink_bits``, ``downlink_bits``, ``safeguarded`` (how often a
        step given by a number had to be halved), and ``singular_values`` of shape (n_rows, largest
        rank). All entries except ``singular_values`` can be the columns of a DataFrame. Values that
        were not evaluated are NaN.
    unobserved_rows_, unobserved_columns_ : ndarray of int
        Rows and columns without an observed cell. Their effects are 0.
    row_offsets_ : ndarray of int, shape (`n_clients_` + 1,), or None
        With ``rows="disjoint"``, the rows of client i are ``row_offsets_[i]:row_offsets_[i + 1]``.
    n_clients_ : int
        Number of clients, including those without observed cells.
    client_ids_ : ndarray of shape (`n_clients_`,)
        Label of each client: the sorted labels from ``clients``, or else its position in the list.
    client_drift_ : ndarray of shape (`n_clients_`,)
        How poorly the common model fits a client: root mean square of the residuals in its cells,
        from its control variate V_i. 0 without observed cells.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str, shape (`n_features_in_`,)
        Names of the columns, if the data had any.

    See Also
    --------
    FederatedMatrixImputerCV : Chooses rank and penalties by held-out cells.
    skfedem.datasets.read_ebird : Reads counts of birds.

    Notes
    -----
    If ``rank`` is below the rank that the penalty alone would yield, the problem is not convex:
    runs that differ in noise or in their start may end in different optima.

    When exact rounds stop, the objective may still exceed its minimum by a relative ten to a
    hundred times ``tol``, or more, see :doc:`/imputation_settings`. If Gaussian cells spread by
    less than 1e-4, fits stop too soon: multiply the cells and ``penalty``.

    References
    ----------
    .. [1] A. Dieuleveut, G. Fort, E. Moulines and G. Robin, "Federated Expectation Maximization
       with heterogeneity mitigation and variance reduction", NeurIPS 2021, Appendix F.2.
    .. [2] R. Mazumder, T. Hastie and R. Tibshirani, "Spectral regularization algorithms for
       learning large incomplete matrices", JMLR 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedem import FederatedMatrixImputer
    >>> nan = np.nan
    >>> one = np.array([[4.0, nan, 9.0], [nan, 1.0, nan], [2.0, nan, 5.0]])
    >>> other = np.array([[nan, 7.0, 8.0], [2.0, 1.0, 3.0], [nan, 3.0, nan]])
    >>> imputer = FederatedMatrixImputer(rank=1, family="poisson", penalty=0.3).fit([one, other])
    >>> imputer.fitted_mean().round(1)
    array([[3.9, 6.8, 8.6],
           [1.8, 1.1, 3. ],
           [2.3, 3. , 4.7]])
    >>> imputer.transform([one, other])[0].round(1)
    array([[4. , 6.8, 9. ],
           [1.8, 1. , 3. ],
           [2. , 3. , 5. ]])
    """

    __metadata_request__fit = {"clients": True, "shape": True, "offset": True}
    __metadata_request__fit |= dict.fromkeys(GivenCovariates._fields, True)
    # Pipeline.score asks for sample_weight, and fails if no request for it is declared.
    __metadata_request__score = {"sample_weight": None, "offset": True}
    __metadata_request__transform = {"offset": True}

    @with_callbacks
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
        resume_from: FilePath | None = None,
    ) -> Self:
        """Fit the model to the observed cells of all clients.

        Parameters
        ----------
        X : list of clients, or array-like of shape (n_rows, n_columns)
            In a list, each client is

            - a matrix or DataFrame (sites by months) with missing cells,
            - a 3-D array (observers, sites, months),
            - a scipy.sparse matrix, whose stored entries (including zeros) are the observed cells,
            - with ``shape``, an array of triplets (site, month, value), with sites and months
              numbered from 0.

            A single matrix, or a single array of triplets, is one client, unless ``clients`` labels
            its rows. In a single 3-D array, each observer is a client. If a cell was observed
            several times, all observations count.
        y : Ignored
            Not used, present for scikit-learn's API.
        clients : array-like of shape (n_rows,), default=None
            Client label of each row of X, if X is one matrix or one array of triplets.
        shape : tuple of two int, or of two array-likes, default=None
            Numbers of sites and months, or their names. If given, dense 2-D arrays are read as
            triplets, and so are arrays of three columns that ``transform`` and ``score`` get in a
            list or, after a fit to a single array, alone. (With two clients, scikit-learn's
            searches would split ``shape`` like rows: use sparse matrices instead.)
        offset : list of array-likes, or array-like, default=None
            Known term of θ in each observation, such as the logarithm of the effort (hours, length
            of a transect, number of traps): counts then have the mean ``exp(theta +
            offset)``, and all fitted means are those of one unit of effort. In the form of X: a
            list with one for each client, or one alone; beside triplets, one number for each,
            otherwise a matrix, of which only observed cells are read. Not for presences.
        row_covariates : array-like of shape (n_rows, n_row_covariates), default=None
            Numbers known of each row, such as altitudes, whose coefficients are not penalised: the
            row effects are the deviations from their sum. Text and categories of a DataFrame become
            indicators, of which the first is the reference. Covariates are centred.
        column_covariates : array-like of shape (n_columns, n_column_covariates), default=None
            The same of each column: with a table of years and months, as text or categories, and
            ``effects="rows"``, the effect of a column is that of its year plus that of its month.
        row_groups : array-like of shape (n_rows,), default=None
            Label of each row, such as its habitat. Each group has coefficients of
            `column_covariates` and, unless ``effects="rows"``, column effects of its own, like the
            covariates of TRIM; these have the penalty ``effects_penalty``.
        resume_from : path-like, default=None
            Checkpoint to resume from, of a run with the same data and parameters. The result is bit
            for bit that of an uninterrupted run, except for an additional evaluation in
            ``history_`` where the saved run ended. ``max_iter``, ``max_epochs``, ``checkpoint``,
            ``checkpoint_every``, ``n_jobs``, ``verbose`` and ``warm_start`` may differ, and
            ``random_state`` may be None.

        Returns
        -------
        self : FederatedMatrixImputer

        Raises
        ------
        TypeError, ValueError
            If data or parameters are invalid; an earlier fit is then kept unchanged.
        FileNotFoundError
            If the file ``resume_from`` does not exist.

        Warns
        -----
        ConvergenceWarning
            If ``tol`` was not reached, steps given by numbers still had to be halved at the end,
            the objective ended above its start, or the fit was interrupted from the keyboard.
        UserWarning
            If clients have no cell, a table looks like triplets without ``shape``, row labels
            recur, ``clients`` look wrong, Gaussian cells are far from 0 without effects, one cell
            slows the others down, Poisson means were capped, counts around effects alone are more
            than five times as dispersed as Poisson counts, ``batch_size`` or a ``Compressor`` do
            not fit the data, or a checkpoint could not be written.
        """
        self._check_parameters()
        settings, checked = read_parameters(self), unfitted(self)
        family = family_of(self.family)
        data = read_cells(checked, X, clients, shape=shape, family=family, offset=offset)
        check_rank("rank", self.rank, data.shape)
        given = GivenCovariates(row_covariates, column_covariates, row_groups)
        known = known_attributes(settings, X, clients, shape, data, offset, given)
        known |= features_of(checked)
        theta, memory = self._warm_theta(data, known), getattr(self, "_memory", None)
        place = data.place
        federation = place.federation if place else cell_federation(data, self.client_weights)
        covariates = known["_covariates"].design
        steps = MatrixFit(settings, X, data, federation, known, theta, memory, covariates)
        return fit(self, steps, place or X, y, resume_from=resume_from)

    def __sklearn_tags__(self) -> Tags:
        """Accept NaN and sparse matrices."""
        return tags_of_matrices(super().__sklearn_tags__(), self.family)

    def _check_parameters(self) -> None:
        if self.rank is not None:
            hint = "Use None for no bound, and 0 for effects alone."
            check_number("rank", self.rank, kind=Integral, low=0, hint=hint)
        check_distribution(self)
        if not is_auto(self.penalty):
            hint = 'Use 0 for no penalty, or "auto".'
            check_number("penalty", self.penalty, low=0, hint=hint)
        check_choice("effects", self.effects, EFFECTS)
        check_number("effects_penalty", self.effects_penalty, low=0, hint="0 means 1e-7.")
        check_switch("warm_start", self.warm_start)
        check_federated_parameters(self)
        check_checkpoint_parameters(self)
