"""Transformers for the rows of several clients.

They accept the same data as the models: a list with one table for each client, one table with
``clients=``, or one table alone. For a list, they return a tuple. They can therefore precede a
federated model in a ``Pipeline``, which is then fitted to clients as a whole.
"""

from ._pca import FederatedPCA
from ._per_client import PerClient
from ._scaler import FederatedStandardScaler

__all__ = ["FederatedPCA", "FederatedStandardScaler", "PerClient"]
