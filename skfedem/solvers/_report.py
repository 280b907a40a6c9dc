"""Progress messages of a fit, and its warnings at the end."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isnan
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._messages import join_alternatives, plural, warn
from .._parameters import is_auto
from .._typing import Schedule
from ._base import Problem
from ._estimator import FederatedEstimator
from ._loop import Run
from ._stopping import fewest_rounds

# If the sum of the steps is less than this, it is a likely reason for no convergence ...
_FEW_STEPS = 10
# ... and this sum is usually enough (up to rounding): it was for 42 of 44 fits on all rows, with
# compression or absent clients.
_ENOUGH_STEPS = 75 * (1 - 1e-9)
# Never advise more rounds than this.
_MOST_ROUNDS = 10**6
# Warn if automatic steps were cut to less than this share of the schedule.
_SMALL_SHARE = 0.1


def printer(verbose: int, criterion: str) -> Callable[[dict[str, float]], None]:
    """Function that prints rows of the history, as often as ``verbose`` requires.

    ``criterion`` is the name of the model's criterion and of its column.
    """

    def print_row(row: dict[str, float]) -> None:
        if verbose > 1 or (verbose and row["round"] % 10 == 0):
            parts = ["epoch {epoch:.1f}, step size {step_size:.3g}".format(**row)]
            if not isnan(row["field_sq_norm"]):
                parts.append(f"squared norm of the field {row['field_sq_norm']:.3g}")
            when = " before it" if "criterion_before" in row else ""
            value = row.get("criterion_before", row[criterion])
            if not isnan(value):
                parts.append(f"{criterion.replace('_', '-')}{when} {value:.6g}")
            print(f"  Round {row['round']}: {', '.join(parts)}")

    return print_row


def print_outcome(result: Run, criterion: str) -> None:
    """Print how a run ended, its final criterion, and the bytes that clients sent."""
    ended = "Converged" if result.converged else "Not converged"
    n_bytes = int(result.history["uplink_bits"].sum()) // 8
    reached = result.history[criterion][-1]
    print(
        f"  {ended} after {plural(result.n_rounds, 'round')}, {n_bytes:,} bytes sent by clients"
        + ("" if isnan(reached) else f": {criterion.replace('_', '-')} {reached:.6g}")
    )


class Wording(NamedTuple):
    """Parts of a fit's warnings that depend on the model.

    Attributes
    ----------
    iteration : str
        Name of a step of size 1.
    left : str
        What was wrong with a step that had to be shortened.
    remedy : str
        Further advice about shortened steps.
    otherwise : list of str
        Further advice if ``tol`` was not reached.
    """

    iteration: str
    left: str
    remedy: str
    otherwise: list[str]


def warn_outcome(
    estimator: FederatedEstimator,
    problem: Problem,
    result: Run,
    schedule: Schedule,
    wording: Wording,
    *,
    is_worse: bool,
) -> None:
    """Warn of interruption, of steps that were shortened, and of lack of convergence.

    ``is_worse`` says that a fit ended worse than it started, so that more rounds would not help.
    """
    if result.stopped_by == "callback":
        return
    if result.stopped_by == "keyboard":
        warn(
            f"Interrupted from the keyboard after {plural(result.n_rounds, 'round')}: the "
            "estimator has the parameters reached by then. With warm_start=True, the next fit "
            "starts from them.",
            ConvergenceWarning,
        )
        return
    if not result.n_rounds:
        if estimator.max_iter != 0:
            _warn_of_no_round(estimator, result)
        return
    _warn_of_steps(estimator, result, schedule, wording)
    if not (result.converged or is_worse):
        _warn_of_no_convergence(estimator, problem, result, schedule, wording)


def _warn_of_no_round(estimator: FederatedEstimator, result: Run) -> None:
    """Warn that the initialisation took all epochs."""
    advice = "Increase max_epochs"
    if estimator.control_init == "field":
        advice += ", or set control_init='zeros', which takes no pass over the data"
    warn(
        f"No round was run: the initialisation took {result.history['epoch'][0]:.2g} of "
        f"max_epochs={estimator.max_epochs}. {advice}.",
        ConvergenceWarning,
    )


def _warn_of_steps(
    estimator: FederatedEstimator, result: Run, schedule: Schedule, wording: Wording
) -> None:
    """Warn if steps were still shortened at the end, or if noise has cut them drastically."""
    safeguarded = result.history["safeguarded"]
    last_tenth = safeguarded[-max(1, (len(safeguarded) - 1) // 10) :]
    limit = result.server.step_limit
    if last_tenth.any():
        # A limit below the schedule shows that automatic steps were shortened.
        shortened = not is_auto(estimator.step_size) or limit < schedule(1)
        last = _last_step(estimator, result, schedule)
        ways = against_noise(estimator, f"a smaller step_size (it was {last:.3g})")
        warn(
            f"Steps {wording.left} in {np.count_nonzero(last_tenth)} of the last "
            f"{plural(len(last_tenth), 'round')} and "
            f"{'were shortened' if shortened else 'did not update rare components'}. Use "
            f"{join_alternatives(ways)}"
            f"{wording.remedy}.",
            ConvergenceWarning,
        )
    elif is_auto(estimator.step_size):
        planned = schedule(result.server.round_index)
        if limit < _SMALL_SHARE * planned:
            ways = against_noise(estimator) or ["a smaller step_size"]
            warn(
                f"Step sizes were reduced from {planned:.2g} to at most {limit:.2g}, because "
                "rounds were too noisy for larger ones: the fit converges slowly, if at all. Use "
                f"{join_alternatives(ways)}{wording.remedy}.",
                ConvergenceWarning,
            )


def against_noise(estimator: FederatedEstimator, *steps: str) -> list[str]:
    """Advice that makes this estimator's rounds less noisy.

    Advice on control variates precedes ``steps``: if they diverge, no step size helps.
    """
    ways = []
    if _needs_controls(estimator) and _control_step_is_ill(estimator):
        ways.append("control_step='auto'")
    ways += steps
    if steps and not is_auto(estimator.step_size):
        ways.append("step_size='auto'")
    if estimator.batch_size is not None:
        ways.append("a larger batch_size")
        if estimator.solver != "vr_fedem":
            ways.append("solver='vr_fedem'")
        elif estimator.n_inner != 1:
            ways.append("a smaller n_inner")
    if estimator.participation < 1:
        ways.append("more participation")
    if estimator.omega > 0:
        ways.append("a smaller omega")
    return ways


def against_minibatch_noise(estimator: FederatedEstimator) -> list[str]:
    """Advice that reduces the noise of FedEM's minibatches; empty without them."""
    if estimator.batch_size is None or estimator.solver == "vr_fedem":
        return []
    return ["solver='vr_fedem'", "a larger batch_size"]


def _needs_controls(estimator: FederatedEstimator) -> bool:
    """Whether rounds are noisy without control variates, even if clients read all rows."""
    return estimator.omega > 0 or estimator.participation < 1


def _control_step_is_ill(estimator: FederatedEstimator) -> bool:
    """Whether α is 0, or so large that control variates may not converge."""
    step = estimator.control_step
    return not is_auto(step) and not 0 < step <= 1 / (1 + estimator.omega)


def _warn_of_no_convergence(
    estimator: FederatedEstimator,
    problem: Problem,
    result: Run,
    schedule: Schedule,
    wording: Wording,
) -> None:
    """Warn that ``tol`` was not reached, and say what is likely to help."""
    why, advice = _reason(estimator, problem, result, schedule, wording.iteration)
    if estimator.tol == 0:
        why = f" (no fit can reach that){why}"
    warn(
        f"Not converged to tol={estimator.tol} after {plural(result.n_rounds, 'round')}{why}. "
        f"{', or '.join([advice, *wording.otherwise])}.",
        ConvergenceWarning,
    )


def took_few_steps(result: Run) -> bool:
    """Whether the sum of a run's steps is so small that this explains lack of convergence."""
    steps = result.history["step_size"][1:]
    return bool(steps.sum() < min(_FEW_STEPS, len(steps)))


def took_few_rounds(problem: Problem, result: Run) -> bool:
    """Whether a run had fewer rounds than its stopping rule takes, however small the gains."""
    return result.n_rounds < fewest_rounds(problem)


def _reason(
    estimator: FederatedEstimator,
    problem: Problem,
    result: Run,
    schedule: Schedule,
    iteration: str,
) -> tuple[str, str]:
    """Likely reason for lack of convergence ("" if unclear), and advice."""
    less_noise = against_minibatch_noise(estimator)
    if took_few_steps(result):
        travelled = result.history["step_size"][1:].sum()
        if less_noise:  # it is unknown how many rounds the noise needs to vanish
            longer = [] if is_auto(estimator.step_size) else ["a larger step_size"]
            advice = f"Use {join_alternatives([*longer, *less_noise])}"
        else:
            advice = _how_to_travel_on(estimator, result, schedule, travelled)
        if estimator.tol == 0:
            advice += ", and increase tol, to see whether it converges"
        return f": the steps added up to only {travelled:.2g} {iteration}", advice
    if estimator.control_step == 0 and _needs_controls(estimator):
        why = (
            ": with control_step=0, the noise of compression and partial participation does not "
            "vanish"
        )
        return why, "Set control_step='auto'"
    if estimator.tol == 0:
        return "", "Increase tol, to see whether it converges"
    if less_noise:
        why = ": the noise of FedEM's minibatches vanishes slowly, if at all"
        return why, f"Use {join_alternatives(less_noise)}"
    rounds_left = estimator.max_iter is None or result.n_rounds < estimator.max_iter
    advice = f"Increase {'max_epochs' if rounds_left else 'max_iter'}"
    if not took_few_rounds(problem, result):
        return "", advice
    # "About", because more clients than expected may answer.
    fewest = f"about {fewest_rounds(problem)} rounds or more"
    absences = f" with participation={problem.participation:g}" if problem.participation < 1 else ""
    return f": such a fit takes {fewest}{absences}", advice


def _how_to_travel_on(
    estimator: FederatedEstimator, result: Run, schedule: Schedule, travelled: float
) -> str:
    """Advice that makes the sum of steps large enough: more rounds, or larger steps."""
    n_rounds = result.n_rounds
    first, last = result.history["epoch"][[0, -1]]
    missing, last_step = _ENOUGH_STEPS - travelled, _last_step(estimator, result, schedule)
    if last_step * (_MOST_ROUNDS - n_rounds) < missing:
        ways = against_noise(estimator) if is_auto(estimator.step_size) else []
        return (
            f"{_MOST_ROUNDS:,} rounds would not be enough with this step size: use "
            f"{join_alternatives(ways or ['a larger step_size'])}"
        )
    enough = _with_two_digits(n_rounds + ceil(missing / last_step))
    epochs = ceil(first + enough * (last - first) / n_rounds)
    bounds = [
        f"{name} to about {wanted}"
        for name, wanted in (("max_iter", enough), ("max_epochs", epochs))
        if getattr(estimator, name) is not None and getattr(estimator, name) < wanted
    ]
    step = "steps as long as the last" if callable(estimator.step_size) else "this step size"
    return f"With {step}, set {' and '.join(bounds)}"


def _last_step(estimator: FederatedEstimator, result: Run, schedule: Schedule) -> float:
    """Requested γ of the last round; if an automatic step was cut, that of the next round."""
    taken, server = result.history["step_size"][-1], result.server
    if taken > 0 and not result.history["safeguarded"][-1]:
        return taken
    asked = schedule(server.round_index)
    return max(taken, min(asked, server.step_limit)) if is_auto(estimator.step_size) else asked


def _with_two_digits(number: int) -> int:
    """Round up to two digits."""
    digit = 10 ** max(len(str(number)) - 2, 0)
    return -(-number // digit) * digit
