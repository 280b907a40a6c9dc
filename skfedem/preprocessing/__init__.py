"""Transformers that are fitted to, and applied to, the rows of several clients.

They take what the models take: a list with one table for each client, one table with ``clients=``,
or one table alone. For a list they return a tuple. So they can precede a federated model in a
``Pipeline``, and the whole pipeline is fitted to clients.
"""

from ._pca import FederatedPCA
from ._per_client import PerClient
from ._scaler import FederatedStandardScaler

__all__ = ["FederatedPCA", "FederatedStandardScaler", "PerClient"]
