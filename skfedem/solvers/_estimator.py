"""Estimators as the solvers know them: by the parameters of the federated algorithms."""

from __future__ import annotations

from typing import Literal, Protocol

from .._typing import (
    ClientWeights,
    CompressorName,
    ControlInit,
    FilePath,
    Participation,
    Seed,
    SolverName,
    StepSize,
)
from ..compression import Compressor


class FederatedEstimator(Protocol):
    """Estimator that is fitted by a solver, with parameters of these names."""

    solver: SolverName
    step_size: StepSize
    control_step: float | Literal["auto"]
    control_init: ControlInit
    batch_size: int | None
    replacement: bool
    n_inner: int | Literal["auto"]
    compressor: CompressorName | Compressor | None
    omega: float
    participation: Participation
    client_weights: ClientWeights
    max_iter: int | None
    max_epochs: float | None
    tol: float
    eval_every: int | Literal["auto"] | None
    random_state: Seed
    n_jobs: int | None
    verbose: int


class ResumableEstimator(FederatedEstimator, Protocol):
    """Estimator whose fit can also be saved in checkpoints, and resumed."""

    checkpoint: FilePath | None
    checkpoint_every: int
