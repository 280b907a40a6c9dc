"""Exit with an error unless a deployed mixture is that of the simulation, bit for bit.

Arguments: the folder with the tables and states of clients a, b and c, and the fitted mixture. A
simulation has the same parameters, so clients must have joined with ``--seed 0``.
"""

import sys
from pathlib import Path

import joblib
import numpy as np
from numpy.testing import assert_array_equal
from sklearn.base import clone

from skfedem.deploy import Client

folder, result = map(Path, sys.argv[1:])
tables = {name: np.loadtxt(folder / f"{name}.csv", delimiter=",") for name in "abc"}
got = joblib.load(result)
want = clone(got).fit([*tables.values()])
fitted = [name for name in vars(want) if name.endswith("_") and not name.startswith("_")]
assert {"means_", "covariances_", "weights_", "client_drift_", "history_"} <= {*fitted}
for name in fitted:
    if name == "history_":
        assert got.history_.keys() == want.history_.keys()
        for column, values in want.history_.items():
            assert_array_equal(got.history_[column], values, err_msg=column)
    elif name != "client_ids_":  # names instead of numbers
        assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
for part in ("statistics", "control"):  # Ŝ and V
    one, other = (getattr(fit._memory.server, part) for fit in (got, want))
    assert other.any()
    assert_array_equal(one, other, err_msg=part)
for (name, table), control in zip(tables.items(), want._memory.controls, strict=True):
    client = Client(name, table, folder / f"{name}-state")
    assert client.over and control.any()
    assert_array_equal(client._held.controls[0], control, err_msg=f"V of {name}")
print(f"{want.n_iter_} rounds; {', '.join(fitted)}, Ŝ, V and V_i equal the simulation's")
