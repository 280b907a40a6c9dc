"""Priors over the clients' own parameters, for hard EM: one file per prior.

What a prior is, and how to write another, is described in ``Prior``.
"""

from ._base import Local, Prior, Shared, Update
from ._gaussian import GaussianPrior
from ._laplace import LaplacePrior
from ._mixture import MixturePrior
from ._spike_slab import SpikeSlabPrior

__all__ = [
    "GaussianPrior",
    "LaplacePrior",
    "Local",
    "MixturePrior",
    "Prior",
    "Shared",
    "SpikeSlabPrior",
    "Update",
]
