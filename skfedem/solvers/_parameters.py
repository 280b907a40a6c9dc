"""Parameters of the federated algorithms, which estimators inherit with their constructor."""

from dataclasses import dataclass
from typing import Literal

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

# Annotations are no strings here: ``typing.get_type_hints`` of a constructor finds them.


@dataclass(eq=False, repr=False, kw_only=True)
class FederatedParameters:
    """Parameters that solvers, their stopping rules and their warnings read."""

    solver: SolverName = "fedem"
    step_size: StepSize = "auto"
    control_step: float | Literal["auto"] = "auto"
    control_init: ControlInit = "field"
    batch_size: int | None = None
    replacement: bool = True
    n_inner: int | Literal["auto"] = "auto"
    compressor: CompressorName | Compressor | None = "dithering"
    omega: float = 0.0
    participation: Participation = 1.0
    client_weights: ClientWeights = "n_samples"
    max_iter: int | None = 100
    max_epochs: float | None = None
    tol: float = 1e-3
    eval_every: int | Literal["auto"] | None = "auto"
    random_state: Seed = None
    n_jobs: int | None = None
    verbose: int = 0


@dataclass(eq=False, repr=False, kw_only=True)
class ResumableParameters(FederatedParameters):
    """The same, for a fit that is saved in checkpoints."""

    checkpoint: FilePath | None = None
    checkpoint_every: int = 100
