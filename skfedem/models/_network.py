"""Contract of networks: losses and gradients as functions of flat parameter vectors."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from .._typing import FloatArray, IntArray

Array = NDArray[Any]
"""Numbers of type float32 or float64; results have the type of the parameters."""


class Groups(NamedTuple):
    """Groups of parameters that are kept or pruned together.

    Attributes
    ----------
    members : ndarray of int, shape (n_parameters,)
        Group of each parameter; -1 for parameters without one.
    feeding : ndarray of int, shape (n_parameters,)
        Group without which the parameter has no effect, since its input is then 0; -1 if none.
    layers : ndarray of int, shape (n_groups,)
        Layer of each group.
    """

    members: IntArray
    feeding: IntArray
    layers: IntArray


class Network(Protocol):
    """What hard EM needs to know of a network, which holds sizes but no parameters.

    Attributes
    ----------
    n_parameters : int
        Length d of a vector of parameters.
    n_activations : int
        Number of activations of a row, by which rows are cut into blocks.
    has_units : bool
        Whether there are hidden units.
    is_random : bool
        Whether ``loss_and_gradient`` draws random numbers, as those of dropout. It then takes one
        more argument, uniform numbers of shape (n,) in [0, 1), from which each client draws.
    """

    @property
    def n_parameters(self) -> int: ...
    @property
    def n_activations(self) -> int: ...
    @property
    def has_units(self) -> bool: ...
    @property
    def is_random(self) -> bool: ...

    def initial(self, seed: int) -> FloatArray:
        """Parameters before the first round."""

    def outputs(self, parameters: Array, rows: Array) -> Array:
        """Outputs for rows, (n_rows, n_outputs), as they are in predictions."""

    def losses(self, parameters: Array, rows: Array, targets: Array, weights: Array) -> Array:
        """Weighted sum of the losses of rows, as they are in predictions."""

    def loss_and_gradient(
        self, parameters: Array, rows: Array, targets: Array, weights: Array
    ) -> tuple[Array, Array]:
        """Weighted mean loss of each client's rows, and its gradient.

        Parameters
        ----------
        parameters : ndarray of shape (n, n_parameters)
        rows : ndarray of shape (n, n_rows, n_features)
        targets : ndarray of shape (n, n_rows) or (n, n_rows, n_outputs)
            Numbers of classes, or targets of a regression.
        weights : ndarray of shape (n, n_rows)
            Weights of rows that sum to 1 for each client; rows of weight 0 have no effect.

        Returns
        -------
        losses : ndarray of shape (n,)
        gradients : ndarray of shape (n, n_parameters)
        """

    def split(self, parameters: Array) -> list[tuple[Array, Array]]:
        """Coefficients and intercepts of each layer."""

    def groups(self, kind: str) -> Groups:
        """Groups of parameters for pruning.

        Parameters
        ----------
        kind : {"units", "features", "weights"}
            A hidden unit, with the coefficients of its inputs and its intercept; an input feature,
            with its coefficients in the first layer; or each coefficient by itself.
        """
