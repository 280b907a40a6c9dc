"""Calls of a mixture's ``partial_fit``: their start, and the history.

The first call starts from a fit of its rows, later ones from the memory. The rounds are run by
``solvers._stream``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._data.clients import ClientData
from .._estimators.fit import is_better
from .._federation import Federation
from .._history import FLOAT_BITS, History
from .._parallel import Workers
from .._parameters import is_auto
from .._random import seeds_of_runs
from .._typing import FloatArray
from ..clients.local import LocalClients
from ..models._base import Start
from ..models.mixture.domain import in_domain, shrunk_into_domain
from ..models.mixture.gaussian_mixture import GaussianMixtureModel
from ..models.mixture.initial_parameters import InitialParameters, check_distance_of_rows
from ..models.mixture.initialization import (
    has_same_domain,
    n_moments_told,
    standardise,
    start_run,
    with_axes_of,
    with_parameters,
)
from ..models.mixture.parameters import Parameters
from ..models.mixture.stream_moments import for_stream, with_moment_of, with_variance_along_new_axes
from ..models.mixture.units import Units
from ..solvers._fitted_state import FittedState, fitted_state, of_stream
from ..solvers._from_parameters import federated_problem, step_schedule
from ..solvers._loop import Options, run
from ..solvers._state import RunState, initial_state
from ..solvers._step_size import automatic_step_size
from ..solvers._stream import problem_of_some, stream
from ..solvers.base import Clients, NoStates, Problem
from ..solvers.fedem import FEDEM
from .outcome import fitted_attributes

# The automatic α of a stream is this share of 1 / (1 + ω). With a share of 1, V_i would be the
# noise of the rows of one call, and that of a client which never returns would push Ŝ for ever.
# With 0.1, streams of shuffled rows end as near the optimum as without control variates, or nearer.
# With constant steps and large batches of unlike clients, they end half as far from it.
_LEARNING = 0.1
# Minimum number of rows, per number in the means, for a fit of the first call's rows. With half as
# many rows, EM fits their noise, and streams of noisy digits ended lower than without the fit.
_ROWS_OF_A_MEAN = 4
# This share of ``tol`` ends the fit of the first call, since EM is slow on plateaus, and a few more
# rounds on these rows save the stream many.
_PATIENCE = 0.1


class Beginning(NamedTuple):
    """Start of the rounds of a call.

    Attributes
    ----------
    problem : Problem
        Problem for the rows of the call.
    clients : LocalClients
        Those of the call, with what they sent and received before the rounds.
    memory : FittedState
        State of the server and the known clients, without new clients.
    history : dict of ndarray
        History of the earlier calls; for the first call, of its start.
    n_counted : int
        Number of these messages that the history has already counted.
    """

    problem: Problem
    clients: LocalClients
    memory: FittedState
    history: dict[str, NDArray[Any]]
    n_counted: int


def run_call(
    settings: Any,
    data: ClientData,
    initial: InitialParameters,
    memory: FittedState | None,
    history: dict[str, NDArray[Any]] | None,
    criteria: list[float] | None,
) -> dict[str, Any]:
    """Fitted attributes after a call, from the memory, history and likelihoods of the last one."""
    federation, ids, _ = data
    with Workers(settings.n_jobs) as workers:
        if memory is None or history is None:
            beginning = first_call(settings, ids, federation, initial, workers)
        else:
            beginning = next_call(settings, ids, federation, initial, memory, workers, history)
        after, columns, unseen = read_call(settings, beginning, ids)
    # Kept apart from the history, whose last row may already hold an evaluation made by fit.
    # If no client answered the first call, there is only that of its start.
    known = [*(criteria or []), *unseen] or columns["log_likelihood"][:1].tolist()
    new_ids = after.ids[0 if memory is None else len(memory.ids) :].copy()
    return {
        **fitted_attributes(after, columns, known, settings),
        "new_client_ids_": new_ids,
        "setup_messages_": beginning.clients.messages,
    }


def first_call(
    settings: Any,
    ids: NDArray[Any],
    federation: Federation,
    initial: InitialParameters,
    workers: Workers,
) -> Beginning:
    """Start of the first call: a fit of its rows, in units that are based on them."""
    clients = LocalClients(federation, workers)
    model = standardise(settings, clients, initial, settings.batch_size)
    # The first seed is that of the rounds, as in later calls.
    *seeds, seed_of_fits = seeds_of_runs(settings.random_state, settings.n_init + 1)
    problem = _problem_of_call(settings, model, federation, seeds[0])
    seeded = problem._replace(task=problem.task._replace(seed=seed_of_fits))
    start = _best_start(settings, seeded, initial, seeds, clients)
    model, start = for_stream(model, start)
    problem = problem._replace(task=problem.task._replace(model=model))
    # Initial fields would soon be out of date, for good if a client does not return. The start is
    # evaluated here if messages are compressed or clients may be absent, else by the first round.
    whole = problem._replace(task=problem.task._replace(batch_size=None))
    clients.join(FEDEM, whole.task)
    first = initial_state(whole, start, clients, control_init="zeros", watched=True)
    first = first._replace(clients=clients.save())
    history = {**first.history.as_dict(), "weights": np.array(first.trace)}
    memory = fitted_state(ids, federation.totals, problem, first)
    # The rounds will read these rows again. If the start counted all of them, it would be forgotten
    # more slowly if few clients answer.
    memory = memory._replace(totals=np.zeros(len(ids)), n_samples=_n_expected(problem))
    return Beginning(problem, clients, memory, history, len(clients.messages))


def _problem_of_call(
    settings: Any,
    model: GaussianMixtureModel,
    federation: Federation,
    seed: int,
) -> Problem:
    """Problem for the rows of a call, with the α of a stream if it is automatic."""
    problem = federated_problem(settings, model, federation.sizes, seed)
    problem = problem_of_some(problem, federation.sizes)
    if is_auto(settings.control_step):
        step = _LEARNING * problem.task.control_step
        problem = problem._replace(task=problem.task._replace(control_step=step))
    return problem


def _n_expected(problem: Problem) -> float:
    """Number of the call's rows that its rounds are expected to read."""
    return problem.inclusion_probability * problem.sizes.n_samples


def _best_start(
    settings: Any,
    problem: Problem,
    initial: InitialParameters,
    seeds: list[int],
    clients: Clients,
) -> Start:
    """Best of the starts for the seeds, each fitted to all rows of the call."""
    model: Any = problem.model  # a GaussianMixtureModel
    task = problem.task._replace(control_step=1 / (1 + problem.omega), batch_size=None)
    problem = problem._replace(task=task, participation=1.0, persistent_noise=model.is_random)
    max_iter = _rounds_of_fit(settings, problem, initial)
    best, largest, n_common = None, np.nan, len(clients.messages)
    for seed in seeds:
        earlier = clients.bits(n_common)  # of earlier starts
        start = start_run(model, clients, settings.init_params, initial, seed)
        start = start.after(*np.subtract(clients.bits(), earlier).tolist())
        if max_iter == 0 and len(seeds) == 1:
            return start  # saves a pass over all rows for the likelihood
        fitted = _fitted(settings, problem, start, max_iter, clients)
        likelihood = fitted.criteria("log_likelihood")[-1]
        if best is None or is_better(likelihood, largest):
            best, largest = _start_at_the_end(start, fitted), likelihood
    assert best is not None  # there is a seed
    return best


def _rounds_of_fit(settings: Any, problem: Problem, initial: InitialParameters) -> int | None:
    """Maximum number of rounds to fit a start; 0 if it is not fitted."""
    model: Any = problem.model  # a GaussianMixtureModel
    n_numbers = model.n_components * model.n_features
    has_enough = problem.sizes.n_samples >= _ROWS_OF_A_MEAN * n_numbers
    return settings.max_iter if has_enough and initial.means is None else 0


def _fitted(
    settings: Any,
    problem: Problem,
    start: Start,
    max_iter: int | None,
    clients: Clients,
) -> RunState:
    """Run of FedEM from a start: EM, possibly with compressed messages."""
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
        clients.join(FEDEM, problem.task)
        fitted = run(problem, start, options, clients, report=lambda row: None)
    except np.linalg.LinAlgError:
        # Without regularisation, steps of 1 may lead to a singular covariance. A stream has shorter
        # steps.
        if settings.reg_covar > 0 or max_iter == 0:
            raise
        return _fitted(settings, problem, start, 0, clients)
    if fitted.stopped_by:
        raise KeyboardInterrupt
    return fitted


def _start_at_the_end(start: Start, fitted: RunState) -> Start:
    """Start of a stream at the end of the run that was fitted from another start."""
    server, history = fitted.server, fitted.history
    return start._replace(
        statistics=server.statistics,
        parameters=server.parameters,
        uplink_bits=int(history["uplink_bits"].sum()),
        downlink_bits=int(history["downlink_bits"].sum()),
        has_field=server.has_field,
    )


def next_call(
    settings: Any,
    ids: NDArray[Any],
    federation: Federation,
    initial: InitialParameters,
    memory: FittedState,
    workers: Workers,
    history: dict[str, NDArray[Any]],
) -> Beginning:
    """Start of a later call: the end of an earlier call or of a fit."""
    clients = LocalClients(federation, workers)
    check_distance_of_rows(memory.model, initial, clients, ids)
    memory, units_before = _in_new_domain(settings, initial, memory), memory.model.units
    model = with_axes_of(memory.model, clients)
    model = with_parameters(model, settings.reg_covar, initial.fixed_covariance)
    model, server = for_stream(model, memory.server)
    memory = memory._replace(model=model, server=server)
    (seed,) = seeds_of_runs(settings.random_state, 1)
    problem = _problem_of_call(settings, model, federation, seed)
    if model.units is not units_before:
        memory = _along_new_axes(memory, units_before, _n_expected(problem))
    if not of_stream(memory):
        # A stream starts with V_i = 0: control variates of a fit belong to other rows, and would
        # take tens of calls to be forgotten.
        totals: Any = memory.row_weight * memory.totals
        controls = np.zeros((len(memory.ids), model.n_statistics))
        memory = memory._replace(controls=controls, states=NoStates(), totals=totals)
    return Beginning(problem, clients, memory, history, 0)


def _in_new_domain(settings: Any, initial: InitialParameters, memory: FittedState) -> FittedState:
    """State whose Ŝ and average are in the domain of T with the current parameters; θ = T(Ŝ).

    A stream with more regularisation, or with a known covariance, may have left this domain.
    """
    model = with_parameters(memory.model, settings.reg_covar, initial.fixed_covariance)
    if has_same_domain(model, memory.model):
        return memory
    before, server, average = memory.model, memory.server, memory.average
    statistics = _with_domain(model, before, server.statistics, server.parameters)
    # In the first round, clients get θ; if nobody takes part in it, θ is the result.
    server = server._replace(statistics=statistics, parameters=model.maximization(statistics))
    if average is not None:
        average = _with_domain(model, before, average, before.maximization(average))
    return memory._replace(server=server, average=average)


def _with_domain(
    model: GaussianMixtureModel,
    before: GaussianMixtureModel,
    statistics: FloatArray,
    parameters: Parameters,
) -> FloatArray:
    """Statistics in the domain of T of a model, from those of another one and their parameters."""
    if before.in_stream and before.fixed_cholesky is not None and model.fixed_cholesky is None:
        statistics = with_moment_of(model, statistics, parameters)
    if in_domain(model, statistics):
        return statistics
    return shrunk_into_domain(model, statistics, parameters)


def _along_new_axes(memory: FittedState, units_before: Units, n_new: float) -> FittedState:
    """State in which ``n_new`` rows vary along the axes that are new in its units."""
    model, server, average = memory.model, memory.server, memory.average
    share = n_new / (memory.n_samples + n_new)
    statistics = with_variance_along_new_axes(model, server.statistics, units_before, share)
    parameters = model.maximization(statistics)
    server = server._replace(statistics=statistics, parameters=parameters, has_field=True)
    if average is not None:
        average = with_variance_along_new_axes(model, average, units_before, share)
    return memory._replace(server=server, average=average)


def read_call(
    settings: Any, beginning: Beginning, ids: NDArray[Any]
) -> tuple[FittedState, dict[str, NDArray[Any]], list[float]]:
    """Run the rounds of a call.

    Returns the memory, in which new clients follow the known ones, the history, and the
    log-likelihood of each round's rows given the parameters before the round.
    """
    problem, clients, n_known = beginning.problem, beginning.clients, len(beginning.memory.ids)
    schedule = None if is_auto(settings.step_size) else step_schedule(settings, problem)
    memory, rounds, trace = stream(
        problem,
        clients,
        beginning.memory,
        ids,
        schedule,
        settings.client_weights,
        weighted=clients.federation.sample_weight is not None,
    )
    # Bits that were sent before the rounds are counted in the first round, with sums of weights.
    sent, received = clients.bits(beginning.n_counted)
    row = rounds.row(0)
    uplink_bits, downlink_bits = row["uplink_bits"] + sent, row["downlink_bits"] + received
    downlink_bits += FLOAT_BITS * n_moments_told(memory.model) * (len(memory.ids) - n_known)
    rounds.update(0, uplink_bits=uplink_bits, downlink_bits=downlink_bits)
    unseen = [value for value in rounds.column("log_likelihood") if not np.isnan(value)]
    return memory, _appended(beginning.history, rounds, trace), unseen


def _appended(
    old: dict[str, NDArray[Any]], history: History, trace: list[NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """History of a stream, extended by the rounds of a call, with the trace as ``weights``.

    The log-likelihood of a round's rows belongs to the parameters before the round, so it is stored
    in the row of the previous round.
    """
    new = {**history.as_dict(), "weights": np.array(trace)}
    new["epoch"] += old["epoch"][-1]
    new["round"] = old["round"][-1] + 1 + np.arange(len(trace))
    unseen = new["log_likelihood"]
    new["log_likelihood"] = np.append(unseen[1:], np.nan)
    # Ignore columns that users have added.
    columns = {name: np.concatenate([old[name], new[name]]) for name in old if name in new}
    last = len(old["round"]) - 1
    if np.isnan(old["log_likelihood"][last]):
        columns["log_likelihood"][last] = unseen[0]
    return columns
