"""Grid of ranks and penalties of a search, from its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MappingView
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._error_messages import repr_of
from .._parameters import check_choice, check_number, is_auto, python_number
from .._typing import EffectsName, FamilyName, FloatArray, RowsName
from ..models.matrix.pooled import EFFECTS

# Penalties on the effects. Counts of flocks, with variances of 4 to 2,000 times the mean, were
# predicted best with 10 to 10,000, roughly in proportion (examples/benchmarks/effects_penalty.py).
_FIRST_RIDGES = (0.1, 1.0)
_LARGEST_RIDGE = 1e5


@dataclass(eq=False, repr=False)
class SearchParameters:
    """Parameters of a search, which the estimator inherits with its constructor."""

    ranks: Iterable[int | None] = (None,)
    penalties: int | ArrayLike = 10
    _: KW_ONLY
    effects_penalties: ArrayLike | Literal["auto"] = "auto"
    eps: float = 1e-2
    n_splits: int = 5
    patience: int | Literal["auto"] | None = "auto"
    period: int | None = None
    family: FamilyName = "gaussian"
    negative_binomial_size: float | Literal["auto"] = "auto"
    effects: EffectsName = "both"
    client_effects_penalty: float | Literal["auto"] | None = None
    rows: RowsName = "shared"
    missing_values: float = np.nan


class Grid(NamedTuple):
    """Ranks, paths of penalties, and penalties on the effects ("ridges").

    ``penalties`` is their number, with ``eps`` the ratio of the last to the first, or the path
    itself; ``is_open`` says whether larger ridges may be added.
    """

    ranks: list[int | None]
    penalties: int | FloatArray
    eps: float
    ridges: list[float]
    is_open: bool

    def path(self, largest: float) -> FloatArray:
        """Decreasing penalties; with ``largest`` the low-rank part is 0."""
        if isinstance(self.penalties, np.ndarray):
            return self.penalties
        if not largest:
            return np.zeros(1)
        return np.geomspace(largest, self.eps * largest, self.penalties)

    def larger_ridges(self, largest: float, best: float) -> list[float]:
        """Further ridges to try: ten times the largest one, if that is the best."""
        is_extended = self.is_open and best == largest < _LARGEST_RIDGE
        return [10 * largest] if is_extended else []


def checked_grid(
    ranks: Iterable[int | None],
    penalties: int | ArrayLike,
    eps: float,
    effects_penalties: ArrayLike | Literal["auto"],
    effects: EffectsName,
) -> Grid:
    """Grid of a search's parameters of these names; raise TypeError or ValueError."""
    ranks = _checked_ranks(ranks)
    if isinstance(penalties, Real):
        hint = "How many penalties, or an array of them."
        check_number("penalties", penalties, kind=Integral, low=1, high=10_000, hint=hint)
        hint = "The smallest penalty is eps times the largest; or give them as an array."
        check_number("eps", eps, low=0, low_open=True, high=1, high_open=True, hint=hint)
    else:
        penalties = np.unique(_checked_penalties("penalties", penalties))[::-1]
    is_open = is_auto(effects_penalties)
    if is_open:
        ridges = list(_FIRST_RIDGES)
    else:
        array = _checked_penalties("effects_penalties", effects_penalties)
        ridges = list(dict.fromkeys(array.tolist()))
    check_choice("effects", effects, EFFECTS)
    if effects == "none":
        ridges, is_open = ridges[:1], False
    return Grid(ranks, penalties, eps, ridges, is_open)


def _checked_ranks(ranks: Any) -> list[int | None]:
    """Distinct bounds on the rank; not from an iterator, which clone cannot copy."""
    is_list = np.iterable(ranks) and not isinstance(ranks, str | Iterator | MappingView)
    if not is_list or not len(ranks := list(ranks)):
        raise (ValueError if is_list else TypeError)(
            "Expected ranks to be a list of integers >= 1, or None for no bound, got "
            f"{repr_of(ranks)}. Give (None,) to choose the penalty only."
        )
    for rank in ranks:
        if rank is not None:
            check_number("each of ranks", rank, kind=Integral, low=1, hint="Use None for no bound.")
    return list(dict.fromkeys(python_number(rank) for rank in ranks))


def _checked_penalties(name: str, penalties: object) -> FloatArray:
    """Penalties as an array."""
    message = (
        f"Expected {name} to be a list of finite numbers >= 0, got {repr_of(penalties)}. Give a "
        "list of at least one."
    )
    try:
        array = np.asarray(penalties, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(message) from error
    if array.ndim != 1:
        raise TypeError(message)
    if not len(array) or not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(message)
    return array
