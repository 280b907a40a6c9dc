"""Input of population models: what is accepted, and what errors say."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from skfedem import FederatedNonlinearMixedEffects
from skfedem._mixed_effects.design import design_of
from skfedem._mixed_effects.records import read_clients
from skfedem.pharmacokinetics import one_compartment_bolus

TABLE = {
    "id": np.array(["b", "a", "b", "c", "a", "c"]),
    "time": np.array([1.0, 1.0, 2.0, 1.0, 3.0, 4.0]),
    "dose": np.full(6, 100.0),
    "weight": np.array([70.0, 60.0, 70.0, 80.0, 60.0, 80.0]),
    "dv": np.array([4.0, 5.0, 3.0, 4.5, 2.0, 1.5]),
    "site": np.array(["x", "y", "x", "y", "y", "y"]),
}
START = {"V": 20.0, "CL": 5.0}


def bolus(**parameters):
    return FederatedNonlinearMixedEffects(one_compartment_bolus, START, **parameters)


def design(**parameters):
    return design_of(bolus(covariates={"CL": ["weight"]}, **parameters))


def changed(name, row, value):
    column = TABLE[name].astype(object)
    column[row] = value
    return {**TABLE, name: column}


@pytest.mark.parametrize("kind", [dict, pd.DataFrame, pl.DataFrame])
def test_tables_of_all_kinds_are_read(kind):
    data = read_clients(kind(TABLE), "site", design())
    assert data.ids.tolist() == ["x", "y"]
    assert data.offsets.tolist() == [0, 1, 3]
    subjects = data.subjects
    assert subjects.response[:, 0].tolist() == [4.0, 3.0]
    assert subjects.regressors["time"][:, 0].tolist() == [1.0, 2.0]
    assert sorted(subjects.covariates[1].tolist()) == [60.0, 70.0, 80.0]
    assert subjects.observed.all()


def test_the_order_of_subjects_does_not_matter():
    one = read_clients(TABLE, None, design())
    order = [3, 5, 1, 4, 0, 2]
    other = read_clients({name: values[order] for name, values in TABLE.items()}, None, design())
    assert_array_equal(one.subjects.response, other.subjects.response)
    assert_array_equal(one.subjects.covariates, other.subjects.covariates)


def test_short_subjects_are_padded_with_their_last_observation():
    table = changed("dv", 2, None)
    data = read_clients(table, None, design())
    assert data.n_missing == 1
    short = np.flatnonzero(data.subjects.observed.sum(axis=0) == 1)
    assert data.subjects.regressors["time"][:, short[0]].tolist() == [1.0, 1.0]
    assert data.subjects.response[1, short[0]] == 0.0


def test_labels_of_any_type_are_told_apart():
    labels = [3, "3.5", ("a", 1), pd.Timestamp("2020-01-01"), 2.5, None][:5]
    column = np.empty(6, dtype=object)
    column[:] = [*labels, labels[2]]
    data = read_clients({**TABLE, "id": column, "weight": np.full(6, 70.0)}, None, design())
    assert data.subjects.n_subjects == 5
    assert len(set(data.keys.tolist())) == 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (changed("time", 3, None), "column 'time', got nan for subject 'c' of client 'y'"),
        (changed("weight", 0, np.inf), "column 'weight', got inf for subject 'b' of client 'x'"),
        (changed("dv", 4, np.inf), "column 'dv', got inf for subject 'a' of client 'y'"),
        (changed("dose", 1, "much"), "Expected numbers in column 'dose' .* got 'much'"),
        (
            changed("weight", 4, 61.0),
            "one value of covariate 'weight' for subject 'a' of client 'y', got 60 and 61",
        ),
        (changed("id", 1, None), "missing one in column 'id' at row 0 .* of client 'y'"),
        (
            changed("site", 2, "y"),
            "rows of subject 'b' in the tables of client 'x' and of client 'y'",
        ),
        ({**TABLE, "dv": np.full(6, np.nan)}, "subject with a response .* of client 'x', got none"),
        (
            {name: TABLE[name] for name in ("id", "time", "dose", "dv", "site")},
            r"a column 'weight' \(covariates\) in the table of client 'x'",
        ),
        ({**TABLE, "dv": [1.0]}, "Expected columns of one length"),
    ],
)
def test_errors_name_client_subject_and_column(table, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_clients(table, "site", design())


def test_tables_are_named_by_their_place_in_a_list():
    whole = pd.DataFrame(TABLE)
    with pytest.raises(ValueError, match="subject 'b' in the tables of client 0 and of client 1"):
        read_clients([whole, whole], None, design())
    with pytest.raises(TypeError, match="DataFrame or a dict of columns as the table of client 1"):
        read_clients([whole, np.zeros((3, 3))], None, design())
    with pytest.raises(ValueError, match="at least one client, got an empty list"):
        read_clients([], None, design())
    with pytest.raises(ValueError, match="clients=None with a list of tables"):
        read_clients([whole], "site", design())
    with pytest.raises(ValueError, match="a column 'hospital'"):
        read_clients(whole, "hospital", design())


def test_responses_need_a_logarithm_where_one_is_taken():
    with pytest.raises(ValueError, match="responses > 0 .* got 0 in column 'dv' for subject 'a'"):
        read_clients(changed("dv", 4, 0.0), None, design(error="exponential"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "oral"}, "Expected model to be a function"),
        ({"start": {}}, "Expected start to be a dict"),
        ({"start": {"V": "x", "CL": 1.0}}, r"Expected start\['V'\]"),
        ({"start": {"V": -1.0, "CL": 1.0}}, "between 0 and inf, as transform='log' requires"),
        ({"transform": {"ka": "log"}}, "keys of transform to be parameters of start"),
        ({"covariates": {"ka": ["weight"]}}, "keys of covariates to be parameters of start"),
        ({"covariates": ["weight"]}, "covariates to be None or a dict"),
        ({"covariates": {"CL": ["weight", "weight"]}}, "a list of different names"),
        ({"covariance_type": "tied"}, "covariance_type to be one of 'diag', 'full'"),
        ({"error": "additive"}, "Expected error to be one of"),
        ({"regressors": 3}, "Expected regressors to be a list"),
        ({"subject": 0}, "Expected subject to be the name of a column"),
        ({"n_nodes": 0}, "Expected n_nodes"),
        ({"omega": -1.0}, "Expected omega"),
        (
            {"start": {"V": 20.0}},
            r"\['V'\] and the regressors .* reads 'CL' as well. Add it to start",
        ),
        ({"regressors": ["time"]}, r"regressors \['time'\], got one that reads 'dose'"),
        ({"covariates": {"CL": ["dose"]}}, "vary and are linearly independent, got"),
        ({"start": {"V": 20.0, "CL": 5.0, "a": 1.0, "b": 1.0, "c": 1.0}}, "at most 4 parameters"),
    ],
)
def test_bad_parameters_are_refused_and_nothing_is_fitted(parameters, message):
    model = bolus().set_params(**parameters)
    with pytest.raises((TypeError, ValueError), match=message):
        model.fit(TABLE)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_predictions_that_the_error_does_not_allow_are_named():
    table = {**TABLE, "dose": np.where(TABLE["id"] == "c", 0.0, 100.0)}
    for error in ("proportional", "exponential"):
        with pytest.raises(ValueError, match=r"got 0 at {'time': 1.0, 'dose': 0.0} .* client 'y'"):
            bolus(error=error).fit(table, clients="site")
    odd = bolus().set_params(
        model=lambda parameters, regressors: np.log(-parameters["V"] * regressors["time"])
    )
    with pytest.raises(ValueError, match="got nan at"):
        odd.fit(TABLE)


def test_the_callers_table_is_not_changed():
    table = {name: values.copy() for name, values in TABLE.items()}
    for values in table.values():
        values.setflags(write=False)
    bolus(max_iter=0).fit(table).predict(table, level="individual")
    for name, values in TABLE.items():
        assert_array_equal(table[name], values)
