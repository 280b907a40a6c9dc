"""Translation of an estimator's parameters to a problem, a step schedule and a run."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import get_args

import numpy as np

from .._federation import ClientSizes
from .._messages import repr_of, warn
from .._parameters import (
    check_choice,
    check_n_jobs,
    check_number,
    check_switch,
    check_verbose,
    is_auto,
)
from .._typing import (
    ClientWeights,
    CompressorName,
    ControlInit,
    FilePath,
    IntArray,
    Schedule,
)
from ..compression import BlockQuantizer, Compressor, Dithering, Identity, RandK
from ..compression._base import broken
from ..models._base import Model, Start
from ..participation import check_participation
from ._estimator import FederatedEstimator, ResumableEstimator
from ._fit_task import FitTask
from ._loop import Options, run
from ._report import print_outcome, printer
from ._resume import checkpoint_of
from ._state import RunState
from ._step_size import MOST_AT_ONCE, automatic_n_inner, automatic_step_size
from .base import Clients, Problem, Solver, Task
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


def check_federated_parameters(estimator: FederatedEstimator) -> None:
    """Raise TypeError or ValueError for an invalid parameter of the algorithms."""
    check_choice("solver", estimator.solver, tuple(SOLVERS))
    if not callable(estimator.step_size) and not is_auto(estimator.step_size):
        hint = 'Or give "auto", or a function of the round.'
        check_number("step_size", estimator.step_size, low=0, low_open=True, high=1, hint=hint)
    if not is_auto(estimator.control_step):
        check_number("control_step", estimator.control_step, low=0, high=1, hint='Or give "auto".')
    check_switch("replacement", estimator.replacement)
    check_choice("control_init", estimator.control_init, get_args(ControlInit))
    if estimator.batch_size is not None:
        _check_count("batch_size", estimator.batch_size, hint="Use None for all rows.")
    if not is_auto(estimator.n_inner):
        _check_count("n_inner", estimator.n_inner, hint='Or give "auto".')
    check_number("omega", estimator.omega, low=0, hint="Use 0 for no compression.")
    check_participation(estimator.participation)
    check_choice("client_weights", estimator.client_weights, get_args(ClientWeights))
    check_number("tol", estimator.tol, low=0, hint="Use 0 to run all rounds.")
    if estimator.max_epochs is not None:
        hint = "Use None for no bound."
        check_number("max_epochs", estimator.max_epochs, low=0, low_open=True, hint=hint)
    if estimator.max_iter is not None:
        check_number(
            "max_iter", estimator.max_iter, kind=Integral, low=0, hint="Or None with max_epochs."
        )
    elif estimator.max_epochs is None:
        raise ValueError(
            "Expected max_iter or max_epochs to bound the fit, got None for both. Give one."
        )
    if estimator.eval_every is not None and not is_auto(estimator.eval_every):
        check_number(
            "eval_every", estimator.eval_every, kind=Integral, low=1, hint='Or give "auto" or None.'
        )
    check_n_jobs(estimator.n_jobs)
    check_verbose(estimator.verbose)
    _check_compressor(estimator.compressor, estimator.omega)


def _check_count(name: str, value: object, hint: str) -> None:
    check_number(name, value, kind=Integral, low=1, high=MOST_AT_ONCE, hint=hint)


def _check_compressor(compressor: object, omega: float) -> None:
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
    estimator: FederatedEstimator,
    model: Model,
    sizes: ClientSizes,
    seed: int,
    solver: Solver | None = None,
) -> Problem:
    """Task and problem, from an estimator's parameters, for its solver or the given one.

    Warns
    -----
    UserWarning
        If a ``Compressor`` is coarser than the parameter ``omega``.
    """
    compressor = _compressor_of(estimator)
    omega, length = _worst_omega(compressor, model.message_lengths(sizes))
    if omega > estimator.omega * (1 + _ROUNDING):
        warn(
            f"compressor={compressor!r} has omega={omega:.3g} for messages of "
            f"{length} numbers, more than omega={estimator.omega:.3g}. Its own level is kept; "
            f"omega only switches compression on. Set omega={omega:.3g} or more, or name the "
            "operator by a string so that its level follows omega.",
            UserWarning,
        )
    solver, control_step = solver or SOLVERS[estimator.solver], estimator.control_step
    if is_auto(control_step):
        control_step = 1 / (1 + omega)
    task = Task(
        model=model,
        compressor=compressor,
        omega=omega,
        control_step=control_step,
        has_controls=control_step > 0 or estimator.control_init == "field",
        batch_size=estimator.batch_size,
        replacement=estimator.replacement,
        seed=seed,
    )
    reads_batches = estimator.batch_size is not None
    is_random = model.is_random or solver.is_random
    problem = Problem(
        task,
        sizes,
        participation=estimator.participation,
        persistent_noise=is_random or (reads_batches and not solver.variance_reduced),
        random_estimates=is_random,
        solver=solver,
    )
    if problem.persistent_noise or not reads_batches:
        return problem
    n_inner = estimator.n_inner
    if is_auto(n_inner):
        p = problem.inclusion_probability
        n_inner = automatic_n_inner(sizes.n_clients, sizes.n_samples, omega, p)
    return problem._replace(n_inner=n_inner)


def _compressor_of(estimator: FederatedEstimator) -> Compressor:
    """Compressor of a fit; the level of one that is given by its name follows ``omega``."""
    compressor = estimator.compressor if estimator.omega > 0 else Identity()
    if isinstance(compressor, Compressor):
        return compressor
    assert compressor is not None  # omega > 0 requires one
    return _COMPRESSORS[compressor](omega=estimator.omega)


def _worst_omega(compressor: Compressor, lengths: IntArray) -> tuple[float, int]:
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


def step_schedule(estimator: FederatedEstimator, problem: Problem) -> Schedule:
    """Schedule of γ, in (0, 1]."""
    step_size = estimator.step_size
    if is_auto(step_size):
        own = problem.solver and problem.solver.schedule
        return own(problem) if own else automatic_step_size(problem)
    if not callable(step_size):
        return lambda round_number: step_size

    def checked(round_number: int) -> float:
        value = step_size(round_number)
        hint = "Correct this function."
        check_number(f"step_size({round_number})", value, low=0, low_open=True, high=1, hint=hint)
        return float(value)

    return checked


def run_solver(
    estimator: ResumableEstimator,
    problem: Problem,
    start: Start,
    clients: Clients,
    resume_from: FilePath | None,
    tasks: FitTask | None,
) -> RunState:
    """Run the solver of a problem, with the options of the estimator."""
    check_participation(problem.participation, problem.sizes.n_clients)
    options = Options(
        step_size=step_schedule(estimator, problem),
        cautious=is_auto(estimator.step_size),
        control_init=estimator.control_init,
        max_iter=estimator.max_iter,
        max_epochs=estimator.max_epochs,
        tol=estimator.tol,
        eval_every=estimator.eval_every,
    )
    solver, criterion = problem.solver, problem.model.criterion
    assert solver is not None  # the problem is that of a fit
    if start.kept is None:
        clients.join(solver, problem.task)
    checkpoint = checkpoint_of(estimator, problem, clients, options.step_size, resume_from)
    report = printer(estimator.verbose, criterion)
    state = run(solver, problem, start, options, clients, report, checkpoint, tasks)
    if estimator.verbose:
        print_outcome(state, criterion)
    return state
