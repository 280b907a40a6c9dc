"""Multilayer perceptrons as functions of flat parameter vectors, for several clients at once.

The parameters of a client are one vector: for each layer the coefficients, row by row, and then the
intercepts. Without hidden layers, a perceptron is linear or (multinomial) logistic regression.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax

from .._random import INITIALISATION, generator
from .._serialization import serializable
from .._typing import FloatArray
from ._network import Array, Groups


class Layer(NamedTuple):
    """Place of a layer in the vector of parameters, which ends before ``stop``.

    The coefficients have the shape (n_inputs, n_units).
    """

    start: int
    n_inputs: int
    n_units: int

    @property
    def middle(self) -> int:
        """Place of the first intercept."""
        return self.start + self.n_inputs * self.n_units

    @property
    def stop(self) -> int:
        """Number of parameters of this layer and all before it."""
        return self.middle + self.n_units


@serializable
class Perceptron(NamedTuple):
    """Multilayer perceptron of given layer sizes.

    Attributes
    ----------
    sizes : tuple of int
        Number of features, of units of each hidden layer, and of outputs.
    activation : {"identity", "logistic", "tanh", "relu"}
        Activation of the hidden units.
    loss : {"log_loss", "squared_error"}
        Mean over rows of the cross-entropy in nats (of the softmax of several outputs, or the
        logistic function of one), or half the squared error, summed over outputs.
    alpha : float
        Penalty ``alpha / 2 * sum(coefficients**2)`` that is added to the loss.
    """

    sizes: tuple[int, ...]
    activation: str = "relu"
    loss: str = "log_loss"
    alpha: float = 0.0

    @property
    def n_activations(self) -> int:
        """Number of activations of a row."""
        return sum(self.sizes)

    @property
    def has_units(self) -> bool:
        """Whether there are hidden units."""
        return len(self.sizes) > 2

    @property
    def is_random(self) -> bool:
        """False: there is no dropout."""
        return False

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Places of the layers' parameters."""
        return _layers(self.sizes)

    @property
    def n_parameters(self) -> int:
        """Length d of a vector of parameters."""
        return self.layers[-1].stop

    def split(self, parameters: Array) -> list[tuple[Array, Array]]:
        """Coefficients and intercepts of each layer, as views.

        Parameters
        ----------
        parameters : ndarray of shape (..., n_parameters)

        Returns
        -------
        layers : list of (ndarray of shape (..., n_inputs, n_units), ndarray of (..., n_units))
        """
        first = parameters.shape[:-1]
        return [
            (
                parameters[..., layer.start : layer.middle].reshape(*first, -1, layer.n_units),
                parameters[..., layer.middle : layer.stop],
            )
            for layer in self.layers
        ]

    def initial(self, seed: int) -> FloatArray:
        """Random parameters, drawn as those of scikit-learn's perceptrons (Glorot and Bengio)."""
        source = generator(seed, INITIALISATION)
        parameters = np.empty(self.n_parameters)
        factor = 2.0 if self.activation == "logistic" else 6.0
        for layer in self.layers:
            bound = sqrt(factor / (layer.n_inputs + layer.n_units))
            n = layer.stop - layer.start
            parameters[layer.start : layer.stop] = source.uniform(-bound, bound, n)
        return parameters

    def outputs(self, parameters: Array, rows: Array) -> Array:
        """Outputs before the logistic function or softmax.

        Parameters
        ----------
        parameters : ndarray of shape (n_parameters,), or (n, n_parameters)
        rows : ndarray of shape (n_rows, n_features), or (n, n_rows, n_features)

        Returns
        -------
        outputs : ndarray of shape (n_rows, n_outputs), or (n, n_rows, n_outputs)
        """
        return self._activations(parameters, rows)[-1]

    def _activations(self, parameters: Array, rows: Array) -> list[Array]:
        """Inputs of each layer, and the outputs of the last."""
        activations = [rows]
        activate = _ACTIVATIONS[self.activation]
        for coefficients, intercepts in self.split(parameters):
            if len(activations) > 1:
                activate(activations[-1])
            total = np.matmul(activations[-1], coefficients)
            total += intercepts[..., None, :]
            activations.append(total)
        return activations

    def losses(self, parameters: Array, rows: Array, targets: Array, weights: Array) -> Array:
        """Weighted mean loss of each client's rows, with the penalty; arguments as below."""
        of_rows, _ = self._losses_and_errors(self.outputs(parameters, rows), targets)
        return self._penalised(parameters, of_rows, weights)

    def loss_and_gradient(
        self, parameters: Array, rows: Array, targets: Array, weights: Array
    ) -> tuple[Array, Array]:
        """Weighted mean loss of each client's rows, and its gradient; see ``Network``."""
        activations = self._activations(parameters, rows)
        outputs = activations.pop()
        of_rows, error = self._losses_and_errors(outputs, targets)
        losses = self._penalised(parameters, of_rows, weights)
        error *= weights[..., None]
        gradients = np.empty_like(parameters)
        layers = zip(activations, self.split(parameters), self.split(gradients), strict=True)
        for depth, (inputs, (coefficients, _), (by_coefficients, by_intercepts)) in enumerate(
            reversed([*layers]), start=1
        ):
            np.matmul(np.swapaxes(inputs, -1, -2), error, out=by_coefficients)
            if self.alpha:
                by_coefficients += self.alpha * coefficients
            np.sum(error, axis=-2, out=by_intercepts)
            if depth < len(activations):
                error = np.matmul(error, np.swapaxes(coefficients, -1, -2))
                _DERIVATIVES[self.activation](inputs, error)
        return losses, gradients

    def _losses_and_errors(self, outputs: Array, targets: Array) -> tuple[Array, Array]:
        """Loss of each row, and its derivative by the outputs."""
        if self.loss == "squared_error":
            error = outputs - targets
            return (error**2).sum(axis=-1) / 2, error
        if self.sizes[-1] == 1:
            sign = (1 - 2 * targets[..., None]).astype(outputs.dtype)
            return np.logaddexp(0, sign * outputs)[..., 0], sign * expit(sign * outputs)
        shifted = outputs - outputs.max(axis=-1, keepdims=True)
        # Class by class along a flat array, as take_along_axis is slow.
        own = np.arange(targets.size) * shifted.shape[-1] + targets.ravel()
        of_own_class = shifted.ravel()[own].reshape(targets.shape)
        error = np.exp(shifted, out=shifted)
        totals = error.sum(axis=-1)
        error /= totals[..., None]
        error.reshape(-1)[own] -= 1
        return np.log(totals) - of_own_class, error

    def _penalised(self, parameters: Array, of_rows: Array, weights: Array) -> Array:
        """Weighted mean of the losses of rows, with the penalty."""
        losses = (of_rows * weights).sum(axis=-1)
        if self.alpha:
            squares = [(coefs**2).sum(axis=(-1, -2)) for coefs, _ in self.split(parameters)]
            losses = losses + self.alpha / 2 * sum(squares)
        return losses

    def probabilities(self, outputs: Array) -> Array:
        """Probabilities of classes: the softmax of the outputs, or the logistic function of one."""
        return expit(outputs) if self.sizes[-1] == 1 else softmax(outputs, axis=-1)

    def with_outputs_in(self, parameters: Array, mean: Array, scale: float) -> Array:
        """Parameters whose outputs are ``mean + scale * outputs`` of those given."""
        layer, parameters = self.layers[-1], parameters.copy()
        parameters[..., layer.start : layer.stop] *= scale
        parameters[..., layer.middle : layer.stop] += mean
        return parameters

    def groups(self, kind: str) -> Groups:
        """Groups of parameters for pruning; see ``Network``."""
        members = np.full(self.n_parameters, -1)
        feeding = np.full(self.n_parameters, -1)
        n_groups, layers = 0, []
        stops_at_zero = self.activation != "logistic"
        for depth, layer in enumerate(self.layers):
            shape = layer.n_inputs, layer.n_units
            coefficients = members[layer.start : layer.middle].reshape(shape)
            if kind == "units" and depth:
                before = n_groups - layer.n_inputs + np.arange(layer.n_inputs)
                if stops_at_zero:
                    feeding[layer.start : layer.middle].reshape(shape)[:] = before[:, None]
            if kind == "units" and depth < len(self.layers) - 1:
                own = n_groups + np.arange(layer.n_units)
                coefficients[:] = own
                members[layer.middle : layer.stop] = own
            elif kind == "features" and depth == 0:
                own = np.arange(layer.n_inputs)
                coefficients[:] = own[:, None]
            elif kind == "weights":
                own = n_groups + np.arange(coefficients.size)
                coefficients[:] = own.reshape(shape)
            else:
                continue
            n_groups += len(own)
            layers += [depth] * len(own)
        return Groups(members, feeding, np.array(layers, dtype=np.intp))


@cache
def _layers(sizes: tuple[int, ...]) -> tuple[Layer, ...]:
    layers, start = [], 0
    for n_inputs, n_units in pairwise(sizes):
        layers.append(Layer(start, n_inputs, n_units))
        start = layers[-1].stop
    return tuple(layers)


# ---- activations, applied in place, and what they multiply derivatives by, from their values


def _identity(values: Array) -> None:
    pass


def _logistic(values: Array) -> None:
    expit(values, out=values)


def _tanh(values: Array) -> None:
    np.tanh(values, out=values)


def _relu(values: Array) -> None:
    np.maximum(values, 0, out=values)


_ACTIVATIONS: dict[str, Callable[[Array], None]] = {
    "identity": _identity,
    "logistic": _logistic,
    "tanh": _tanh,
    "relu": _relu,
}


def _by_identity(values: Array, error: Array) -> None:
    pass


def _by_logistic(values: Array, error: Array) -> None:
    error *= values * (1 - values)


def _by_tanh(values: Array, error: Array) -> None:
    error *= 1 - values**2


def _by_relu(values: Array, error: Array) -> None:
    error *= values > 0


_DERIVATIVES: dict[str, Callable[[Array, Array], None]] = {
    "identity": _by_identity,
    "logistic": _by_logistic,
    "tanh": _by_tanh,
    "relu": _by_relu,
}
ACTIVATIONS = tuple(_ACTIVATIONS)
