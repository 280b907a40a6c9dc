"""Translation of the federated parameters to a problem, a step schedule and options of a run."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import get_args

import numpy as np

from .._error_messages import repr_of
from .._federation import ClientSizes
from .._parameters import (
    check_choice,
    check_n_jobs,
    check_number,
    check_switch,
    check_verbose,
    is_auto,
)
from .._typing import ClientWeights, CompressorName, ControlInit, IntArray, Schedule
from .._warnings import warn
from ..compression import BlockQuantizer, Compressor, Dithering, Identity, RandK
from ..compression._base import broken
from ..models._base import Model
from ..participation import check_participation
from ._loop import Options
from ._parameters import FederatedParameters
from ._step_size import MOST_AT_ONCE, automatic_n_inner, automatic_step_size
from .base import Problem, Solver, Task
from .fedem import FEDEM
from .vr_fedem import VR_FEDEM

SOLVERS: dict[str, Solver] = {solver.name: solver for solver in (FEDEM, VR_FEDEM)}
# No warning below this relative excess over omega, as the rounded numbers would be equal.
_ROUNDING = 0.005
_COMPRESSORS: dict[CompressorName, Callable[..., Compressor]] = {
    "dithering": Dithering,
    "block": BlockQuantizer,
    "rand_k": RandK,
}


def check_federated_parameters(settings: FederatedParameters) -> None:
    """Raise TypeError or ValueError for an invalid parameter of the algorithms."""
    check_choice("solver", settings.solver, tuple(SOLVERS))
    if not callable(settings.step_size) and not is_auto(settings.step_size):
        hint = 'Or give "auto", or a function of the round.'
        check_number("step_size", settings.step_size, low=0, low_open=True, high=1, hint=hint)
    if not is_auto(settings.control_step):
        check_number("control_step", settings.control_step, low=0, high=1, hint='Or give "auto".')
    check_switch("replacement", settings.replacement)
    check_choice("control_init", settings.control_init, get_args(ControlInit))
    if settings.batch_size is not None:
        _check_count("batch_size", settings.batch_size, hint="Use None for all rows.")
    if not is_auto(settings.n_inner):
        _check_count("n_inner", settings.n_inner, hint='Or give "auto".')
    check_number("omega", settings.omega, low=0, hint="Use 0 for no compression.")
    check_participation(settings.participation)
    check_choice("client_weights", settings.client_weights, get_args(ClientWeights))
    check_number("tol", settings.tol, low=0, hint="Use 0 to run all rounds.")
    if settings.max_epochs is not None:
        hint = "Use None for no bound."
        check_number("max_epochs", settings.max_epochs, low=0, low_open=True, hint=hint)
    if settings.max_iter is not None:
        check_number(
            "max_iter", settings.max_iter, kind=Integral, low=0, hint="Or None with max_epochs."
        )
    elif settings.max_epochs is None:
        raise ValueError(
            "Expected max_iter or max_epochs to bound the fit, got None for both. Give one."
        )
    if settings.eval_every is not None and not is_auto(settings.eval_every):
        check_number(
            "eval_every", settings.eval_every, kind=Integral, low=1, hint='Or give "auto" or None.'
        )
    check_n_jobs(settings.n_jobs)
    check_verbose(settings.verbose)
    check_compressor(settings.compressor, settings.omega)


def _check_count(name: str, value: object, hint: str) -> None:
    check_number(name, value, kind=Integral, low=1, high=MOST_AT_ONCE, hint=hint)


def check_compressor(compressor: object, omega: float) -> None:
    if compressor is None:
        if omega > 0:
            raise ValueError(
                f"Expected omega=0 with compressor=None, got omega={omega}: nothing would "
                'compress. Name a compressor, as "dithering", or set omega=0.'
            )
    elif isinstance(compressor, Compressor):
        if omega == 0 and not isinstance(compressor, Identity):
            warn(
                f"compressor={compressor!r} is not used: omega=0 means no compression. Set omega "
                "to a positive number to use it.",
                UserWarning,
            )
    elif isinstance(compressor, type) and issubclass(compressor, Compressor):
        raise TypeError(
            f"Expected compressor to be an object, got the class {compressor.__name__}. Call it, "
            f"as in {compressor.__name__}(omega=1.0)."
        )
    else:
        hint = "Or None, or an object of a subclass of skfedem.compression.Compressor."
        check_choice("compressor", compressor, tuple(_COMPRESSORS), hint=hint)


def federated_problem(
    settings: FederatedParameters,
    model: Model,
    sizes: ClientSizes,
    seed: int = 0,
    solver: Solver | None = None,
) -> Problem:
    """Task and problem, for the solver of this name or the given one.

    Warns of a ``Compressor`` coarser than ``omega``.
    """
    compressor = compressor_of(settings)
    omega, length = worst_omega(compressor, model.message_lengths(sizes))
    if omega > settings.omega * (1 + _ROUNDING):
        warn(
            f"compressor={compressor!r} has omega={omega:.3g} for messages of "
            f"{length} numbers, more than omega={settings.omega:.3g}. Its own level is kept; "
            f"omega only switches compression on. Set omega={omega:.3g} or more, or name the "
            "operator by a string so that its level follows omega.",
            UserWarning,
        )
    solver, control_step = solver or SOLVERS[settings.solver], settings.control_step
    if is_auto(control_step):
        control_step = 1 / (1 + omega)
    task = Task(
        model=model,
        compressor=compressor,
        omega=omega,
        control_step=control_step,
        has_controls=control_step > 0 or settings.control_init == "field",
        batch_size=settings.batch_size,
        replacement=settings.replacement,
        seed=seed,
    )
    reads_batches = settings.batch_size is not None
    is_random = model.is_random or solver.is_random
    problem = Problem(
        task,
        sizes,
        solver,
        participation=settings.participation,
        persistent_noise=is_random or (reads_batches and not solver.variance_reduced),
        random_estimates=is_random,
    )
    if problem.persistent_noise or not reads_batches:
        return problem
    n_inner = settings.n_inner
    if is_auto(n_inner):
        p = problem.inclusion_probability
        n_inner = automatic_n_inner(sizes.n_clients, sizes.n_samples, omega, p)
    return problem._replace(n_inner=n_inner)


def compressor_of(settings: FederatedParameters) -> Compressor:
    """Compressor of a fit; the level of one that is given by its name follows ``omega``."""
    compressor = settings.compressor if settings.omega > 0 else Identity()
    if isinstance(compressor, Compressor):
        return compressor
    assert compressor is not None  # omega > 0 requires one
    return _COMPRESSORS[compressor](omega=settings.omega)


def worst_omega(compressor: Compressor, lengths: IntArray) -> tuple[float, int]:
    """Largest ω of a compressor for messages of these lengths, and the corresponding length."""
    returned = compressor.omega_for(lengths)
    omegas = np.asarray(returned)
    if omegas.dtype.kind not in "iuf" or omegas.shape not in ((), lengths.shape):
        expected = f"a number, or an array of shape {lengths.shape},"
        raise broken(compressor, "omega_for", expected, repr_of(returned))
    omegas = np.broadcast_to(omegas, lengths.shape)
    for omega, length in zip(omegas.tolist(), lengths.tolist(), strict=True):
        if not 0 <= omega < np.inf:
            got = f"{omega} for messages of {length} numbers"
            raise broken(compressor, "omega_for", "a finite number >= 0", got)
    worst = int(np.argmax(omegas))
    return float(omegas[worst]), int(lengths[worst])


def step_schedule(settings: FederatedParameters, problem: Problem) -> Schedule:
    """Schedule of γ, in (0, 1]."""
    step_size = settings.step_size
    if is_auto(step_size):
        own = problem.solver.schedule
        return own(problem) if own else automatic_step_size(problem)
    if not callable(step_size):
        return lambda round_number: step_size

    def checked(round_number: int) -> float:
        value = step_size(round_number)
        hint = "Correct this function."
        check_number(f"step_size({round_number})", value, low=0, low_open=True, high=1, hint=hint)
        return float(value)

    return checked


def options_of(settings: FederatedParameters, problem: Problem) -> Options:
    """Options of a run."""
    return Options(
        step_size=step_schedule(settings, problem),
        cautious=is_auto(settings.step_size),
        control_init=settings.control_init,
        max_iter=settings.max_iter,
        max_epochs=settings.max_epochs,
        tol=settings.tol,
        eval_every=settings.eval_every,
    )
