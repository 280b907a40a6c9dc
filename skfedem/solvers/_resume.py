"""Saving of a run in checkpoints, and resuming from them."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from math import isclose, isnan
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _checkpoint
from .._error_messages import repr_of
from .._federation import little_endian
from .._history import History
from .._parameters import check_number
from .._typing import FilePath, Schedule
from .._warnings import warn
from ..models._base import Start
from ._parameters import ResumableParameters
from ._state import RunState, initial_state
from .base import Clients, Problem, ServerState

# Parameters that may differ between a run and its continuation: they determine its length, how it
# is computed, and where the seed comes from, but not the seed itself.
_FREE = frozenset(
    (
        "checkpoint",
        "checkpoint_every",
        "max_iter",
        "max_epochs",
        "n_jobs",
        "random_state",
        "verbose",
        "warm_start",
    )
)
# Relative differences of steps that may be due to rounding.
_ROUNDING = 1e-9
# Memory address in a repr, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Checkpoint(NamedTuple):
    """Where to save a run, and where to resume from.

    Attributes
    ----------
    identity : dict
        Description of the run: estimator, parameters, seed and data.
    path : path-like or None
        Where to save; None to save nothing.
    every : int
        Number of rounds between saves; the last round is always saved.
    resume_from : path-like or None
        Where to resume from; None for a new run.
    step_function : callable or None
        The user's ``step_size``, if it is a function of the round.
    """

    identity: _checkpoint.Identity
    path: Path | None
    every: int
    resume_from: FilePath | None
    step_function: Schedule | None

    def after_round(self, state: RunState, clients: Clients, over: bool) -> None:
        """Save the state after a round if this is due; warn if it is not possible."""
        if self.path is None or not (over or state.server.round_index % self.every == 0):
            return
        try:
            _checkpoint.save(self.path, self.identity, _as_saved(state, clients))
        except OSError as error:  # a full disk must not end a fit of many hours
            warn(
                f"Round {state.n_rounds} could not be saved at {self.path} ({error}). "
                "The fit continues, and the file is unchanged. Free disk space, or check that the "
                "folder still exists.",
                UserWarning,
            )

    def resumed(self, problem: Problem, start: Start, clients: Clients) -> RunState | None:
        """Saved state, which the clients resume, too; None for a new run."""
        if self.resume_from is None:
            return None
        # Template of the types: the state of a new run, made without reading any rows.
        new = initial_state(problem, start._replace(kept=None), clients, control_init="zeros")
        saved = _checkpoint.load(self.resume_from, self.identity, _as_saved(new, clients))
        parameters = problem.model.maximization(saved["server"]["statistics"])
        server = ServerState(parameters=parameters, **saved["server"])
        first_round = server.round_index - (len(saved["history"]["round"]) - 1)
        if self.step_function:
            _check_steps(self.resume_from, self.step_function, saved["history"], first_round)
        clients.restore(saved["clients"])
        return new._replace(
            server=server,
            stopping=saved["stopping"],
            history=History.of_dict(saved["history"]),
            trace=list(saved["trace"]),
            criteria_before=saved["criteria_before"].tolist(),
            n_expectations=saved["n_expectations"],
            first_round=first_round,
            converged=saved["converged"],
            initial_criterion=saved["initial_criterion"],
        )


def checkpoint_of(
    settings: ResumableParameters,
    estimator: str,
    problem: Problem,
    clients: Clients,
    schedule: Schedule,
    resume_from: FilePath | None,
) -> Checkpoint | None:
    """Checkpoint of a fit with these parameters; None if nothing is saved or resumed.

    ``estimator`` is the name of its class.
    """
    path = settings.checkpoint
    if path is None and resume_from is None:
        return None
    identity = {
        "estimator": estimator,
        # Parameters precede the data, whose digest may depend on them: errors name the first
        # difference.
        **{name: _described(v) for name, v in vars(settings).items() if name not in _FREE},
        "seed": problem.task.seed,
        "n_clients": problem.sizes.n_clients,
        "n_samples": problem.sizes.n_samples,
        "lengths of clients": _digest(problem.sizes.lengths.astype(np.int64)),
        "data": clients.fingerprint(),
        "model": type(problem.model).__name__,
        "constants of the model": _digest(problem.model.constants()),
        # Distinguishes operators that are only described by their class.
        "omega of the compressor": problem.omega,
    }
    return Checkpoint(
        identity,
        None if path is None else Path(path).absolute(),  # in case the working directory changes
        settings.checkpoint_every,
        resume_from,
        schedule if callable(getattr(settings, "step_size", None)) else None,
    )


def seed_of(settings: ResumableParameters, seed: int, resume_from: FilePath | None) -> int:
    """Seed of the run to resume if ``random_state`` is None, otherwise ``seed``."""
    if resume_from is None or settings.random_state is not None:
        return seed
    return _checkpoint.identity_of(resume_from).get("seed", seed)


def check_checkpoint_parameters(settings: ResumableParameters) -> None:
    """Raise TypeError or ValueError for invalid parameters of checkpoints."""
    if settings.checkpoint is not None:
        _check_path(settings.checkpoint)
    hint = "Use 1 to save after every round."
    check_number("checkpoint_every", settings.checkpoint_every, kind=Integral, low=1, hint=hint)


def _check_path(path: FilePath) -> None:
    if not (isinstance(path, str) or hasattr(path, "__fspath__")):
        raise TypeError(f"Expected checkpoint to be a path or None, got {repr_of(path)}.")
    try:
        if os.path.exists(Path(path)) and not os.path.isfile(Path(path)):
            raise FileExistsError("it is a folder, device or pipe")
        _checkpoint.try_out(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected checkpoint to be a file that can be written, got {path!r} ({error}). Give "
            "the path of a file in a folder that exists."
        ) from error


def _as_saved(state: RunState, clients: Clients) -> dict[str, Any]:
    """State of a run as it is saved, without the parameters, which follow from the statistics."""
    server = state.server._asdict()
    del server["parameters"]
    return {
        "server": server,
        "clients": clients.save(),
        "stopping": state.stopping,
        "history": state.history.as_dict(),
        "trace": np.array(state.trace),
        "criteria_before": np.array(state.criteria_before),
        "n_expectations": state.n_expectations,
        "converged": state.converged,
        "initial_criterion": state.initial_criterion,
    }


def _check_steps(
    path: FilePath,
    step_function: Schedule,
    history: dict[str, NDArray[Any]],
    first_round: int,
) -> None:
    """Raise if a step function does not reproduce the saved steps."""
    found, given, steps = {}, {}, history["step_size"].tolist()
    # Rounds in which the safeguard cut the step are skipped: the history has the shortened step.
    for row in (np.flatnonzero(history["safeguarded"][1:] == 0) + 1).tolist():
        name, step = f"step_size({first_round + row})", step_function(first_round + row)
        # The last digit of exp and similar functions differs between releases of NumPy.
        is_same = isclose(step, steps[row], rel_tol=_ROUNDING)
        found[name], given[name] = steps[row], steps[row] if is_same else step
    _checkpoint.check_identity(path, found, given)


def _described(value: Any) -> bool | float | str | None:
    """Parameter as JSON: arrays as digests, objects as names without memory addresses."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and isnan(value):
        return "nan"  # because NaN is not equal to itself
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) or hasattr(value, "__array__"):
        with suppress(TypeError, ValueError):  # not numbers, such as a list of names in a subclass
            return _digest(np.asarray(value, dtype=np.float64))
    return _named(value)


def _named(value: object) -> str:
    """Name of a function; repr of an object, or its class if it has the default repr."""
    if hasattr(value, "__qualname__"):
        return value.__qualname__
    if repr(value) == object.__repr__(value):
        return type(value).__qualname__
    return _ADDRESS.sub("", repr(value))


def _digest(array: NDArray[Any]) -> str:
    return f"{array.shape} {hashlib.sha256(little_endian(array).tobytes()).hexdigest()[:16]}"
