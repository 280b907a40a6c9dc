"""Start of a low-rank fit: the one-off messages before the first round.

``messages.py`` has what clients compute.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..._data.cells import CellData
from ..._federation import Federation, SetUp, offsets_of, weights_of_clients
from ..._history import FLOAT_BITS
from ..._parameters import check_choice, check_number, is_auto
from ..._typing import ClientWeights, EffectsName, FamilyName, FloatArray, IntArray, RowsName
from .._base import Start
from . import encoding, messages
from .client_effects import with_client_penalty
from .covariates import CovariateData, Covariates
from .joint_equations import joint_design
from .low_rank import LowRankModel, ServerIterate
from .main_effects import fit_effects, intercept_only
from .negative_binomial import most_likely_size
from .pooled import LEAST_PENALTY, Margins, Pooled, Support
from .proximal import largest_curvature, with_optimal_effects
from .theta import Theta, is_dense, low_rank_at, relative_cells, zero_low_rank
from .thresholding import threshold_singular_values, unset_block

# The curvature of Poisson cells is unbounded: the first adaptive step is this many times as long as
# the curvature at the start allows, because halving it is cheap.
_FIRST_STEP = 4.0
# Automatic penalty, as a share of the smallest one without low-rank part. Simulated counts were
# predicted best by a quarter, or nearly, simulated measurements and presences by a half or more
# (doc/effort_and_covariates.rst).
_AUTOMATIC_SHARE = 0.25


def cell_federation(data: CellData, client_weights: ClientWeights) -> Federation:
    """Stack the cells of clients that have any, with the weights of the means over cells.

    Values are relative to the origin of the data. In the mean over a client's cells, a cell counts
    as often as it was observed; for "uniform" client weights, the weights of these means are
    reduced accordingly.
    """
    lengths = np.diff(data.offsets)[data.observers]
    offsets = offsets_of(lengths)
    counts = np.add.reduceat(data.counts, offsets[:-1])
    weights = weights_of_cells(lengths, counts, client_weights)
    log_base_measure = data.log_base_measure[data.observers]
    return Federation(relative_cells(data), offsets, weights, log_base_measure=log_base_measure)


def weights_of_cells(
    lengths: IntArray, counts: FloatArray, client_weights: ClientWeights
) -> FloatArray:
    """Weights w_i of clients with so many cells and observations."""
    weights = weights_of_clients(lengths, client_weights)
    if client_weights == "uniform":
        weights = weights * lengths / counts
        weights /= weights.sum()
    return weights


@dataclass(eq=False, repr=False)
class MatrixParameters:
    """Parameters of the model, which the estimator inherits with its constructor."""

    rank: int | None = 2
    _: KW_ONLY
    family: FamilyName = "gaussian"
    negative_binomial_size: float | Literal["auto"] = "auto"
    penalty: float | Literal["auto"] = "auto"
    effects: EffectsName = "both"
    effects_penalty: float = 0.1
    client_effects_penalty: float | Literal["auto"] | None = None
    rows: RowsName = "shared"
    missing_values: float = np.nan


def check_distribution(settings: Any) -> None:
    """Raise unless family, size and variance of client effects are allowed."""
    check_choice("family", settings.family, get_args(FamilyName))
    size, penalty = settings.negative_binomial_size, settings.client_effects_penalty
    if penalty is not None and not is_auto(penalty):
        hint = 'Use "auto" to estimate it, and None for no effects of clients.'
        check_number("client_effects_penalty", penalty, low=0, hint=hint)
    if not is_auto(size):
        hint = 'Use "auto" to estimate it, and family="poisson" for an infinite size.'
        check_number("negative_binomial_size", size, low=1e-12, high=1e12, hint=hint)


def low_rank_model(
    settings: MatrixParameters,
    clients: SetUp,
    shape: tuple[int, int],
    adaptive: bool = True,
    covariates: Covariates | None = None,
) -> LowRankModel:
    """Model of the clients' cells, from their messages before the first round.

    These contain which cells they observed and how often, the sums of ``log ρ(y)``, and the row
    sums and column sums of their observations; with groups of rows, which the server tells, also
    the sums by group and column. ``adaptive`` steps follow the curvature.
    """
    weights, lengths = clients.sizes
    codes = clients.gather(
        messages.observed_cells, shape[1], n_bits=lambda _: encoding.bits_of_codes(lengths, shape)
    )
    counts = clients.gather(
        messages.numbers_of_observations,
        n_bits=lambda counts: encoding.bits_of_counts(counts, lengths),
    )
    log_base_measures = clients.gather(messages.log_base_measure)
    # Weight of a client's observation in the pooled objective, which is 1 on average.
    shares = weights / lengths
    scale = counts.sum() / float(np.repeat(shares, lengths) @ counts)
    shares = scale * shares
    by_client = covariates is not None and covariates.n_clients > 0
    own = counts * np.repeat(shares, lengths)
    support, positions = observed_support(codes, own, shape, by_client=by_client)
    margins = _margins(clients, shares, shape, settings.effects, covariates)
    pooled = Pooled(
        support,
        margins,
        family_name=settings.family,
        rank=min(shape) if settings.rank is None else settings.rank,
        penalty=0.0 if is_auto(settings.penalty) else settings.penalty,
        effects=settings.effects,
        effects_penalty=settings.effects_penalty,
    )
    if covariates is not None:
        pooled = _with_covariates(clients, shares, pooled, covariates, positions)
    of_clients = settings.client_effects_penalty
    log_base_measure = float(shares @ log_base_measures)
    if settings.family == "negative_binomial":
        given = settings.negative_binomial_size
        size = None if is_auto(given) else float(given)
        pooled, of_size = _with_trials(clients, shares, positions, pooled, size, of_clients)
        log_base_measure += of_size
    else:
        pooled = with_client_penalty(pooled, of_clients)
    return LowRankModel(
        pooled,
        scale,
        log_base_measure=log_base_measure,
        adaptive=adaptive,
        is_dense=is_dense(len(support.counts), shape[0] * shape[1]),
        positions=positions,
        numbers=counts,
    )


def with_automatic_penalty(clients: SetUp, model: LowRankModel) -> LowRankModel:
    """Model with a quarter of the smallest penalty that makes the low-rank part 0."""
    penalty = _AUTOMATIC_SHARE * largest_penalty(clients, model)
    return replace(model, pooled=model.pooled._replace(penalty=penalty))


def largest_penalty(clients: SetUp, model: LowRankModel) -> float:
    """Smallest penalty that makes the low-rank part 0.

    That is the largest singular value of the residuals of effects alone, which clients send once.
    """
    pooled, natural = model.pooled, start_run(model).parameters.natural
    clients.tell("effects", natural.n_told)
    residuals = clients.gather(messages.residuals, pooled.family_name, natural, pooled.size)
    weights, lengths = clients.sizes
    shares = np.repeat(model.scale * weights / lengths, lengths)
    sums: Any = np.bincount(model.positions, shares * residuals, model.n_statistics)
    none = zero_low_rank(pooled.support.shape)
    low_rank, _ = threshold_singular_values(none, pooled.support.matrix(sums), 0.0, 1)
    return float(low_rank.singular_values.sum())


def observed_support(
    codes: IntArray, counts: FloatArray, shape: tuple[int, int], *, by_client: bool = False
) -> tuple[Support, IntArray]:
    """Distinct cells with the sums of their counts, and which of them each given one is.

    If ``by_client``, cells are sorted, but not merged.
    """
    n_rows, n_columns = shape
    if by_client:
        order = np.argsort(codes, kind="stable")
        distinct, sums_of_counts, positions = codes[order], counts[order], np.empty_like(order)
        positions[order] = np.arange(len(codes))
    elif (codes[1:] > codes[:-1]).all():  # as of one client, which need not be sorted
        distinct, positions, sums_of_counts = codes, np.arange(len(codes)), counts
    else:
        distinct, positions = np.unique(codes, return_inverse=True)
        sums_of_counts = np.bincount(positions, counts).astype(np.float64, copy=False)
    rows, columns = (numbers.astype(np.int32) for numbers in np.divmod(distinct, n_columns))
    # Sparse arrays convert their indices to one type.
    index_type = np.int32 if len(rows) <= np.iinfo(np.int32).max else np.int64
    support = Support(
        rows=rows,
        columns=columns,
        counts=sums_of_counts,
        row_starts=np.searchsorted(rows, np.arange(n_rows + 1)).astype(index_type),
        is_observed=(
            np.bincount(rows, minlength=n_rows) > 0,
            np.bincount(columns, minlength=n_columns) > 0,
        ),
        shape=shape,
        by_client=by_client,
    )
    return support, positions


def _margins(
    clients: SetUp,
    shares: FloatArray,
    shape: tuple[int, int],
    effects: EffectsName,
    covariates: Covariates | None,
) -> Margins:
    """Weighted sums of the clients' margins, as far as effects and covariates depend on them."""
    margins: list[Any] = [np.zeros(size) for size in shape]
    needed = [effects in ("both", "rows"), effects in ("both", "columns")]
    if covariates is not None:
        needed = [needed[0] or covariates.sizes[0] > 0, needed[1] or covariates.sizes[1] > 0]
    for axis, message in enumerate((messages.row_sums, messages.column_sums)):
        if needed[axis]:
            margins[axis] = _gathered(clients, shares, message, shape[axis], shape[axis])
    return Margins(*margins)


def _gathered(
    clients: SetUp, shares: FloatArray, message: Any, n_lines: int, *arguments: Any
) -> FloatArray:
    """Weighted sums of the clients' sums by lines; where a client has been, the server knows."""
    lengths, lines, sums = clients.gather(
        message, *arguments, n_bits=lambda sent: FLOAT_BITS * len(sent[2])
    )
    total: Any = np.bincount(lines, np.repeat(shares, lengths) * sums, n_lines)
    return total


def _with_covariates(
    clients: SetUp,
    shares: FloatArray,
    pooled: Pooled,
    covariates: Covariates,
    positions: IntArray,
) -> Pooled:
    """Data with covariates in the observed cells, and effects of clients."""
    support, (_, n_columns) = pooled.support, pooled.support.shape
    group_sums = np.zeros((covariates.n_groups, n_columns))
    if covariates.n_groups > 1:
        message, groups = messages.group_sums, (covariates.groups, n_columns)
        found = _gathered(clients, shares, message, group_sums.size, group_sums.size, *groups)
        group_sums = found.reshape(group_sums.shape)
    client_sums, owners = np.empty(0), np.empty(0, dtype=np.intp)
    if covariates.n_clients:
        client_sums = shares * clients.gather(messages.client_sums)
        owners = np.empty_like(positions)
        owners[positions] = np.repeat(np.arange(len(shares)), clients.sizes.lengths)
    penalties = [LEAST_PENALTY, LEAST_PENALTY, pooled.ridge_penalty, 1.0]
    design = covariates.design(support.rows, support.columns, owners)
    data = CovariateData(
        covariates,
        covariates.sums(pooled.margins.rows, pooled.margins.columns, group_sums, client_sums),
        np.repeat(penalties, covariates.sizes),
        design,
        joint_design(support, pooled.effects, covariates, design),
    )
    return pooled._replace(covariates=data)


def _with_trials(
    clients: SetUp,
    shares: FloatArray,
    positions: IntArray,
    pooled: Pooled,
    size: float | None,
    client_effects_penalty: float | Literal["auto"] | None,
) -> tuple[Pooled, float]:
    """Data of negative binomial counts of a size, or the most likely one; their log ρ.

    The curvature depends on the observations, so that clients send the sum of each cell. For a
    size to be estimated, they receive effects and send derivatives, in turn.
    """
    counts, lengths = pooled.support.counts, clients.sizes.lengths
    own = np.repeat(shares, lengths) * clients.gather(messages.cell_sums)
    sums: Any = np.bincount(positions, own, len(counts))
    effects, moments = None, np.empty(3)

    def of_size(size: float) -> Pooled:
        support = pooled.support._replace(counts=sums + size * counts)
        given = pooled._replace(support=support, size=size)
        return with_client_penalty(given, client_effects_penalty)

    def derivatives(size: float) -> tuple[float, float]:
        nonlocal effects, moments
        given = of_size(size)
        before = effects or intercept_only(given).effects
        if pooled.effects == "none":  # as if there were an intercept
            mean = (sums.sum() + 0.5) / (counts.sum() + 1)
            before = before._replace(intercept=float(np.log(mean)))
        effects, _, _ = fit_effects(given, np.zeros(len(counts)), before)
        none = zero_low_rank(pooled.support.shape)
        natural = Theta(effects, none, pooled.covariate_terms(effects))
        clients.tell("effects", 1 + natural.n_told)
        moments = shares @ clients.gather(messages.size_moments, size, natural).reshape(-1, 3)
        return moments[1], moments[2]

    if size is None:
        size = most_likely_size(derivatives, float(pooled.support.counts.mean()))
    derivatives(size)
    return of_size(size), float(moments[0])


def start_run(model: LowRankModel, theta: Theta | None = None) -> Start:
    """Start of a run: at a given θ, or with effects only, which the margins determine."""
    pooled = model.pooled
    support, family = pooled.support, pooled.family
    effects, low_rank, _ = theta or intercept_only(pooled)
    values = low_rank_at(low_rank, support.rows, support.columns)
    iterate = with_optimal_effects(pooled, low_rank, values, effects)
    natural_step = 1 / largest_curvature(pooled, iterate.theta)
    if family.max_variance is None:
        natural_step *= _FIRST_STEP
    point = ServerIterate(
        iterate=iterate,
        previous=iterate,
        momentum=1.0,
        natural_step=natural_step,
        sums=support.counts * family.mean(iterate.theta),
        block=unset_block(low_rank, pooled.rank),
    )
    return Start(point, model.maximization(point))


def start_again(model: LowRankModel, before: LowRankModel, server: Any, theta: Theta) -> Start:
    """Start from the complete state of an earlier fit of the same cells, or from its θ.

    θ lacks the parts that the model no longer has. ``server`` is the final state of the earlier
    fit.
    """
    if _takes_same_steps(model, before):
        return Start(server.statistics, server.parameters)
    return start_run(model, theta)


def _takes_same_steps(one: LowRankModel, other: LowRankModel) -> bool:
    """Whether two models of the same observations take the same steps."""
    given: dict[str, Any] = {"support": None, "margins": None, "covariates": None}
    if one.pooled.covariates is not None or other.pooled.covariates is not None:
        return False
    return (
        one.adaptive == other.adaptive
        and one.pooled._replace(**given) == other.pooled._replace(**given)
        and np.array_equal(one.pooled.support.counts, other.pooled.support.counts)
    )
