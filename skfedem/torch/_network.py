"""PyTorch modules as networks: losses and gradients as functions of flat parameter vectors.

torch is imported inside functions only, as it is not always installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from threading import Lock, local
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from .._random import INITIALISATION, generator
from .._typing import FloatArray
from ..models._network import Array, Groups
from ._layers import Layers, groups_of, places_of, set_parameters, trainable, type_of
from ._trial import tried

if TYPE_CHECKING:
    import torch

# torch draws the numbers of dropout from one generator for all threads.
_GENERATOR = Lock()


class TorchNetwork:
    """A module and its criterion as a ``Network``.

    The vector of parameters holds those that require gradients, in their order in the module.

    Parameters
    ----------
    make : callable
        Makes the module, with random parameters or always the same. It maps rows (n_rows,
        n_features) to outputs (n_rows, n_outputs).
    criterion : torch.nn.Module
        Maps outputs and numbers of classes to the loss of each row.
    n_features, n_outputs : int
    device : torch.device

    Raises
    ------
    ValueError
        If the module or the criterion fails on such rows, or gives results of another shape, or if
        the module has running statistics.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        criterion: Any,
        n_features: int,
        n_outputs: int,
        device: Any,
    ) -> None:
        self.make, self.criterion, self.device = make, criterion, device
        self.module = self._made(0)
        trial = tried(self.module, criterion, n_features, n_outputs)
        self.is_random, self.n_activations = trial.is_random, trial.n_activations
        self._layers, self._threads = Layers(self.module, trial.layers, n_features), local()

    def _made(self, seed: int) -> Any:
        import torch

        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return self.make()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_threads"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _threads=local())

    @property
    def n_parameters(self) -> int:
        """Length d of a vector of parameters."""
        return sum(parameter.numel() for parameter in trainable(self.module))

    @property
    def has_units(self) -> bool:
        """Whether there are layers whose units are not outputs."""
        return len(self._layers.names) > 1

    def initial(self, seed: int) -> FloatArray:
        """Parameters of a new module."""
        module = self._made(int(generator(seed, INITIALISATION).integers(2**62)))
        flat = [own.detach().cpu().numpy().ravel() for own in trainable(module)]
        return np.concatenate(flat, dtype=np.float64)

    def module_with(self, parameters: FloatArray) -> Any:
        """Copy of the module with these parameters, in evaluation mode and on the CPU."""
        import torch

        module = deepcopy(self.module).cpu().eval()
        set_parameters(module, torch.tensor(parameters, dtype=type_of(module)))
        return module

    def outputs(self, parameters: Array, rows: Array) -> Array:
        """Outputs of one model, (n_rows, n_outputs), in evaluation mode."""
        import torch

        module, _ = self._with(parameters, training=False)
        with torch.no_grad():
            return np.asarray(module(torch.tensor(rows, device=self.device)).cpu())

    def probabilities(self, outputs: Array) -> Array:
        """Probabilities of classes: softmax, or exp for a criterion of log-probabilities."""
        import torch

        if isinstance(self.criterion, torch.nn.NLLLoss):
            return np.exp(outputs)
        return np.asarray(softmax(outputs, axis=-1))

    def losses(self, parameters: Array, rows: Array, targets: Array, weights: Array) -> Array:
        """Weighted sum of the losses of rows for one model, in evaluation mode."""
        import torch

        with torch.no_grad():
            loss = self._loss(*self._with(parameters, training=False), rows, targets, weights)
        return np.asarray(loss.cpu())

    def loss_and_gradient(
        self,
        parameters: Array,
        rows: Array,
        targets: Array,
        weights: Array,
        uniforms: Array | None = None,
    ) -> tuple[Array, Array]:
        """Weighted mean loss of each client's rows, and its gradient; see ``Network``."""
        import torch

        losses, gradients = np.empty(len(parameters), parameters.dtype), np.empty_like(parameters)
        for k, own in enumerate(parameters):
            module, criterion = self._with(own, training=True)
            with nullcontext() if uniforms is None else _drawing(uniforms[k], self.device):
                loss = self._loss(module, criterion, rows[k], targets[k], weights[k])
            inputs = trainable(module)
            found = torch.autograd.grad(loss, inputs, allow_unused=True)
            pairs = zip(found, inputs, strict=True)
            parts = [torch.zeros_like(p) if by is None else by for by, p in pairs]
            losses[k] = loss.item()
            gradients[k] = torch.cat([part.reshape(-1) for part in parts]).cpu().numpy()
        return losses, gradients

    def _loss(self, module: Any, criterion: Any, *data: Array) -> torch.Tensor:
        """Weighted sum of the losses of rows."""
        import torch

        rows, targets, weights = (torch.tensor(own, device=self.device) for own in data)
        loss: torch.Tensor = (criterion(module(rows), targets) * weights).sum()
        return loss

    def _with(self, parameters: Array, training: bool) -> tuple[Any, Any]:
        """Module of the current thread with some parameters, and its criterion."""
        import torch

        own, vector = self._threads, torch.tensor(parameters, device=self.device)
        if not hasattr(own, "module") or type_of(own.module) != vector.dtype:
            # A module is changed while it computes, and so each thread has its own.
            own.module = deepcopy(self.module).to(self.device, vector.dtype)
            own.criterion = deepcopy(self.criterion).to(self.device, vector.dtype)
        own.module.train(training)
        set_parameters(own.module, vector)
        return own.module, own.criterion

    def split(self, parameters: Array) -> list[tuple[Array, Array]]:
        """Coefficients and intercepts of each layer."""
        places = places_of(self._layers)
        return [
            (parameters[..., own.coefficients], parameters[..., own.intercepts]) for own in places
        ]

    def groups(self, kind: str) -> Groups:
        """Groups of parameters for pruning; see ``Network``.

        Units are those of linear layers and the feature maps of convolutions, but for the last
        layer, whose units are the outputs.
        """
        return groups_of(self._layers, self.n_parameters, kind)


@contextmanager
def _drawing(uniform: float, device: Any) -> Iterator[None]:
    """Context in which the random numbers of torch follow from a number in [0, 1)."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with _GENERATOR, torch.random.fork_rng(devices):
        torch.manual_seed(int(uniform * 2**53))
        yield
