import csv
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skfedem.datasets import load_theophylline

DATA = Path(os.environ.get("SKFEDEM_DATA", Path(__file__).parents[3] / "shared" / "data"))
TABLE = DATA / "theo_sd.csv"


def test_twelve_subjects_were_measured_eleven_times():
    data = load_theophylline().data
    assert list(data) == ["id", "time", "dv", "dose", "weight"]
    assert_array_equal(np.unique(data["id"], return_counts=True)[1], [11] * 12)
    assert_array_equal(data["time"] == 0, np.arange(132) % 11 == 0)
    # The doses were 320 mg, by weight, for all but one subject.
    assert_allclose(np.median(data["dose"]), 320, rtol=2e-3)


@pytest.mark.skipif(not TABLE.exists(), reason="needs the table of another publisher")
def test_the_measurements_are_those_that_others_publish():
    data = load_theophylline().data
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    doses = {row["ID"]: float(row["AMT"]) for row in rows if row["EVID"] != "0"}
    rows = [row for row in rows if row["EVID"] == "0"]
    for ours, theirs in (("id", "ID"), ("time", "TIME"), ("dv", "DV"), ("weight", "WT")):
        assert_array_equal(data[ours], [float(row[theirs]) for row in rows])
    assert_allclose(data["dose"], [doses[row["ID"]] for row in rows], rtol=1e-12)


def test_each_call_gives_data_of_its_own():
    data = load_theophylline().data
    data["dv"] = 0.0
    assert max(load_theophylline().data["dv"]) == 11.4


def test_without_pandas_the_columns_come_in_a_dict(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    data = load_theophylline().data
    assert type(data) is dict
    assert data["dv"].shape == (132,)
