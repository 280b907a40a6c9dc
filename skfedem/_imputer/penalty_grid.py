"""Grid of ranks and penalties of a search, from its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MappingView
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._messages import repr_of
from .._parameters import check_choice, check_number, is_auto, python_number
from .._typing import EffectsName, FloatArray
from ..models.matrix.main_effects import EFFECTS

if TYPE_CHECKING:
    from .penalty_path import Trial

# Penalties on the effects. Counts of flocks, with variances of 4 to 2,000 times the mean, were
# predicted best with 10 to 10,000, roughly in proportion.
_FIRST_RIDGES = (0.1, 1.0)
_LARGEST_RIDGE = 1e5


class Grid(NamedTuple):
    """Ranks, paths of penalties, and penalties on the effects ("ridges").

    Attributes
    ----------
    ranks : list of (int or None)
        Distinct bounds on the rank.
    penalties : int or ndarray
        Number of penalties on a path, or the path itself.
    eps : float
        Ratio of the last to the first penalty of a path, if ``penalties`` is a number.
    ridges : list of float
        Distinct initial penalties on the effects.
    is_open : bool
        Whether larger ridges may be added.
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

    def larger_ridges(self, largest: float, best: Trial) -> list[float]:
        """Further ridges to try: ten times the largest one, if that is the best."""
        goes_on = self.is_open and largest < _LARGEST_RIDGE and best.effects_penalty == largest
        return [10 * largest] if goes_on else []


def checked_grid(
    ranks: Iterable[int | None],
    penalties: int | ArrayLike,
    eps: float,
    effects_penalties: ArrayLike | Literal["auto"],
    effects: EffectsName,
) -> Grid:
    """Grid of a search's parameters of these names.

    Raises
    ------
    TypeError, ValueError
    """
    ranks = _checked_ranks(ranks)
    if isinstance(penalties, Real):
        hint = "How many penalties, or an array of them."
        check_number("penalties", penalties, kind=Integral, low=1, high=10_000, hint=hint)
        hint = "The smallest penalty is eps times the largest; or give them as an array."
        check_number("eps", eps, low=0, low_open=True, high=1, high_open=True, hint=hint)
    else:
        array = _checked_penalties("penalties", penalties, "how many there are, or a list")
        penalties = np.unique(array)[::-1]
    is_open = is_auto(effects_penalties)
    if is_open:
        ridges = list(_FIRST_RIDGES)
    else:
        array = _checked_penalties("effects_penalties", effects_penalties, '"auto", or a list')
        ridges = list(dict.fromkeys(array.tolist()))
    check_choice("effects", effects, EFFECTS)
    if effects == "none":
        ridges, is_open = ridges[:1], False
    return Grid(ranks, penalties, eps, ridges, is_open)


def _checked_ranks(ranks: object) -> list[int | None]:
    """Distinct bounds on the rank, as a list."""
    expected = "Expected ranks to be a list of integers >= 1, or None for no bound"
    if isinstance(ranks, str) or not np.iterable(ranks):
        raise TypeError(
            f"{expected}, got {repr_of(ranks)}. Give [2] or [None], say, for a single one."
        )
    if isinstance(ranks, Iterator | MappingView):  # which clone cannot copy
        raise TypeError(f"{expected}, got a {type(ranks).__name__}. Give a list.")
    ranks = list(ranks)
    if not ranks:
        raise ValueError(f"{expected}, got none. Give (None,) to choose the penalty only.")
    for rank in ranks:
        if rank is not None:
            check_number("each of ranks", rank, kind=Integral, low=1, hint="Use None for no bound.")
    return list(dict.fromkeys(python_number(rank) for rank in ranks))


def _checked_penalties(name: str, penalties: object, what: str) -> FloatArray:
    """Penalties as an array; ``what`` describes them in error messages."""
    expected = f"Expected {name} to be {what} of finite numbers >= 0"
    try:
        array = np.asarray(penalties, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        hint = " Give a list." if np.iterable(penalties) and not isinstance(penalties, str) else ""
        raise TypeError(f"{expected}, got {repr_of(penalties)}.{hint}") from error
    if array.ndim != 1:
        is_one = isinstance(penalties, int | float) and 0 <= penalties < np.inf
        hint = f" Give [{repr_of(penalties)}] for a single one." if is_one else ""
        raise TypeError(f"{expected}, got {repr_of(penalties)}.{hint}")
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(f"{expected}, got {repr_of(penalties)}.")
    if not len(array):
        raise ValueError(f"{expected}, got none. Give at least one.")
    return array
