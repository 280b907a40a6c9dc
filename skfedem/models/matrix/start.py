"""Start of a low-rank fit: the one-off messages before the first round.

They count as bits, like all messages.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..._data.cells import CellData
from ..._federation import Federation, offsets_of, weights_of_clients
from ..._history import FLOAT_BITS
from ..._parameters import is_auto
from ..._typing import ClientWeights, EffectsName, FamilyName, FloatArray, IntArray, StepSize
from .._base import Start
from .families import FAMILIES
from .low_rank import LowRankModel, ServerIterate
from .main_effects import Pooled, Support
from .proximal import largest_curvature, with_optimal_effects
from .theta import Cells, Effects, Theta, low_rank_at, relative_cells, zero_low_rank
from .thresholding import unset_block

# The curvature of Poisson cells is unbounded: the first adaptive step is this many times as long as
# the curvature at the start allows, because halving it is cheap.
_FIRST_STEP = 4.0


def cell_federation(data: CellData, client_weights: ClientWeights) -> Federation:
    """Stack the cells of clients that have any, with the weights of the means over cells.

    Values are relative to the origin of the data. In the mean over a client's cells, a cell counts
    as often as it was observed; for "uniform" client weights, the weights of these means are
    reduced accordingly.
    """
    lengths = np.diff(data.offsets)[data.observers]
    offsets = offsets_of(lengths)
    weights = weights_of_clients(lengths, client_weights)
    if client_weights == "uniform":
        weights = weights * lengths / np.add.reduceat(data.counts, offsets[:-1])
        weights /= weights.sum()
    cells = relative_cells(data).with_positions(data.shape[1])
    return Federation(cells, offsets, weights)


class MatrixEstimator(Protocol):
    """Estimator of a matrix, by the parameters that its model depends on."""

    family: FamilyName
    rank: int | None
    penalty: float
    effects: EffectsName
    effects_penalty: float
    step_size: StepSize


def low_rank_model(
    estimator: MatrixEstimator,
    federation: Federation,
    shape: tuple[int, int],
    log_base_measures: FloatArray,
) -> LowRankModel:
    """Model of the clients' cells, from their messages before the first round.

    These contain which cells they observed and how often, and the row sums and column sums of their
    observations. ``log_base_measures`` has the sum of ``log ρ(y)`` over each client's, in nats.
    """
    cells, lengths = federation.rows, federation.lengths
    # Weight of a client's observation in the pooled objective, which is 1 on average.
    shares = federation.weights / lengths
    scale = cells.counts.sum() / float(np.repeat(shares, lengths) @ cells.counts)
    shares = scale * shares
    counts = cells.counts * np.repeat(shares, lengths)
    support = _support(cells, counts, cells.positions, shape)
    sums: Any = np.bincount(cells.positions, counts * cells.values)
    pooled = Pooled(
        support,
        support.margins(sums),
        family=FAMILIES[estimator.family],
        rank=estimator.rank or min(shape),
        penalty=estimator.penalty,
        effects=estimator.effects,
        effects_penalty=estimator.effects_penalty,
    )
    log_base_measure = float(shares @ log_base_measures)
    return LowRankModel(pooled, scale, log_base_measure, is_auto(estimator.step_size))


def _support(
    cells: Cells, counts: FloatArray, positions: IntArray, shape: tuple[int, int]
) -> Support:
    """Distinct cells with the sums of their counts."""
    n_rows, n_columns = shape
    sums_of_counts: Any = np.bincount(positions, counts)
    rows, columns = np.empty((2, len(sums_of_counts)), dtype=np.int32)
    rows[positions], columns[positions] = cells.rows, cells.columns
    # Sparse arrays convert their indices to one type.
    index_type = np.int32 if len(rows) <= np.iinfo(np.int32).max else np.int64
    return Support(
        rows=rows,
        columns=columns,
        counts=sums_of_counts,
        row_starts=np.searchsorted(rows, np.arange(n_rows + 1)).astype(index_type),
        is_observed=(
            np.bincount(rows, minlength=n_rows) > 0,
            np.bincount(columns, minlength=n_columns) > 0,
        ),
        shape=shape,
    )


def start_run(model: LowRankModel, federation: Federation, theta: Theta | None = None) -> Start:
    """Start of a run: at a given θ, or with effects only, which the margins determine."""
    pooled = model.pooled
    support, family = pooled.support, pooled.family
    effects, low_rank = theta or _intercept_only(pooled)
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
    return Start(
        point,
        model.maximization(point),
        uplink_bits=_setup_bits(federation, support.shape, pooled.effects),
    )


def _intercept_only(pooled: Pooled) -> Theta:
    """θ with the mean of all observations as intercept, and everything else 0."""
    family, n_observations = pooled.family, pooled.support.counts.sum()
    # Half an observation is only added if the link is infinite for all-zero counts; otherwise, it
    # would make the start depend on the unit of the cells.
    half = 0.0 if np.isfinite(family.link(0.0)) else 0.5
    mean = (pooled.margins.rows.sum() + half) / (n_observations + 2 * half)
    intercept = 0.0 if pooled.effects == "none" else float(family.link(mean))
    n_rows, n_columns = pooled.support.shape
    effects = Effects(intercept, np.zeros(n_rows), np.zeros(n_columns))
    return Theta(effects, zero_low_rank(pooled.support.shape))


def start_again(
    model: LowRankModel, federation: Federation, before: LowRankModel, server: Any, theta: Theta
) -> Start:
    """Start from the complete state of an earlier fit of the same cells, or from its θ.

    θ lacks the parts that the model no longer has. ``server`` is the final state of the earlier
    fit; it already knows the cells, so that nothing is sent.
    """
    if _takes_same_steps(model, before):
        return Start(server.statistics, server.parameters)
    return start_run(model, federation, theta)._replace(uplink_bits=0)


def _takes_same_steps(one: LowRankModel, other: LowRankModel) -> bool:
    """Whether two models of the same observations take the same steps."""
    given: dict[str, Any] = {"support": None, "margins": None, "family": None}
    return (
        one.adaptive == other.adaptive
        and one.pooled._replace(**given) == other.pooled._replace(**given)
        and np.array_equal(one.pooled.support.counts, other.pooled.support.counts)
    )


def _setup_bits(federation: Federation, shape: tuple[int, int], effects: EffectsName) -> int:
    """Bits of the first messages: indices of cells, counts in 7-bit bytes, margins as doubles."""
    n_rows, n_columns = shape
    cells = federation.rows
    bits = federation.n_samples * (n_rows * n_columns - 1).bit_length()
    bits += 8 * int(np.ceil(np.log2(cells.counts + 1) / 7).sum())
    owners = np.repeat(np.arange(federation.n_clients, dtype=np.int64), federation.lengths)
    if effects in ("both", "rows"):
        bits += FLOAT_BITS * _n_distinct(owners * n_rows + cells.rows)
    if effects in ("both", "columns"):
        bits += FLOAT_BITS * _n_distinct(owners * n_columns + cells.columns)
    return bits


def _n_distinct(numbers: IntArray) -> int:
    """Number of distinct values in a non-empty array, much faster than with numpy.unique."""
    return 1 + int(np.count_nonzero(np.diff(np.sort(numbers))))
