"""From the parameters of a federated network to its prior and its problem.

``estimator`` and ``settings`` are the estimator, of which only parameters are read.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, get_args

import numpy as np

from .._federation import ClientSizes
from .._parameters import (
    check_choice,
    check_counts,
    check_n_jobs,
    check_not_negative,
    check_number,
    check_positive,
    check_switch,
    check_verbose,
    is_auto,
)
from .._typing import ClientWeights
from ..models._network import Network
from ..participation import check_participation
from ..priors import GaussianPrior, LaplacePrior, MixturePrior, Prior, SpikeSlabPrior
from ..solvers._from_parameters import check_compressor, compressor_of, worst_omega
from ..solvers._resume import check_checkpoint_parameters
from ..solvers.base import Problem, Task
from ..solvers.hard_em import HierarchicalModel, ServerOptimizer, hard_em

PRIORS = ("gaussian", "laplace", "mixture", "spike_slab")
SERVER_OPTIMIZERS = ("average", "sgd", "adam", "adamax")
# Share of 1 / (1 + ω) that is the automatic step of V_i, which is then a mean over rounds rather
# than the noise of the minibatches of one.
_LEARNING = 0.1
_ADAPTIVE_RATE = 1e-3
# Precision λ of mixtures, without which all models would become alike.
_PRECISION_OF_MIXTURES = 0.1


def check_parameters(estimator: Any) -> None:
    """Raise TypeError or ValueError for an invalid parameter that all networks have."""
    check_not_negative(omega=estimator.omega)
    prior_of(estimator)
    check_switch("control_variates", estimator.control_variates)
    check_choice("server_optimizer", estimator.server_optimizer, SERVER_OPTIMIZERS)
    if not is_auto(estimator.server_learning_rate):
        check_positive(server_learning_rate=estimator.server_learning_rate)
    check_number("server_momentum", estimator.server_momentum, low=0, high=1, high_open=True)
    check_counts(local_epochs=estimator.local_epochs, eval_every=estimator.eval_every)
    if estimator.batch_size is not None:
        hint = "Use None for all rows."
        check_number("batch_size", estimator.batch_size, kind=Integral, low=1, hint=hint)
    check_positive(learning_rate_init=estimator.learning_rate_init)
    check_participation(estimator.participation)
    check_choice("client_weights", estimator.client_weights, get_args(ClientWeights))
    if not is_auto(estimator.control_step):
        check_number("control_step", estimator.control_step, low=0, high=1, hint='Or give "auto".')
    check_number("max_iter", estimator.max_iter, kind=Integral, low=1)
    for name in ("keep_local", "warm_start"):
        check_switch(name, getattr(estimator, name))
    check_n_jobs(estimator.n_jobs)
    check_verbose(estimator.verbose)
    check_compressor(estimator.compressor, estimator.omega)
    check_checkpoint_parameters(estimator)
    _check_combination(estimator, prior_of(estimator))


def _check_combination(estimator: Any, prior: Prior) -> None:
    """Raise for parameters that are not sound together."""
    kind = type(prior).__name__
    if estimator.control_variates and not prior.corrects:
        raise ValueError(
            f"Expected control_variates=False with {kind}: the variates of SCAFFOLD correct "
            "gradients for one centre that moves by the mean of the updates. Use a Gaussian or a "
            "spike-and-slab prior."
        )
    has_memories = not is_auto(estimator.control_step) and estimator.control_step > 0
    if estimator.control_variates and (estimator.omega > 0 or has_memories):
        raise ValueError(
            "Expected omega=0 and control_step='auto' with control_variates=True: SCAFFOLD's "
            "variates would keep the noise of compressed updates, divided by the learning rate, "
            "and the memories V_i correct the updates a second time. Use one of them."
        )
    if estimator.omega > 0 and not prior.compresses:
        raise ValueError(
            f"Expected omega=0 with {kind}: a median of noisy messages is not that of the clients' "
            "parameters, although the noise has the mean 0. Use another prior, or omega=0."
        )
    if has_memories and not prior.remembers:
        raise ValueError(
            f"Expected control_step='auto' or 0 with {kind}, got {estimator.control_step}: the "
            "memories V_i presume that the server only uses the mean of all updates."
        )
    if estimator.server_optimizer == "average" and not is_auto(estimator.server_learning_rate):
        raise ValueError(
            "Expected server_learning_rate='auto' with server_optimizer='average', which has no "
            "learning rate. Use server_optimizer='sgd' for steps of another length."
        )


def prior_of(estimator: Any) -> Prior:
    """Prior of a fit; one that is given by its name follows the estimator's parameters."""
    prior = estimator.prior
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, type) and issubclass(prior, Prior):
        raise TypeError(
            f"Expected prior to be an object, got the class {prior.__name__}. Call it, as in "
            f"{prior.__name__}()."
        )
    check_choice("prior", prior, PRIORS, hint="Or an object of a subclass of skfedem.priors.Prior.")
    precision = estimator.prior_precision
    if is_auto(precision):
        precision = _PRECISION_OF_MIXTURES if prior == "mixture" else 0.0
    hint = 'Or give "auto".'
    check_number("prior_precision", precision, low=0, low_open=prior == "mixture", hint=hint)
    if prior == "gaussian":
        return GaussianPrior(precision)
    if prior == "laplace":
        return LaplacePrior(precision)
    if prior == "mixture":
        return MixturePrior(estimator.n_components, precision)
    return SpikeSlabPrior(
        l0_penalty=estimator.l0_penalty,
        target_sparsity=estimator.target_sparsity,
        warmup_rounds=estimator.warmup_rounds,
        gates=estimator.gates,
        gate_temperature=estimator.gate_temperature,
        prune_threshold=estimator.prune_threshold,
        precision=precision,
    )


def problem_of(settings: Any, network: Network, sizes: ClientSizes) -> Problem:
    """Problem of a fit with the parameters of an estimator."""
    model = HierarchicalModel(
        network,
        prior_of(settings),
        local_epochs=settings.local_epochs,
        learning_rate=settings.learning_rate_init,
        control_variates=bool(settings.control_variates),
        keep_local=bool(settings.keep_local),
    )
    compressor = compressor_of(settings)
    omega, _ = worst_omega(compressor, np.array([network.n_parameters]))
    control_step = _control_step(settings, model.prior, omega)
    task = Task(
        model,
        compressor,
        omega,
        control_step,
        has_controls=model.control_variates or control_step > 0,
        batch_size=settings.batch_size,
    )
    return Problem(
        task,
        sizes,
        hard_em(_optimizer_of(settings)),
        participation=settings.participation,
        random_estimates=True,
    )


def _optimizer_of(settings: Any) -> ServerOptimizer:
    """Optimizer of the server."""
    name, rate, momentum = (
        settings.server_optimizer,
        settings.server_learning_rate,
        settings.server_momentum,
    )
    if is_auto(rate):
        # With momentum, of steps that add up to an average.
        rate = _ADAPTIVE_RATE if name.startswith("adam") else 1 - momentum
    return ServerOptimizer(name, rate, momentum)


def _control_step(settings: Any, prior: Prior, omega: float) -> float:
    """Step size α of the memories V_i of the updates."""
    if not is_auto(settings.control_step):
        return float(settings.control_step)
    return _LEARNING / (1 + omega) if omega and prior.remembers else 0.0
