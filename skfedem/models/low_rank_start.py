"""Where a low-rank fit starts: what clients tell the server once, before the first round.

It counts as bits, like all that is sent.
"""

from __future__ import annotations

import numpy as np

from .._bits import FLOAT_BITS
from .._cells import distinct_cells
from .._federation import Federation, offsets_of, weights_of_clients
from .._parameters import is_auto
from ._base import Start
from .families import FAMILIES
from .low_rank import LowRankModel, Point
from .low_rank_theta import Cells, Theta, low_rank_at, zero_low_rank
from .main_effects import Effects, Margins, Pooled, Support
from .proximal import largest_curvature, with_effects
from .thresholding import block_to_find

# Poisson cells have no largest curvature; an adaptive step starts from this many times the
# largest one at the start, as halving it is cheap.
_FIRST_STEP = 4.0


def cell_federation(data, client_weights):
    """Stack the cells of the clients who have some, with the weights of the means over their cells.

    Values are counted from the origin of the data. A cell that was observed several times counts
    several times in the mean over a client's cells, so that clients count alike ("uniform") if
    these means weigh less.
    """
    lengths = np.diff(data.offsets)[data.observers]
    offsets = offsets_of(lengths)
    cells = Cells(data.rows, data.columns, data.values - data.origin, data.counts)
    weights = weights_of_clients(lengths, client_weights)
    if client_weights == "uniform":
        weights = weights * lengths / np.add.reduceat(data.counts, offsets[:-1])
        weights /= weights.sum()
    return Federation(cells, offsets, weights)


def low_rank_model(estimator, federation, shape, log_base_measures):
    """Model of some clients' cells, from what they tell the server before the first round.

    They tell it which cells they observed and how often, and the sums over rows and over columns of
    their observations.

    Parameters
    ----------
    estimator : FederatedMatrixImputer
        Its ``family``, ``rank``, ``penalty``, ``effects``, ``effects_penalty`` and ``step_size``
        are read.
    federation : Federation
        Its rows are ``Cells``.
    shape : tuple of two int
        Shape of the matrix.
    log_base_measures : ndarray of shape (n_clients,)
        Sum of ``log ρ(y)`` over each client's observations; nats.

    Returns
    -------
    model : LowRankModel
    """
    cells, lengths = federation.rows, federation.lengths
    # What a client's observation weighs in the pooled objective: 1 on average.
    shares = federation.weights / lengths
    scale = cells.counts.sum() / float(np.repeat(shares, lengths) @ cells.counts)
    shares = scale * shares
    counts = cells.counts * np.repeat(shares, lengths)
    support, positions = _support(cells, counts, shape)
    margins = support.margins(np.bincount(positions, counts * cells.values))
    pooled = Pooled(
        support,
        margins,
        family=FAMILIES[estimator.family],
        rank=estimator.rank or min(shape),
        penalty=estimator.penalty,
        effects=estimator.effects,
        effects_penalty=estimator.effects_penalty,
    )
    log_base_measure = float(shares @ log_base_measures)
    return LowRankModel(pooled, positions, scale, log_base_measure, is_auto(estimator.step_size))


def _support(cells, counts, shape):
    """The distinct cells, each with the sum of its counts, and which of them each cell is."""
    n_rows, n_columns = shape
    rows, columns, positions = distinct_cells(cells.rows, cells.columns, n_columns)
    rows, columns = rows.astype(np.int32), columns.astype(np.int32)
    # Sparse arrays convert their indices to one type.
    index_type = np.int32 if len(rows) <= np.iinfo(np.int32).max else np.int64
    support = Support(
        rows=rows,
        columns=columns,
        counts=np.bincount(positions, counts),
        row_starts=np.searchsorted(rows, np.arange(n_rows + 1)).astype(index_type),
        is_observed=Margins(
            np.bincount(rows, minlength=n_rows) > 0, np.bincount(columns, minlength=n_columns) > 0
        ),
        shape=shape,
    )
    return support, positions


def start_run(model, federation, theta=None):
    """θ from which a run begins: the given one, or the effects alone, which margins determine."""
    pooled = model.pooled
    support, family = pooled.support, pooled.family
    effects, low_rank = theta or _mean_alone(pooled)
    values = low_rank_at(low_rank, support.rows, support.columns)
    iterate = with_effects(pooled, low_rank, values, effects)
    natural_step = 1 / largest_curvature(pooled, iterate.theta)
    if family.max_variance is None:
        natural_step *= _FIRST_STEP
    point = Point(
        iterate=iterate,
        previous=iterate,
        momentum=1.0,
        natural_step=natural_step,
        sums=support.counts * family.mean(iterate.theta),
        block=block_to_find(low_rank, pooled.rank),
    )
    return Start(
        point,
        model.maximization(point),
        uplink_bits=_start_bits(federation, support.shape, pooled.effects),
    )


def _mean_alone(pooled):
    """θ of the mean of all observations, without row or column effects or low-rank part."""
    family, n_observations = pooled.family, pooled.support.counts.sum()
    # Half an observation is added only where the link of all-zero counts is infinite; elsewhere it
    # would make the start depend on the unit of the cells.
    half = 0.0 if np.isfinite(family.link(0.0)) else 0.5
    mean = (pooled.margins.rows.sum() + half) / (n_observations + 2 * half)
    intercept = 0.0 if pooled.effects == "none" else float(family.link(mean))
    n_rows, n_columns = pooled.support.shape
    effects = Effects(intercept, np.zeros(n_rows), np.zeros(n_columns))
    return Theta(effects, zero_low_rank(pooled.support.shape))


def start_again(model, federation, before, server, theta):
    """Start from all that an earlier fit of the same cells left, or from its θ.

    θ is without what the model no longer has. The server, which is where the earlier fit ended,
    already knows the cells, so that nothing is sent.
    """
    if _same_steps(model, before):
        return Start(server.statistics, server.parameters)
    return start_run(model, federation, theta)._replace(uplink_bits=0)


def _same_steps(one, other):
    """Whether two models of the same observations take the same steps."""
    given = {"support": None, "margins": None, "family": None}
    return (
        one.adaptive == other.adaptive
        and one.pooled._replace(**given) == other.pooled._replace(**given)
        and np.array_equal(one.pooled.support.counts, other.pooled.support.counts)
    )


def _start_bits(federation, shape, effects):
    """Bits of the first messages: cell numbers, counts in bytes of 7 bits, margins as doubles."""
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


def _n_distinct(numbers):
    """How many different numbers there are, of one or more; numpy.unique takes far longer."""
    return 1 + np.count_nonzero(np.diff(np.sort(numbers)))
