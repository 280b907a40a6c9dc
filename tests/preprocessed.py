"""Tables of five clients, and transformers to fit to them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler, Normalizer

from skfedem.preprocessing import FederatedPCA, FederatedStandardScaler, PerClient

LENGTHS = (40, 1, 33, 2, 64)
N_CLIENTS, N_SAMPLES, N_FEATURES = len(LENGTHS), sum(LENGTHS), 5
OWNERS = np.repeat(np.arange(N_CLIENTS), LENGTHS)
NAMES = np.array(["east", "mid", "north", "south", "west"])


def make_rows():
    """Correlated features of unlike scales; clients of unlike means."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(N_SAMPLES, N_FEATURES)) @ generator.normal(size=(N_FEATURES, 5))
    rows = (rows + generator.normal(size=(N_CLIENTS, N_FEATURES))[OWNERS]) * [1, 3, 0.2, 10, 1]
    rows.setflags(write=False)
    return rows


X = make_rows()
CLIENTS = np.split(X, np.cumsum(LENGTHS)[:-1])
FRAMES = [pd.DataFrame(rows, columns=list("abcde")) for rows in CLIENTS]
MIXED = np.random.default_rng(1).permutation(N_SAMPLES)

# Each kind of transformer, with parameters that keep it quick.
TRANSFORMERS = {
    "scaler": FederatedStandardScaler(),
    "pca": FederatedPCA(2),
    "whitening": FederatedPCA(0.9, whiten=True),
    "min-max": PerClient(MinMaxScaler()),
    "normalizer": PerClient(Normalizer()),
}
every_transformer = pytest.mark.parametrize("transformer", TRANSFORMERS.values(), ids=TRANSFORMERS)
