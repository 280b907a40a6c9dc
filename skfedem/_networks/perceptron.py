"""Base class of the federated perceptrons: their parameters and fitted attributes."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any, Literal

import numpy as np

from .._parameters import check_choice, check_not_negative, check_number
from .._typing import ClientWeights, CompressorName, FilePath, FloatArray, Seed
from ..compression import Compressor
from ..models.perceptron import ACTIVATIONS, Perceptron
from ..priors import Prior
from .estimator import FederatedNetwork


class FederatedMLP(FederatedNetwork):
    """Base class of the federated perceptrons."""

    coefs_: list[FloatArray]
    intercepts_: list[FloatArray]
    n_layers_: int
    n_outputs_: int
    out_activation_: str

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = (100,),
        activation: Literal["identity", "logistic", "tanh", "relu"] = "relu",
        *,
        alpha: float = 0.0001,
        prior: Literal["gaussian", "laplace", "mixture", "spike_slab"] | Prior = "gaussian",
        prior_precision: float | Literal["auto"] = "auto",
        n_components: int = 2,
        l0_penalty: float = 1e-6,
        target_sparsity: float | None = None,
        warmup_rounds: int = 20,
        gates: Literal["auto", "units", "features", "weights"] = "auto",
        gate_temperature: float = 0.035,
        prune_threshold: float = 0.1,
        control_variates: bool = False,
        server_optimizer: Literal["average", "sgd", "adam", "adamax"] = "average",
        server_learning_rate: float | Literal["auto"] = "auto",
        server_momentum: float = 0.9,
        local_epochs: int = 1,
        batch_size: int | None = 64,
        learning_rate_init: float = 0.05,
        compressor: CompressorName | Compressor | None = "dithering",
        omega: float = 0.0,
        control_step: float | Literal["auto"] = "auto",
        participation: float = 1.0,
        client_weights: ClientWeights = "n_samples",
        max_iter: int = 200,
        eval_every: int = 10,
        keep_local: bool = True,
        random_state: Seed = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        checkpoint: FilePath | None = None,
        checkpoint_every: int = 100,
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.alpha = alpha
        self.prior = prior
        self.prior_precision = prior_precision
        self.n_components = n_components
        self.l0_penalty = l0_penalty
        self.target_sparsity = target_sparsity
        self.warmup_rounds = warmup_rounds
        self.gates = gates
        self.gate_temperature = gate_temperature
        self.prune_threshold = prune_threshold
        self.control_variates = control_variates
        self.server_optimizer = server_optimizer
        self.server_learning_rate = server_learning_rate
        self.server_momentum = server_momentum
        self.local_epochs = local_epochs
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.compressor = compressor
        self.omega = omega
        self.control_step = control_step
        self.participation = participation
        self.client_weights = client_weights
        self.max_iter = max_iter
        self.eval_every = eval_every
        self.keep_local = keep_local
        self.random_state = random_state
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.verbose = verbose

    def _check_own_parameters(self) -> None:
        for size in self._hidden_sizes():
            check_number("hidden_layer_sizes", size, kind=Integral, low=1)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_not_negative(alpha=self.alpha)

    def _hidden_sizes(self) -> tuple[Any, ...]:
        """Numbers of units of the hidden layers."""
        sizes = self.hidden_layer_sizes
        return tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)

    def _new_network(self, n_features: int, n_outputs: int) -> Perceptron:
        if self._loss == "log_loss" and n_outputs == 2:
            n_outputs = 1
        sizes = (n_features, *map(int, self._hidden_sizes()), n_outputs)
        return Perceptron(sizes, self.activation, self._loss, float(self.alpha))

    def _network_attributes(self, network: Perceptron, centres: FloatArray) -> dict[str, Any]:
        layers = network.split(centres if len(centres) > 1 else centres[0])
        is_regression = network.loss == "squared_error"
        of_classes = "logistic" if network.sizes[-1] == 1 else "softmax"
        return {
            "coefs_": [coefficients.copy() for coefficients, _ in layers],
            "intercepts_": [intercepts.copy() for _, intercepts in layers],
            "n_layers_": len(network.sizes),
            "n_outputs_": network.sizes[-1],
            "out_activation_": "identity" if is_regression else of_classes,
            "_activation": network.activation,
        }

    def _fitted_network(self) -> tuple[Perceptron, FloatArray]:
        is_ensemble = self.coefs_[0].ndim == 3
        parts = []
        for coefficients, intercepts in zip(self.coefs_, self.intercepts_, strict=True):
            shape = (len(coefficients), -1) if is_ensemble else (1, -1)
            parts += [coefficients.reshape(shape), intercepts.reshape(shape)]
        sizes = (self.n_features_in_, *(own.shape[-1] for own in self.intercepts_))
        return Perceptron(sizes, self._activation, self._loss), np.concatenate(parts, axis=1)
