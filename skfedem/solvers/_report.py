"""Progress messages of a fit, and its warnings at the end."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from numbers import Integral
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._error_messages import join_alternatives, plural
from .._parameters import is_auto
from .._typing import Schedule
from .._warnings import warn
from ._parameters import FederatedParameters
from ._state import RunState
from .base import Problem

# Warn if automatic steps were cut to less than this share of the schedule.
_SMALL_SHARE = 0.1


# Columns of the history that are printed, if the solver has them.
_PRINTED = {
    "step_size": "step size {:.3g}",
    "field_sq_norm": "squared norm of the field {:.3g}",
    "loss": "loss {:.6g}",
    "sparsity": "sparsity {:.2f}",
}


def printer(verbose: int, criterion: str) -> Callable[[dict[str, float]], None]:
    """Function that prints rows of the history, as often as ``verbose`` requires.

    ``criterion`` is the name of the model's criterion and of its column.
    """

    def print_row(row: dict[str, float]) -> None:
        if verbose > 1 or (verbose and row["round"] % 10 == 0):
            parts = [f"epoch {row['epoch']:.1f}"]
            values = {name: row.get(name, np.nan) for name in _PRINTED}
            values["sparsity"] = values["sparsity"] or np.nan  # not worth a word
            parts += [_PRINTED[name].format(x) for name, x in values.items() if not isnan(x)]
            when = " before it" if "criterion_before" in row else ""
            value = row.get("criterion_before", row.get(criterion, np.nan))
            if not isnan(value):
                parts.append(f"{criterion.replace('_', '-')}{when} {value:.6g}")
            print(f"  Round {row['round']}: {', '.join(parts)}")

    return print_row


def print_outcome(state: RunState, criterion: str, *, judged: bool = True) -> None:
    """Print how a run ended, its final criterion, and the bytes that clients sent.

    ``judged`` says whether the loop looked for convergence; solvers with a schedule run to its end.
    """
    ended = "Converged" if state.converged else "Not converged" if judged else "Ended"
    n_bytes = int(state.history["uplink_bits"].sum()) // 8
    reached = state.history.row(-1).get(criterion, np.nan)
    print(
        f"  {ended} after {plural(state.n_rounds, 'round')}, {n_bytes:,} bytes sent by clients"
        + ("" if isnan(reached) else f": {criterion.replace('_', '-')} {reached:.6g}")
    )


class Wording(NamedTuple):
    """Parts of a fit's warnings that depend on the model.

    Attributes
    ----------
    left : str
        What was wrong with a step that had to be shortened.
    remedies : tuple of str
        Further remedies for shortened steps.
    """

    left: str
    remedies: tuple[str, ...] = ()


def warn_outcome(
    settings: FederatedParameters,
    problem: Problem,
    state: RunState,
    schedule: Schedule,
    wording: Wording,
    *,
    is_worse: bool,
) -> None:
    """Warn of interruption, of steps that were shortened, and of lack of convergence.

    ``is_worse`` says that a fit ended worse than it started, so that more rounds would not help.
    """
    if state.stopped_by == "callback":
        return
    if state.stopped_by == "keyboard":
        warn_interrupted(state)
        return
    if not state.n_rounds:
        if settings.max_iter != 0:
            warn(
                f"No round was run: the initialisation took {state.history['epoch'][0]:.2g} of "
                f"max_epochs={settings.max_epochs}. Increase max_epochs.",
                ConvergenceWarning,
            )
        return
    _warn_of_steps(settings, state, schedule, wording)
    if not (state.converged or is_worse):
        _warn_of_no_convergence(settings, problem, state)


def warn_interrupted(state: RunState) -> None:
    """Warn that a fit was interrupted."""
    warn(
        f"Interrupted from the keyboard after {plural(state.n_rounds, 'round')}: the estimator has "
        "the parameters reached by then. With warm_start=True, the next fit starts from them.",
        ConvergenceWarning,
    )


def _warn_of_steps(
    settings: FederatedParameters, state: RunState, schedule: Schedule, wording: Wording
) -> None:
    """Warn if steps were still shortened at the end, or if noise has cut them drastically."""
    safeguarded = state.history["safeguarded"]
    last_tenth = safeguarded[-max(1, (len(safeguarded) - 1) // 10) :]
    limit = state.server.step_limit
    if last_tenth.any():
        # A limit below the schedule shows that automatic steps were shortened.
        shortened = not is_auto(settings.step_size) or limit < schedule(1)
        ways = [*against_noise(settings, "a smaller step_size"), *wording.remedies]
        warn(
            f"Steps {wording.left} in {np.count_nonzero(last_tenth)} of the last "
            f"{plural(len(last_tenth), 'round')} and "
            f"{'were shortened' if shortened else 'did not update rare components'}. Use "
            f"{join_alternatives(ways)}.",
            ConvergenceWarning,
        )
        return
    if not is_auto(settings.step_size):
        return  # nor is a function of the user's asked once more
    planned = schedule(state.server.round_index)
    if limit < _SMALL_SHARE * planned:
        ways = [*(against_noise(settings) or ["a smaller step_size"]), *wording.remedies]
        warn(
            f"Step sizes were reduced from {planned:.2g} to at most {limit:.2g}, because "
            "rounds were too noisy for larger ones: the fit converges slowly, if at all. Use "
            f"{join_alternatives(ways)}.",
            ConvergenceWarning,
        )


def against_noise(settings: FederatedParameters, *steps: str) -> list[str]:
    """Advice that makes this estimator's rounds less noisy.

    Advice on control variates precedes ``steps``: if they diverge, no step size helps.
    """
    # As a number of clients, 1 is not everybody.
    is_number = isinstance(settings.participation, Integral)
    noisy = settings.omega > 0 or is_number or settings.participation < 1
    step = settings.control_step
    is_ill = not is_auto(step) and not 0 < step <= 1 / (1 + settings.omega)
    reads_batches = settings.batch_size is not None
    candidates = [
        ("control_step='auto'", noisy and is_ill),
        *((way, True) for way in steps),
        ("solver='vr_fedem'", reads_batches and settings.solver == "fedem"),
        ("a larger batch_size", reads_batches),
        ("a smaller omega", settings.omega > 0),
    ]
    return [way for way, helps in candidates if helps]


def _warn_of_no_convergence(
    settings: FederatedParameters, problem: Problem, state: RunState
) -> None:
    """Warn that ``tol`` was not reached, with a remedy."""
    absent = problem.inclusion_probability < 1
    if problem.task.control_step == 0 and (problem.omega > 0 or absent):
        advice = "Set control_step='auto'"
    elif settings.batch_size is not None and problem.persistent_noise:
        advice = "Use solver='vr_fedem'"
    elif settings.max_iter is not None and state.n_rounds >= settings.max_iter:
        advice = "Increase max_iter or tol"
    else:
        advice = "Increase max_epochs or tol"
    warn(
        f"Not converged to tol={settings.tol} after {plural(state.n_rounds, 'round')}. {advice}.",
        ConvergenceWarning,
    )
