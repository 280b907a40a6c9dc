"""The contract of priors over the clients' own parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import getdoc, isfunction
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .._serialization import serializable
from .._typing import BoolArray, FloatArray, IntArray
from ..compression._survivors import size_of_dense
from ..models._network import Network

Array = NDArray[Any]
"""Numbers of the type in which clients compute, float32 or float64."""


@serializable
class Shared(NamedTuple):
    """Parameters Θ of the prior: what the server learns and broadcasts.

    Parameters
    ----------
    weights : ndarray of shape (n_models, n_parameters)
        Centres w of the prior; more than one for a mixture.
    gates : NamedTuple or None
        What else the prior has, see ``SpikeSlabPrior``.
    """

    weights: FloatArray
    gates: Any = None


class Local(NamedTuple):
    """Own parameters of some clients during their training.

    Parameters
    ----------
    parameters : ndarray of shape (n, n_parameters)
        φ_s.
    models : ndarray of int, shape (n,)
        Centre from which each client started.
    sizes : ndarray of shape (n,)
        Number of rows of each client, or their total weight.
    gates : NamedTuple or None
        Own gates of the clients, see ``SpikeSlabPrior``.
    """

    parameters: Array
    models: IntArray
    sizes: NDArray[Any]
    gates: Any = None


class Update(NamedTuple):
    """What some clients send at the end of their training.

    Parameters
    ----------
    differences : ndarray of shape (n, n_parameters)
        φ_s - w, from one of the centres.
    models : ndarray of int, shape (n,)
        That centre.
    kept : ndarray of bool, shape (n, n_groups), or None
        Groups of parameters that are not zero; None if nothing can be left out.
    survivors : ndarray of bool, shape (n, n_parameters), or None
        Parameters that are sent, those of the kept groups; None if all are.
    disagreement : ndarray of shape (n,) or None
        Mean absolute difference of π_s and θ over the gates; only reported.
    shares : ndarray of shape (n, n_models), or None
        Responsibilities r_sk of several centres for each client, see ``MixturePrior``.
    """

    differences: Array
    models: IntArray
    kept: BoolArray | None = None
    survivors: BoolArray | None = None
    disagreement: FloatArray | None = None
    shares: FloatArray | None = None


class Prior(ABC):
    """Base class of priors p(φ_s | Θ) over a client's own parameters φ_s.

    Hard EM maximises Σ_s w_s [log p(D_s | φ_s) + log p(φ_s | Θ)] by turns: clients train φ_s under
    the prior (the E-step), and the server fits Θ to what they found (the M-step), in closed form or
    by a step along a direction [1]_. Losses are means over a client's rows, and so precisions λ
    are per row: the prior of a client with n_s rows has the precision n_s λ.

    A prior is immutable and stateless. Its functions work on several clients at once, and do not
    modify their arguments. The defaults are those of a single centre w without a penalty, all of
    whose parameters are sent; a new prior implements `closed_form` and `direction`, and overrides
    what differs.

    References
    ----------
    .. [1] C. Louizos, M. Reisser, J. Soriaga and M. Welling, "An Expectation-Maximization
       perspective on federated learning", 2021.
    """

    gated: ClassVar[bool] = False
    """Whether the prior acts on groups of parameters, and draws random numbers for them."""
    corrects: ClassVar[bool] = True
    """Whether clients may use SCAFFOLD's control variates, which presume one centre that moves by
    the mean of the updates."""
    compresses: ClassVar[bool] = True
    """Whether the server may use unbiased estimates of the updates instead of the updates."""
    remembers: ClassVar[bool] = False
    """Whether the server's step depends on the mean of the updates only, as the memories V_i of
    FedEM require."""

    @property
    def n_models(self) -> int:
        """Number of centres."""
        return 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the prior; append the contract's docstrings to those of its methods."""
        super().__init_subclass__(**kwargs)
        serializable(cls)
        for name, method in vars(cls).items():
            contract = getdoc(getattr(Prior, name, None)) or ""
            if isfunction(method) and method.__doc__ and "\n" in contract:
                sections = contract[contract.index("\n\n") :]
                method.__doc__ = getdoc(method) + sections  # type: ignore[operator]

    def for_network(self, network: Network) -> Self:
        """Prior for the groups of parameters of a network; the same, unless ``gated``.

        Parameters
        ----------
        network : Network

        Returns
        -------
        prior : Prior
        """
        return self

    def initial(self, centres: FloatArray) -> Shared:
        """Θ before the first round.

        Parameters
        ----------
        centres : ndarray of shape (n_models, n_parameters)

        Returns
        -------
        shared : Shared
        """
        return Shared(centres)

    # ---- the client's half

    def start(self, shared: Shared, models: IntArray, sizes: NDArray[Any]) -> Local:
        """Own parameters at the start of a round, those of each client's centre.

        Parameters
        ----------
        shared : Shared
        models : ndarray of int, shape (n,)
            Centre of each client.
        sizes : ndarray of shape (n,)
            Number of rows of each client, or their total weight.

        Returns
        -------
        local : Local
        """
        return Local(shared.weights[models], models, sizes)

    def relaxed(self, shared: Shared, local: Local, uniforms: Array | None) -> tuple[Array, Any]:
        """Parameters at which the loss of a minibatch is computed, and the gates in them.

        Parameters
        ----------
        shared : Shared
        local : Local
        uniforms : ndarray of shape (n, n_groups), or None
            Uniform random numbers in [0, 1) for a prior that is ``gated``.

        Returns
        -------
        parameters : ndarray of shape (n, n_parameters)
        gates : object
            What `step` needs to know of them.
        """
        return local.parameters, None

    def step(
        self,
        shared: Shared,
        local: Local,
        gates: Any,
        gradient: Array,
        correction: Array | float,
        learning_rate: float,
    ) -> Local:
        """Own parameters after a gradient step.

        Parameters
        ----------
        shared : Shared
        local : Local
        gates : object
            As returned by `relaxed`.
        gradient : ndarray of shape (n, n_parameters)
            Gradient of the mean loss at the relaxed parameters.
        correction : ndarray of shape (n, n_parameters), or 0.0
            c - c_s of SCAFFOLD, which is added to the gradient.
        learning_rate : float

        Returns
        -------
        local : Local
        """
        moved = local.parameters - learning_rate * (gradient + correction)
        return local._replace(parameters=self.proximal(shared, local, moved, learning_rate))

    def proximal(self, shared: Shared, local: Local, moved: Array, learning_rate: float) -> Array:
        """Minimum over φ of ``||φ - moved||² / (2 learning_rate) - log p(φ | Θ)``.

        Parameters
        ----------
        shared : Shared
        local : Local
            Before the gradient step.
        moved : ndarray of shape (n, n_parameters)
            Own parameters after the gradient step.
        learning_rate : float

        Returns
        -------
        parameters : ndarray of shape (n, n_parameters)
        """
        return moved

    def update(self, shared: Shared, local: Local, uniforms: Array | None) -> Update:
        """What clients send after their training.

        Parameters
        ----------
        shared : Shared
        local : Local
        uniforms : ndarray of shape (n, n_groups), or None
            As in `relaxed`.

        Returns
        -------
        update : Update
        """
        differences = local.parameters - shared.weights[local.models]
        return Update(differences, local.models)

    def own_parameters(self, shared: Shared, local: Local, update: Update) -> Array:
        """Own models of the clients.

        Parameters
        ----------
        shared : Shared
        local : Local
        update : Update
            As returned by `update` for these.

        Returns
        -------
        parameters : ndarray of shape (n, n_parameters)
        """
        return local.parameters

    # ---- the server's half

    @abstractmethod
    def closed_form(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Centres that maximise Σ_s w_s log p(φ_s | Θ).

        Parameters
        ----------
        shared : Shared
        update : Update
        weights : ndarray of shape (n,)
            Weights w_s of the clients that took part.

        Returns
        -------
        centres : ndarray of shape (n_models, n_parameters)
        """

    @abstractmethod
    def direction(self, shared: Shared, update: Update, weights: FloatArray) -> FloatArray:
        """Gradient of Σ_s w_s log p(φ_s | Θ) / Σ_s w_s by the centres, without its factor λ.

        Parameters
        ----------
        shared : Shared
        update : Update
        weights : ndarray of shape (n,)
            Weights w_s of the clients that took part.

        Returns
        -------
        direction : ndarray of shape (n_models, n_parameters)
        """

    def after_step(
        self, shared: Shared, update: Update, weights: FloatArray, centres: FloatArray
    ) -> Shared:
        """Θ after a round, from the new centres.

        Parameters
        ----------
        shared : Shared
        update : Update
        weights : ndarray of shape (n,)
            Weights w_s of the clients that took part.
        centres : ndarray of shape (n_models, n_parameters)

        Returns
        -------
        shared : Shared
        """
        return shared._replace(weights=centres)

    # ---- messages

    def sent(self, shared: Shared) -> BoolArray | None:
        """Mask of the parameters that the server broadcasts; None for all.

        Parameters
        ----------
        shared : Shared

        Returns
        -------
        mask : ndarray of bool, shape (n_parameters,), or None
        """
        return None

    def groups(self, shared: Shared) -> BoolArray | None:
        """Mask of the groups of which clients say whether they keep them; None if all are sent.

        Parameters
        ----------
        shared : Shared

        Returns
        -------
        mask : ndarray of bool, shape (n_groups,), or None
        """
        return None

    def survivors(self, kept: BoolArray) -> BoolArray:
        """Parameters that are sent if these groups are kept: by default, each is a group itself.

        Parameters
        ----------
        kept : ndarray of bool, shape (..., n_groups)

        Returns
        -------
        survivors : ndarray of bool, shape (..., n_parameters)
        """
        return kept

    def downlink_bytes(self, shared: Shared) -> int:
        """Number of bytes of the broadcast to a client.

        Parameters
        ----------
        shared : Shared

        Returns
        -------
        n_bytes : int
        """
        return size_of_dense(shared.weights.size)

    def __sklearn_clone__(self) -> Self:
        return self  # it is immutable


def mean_difference(update: Update, weights: FloatArray) -> FloatArray:
    """Mean over clients of the differences, 0 where nothing is sent, of shape (n_parameters,)."""
    return (weights @ kept_differences(update)) / total(weights)


def kept_differences(update: Update) -> Array:
    """Differences that are sent, and zeros."""
    if update.survivors is None:
        return update.differences
    return np.where(update.survivors, update.differences, 0)


def total(weights: FloatArray) -> float:
    """Sum of weights."""
    return float(weights.sum())
