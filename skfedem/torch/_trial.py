"""A trial of a module on a few rows, which tells what it is, or what is wrong with it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from ._layers import is_layer, random_rows, trainable

_N_ROWS = 4


class Trial(NamedTuple):
    """What a trial found.

    Attributes
    ----------
    is_random : bool
        Whether the module draws random numbers in training.
    n_activations : int
        Number of activations of a row.
    layers : list of str
        Names of the linear layers and convolutions, in the order in which they are used.
    """

    is_random: bool
    n_activations: int
    layers: list[str]


def tried(module: Any, criterion: Any, n_features: int, n_outputs: int) -> Trial:
    """Try a module and its criterion on rows, in training; ValueError if they do not fit."""
    import torch

    check_parts(module)
    module, rows = deepcopy(module).cpu().train(), random_rows(module, n_features, _N_ROWS)
    layers: list[str] = []
    sizes: list[int] = []

    def noted(name: str, part: Any, outputs: Any) -> None:
        if is_layer(part) and name not in layers:
            layers.append(name)
        if isinstance(outputs, torch.Tensor):
            sizes.append(outputs.numel() // _N_ROWS)

    for name, part in module.named_modules():
        part.register_forward_hook(lambda part, _, outputs, name=name: noted(name, part, outputs))
    before = {name: own.clone() for name, own in module.named_buffers()}
    with torch.random.fork_rng([]), torch.no_grad():
        state = torch.get_rng_state()
        try:
            outputs = module(rows)
        except Exception as error:
            raise ValueError(
                f"Expected module to take rows of shape (n, {n_features}), got {error!r} for "
                f"{_N_ROWS} rows. Begin with torch.nn.Unflatten if it takes images."
            ) from error
        is_random = not torch.equal(state, torch.get_rng_state())
        shape = tuple(getattr(outputs, "shape", ()))
        if shape != (_N_ROWS, n_outputs):
            raise ValueError(
                f"Expected module to give {n_outputs} outputs for each row, one for each class, "
                f"got the shape {shape} for {_N_ROWS} rows. Change its last layer."
            )
        check_criterion(criterion, outputs)
    changed = [name for name, own in module.named_buffers() if not torch.equal(own, before[name])]
    if changed:
        raise ValueError(_running(f"the buffer {changed[0]!r}, which training changes"))
    return Trial(is_random, sum(sizes), layers)


def check_parts(module: Any) -> None:
    """Raise ValueError for a module without parameters, or with batch normalisation."""
    from torch.nn.modules.batchnorm import _BatchNorm

    if not trainable(module):
        raise ValueError("Expected a module with parameters that require gradients, got none.")
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            raise ValueError(_running(f"the {type(part).__name__} {name!r}"))


def _running(got: str) -> str:
    return (
        f"Expected a module without running statistics, got {got}. Statistics of a client's rows "
        "are no parameters: they have no gradient, and no prior combines them. Use GroupNorm or "
        "LayerNorm."
    )


def check_criterion(criterion: Any, outputs: Any) -> None:
    """Raise ValueError unless a criterion gives the loss of each row."""
    import torch

    criterion = deepcopy(criterion).cpu()
    try:
        loss = criterion(outputs, torch.zeros(_N_ROWS, dtype=torch.int64))
    except Exception as error:
        raise ValueError(
            f"Expected criterion to take outputs of shape {tuple(outputs.shape)} and numbers of "
            f"classes, got {error!r}. Use a criterion such as torch.nn.CrossEntropyLoss."
        ) from error
    if tuple(loss.shape) != (_N_ROWS,):
        raise ValueError(
            f"Expected criterion to give the loss of each row, got the shape {tuple(loss.shape)} "
            f"for {_N_ROWS} rows. Give a class, or an object with reduction='none'."
        )
