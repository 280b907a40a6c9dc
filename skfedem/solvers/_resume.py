"""Saving a run on the way, and going on from where it was saved."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from math import isclose
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import _checkpoint
from .._federation import fingerprint, little_endian
from .._history import History
from .._messages import short, warn
from .._parameters import check_number, parameters_of
from ._base import ServerState
from ._run_state import RunState, initialise

# What may differ between a run and its continuation: how long it lasts, how it is computed, and
# where the seed comes from, but not the seed itself.
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
# Differences of steps, relative to their size, that may be rounding.
_ROUNDING = 1e-9
# An address, which differs between two processes that run the same script.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Checkpoint(NamedTuple):
    """Where a run is saved, and where it goes on from.

    Attributes
    ----------
    identity : dict
        Description of the run: estimator, parameters, seed and data.
    path : path-like or None
        Where to save; None for nowhere.
    every : int
        Rounds between two savings; the last round is saved as well.
    resume_from : path-like or None
        Where to go on from; None for the beginning.
    step_function : callable or None
        The user's function from the round to γ, if ``step_size`` is one.
    """

    identity: dict
    path: object
    every: int
    resume_from: object
    step_function: Callable | None

    def after_round(self, run_state, over):
        """Save what stands after a round, if it is time; warn where that cannot be done now."""
        if self.path is None or not (
            over or run_state.progress.server.round_index % self.every == 0
        ):
            return
        try:
            _checkpoint.save(self.path, self.identity, _as_state(run_state))
        except OSError as error:  # what hours have reached is not lost for a disk that is full
            warn(
                f"Round {run_state.progress.n_rounds} could not be saved at {self.path} ({error}). "
                "The fit goes on, and the file is as it was before. Make room for it, or see "
                "whether its folder is still there.",
                UserWarning,
            )

    def resumed(self, solver, problem, start):
        """What was saved, as ``RunState``; None if the run begins here."""
        if self.resume_from is None:
            return None
        # The types are those of a run that begins: without fields or a watcher, it reads no rows.
        begun = initialise(solver, problem, start._replace(kept=None), None, control_init="zeros")
        state = _checkpoint.load(self.resume_from, self.identity, _as_state(begun))
        parameters = problem.model.maximization(state["server"]["statistics"])
        server = ServerState(parameters=parameters, **state["server"])
        first_round = server.round_index - (len(state["history"]["round"]) - 1)
        if self.step_function:
            _check_steps(self.resume_from, self.step_function, state["history"], first_round)
        return RunState(
            progress=begun.progress._replace(
                server=server,
                n_expectations=state["n_expectations"],
                converged=state["converged"],
                first_round=first_round,
            ),
            states=state["states"],
            history=History.of_dict(state["history"]),
            trace=list(state["trace"]),
            stopping=state["stopping"],
            criteria=state["criteria"].tolist(),
            begun=state["begun"],
        )


def checkpoint_of(estimator, problem, schedule, resume_from):
    """Checkpoint of a fit with the estimator's parameters; None if nothing is saved or resumed."""
    if estimator.checkpoint is None and resume_from is None:
        return None
    federation = problem.federation
    parameters = {
        name: _described(value)
        for name, value in parameters_of(estimator).items()
        if name not in _FREE
    }
    identity = {
        "estimator": type(estimator).__name__,
        # Before the data, whose digests some of them change: the first difference is the one named.
        **parameters,
        "seed": problem.seed,
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "lengths of clients": _digest(federation.lengths.astype(np.int64)),
        "weights of rows": None
        if federation.sample_weight is None
        else _digest(federation.sample_weight.values),
        "data": fingerprint(federation),
        "model": type(problem.model).__name__,
        "constants of the model": _digest(problem.model.constants()),
        # Tells apart operators of which only the class is known.
        "omega of the compressor": problem.omega,
    }
    path = estimator.checkpoint
    return Checkpoint(
        identity,
        None if path is None else Path(path).absolute(),  # wherever the process goes later
        estimator.checkpoint_every,
        resume_from,
        schedule if callable(estimator.step_size) else None,
    )


def seed_of(estimator, seed, resume_from):
    """Seed of the run to resume where the estimator names none, else the given one."""
    if resume_from is None or estimator.random_state is not None:
        return seed
    return _checkpoint.identity_of(resume_from).get("seed", seed)


def check_checkpoint_parameters(estimator):
    """Raise TypeError or ValueError for invalid parameters of checkpoints."""
    if estimator.checkpoint is not None:
        _check_path(estimator.checkpoint)
    hint = "1 saves after every round."
    check_number("checkpoint_every", estimator.checkpoint_every, kind=Integral, low=1, hint=hint)


def _check_path(path):
    if not (isinstance(path, str) or hasattr(path, "__fspath__")):
        raise TypeError(f"Expected checkpoint to be a path or None, got {short(path)}.")
    # These functions of os.path return False where those of Path may raise.
    if not os.path.isdir(Path(path).parent):
        raise ValueError(
            f"Expected checkpoint to be in a folder that exists, got {path!r}. Make the folder."
        )
    if os.path.exists(Path(path)) and not os.path.isfile(Path(path)):
        raise ValueError(
            f"Expected checkpoint to be a file, got the folder, device or pipe {path!r}. Name a "
            "file."
        )
    try:
        _checkpoint.try_out(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected checkpoint to be a file that can be written, got {path!r} ({error}). Use "
            "a shorter name, or a folder that can be written to."
        ) from error


def _as_state(run_state):
    """What is written of a run. The parameters follow from the statistics."""
    server = run_state.progress.server._asdict()
    del server["parameters"]
    return {
        "server": server,
        "n_expectations": run_state.progress.n_expectations,
        "converged": run_state.progress.converged,
        "states": run_state.states,
        "history": run_state.history.as_dict(),
        "trace": np.array(run_state.trace),
        "stopping": run_state.stopping,
        "criteria": np.array(run_state.criteria),
        "begun": run_state.begun,
    }


def _check_steps(path, step_function, history, first_round):
    """Raise if a function of the round is not the one that gave the saved steps."""
    found, given, steps = {}, {}, history["step_size"].tolist()
    # Rounds in which the safeguard cut the step are skipped: the history has what was left of it.
    for row in (np.flatnonzero(history["safeguarded"][1:] == 0) + 1).tolist():
        name, step = f"step_size({first_round + row})", step_function(first_round + row)
        # Exponentials and the like differ in the last digit from one release of NumPy to the next.
        is_same = isclose(step, steps[row], rel_tol=_ROUNDING)
        found[name], given[name] = steps[row], steps[row] if is_same else step
    _checkpoint.check_identity(path, found, given)


def _described(value):
    """A parameter as JSON has it: arrays by their digests, objects by names without addresses."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value != value:
        return "nan"  # which is not equal to itself
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) or hasattr(value, "__array__"):
        with suppress(TypeError, ValueError):  # a subclass may have a list of names
            return _digest(np.asarray(value, dtype=np.float64))
    return _named(value)


def _named(value):
    """Name of a function; of an object its repr, or its class where that is all a repr tells."""
    if hasattr(value, "__qualname__"):
        return value.__qualname__
    if repr(value) == object.__repr__(value):
        return type(value).__qualname__
    return _ADDRESS.sub("", repr(value))


def _digest(array):
    return f"{array.shape} {hashlib.sha256(little_endian(array).tobytes()).hexdigest()[:16]}"
