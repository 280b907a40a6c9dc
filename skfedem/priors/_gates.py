"""Gates of groups of parameters: their probabilities, their relaxation, and sums over groups."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit, logit

from .._optimizers import Moments
from .._serialization import serializable
from .._typing import BoolArray, FloatArray, IntArray
from ..models._network import Groups

Array = NDArray[Any]

# Temperature β and range (γ, ζ) of the hard-concrete distribution (Louizos, Welling and Kingma,
# "Learning sparse neural networks through L0 regularization", ICLR 2018).
_TEMPERATURE, _LOW, _HIGH = 2 / 3, -0.1, 1.1
_SHIFT = -_TEMPERATURE * float(np.log(-_LOW / _HIGH))


@serializable
class Gates(NamedTuple):
    """What the server learns beside w.

    Attributes
    ----------
    n_rounds : int
        Number of rounds that are over; gates act after the warm-up.
    settled : bool
        Whether the target sparsity was reached, so that thresholds are fixed.
    thresholds : ndarray of shape (n_groups,)
        v, with τ = log(1 + exp(v)).
    scales : ndarray of shape (n_groups,)
        Factors that make norms relative to the mean of their layer at the end of the warm-up.
    alive : ndarray of bool, shape (n_groups,)
        Groups that are not pruned.
    moments : Moments
        Memory of AdaMax.
    """

    n_rounds: int
    settled: bool
    thresholds: FloatArray
    scales: FloatArray
    alive: BoolArray
    moments: Moments


class OwnGates(NamedTuple):
    """Thresholds v_s of some clients, (n, n_groups), and their memory of AdaMax."""

    thresholds: Array
    moments: Moments


class Relaxed(NamedTuple):
    """Relaxed gates of some clients, (n, n_groups): z, its slope by the logits, and the logits."""

    values: Array
    slopes: Array
    logits: Array


class Grouping(NamedTuple):
    """Groups of the parameters of a model, see ``models._network.Groups``.

    ``sums`` is the matrix (n_parameters, n_groups) that adds up the members of each group.
    """

    members: IntArray
    feeding: IntArray
    layers: IntArray
    sums: csr_array

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.layers)

    @property
    def sizes(self) -> IntArray:
        """Number of members of each group."""
        return np.bincount(self.members[self.members >= 0], minlength=self.n_groups)

    def add(self, values: Array) -> Array:
        """Sum of the members of each group, of shape (..., n_groups)."""
        return values @ self.sums

    def spread(self, of_groups: Array) -> Array:
        """Number of its group for each parameter, 1 without a group, of shape (..., d)."""
        ones = np.ones((*of_groups.shape[:-1], 1), dtype=of_groups.dtype)
        return np.concatenate([of_groups, ones], axis=-1)[..., self.members]

    def survivors(self, kept: BoolArray) -> BoolArray:
        """Parameters that have an effect if only these groups are kept, of shape (..., d)."""
        ones = np.ones((*kept.shape[:-1], 1), dtype=bool)
        padded = np.concatenate([kept, ones], axis=-1)
        return padded[..., self.members] & padded[..., self.feeding]


def grouping(groups: Groups) -> Grouping:
    """Groups of a model with the matrix of sums."""
    grouped = np.flatnonzero(groups.members >= 0)
    shape = len(groups.members), len(groups.layers)
    ones = np.ones(len(grouped), dtype=np.float32)
    sums = csr_array((ones, (grouped, groups.members[grouped])), shape=shape)
    return Grouping(groups.members, groups.feeding, groups.layers, sums)


def relaxed_gates(logits: Array, uniforms: Array) -> tuple[Array, Array]:
    """Hard-concrete gates z in [0, 1], and their derivatives by the logits.

    Parameters
    ----------
    logits, uniforms : ndarray of shape (n, n_groups)
    """
    uniforms = np.clip(uniforms, 1e-6, 1 - 1e-6)
    soft = expit((logit(uniforms) + logits) / _TEMPERATURE)
    stretched = soft * (_HIGH - _LOW) + _LOW
    inside = (stretched > 0) & (stretched < 1)
    slopes = (_HIGH - _LOW) / _TEMPERATURE * soft * (1 - soft)
    return np.clip(stretched, 0, 1), np.where(inside, slopes, 0)


def open_probabilities(logits: Array) -> Array:
    """Probability R that a hard-concrete gate is not zero; its derivative is R (1 - R)."""
    return expit(logits + _SHIFT)


def softplus(values: Array) -> Array:
    """log(1 + exp(values)), whose derivative is the logistic function."""
    return np.logaddexp(0, values)


def inverse_softplus(values: FloatArray) -> FloatArray:
    """Numbers whose softplus are the positive values."""
    return values + np.log(-np.expm1(-values))
