"""Parameters of a population model's fit: checks, and what "auto" stands for."""

from __future__ import annotations

from math import ceil
from numbers import Integral
from typing import Any

from .._parameters import check_choice, check_number, check_switch, is_auto, read_parameters
from ..solvers._from_parameters import check_federated_parameters
from ..solvers._resume import check_checkpoint_parameters
from ..solvers.base import Solver
from ..solvers.parameter_averaging import parameter_averaging
from ..solvers.saem import N_FIRST_ROUNDS, SaemSchedule, saem
from .design import Design

# A product rule of more dimensions has too many nodes.
MOST_DIMENSIONS = 4
# Rounds of quadrature, at most.
_MAX_ITER = 300
# Chains of all subjects together: with one each, Ω of twelve subjects collapses.
_N_CHAINS = 50


def checked_settings(estimator: Any, design: Design) -> Any:
    """Record of the parameters, with numbers in place of "auto"; raise for invalid ones.

    Chains run for all rounds of their schedule: their noise is above any ``tol``. Control variates
    begin at 0, as the first chains say nothing.
    """
    check_choice("e_step", estimator.e_step, ("quadrature", "mcmc"))
    check_choice("aggregate", estimator.aggregate, ("statistics", "parameters"))
    if estimator.aggregate == "parameters":
        _check_averaging(estimator)
    check_switch("warm_start", estimator.warm_start)
    hint = "With 7, the likelihood is more accurate than with 5."
    check_number("n_nodes", estimator.n_nodes, kind=Integral, low=1, hint=hint)
    settings = read_parameters(estimator)
    if estimator.e_step == "quadrature":
        _check_dimensions(estimator, design)
        n_rounds = _MAX_ITER
    else:
        _check_chains(estimator)
        n_rounds = schedule_of(estimator).n_rounds
    if estimator.max_iter is None and estimator.max_epochs is None:
        settings.max_iter = n_rounds
    check_federated_parameters(settings)
    check_checkpoint_parameters(settings)
    if estimator.e_step == "mcmc":
        settings.tol, settings.control_init = 0.0, "zeros"
        settings.eval_every = None if is_auto(estimator.eval_every) else settings.eval_every
    if estimator.aggregate == "parameters":
        settings.control_step = 0.0
    return settings


def _check_dimensions(estimator: Any, design: Design) -> None:
    if len(design.names) > MOST_DIMENSIONS:
        raise ValueError(
            f'Expected at most {MOST_DIMENSIONS} parameters with e_step="quadrature", got '
            f"{len(design.names)}: the number of nodes is n_nodes to this power. Use "
            'e_step="mcmc".'
        )


def _check_chains(estimator: Any) -> None:
    if estimator.solver == "vr_fedem":
        raise ValueError(
            'Expected solver="fedem" with e_step="mcmc", got "vr_fedem": the difference of two '
            "draws is noisier than one, whatever the minibatch. Use fedem, or quadrature."
        )
    if estimator.batch_size is not None:
        raise ValueError(
            f'Expected batch_size=None with e_step="mcmc", got {estimator.batch_size}: a chain '
            "that rests forgets nothing of its start. Use None."
        )
    if not is_auto(estimator.n_chains):
        hint = 'Or give "auto".'
        check_number("n_chains", estimator.n_chains, kind=Integral, low=1, hint=hint)
    hint = f"The first {N_FIRST_ROUNDS} rounds only begin the chains."
    check_number(
        "n_exploratory", estimator.n_exploratory, kind=Integral, low=N_FIRST_ROUNDS + 1, hint=hint
    )
    check_number("n_smoothing", estimator.n_smoothing, kind=Integral, low=0)
    hint = "With 1, the end of the exploration is forgotten too slowly."
    exponent = estimator.smoothing_exponent
    check_number("smoothing_exponent", exponent, low=0.5, low_open=True, high=1, hint=hint)


def _check_averaging(estimator: Any) -> None:
    if estimator.e_step != "mcmc":
        raise ValueError(
            'Expected e_step="mcmc" with aggregate="parameters", got '
            f"{estimator.e_step!r}: sites average what their chains found. Use mcmc."
        )
    if estimator.omega != 0:
        raise ValueError(
            f'Expected omega=0 with aggregate="parameters", got {estimator.omega}: a compressed Ω '
            "may be none. Average statistics."
        )
    if not is_auto(estimator.step_size):
        raise ValueError(
            'Expected step_size="auto" with aggregate="parameters", got '
            f"{estimator.step_size!r}: sites take the steps. Set smoothing_exponent."
        )
    check_number("n_local", estimator.n_local, kind=Integral, low=1)


def schedule_of(estimator: Any) -> SaemSchedule:
    """Rounds and steps of the E-step by chains."""
    return SaemSchedule(
        int(estimator.n_exploratory), int(estimator.n_smoothing), estimator.smoothing_exponent
    )


def solver_of(estimator: Any) -> Solver | None:
    """Solver of the E-step by chains; None for that of the parameter ``solver``."""
    if estimator.e_step == "quadrature":
        return None
    schedule = schedule_of(estimator)
    if estimator.aggregate == "parameters":
        return parameter_averaging(schedule, int(estimator.n_local))
    return saem(schedule)


def n_chains_of(estimator: Any, n_subjects: int) -> int:
    """Number of chains of each subject."""
    if is_auto(estimator.n_chains):
        return ceil(_N_CHAINS / n_subjects)
    return int(estimator.n_chains)
