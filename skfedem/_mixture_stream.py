"""Calls of a mixture's ``partial_fit``: where one begins, and what it leaves.

It begins in a fit of the first call's rows, or in what is known. The rounds themselves are those of
any stream, ``solvers._stream``. ``settings`` is the estimator, for its parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._mixture_runs import is_better
from ._parameters import is_auto
from ._random import seeds_of_runs
from .models.mixture_domain import brought_into_domain, in_domain
from .models.mixture_given import check_distance_of_rows
from .models.mixture_start import (
    bits_of_units,
    has_same_domain,
    standardise,
    start_run,
    with_axes_of,
    with_parameters,
)
from .models.mixture_stream import for_stream, with_variance_along_new_axes
from .solvers import fedem
from .solvers._base import Problem
from .solvers._loop import Options, run
from .solvers._memory import Memory, memory_of, of_stream
from .solvers._options import federated_problem, step_schedule
from .solvers._run_state import initialise
from .solvers._stream import stream
from .solvers.step_size import automatic_step_size

# Automatic α of a stream is this share of 1 / (1 + ω). With all of it, V_i would be the noise of
# the rows of one call, and that of a client which does not come back would push Ŝ on for ever. With
# a tenth, shuffled rows end as near the optimum as without memory, or nearer, and constant steps
# with large batches of unlike clients half as far from it.
_LEARNING = 0.1
# The first call's rows are fitted if it has as many of them for each number in the means. With half
# as many, EM fits their noise, and streams of noisy digits ended lower than without it.
_ROWS_OF_A_MEAN = 4
# EM rests on plateaus. A few more rounds on these rows spare the stream a long way.
_PATIENCE = 0.1


class Beginning(NamedTuple):
    """Where the rounds of a call begin.

    Attributes
    ----------
    problem : Problem
        That of the rows of the call.
    memory : Memory
        What server and clients know, without new clients.
    history : dict of ndarray
        That of the calls before; for a first call, its start.
    bits : int
        Bits that clients have sent before the rounds and that the history lacks; they got as many.
    """

    problem: Problem
    memory: Memory
    history: dict
    bits: int


def first_call(settings, ids, federation, given, workers):
    """Beginning in units of the call's rows, and where a fit of them ends."""
    model, bits = standardise(settings, federation, given)
    # That of the rounds is the first, as in all calls.
    *seeds, seed_of_fits = seeds_of_runs(settings.random_state, settings.n_init + 1)
    problem = _problem_of_call(settings, model, federation, seeds[0])
    start = _best_start(settings, problem._replace(seed=seed_of_fits), given, seeds, workers)
    start = start.after(bits, bits)
    model, statistics = for_stream(model, start.statistics)
    start = start._replace(statistics=statistics)
    problem = problem._replace(model=model, batch_size=None)
    # Fields at the start would soon be out of date, and stay so for clients that do not come back.
    first = initialise(fedem, problem, start, workers, control_init="zeros", watched=True)
    history = {**first.history.as_dict(), "weights": np.array(first.trace)}
    memory = memory_of(ids, problem, first.progress.server, first.states)
    # The rounds have yet to read these rows. For the start, which has, count as many as a round is
    # expected to read: with all of them, it would be forgotten later where few clients answer.
    n_expected = problem.participation * federation.n_samples
    memory = memory._replace(totals=np.zeros(len(ids)), n_samples=n_expected)
    return Beginning(problem._replace(batch_size=settings.batch_size), memory, history, 0)


def _problem_of_call(settings, model, federation, seed):
    """Problem of the rows of a call. Automatic control variates learn from many calls."""
    problem = federated_problem(settings, model, federation, seed)
    if is_auto(settings.control_step):
        problem = problem._replace(control_step=_LEARNING * problem.control_step)
    return problem


def _best_start(settings, problem, given, seeds, workers):
    """Of a start for each seed, fitted to all rows of the call, the one of largest likelihood."""
    model, federation = problem.model, problem.federation
    problem = problem._replace(
        participation=1.0,
        control_step=1 / (1 + problem.omega),
        batch_size=None,
        lasting_noise=model.is_random,
    )
    max_iter = _rounds_of_fit(settings, problem, given)
    best, largest = None, np.nan
    for seed in seeds:
        start = start_run(model, federation, settings.init_params, given, seed)
        if max_iter == 0 and len(seeds) == 1:
            return start  # a likelihood would be a pass over all rows
        fitted = _fitted(settings, problem, start, max_iter, workers)
        if best is None or is_better(fitted.criteria[-1], largest):
            best, largest = _start_at_the_end(start, fitted), fitted.criteria[-1]
    return best


def _rounds_of_fit(settings, problem, given):
    """Largest number of rounds in which a start is fitted, 0 where it stays as it is."""
    n_numbers = settings.n_components * problem.model.n_features
    has_enough = problem.federation.n_samples >= _ROWS_OF_A_MEAN * n_numbers
    return settings.max_iter if has_enough and given.means is None else 0


def _fitted(settings, problem, start, max_iter, workers):
    """Run of FedEM from a start: EM, but for compressed messages."""
    options = Options(
        step_size=automatic_step_size(problem),
        cautious=True,
        control_init="zeros",
        max_iter=max_iter,
        max_epochs=settings.max_epochs,
        tol=_PATIENCE * settings.tol,
        eval_every=None,
    )
    try:
        fitted = run(fedem, problem, start, options, workers, report=lambda row: None)
    except ValueError:
        # Without regularisation, steps of 1 may end at a singular covariance; those of a stream are
        # shorter.
        if settings.reg_covar > 0 or max_iter == 0:
            raise
        return _fitted(settings, problem, start, 0, workers)
    if fitted.stopped_by:
        raise KeyboardInterrupt
    return fitted


def _start_at_the_end(start, fitted):
    """Start of a stream where a run that began with another start has ended."""
    server, history = fitted.server, fitted.history
    return start._replace(
        statistics=server.statistics,
        parameters=server.parameters,
        uplink_bits=int(history["uplink_bits"].sum()),
        downlink_bits=int(history["downlink_bits"].sum()),
        has_field=server.has_field,
    )


def next_call(settings, ids, federation, given, memory, history):
    """Beginning where an earlier call, or a fit, has ended."""
    check_distance_of_rows(memory.model, given, federation, ids)
    memory = _in_new_domain(settings, given, memory)
    model, bits = with_axes_of(memory.model, federation)
    model = with_parameters(model, settings.reg_covar, given.fixed_covariance)
    model, statistics = for_stream(model, memory.server.statistics)
    (seed,) = seeds_of_runs(settings.random_state, 1)
    problem = _problem_of_call(settings, model, federation, seed)
    server, average = memory.server._replace(statistics=statistics), memory.average
    units_before = memory.model.units
    if model.units is not units_before:
        n_expected = problem.participation * federation.n_samples  # to be read, as the others were
        share = n_expected / (memory.n_samples + n_expected)
        statistics = with_variance_along_new_axes(model, statistics, units_before, share)
        parameters = model.maximization(statistics)
        server = server._replace(statistics=statistics, parameters=parameters, has_field=True)
        if average is not None:
            average = with_variance_along_new_axes(model, average, units_before, share)
    memory = memory._replace(model=model, server=server, average=average)
    if not of_stream(memory):
        # A stream begins with V_i = 0: it would take tens of calls to forget those of a fit, which
        # are of other rows.
        states = fedem.ClientStates(np.zeros(memory.states.controls.shape))
        memory = memory._replace(states=states, totals=memory.row_weight * memory.totals)
    return Beginning(problem, memory, history, bits)


def _in_new_domain(settings, given, memory):
    """Memory whose Ŝ, and its average, are in the domain of T with the current parameters.

    With more regularisation or a known covariance, it may have moved to where T is now undefined.
    """
    model = with_parameters(memory.model, settings.reg_covar, given.fixed_covariance)
    if has_same_domain(model, memory.model):
        return memory
    server, average = memory.server, memory.average
    if not in_domain(model, server.statistics):
        statistics = brought_into_domain(model, server.statistics, server.parameters)
        server = server._replace(statistics=statistics)
    if average is not None and not in_domain(model, average):
        average = brought_into_domain(model, average, memory.model.maximization(average))
    return memory._replace(server=server, average=average)


def read_call(settings, beginning, ids, workers):
    """Run the rounds of a call.

    Returns the memory, of known clients and then of those that were new in this call, the history,
    and log-likelihoods of the rows of each round, under the parameters that had not seen them.
    """
    problem, n_known = beginning.problem, len(beginning.memory.ids)
    schedule = None if is_auto(settings.step_size) else step_schedule(settings, problem)
    memory, rounds, trace = stream(
        problem, beginning.memory, ids, schedule, workers, settings.client_weights
    )
    # What was sent before the rounds counts with the first of them.
    bits, row = beginning.bits, rounds.row(0)
    uplink_bits, downlink_bits = row["uplink_bits"] + bits, row["downlink_bits"] + bits
    downlink_bits += bits_of_units(memory.model, len(memory.ids) - n_known)
    rounds.update(0, uplink_bits=uplink_bits, downlink_bits=downlink_bits)
    unseen = [value for value in rounds.column("log_likelihood") if value == value]
    return memory, _appended(beginning.history, rounds, trace), unseen


def _appended(old, history, trace):
    """History of a stream, with ``weights`` for the trace, and with the rounds of one more call.

    The log-likelihood of a round's rows is in the row of the parameters that had not seen them.
    """
    new = {**history.as_dict(), "weights": np.array(trace)}
    new["epoch"] += old["epoch"][-1]
    new["round"] = old["round"][-1] + 1 + np.arange(len(trace))
    unseen = new["log_likelihood"]
    new["log_likelihood"] = np.append(unseen[1:], np.nan)
    # Users may have added columns of their own.
    columns = {name: np.concatenate([old[name], new[name]]) for name in old if name in new}
    last = len(old["round"]) - 1
    if np.isnan(old["log_likelihood"][last]):
        columns["log_likelihood"][last] = unseen[0]
    return columns
