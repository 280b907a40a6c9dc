"""Simulated federations, ways of splitting rows over clients, and readers of real data.

Two questions decide how hard a federation is: what the rows look like, and who holds which. The
splitters answer the second for rows that you have, the ``make_*`` simulators answer both, for
mixtures and for counts at sites by month. They are for experiments: in a deployment the rows are
where they are.

The caller's arrays are never changed; every client gets a copy of its rows.
"""

from ._ebird import read_ebird
from ._simulators import make_fedem_mixture, make_federated_mixture
from ._site_counts import make_site_counts
from ._splits import client_labels, split_clients

__all__ = [
    "client_labels",
    "make_fedem_mixture",
    "make_federated_mixture",
    "make_site_counts",
    "read_ebird",
    "split_clients",
]
