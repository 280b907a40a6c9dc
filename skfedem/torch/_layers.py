"""Parameters of a module as one vector, and which of them belong to its units."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from .._typing import BoolArray, FloatArray, IntArray
from ..models._network import Groups

# Numbers of rows and of parameters for which inputs are compared.
_N_ROWS, _N_DRAWS = 16, 3


class Layers(NamedTuple):
    """Linear layers and convolutions of a module, by their names in the order of their use."""

    module: Any
    names: list[str]
    n_features: int


class Places(NamedTuple):
    """Places of a layer's parameters in the vector.

    Those of the coefficients have their shape, (n_units, n_inputs, ...).
    """

    name: str
    coefficients: IntArray
    intercepts: IntArray


def trainable(module: Any) -> list[Any]:
    """Parameters of a module that require gradients."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def set_parameters(module: Any, vector: Any) -> None:
    """Let the parameters of a module be views of a vector."""
    start = 0
    for parameter in trainable(module):
        stop = start + parameter.numel()
        parameter.data = vector[start:stop].view(parameter.shape)
        start = stop


def type_of(module: Any) -> Any:
    """Type of a module's numbers."""
    return trainable(module)[0].dtype


def is_layer(part: Any) -> bool:
    """Whether a part of a module has units: it is a linear layer or a convolution."""
    from torch import nn

    return isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))


def random_rows(module: Any, n_features: int, n_rows: int) -> Any:
    """Rows of positive numbers, of the type of the module."""
    import torch

    numbers = np.random.default_rng(0).uniform(0.5, 1.5, (n_rows, n_features))
    return torch.tensor(numbers, dtype=type_of(module))


def places_of(layers: Layers) -> list[Places]:
    """Places of the layers that have coefficients in the vector."""
    found, start, nothing = {}, 0, np.empty(0, np.intp)
    for parameter in trainable(layers.module):
        own = start + np.arange(parameter.numel())
        found[id(parameter)] = own.reshape(tuple(parameter.shape))
        start += parameter.numel()
    parts = dict(layers.module.named_modules())
    named = [(name, parts[name]) for name in layers.names]
    return [
        Places(name, found[id(own.weight)], found.get(id(own.bias), nothing))
        for name, own in named
        if id(own.weight) in found
    ]


def groups_of(layers: Layers, n_parameters: int, kind: str) -> Groups:
    """Groups of parameters for pruning, see ``TorchNetwork.groups``."""
    layers = layers._replace(module=deepcopy(layers.module).cpu())  # it is probed below
    members, feeding = np.full((2, n_parameters), -1)
    places = places_of(layers)
    if not places:
        raise ValueError(
            "Expected a module with linear layers or convolutions to prune, got one without. Use "
            "another prior."
        )
    if kind == "features":
        _check_features(layers)
        places = places[:1]
    n_groups, depths = 0, []
    for depth, (name, coefficients, intercepts) in enumerate(places):
        if kind == "units":
            own = np.arange(len(coefficients) if name != layers.names[-1] else 0)
            if len(own):
                members[coefficients] = n_groups + own.reshape(-1, *[1] * (coefficients.ndim - 1))
                members[intercepts] = n_groups + own[: len(intercepts)]
        elif kind == "features":
            own = np.arange(coefficients.shape[1])
            members[coefficients] = own
        else:
            own = np.arange(coefficients.size)
            members[coefficients] = n_groups + own.reshape(coefficients.shape)
        n_groups += len(own)
        depths += [depth] * len(own)
    if kind == "units":
        _find_fed(layers, places, members, feeding, n_groups)
    return Groups(members, feeding, np.array(depths, dtype=np.intp))


def _check_features(layers: Layers) -> None:
    """Raise unless the first layer is linear and takes the features themselves."""
    import torch

    rows = random_rows(layers.module, layers.n_features, _N_ROWS)
    first = dict(layers.module.named_modules())[layers.names[0]]
    taken = _inputs(layers, rows)[layers.names[0]]
    if not (isinstance(first, torch.nn.Linear) and torch.equal(taken, rows)):
        raise ValueError(
            "Expected a module whose first layer is linear and takes the features, for "
            "gates='features', got another. Use gates='units' or 'weights'."
        )


def _find_fed(
    layers: Layers, places: list[Places], members: IntArray, feeding: IntArray, n_groups: int
) -> None:
    """Find the coefficients whose input is 0 if a group of units is, and set their ``feeding``.

    An input is fed by a group if it is 0 for several parameters and rows. The first of these are
    positive, so that no sum is 0 by chance; the others are not, as a normalisation makes some sums
    negative.
    """
    draws = [_drawn_parameters(places, len(members), draw) for draw in range(_N_DRAWS)]
    always = _zero_inputs(layers, draws)
    parts = dict(layers.module.named_modules())
    for group in range(n_groups):
        zeros = _zero_inputs(layers, [np.where(members == group, 0, own) for own in draws])
        for name, coefficients, _ in places:
            if getattr(parts[name], "groups", 1) == 1:  # otherwise, units have different inputs
                feeding[coefficients[:, zeros[name] & ~always[name]]] = group


def _drawn_parameters(places: list[Places], size: int, draw: int) -> FloatArray:
    """Parameters for which sums are about 1, where activations are not flat."""
    source = np.random.default_rng(draw)
    vector = source.uniform(0.5, 1.5, size)
    for _, coefficients, intercepts in places:
        vector[coefficients] /= coefficients[0].size
        vector[intercepts] /= 10
        if draw:
            vector[coefficients] *= source.choice([-2.0, 2.0], coefficients.shape)
    return vector


def _zero_inputs(layers: Layers, draws: list[FloatArray]) -> dict[str, BoolArray]:
    """Inputs of each layer, features or channels, that are 0 for all parameters and rows."""
    import torch

    module = layers.module
    parts, found = dict(module.named_modules()), dict[str, BoolArray]()
    for draw, vector in enumerate(draws):
        set_parameters(module, torch.tensor(vector, dtype=type_of(module)))
        rows = random_rows(module, layers.n_features, _N_ROWS)
        if draw:
            rows = rows - 1
        for name, inputs in _inputs(layers, rows).items():
            own = inputs.ndim - 1 if isinstance(parts[name], torch.nn.Linear) else 1
            others = tuple(axis for axis in range(inputs.ndim) if axis != own)
            zeros = (inputs.numpy() == 0).all(axis=others)
            found[name] = zeros & found.get(name, True)
    return found


def _inputs(layers: Layers, rows: Any) -> dict[str, Any]:
    """Inputs of the layers for some rows, in evaluation mode."""
    import torch

    taken: dict[str, Any] = {}
    parts = dict(layers.module.named_modules())

    def take(name: str, inputs: Any) -> None:
        taken[name] = inputs[0].clone()

    hooks = [
        parts[name].register_forward_pre_hook(lambda _, inputs, name=name: take(name, inputs))
        for name in layers.names
    ]
    with torch.no_grad():
        layers.module.eval()(rows)
    for hook in hooks:
        hook.remove()
    return taken
