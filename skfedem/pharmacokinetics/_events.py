"""Doses among the regressors of a structural model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from .._typing import FloatArray


class Dose(NamedTuple):
    """One dose of each subject: amount, when it was given, time since then, and its duration."""

    amount: FloatArray
    start: FloatArray
    time: FloatArray
    duration: FloatArray


def given_doses(regressors: Mapping[str, FloatArray]) -> Iterator[Dose]:
    """Yield the doses of each subject, one after the other.

    Raises
    ------
    KeyError
        If time or doses are not among the regressors.
    """
    time = regressors["time"]
    if "dose" in regressors:
        yield _dose(regressors["dose"], np.zeros(()), time, regressors.get("rate", np.zeros(())))
        return
    if "dose_1" not in regressors:
        raise KeyError("dose")
    number = 1
    while f"dose_{number}" in regressors:
        rate = regressors.get(f"dose_rate_{number}", np.zeros(()))
        start = np.asarray(regressors[f"dose_time_{number}"])
        yield _dose(regressors[f"dose_{number}"], start, time, rate)
        number += 1


def _dose(amount: FloatArray, start: FloatArray, time: FloatArray, rate: FloatArray) -> Dose:
    duration = np.where(rate > 0, amount / np.where(rate > 0, rate, 1.0), 0.0)
    return Dose(amount, start, time - start, duration)
