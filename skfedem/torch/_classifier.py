"""Classifiers that are PyTorch modules, trained by hard EM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any, Self

import numpy as np

from .._error_messages import repr_of
from .._networks.classifier import NetworkClassifier
from .._networks.mlp_classifier import FederatedMLPClassifier
from .._optional import check_installed
from .._parameters import is_auto
from .._typing import FloatArray
from ._network import TorchNetwork

_OF_PERCEPTRONS = ("hidden_layer_sizes", "activation", "alpha")
# Parameters of every federated network, with their defaults.
_SHARED = {
    name: parameter.default
    for name, parameter in signature(FederatedMLPClassifier).parameters.items()
    if name not in _OF_PERCEPTRONS
}
_PREFIXES = ("module__", "criterion__")


class FederatedTorchClassifier(NetworkClassifier):
    """PyTorch module, trained as a classifier on the rows of several clients without pooling them.

    Everything but the network is that of ``FederatedMLPClassifier``: the priors, and so FedAvg,
    FedProx, SCAFFOLD, medians, ensembles and FedSparse; compression, participation, messages and
    their bits, clients' own models, streams and checkpoints. Parameters of the module travel as one
    vector, of those that require gradients; the others stay as they are. FedSparse prunes units of
    linear layers and feature maps of convolutions, but for those of the last layer; what a pruned
    unit would feed is found by a trial, and is not sent either.

    A client trains with ``module.train()``, so that dropout acts; predictions use
    ``module.eval()``. Modules with running statistics, as those of BatchNorm, are refused: these
    are no parameters, which a prior could combine. Computations on a CPU use one thread for each
    client, as many at once as ``n_jobs`` says; the result does not depend on it.

    Read more in :doc:`/perceptron`.

    Parameters
    ----------
    module : type, callable or torch.nn.Module
        Class or function that makes the module, from the parameters ``module__*``; it starts with
        random parameters, which follow from ``random_state`` if they require gradients. Or a
        module, which is copied, and starts with its own parameters. It maps rows (n_rows,
        n_features) to outputs (n_rows, n_classes), also for two classes. A module for images begins
        with ``torch.nn.Unflatten``.
    criterion : type, callable, torch.nn.Module or None, default=None
        Class or function that makes the criterion, from ``reduction="none"`` and the parameters
        ``criterion__*``, or a criterion, which gives the loss of each row; None for
        ``torch.nn.CrossEntropyLoss``. Probabilities are the exponentials of the outputs for
        ``torch.nn.NLLLoss``, otherwise their softmax.
    device : str or torch.device, default="auto"
        Where the clients compute. "auto" is "cuda" if there is such a device, otherwise "cpu".
    **parameters
        ``module__*`` and ``criterion__*``, as in skorch, and all parameters of
        ``FederatedMLPClassifier`` but ``hidden_layer_sizes``, ``activation`` and ``alpha``.

    Attributes
    ----------
    module_ : torch.nn.Module
        The global model, in evaluation mode and on the CPU; a ``ModuleList`` of the models for a
        mixture.
    criterion_ : torch.nn.Module
        The criterion.
    classes_, sparsity_, loss_, loss_curve_, n_iter_, history_
        As in ``FederatedMLPClassifier``.
    setup_messages_, n_clients_, client_ids_, n_features_in_, feature_names_in_
        As in ``FederatedMLPClassifier``.

    See Also
    --------
    skfedem.FederatedMLPClassifier : Perceptrons, which need no torch and are quicker.
    skfedem.priors : Priors, and how to write another.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skfedem.torch import FederatedTorchClassifier
    >>> def network(n_units):
    ...     layers = torch.nn.Linear(2, n_units), torch.nn.Tanh(), torch.nn.Linear(n_units, 2)
    ...     return torch.nn.Sequential(*layers)
    >>> rng = np.random.default_rng(0)
    >>> X = [rng.normal(size=(60, 2)) + shift for shift in (-1, 0, 1)]
    >>> y = [np.where(table.sum(axis=1) > 0, "high", "low") for table in X]
    >>> clf = FederatedTorchClassifier(network, module__n_units=8, random_state=0).fit(X, y)
    >>> clf.score(X, y) > 0.95
    True
    >>> clf.module_[0].weight.shape
    torch.Size([8, 2])
    """

    module_: Any
    criterion_: Any

    def __init__(
        self, module: Any, criterion: Any = None, *, device: Any = "auto", **parameters: Any
    ) -> None:
        self.module = module
        self.criterion = criterion
        self.device = device
        unknown = [name for name in parameters if not _is_known(name)]
        if unknown:
            raise TypeError(
                f"Expected parameters of FederatedMLPClassifier without {_OF_PERCEPTRONS}, or "
                f"module__* or criterion__*, got {unknown[0]!r}."
            )
        self.__dict__.update({**_SHARED, **parameters})

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Ignored: no parameter is an estimator.

        Returns
        -------
        parameters : dict
        """
        own = [name for name in vars(self) if name.startswith(_PREFIXES)]
        names = ["module", "criterion", "device", *_SHARED, *own]
        return {name: getattr(self, name) for name in sorted(names)}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters.

        Parameters
        ----------
        **parameters
            As those of the constructor.

        Returns
        -------
        self : FederatedTorchClassifier

        Raises
        ------
        ValueError
            If there is no such parameter.
        """
        known = self.get_params()
        for name in parameters:
            if name not in known and not name.startswith(_PREFIXES):
                raise ValueError(f"Expected one of the parameters {[*known]}, got {name!r}.")
        self.__dict__.update(parameters)
        return self

    def _fit(self, *args: Any, **options: Any) -> Self:
        check_installed(type(self).__name__, "torch")
        with _single_threaded():
            return super()._fit(*args, **options)

    def _check_own_parameters(self) -> None:
        if not callable(self.module):
            raise TypeError(
                "Expected module to be a torch.nn.Module or what makes one, got "
                f"{repr_of(self.module)}."
            )
        if not (self.criterion is None or callable(self.criterion)):
            raise TypeError(
                "Expected criterion to be a criterion or what makes one, or None, got "
                f"{repr_of(self.criterion)}."
            )
        _device_of(self.device)

    def _new_network(self, n_features: int, n_outputs: int) -> TorchNetwork:
        import torch

        criterion = torch.nn.CrossEntropyLoss if self.criterion is None else self.criterion
        criterion = made("criterion", criterion, self._given("criterion"), reduction="none")
        make = partial(made, "module", self.module, self._given("module"))
        return TorchNetwork(make, criterion, n_features, n_outputs, _device_of(self.device))

    def _given(self, name: str) -> dict[str, Any]:
        """Parameters ``name__*``, without the prefix."""
        prefix = f"{name}__"
        return {k.removeprefix(prefix): v for k, v in vars(self).items() if k.startswith(prefix)}

    def _network_attributes(self, network: TorchNetwork, centres: FloatArray) -> dict[str, Any]:
        import torch

        modules = [network.module_with(own) for own in centres]
        module = modules[0] if len(modules) == 1 else torch.nn.ModuleList(modules)
        return {"module_": module, "criterion_": network.criterion}

    def _fitted_network(self) -> tuple[TorchNetwork, FloatArray]:
        import torch

        module = self.module_
        modules = [*module] if type(module) is torch.nn.ModuleList else [module]
        sizes = self.n_features_in_, len(self.classes_)
        networks = [
            TorchNetwork(partial(deepcopy, own), self.criterion_, *sizes, _device_of(self.device))
            for own in modules
        ]
        return networks[0], np.stack([own.initial(0) for own in networks])


def _is_known(name: str) -> bool:
    return name in _SHARED or name.startswith(_PREFIXES)


def made(name: str, value: Any, given: dict[str, Any], **fixed: Any) -> Any:
    """Module of the parameter of this name: a copy of the one that is given, or a new one."""
    import torch

    if isinstance(value, torch.nn.Module):
        if given:
            raise ValueError(
                f"Expected {name} to be a class with parameters {name}__*, got an object and "
                f"{sorted(given)}. Give the class, or set them in the object."
            )
        return deepcopy(value)
    module = value(**fixed, **given)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"Expected {name} to make a torch.nn.Module, got {repr_of(module)}.")
    return module


def _device_of(device: Any) -> Any:
    """Device of a parameter ``device``; ValueError if there is none of this name."""
    import torch

    if is_auto(device):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"Expected device to be a device of torch, got {repr_of(device)} ({error}). Use 'auto'."
        ) from None
    return found


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Context with one thread of torch for each worker, as rounding depends on their number."""
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
