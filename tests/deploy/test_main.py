"""The commands, and the files that they read."""

import tomllib
from threading import Thread

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import tables_of
from kills import free_port
from skfedem import FederatedGaussianMixture
from skfedem.deploy import Client, Policy
from skfedem.deploy.__main__ import logarithms, main, read_csv, take_column
from skfedem.deploy._plan_file import function_of, server_of
from skfedem.pharmacokinetics import one_compartment_oral

PLAN = """
[estimator]
class = "FederatedGaussianMixture"
n_components = 2
omega = 1.0
max_iter = 5
random_state = 0

[server]
roster = ["a", "b"]
state = "run"
port = {port}
columns = ["age", "weight"]

[keys]
a = "a.key"
b = "b.key"
"""


def visits_of(rows):
    """Weights of rows."""
    return 1 + np.arange(len(rows)) % 3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_plan_is_served_to_tables_in_files(tmp_path, capsys):
    pd = pytest.importorskip("pandas")
    port, tables = free_port(), tables_of(2)
    (tmp_path / "plan.toml").write_text(PLAN.format(port=port))
    commands = []
    for name, rows in zip("ab", tables, strict=True):
        table = pd.DataFrame(rows, columns=["age", "weight"]).assign(visits=visits_of(rows))
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        (tmp_path / f"{name}.key").write_bytes(name.encode() * 32)
        files = {"data": f"{name}.csv", "state": f"{name}-state", "key": f"{name}.key"}
        options = [own for key, file in files.items() for own in (f"--{key}", f"{tmp_path}/{file}")]
        address = ["--server", f"http://127.0.0.1:{port}", "--seed", "0"]
        address += ["--sample-weight", "visits"]
        commands.append(["join", "--name", name, *options, *address])
    threads = [Thread(target=main, args=(own,), daemon=True) for own in commands]
    for thread in threads:
        thread.start()
    main(["serve", f"{tmp_path}/plan.toml"])
    for thread in threads:
        thread.join(10)
    got = joblib.load(tmp_path / "run" / "result.joblib")
    mixture = FederatedGaussianMixture(2, omega=1.0, max_iter=5, random_state=0)
    weights = [*map(visits_of, tables)]
    assert_array_equal(got.means_, mixture.fit(tables, sample_weight=weights).means_)
    assert got.feature_names_in_.tolist() == ["age", "weight"]
    said = capsys.readouterr().out
    for line in (
        f"FederatedGaussianMixture for a, b at http://127.0.0.1:{port}",
        f"a: 15 rows of {tmp_path}/a.csv; log in {tmp_path}/a-state/log.txt",
        "the fit has ended",
        f"5 rounds; clients that lost their state: 0; result in {tmp_path}/run/result.joblib",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("[estimator", "TOMLDecodeError: Expected ']'"),
        (
            '[estimator]\nclass = "FederatedGaussianMixture"',
            "ValueError: Expected a class in .* a ros",
        ),
        (
            '[estimator]\nclass = "Popen"\n[server]\nroster = ["a"]',
            "Expected one of FederatedGaussianMixture, .* in the plan, got 'Popen'",
        ),
        (PLAN.format(port=0) + "\n[server.x]", "Expected options roster, .*, got 'x'"),
        (PLAN.format(port=0).replace("omega", "omgea"), "TypeError: .* argument 'omgea'"),
    ],
)
def test_a_wrong_plan_is_an_error_of_one_line(plan, said, tmp_path):
    (tmp_path / "plan.toml").write_text(plan)
    for name in "ab":
        (tmp_path / f"{name}.key").write_bytes(b"0" * 32)
    with pytest.raises(SystemExit, match=said):
        main(["serve", f"{tmp_path}/plan.toml"])


def test_a_missing_file_is_an_error_of_one_line(tmp_path):
    options = [
        "join",
        "--name",
        "a",
        "--data",
        f"{tmp_path}/a.csv",
        "--server",
        "http://127.0.0.1:1",
    ]
    with pytest.raises(SystemExit, match="FileNotFoundError: .*a.csv"):
        main(options)


def test_tables_with_and_without_names(tmp_path):
    pd = pytest.importorskip("pandas")
    path = tmp_path / "table.csv"
    path.write_text("1,2\n3,4.5\n")
    assert_array_equal(read_csv(path), np.array([[1, 2], [3, 4.5]]))
    path.write_text("1\n2\n")
    assert read_csv(path).shape == (2, 1)
    path.write_text("age,weight\n1,2\n3,4.5\n")
    table = read_csv(path)
    assert isinstance(table, pd.DataFrame) and [*table.columns] == ["age", "weight"]


def test_columns_of_weights_and_efforts_leave_the_table():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"x": [1.0, 2.0], "weight": [1, 3], "hours": [0.5, 2.0]})
    assert take_column(table, "weight").tolist() == [1, 3]
    assert_array_equal(logarithms(take_column(table, "hours"), "hours"), np.log([0.5, 2.0]))
    assert [*table.columns] == ["x"]
    for other in (table, np.zeros((2, 2))):
        with pytest.raises(ValueError, match="Expected a table with a column 'weight'"):
            take_column(other, "weight")
    for efforts in ([0.0, 1.0], [np.nan, 1.0], [np.inf, 1.0], ["a", "b"]):
        with pytest.raises(ValueError, match="Expected positive numbers in column 'hours'"):
            logarithms(np.array(efforts), "hours")


MATRIX = """
[estimator]
class = "FederatedMatrixImputer"
family = "poisson"
random_state = 0
max_iter = 3

[server]
roster = ["ann"]
shape = [["marsh", "pond", "wood"], [2022, 2023]]
row_covariates = {altitude = [3, 10.5, 120], owner = ["state", "state", "private"]}
row_groups = ["wet", "wet", "dry"]
"""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_plan_has_covariates_and_groups(tmp_path):
    pytest.importorskip("pandas")
    server = server_of(tomllib.loads(MATRIX), tmp_path)
    n = [*range(6)]
    table = {"site": ["marsh", "pond", "wood"] * 2, "time": [2022] * 3 + [2023] * 3, "count": n}
    client = Client("ann", table, tmp_path / "ann", policy=Policy(min_rows=1))
    while not server.done:
        assert server.receive("ann", client.answer(server.request("ann"))).used
        server.close()
    fitted = server.result()
    assert fitted.row_covariate_names_.tolist() == ["altitude", "owner=state"]
    assert fitted.row_groups_.tolist() == ["dry", "wet"]
    server.stop()


def test_functions_are_named_by_their_module():
    assert function_of("skfedem.pharmacokinetics:one_compartment_oral") is one_compartment_oral


@pytest.mark.parametrize("text", ["os", "nosuch:f", "os:nosuch", "os:sep", ":f"])
def test_what_names_no_function(text):
    with pytest.raises(ValueError, match="Expected a function as module:name, got"):
        function_of(text)
