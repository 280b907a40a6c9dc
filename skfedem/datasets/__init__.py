"""Simulated federations, functions that split rows over clients, and a reader of real data.

The difficulty of a federated problem depends on the distribution of the rows, and on how they are
split over the clients. `client_labels` and `split_clients` split rows that you have; the ``make_*``
functions simulate rows and split, for mixtures and for counts by site and month. They are meant for
experiments: in a deployment, the clients hold their rows already.

Input arrays are never modified; every client gets a copy of its rows.
"""

from ._counts import read_counts
from ._ebird import read_ebird
from ._simulators import make_fedem_mixture, make_federated_mixture
from ._site_counts import make_site_counts
from ._splits import client_labels, split_clients
from ._theophylline import load_theophylline

__all__ = [
    "client_labels",
    "load_theophylline",
    "make_fedem_mixture",
    "make_federated_mixture",
    "make_site_counts",
    "read_counts",
    "read_ebird",
    "split_clients",
]
