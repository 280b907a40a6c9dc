"""The commands, and the files that they read."""

import time
from contextlib import suppress
from threading import Thread

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from deployed import tables_of
from kills import free_port
from skfedem import FederatedGaussianMixture, FederatedMLPClassifier, preprocessing
from skfedem.deploy import Client, Policy
from skfedem.deploy.__main__ import logarithms, main, read_table, take_column
from skfedem.deploy._plan_file import function_of, read_plan, server_of
from skfedem.deploy._storage import locked
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
        (PLAN.format(port=0) + "\n[server.x]", "Expected options in .* roster, .*, got 'x'"),
        (PLAN.format(port=0) + "\n[certificate]", "Expected sections .*, got 'certificate'"),
        (
            PLAN.format(port=0) + '\n[certificates]\ncertificate = "a"\nprivate_key = "b"',
            "Expected entries in .certificates. .*, got no 'authority'",
        ),
        ("server = 3", r"Expected a section \[server\] in the plan, got 3"),
        (PLAN.format(port=99999), "Expected port to be an integer .*, got 99999"),
        (
            PLAN.format(port=0).replace("[keys]", "timeout = '1 h'\n[keys]"),
            "Expected timeout to be",
        ),
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


def take_part(arguments):
    """Run the command of a client, which exits with an error if the fit fails."""
    with suppress(SystemExit):
        main(arguments)


def fitted_by_commands(folder, estimator, options, files):
    """Fit by commands of a server, and of a client for each file; what the server stores."""
    port = free_port()
    plan = f"[estimator]\n{estimator}\n[server]\nroster = {[*files]}\nport = {port}\n{options}"
    (folder / "plan.toml").write_text(plan)
    threads = []
    for name, file in files.items():
        own = ["--name", name, "--data", f"{file}", "--state", f"{folder / name}-state"]
        arguments = ["join", *own, "--server", f"http://127.0.0.1:{port}", "--seed", "0"]
        threads.append(Thread(target=take_part, args=(arguments,), daemon=True))
        threads[-1].start()
    main(["serve", f"{folder}/plan.toml"])
    for thread in threads:
        thread.join(10)
    return joblib.load(folder / "server" / "result.joblib")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_of_a_network_and_what_each_client_gets(suffix, tmp_path):
    pd = pytest.importorskip("pandas")
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    tables, files = [], {}
    for name, rows in zip("ab", tables_of(2, d=3), strict=True):
        table = pd.DataFrame(rows[:, :2], columns=["age", "weight"])
        tables.append(table.assign(outcome=np.where(rows[:, 2] > 2, "yes", "no")))
        files[name] = tmp_path / f"{name}.{suffix}"
        if suffix == "csv":
            tables[-1].to_csv(files[name], index=False)
        else:
            tables[-1].to_parquet(files[name], index=False)
    estimator = """class = "FederatedMLPClassifier"
hidden_layer_sizes = []
batch_size = 4
max_iter = 3
random_state = 0"""
    got = fitted_by_commands(tmp_path, estimator, 'target = "outcome"', files)
    network = FederatedMLPClassifier([], batch_size=4, max_iter=3, random_state=0)
    X, y = [own[["age", "weight"]] for own in tables], [own["outcome"] for own in tables]
    network.fit(X, y)
    assert_array_equal(got.predict_proba(X)[0], network.predict_proba(X)[0])
    personal = pd.read_csv(tmp_path / "b-state" / "personal.csv")
    assert_array_equal(personal["P(yes)"], network.predict_proba(X, personal=True)[1][:, 1])
    assert_array_equal(personal["outcome"], network.predict(X, personal=True)[1])


@pytest.mark.parametrize(
    ("estimator", "attribute"),
    [("FederatedStandardScaler", "var_"), ("FederatedPCA", "components_")],
)
def test_estimators_without_rounds_are_served(estimator, attribute, tmp_path, capsys):
    tables, files = tables_of(2), {}
    for name, rows in zip("ab", tables, strict=True):
        files[name] = tmp_path / f"{name}.csv"
        np.savetxt(files[name], rows, delimiter=",", fmt="%.17g")
    got = fitted_by_commands(tmp_path, f'class = "{estimator}"', "", files)
    want = getattr(preprocessing, estimator)().fit(tables)
    assert_array_equal(getattr(got, attribute), getattr(want, attribute))
    assert "0 rounds; clients that lost their state: 0; result in " in capsys.readouterr().out


def test_a_client_whose_fit_has_failed_says_so(tmp_path, capsys):
    files = {"a": tmp_path / "a.csv"}
    np.savetxt(files["a"], np.zeros((20, 2)), delimiter=",")
    estimator = 'class = "FederatedGaussianMixture"\nn_components = 2\nreg_covar = 0.0'
    with pytest.raises(SystemExit, match="LinAlgError: .*positive definite"):
        fitted_by_commands(tmp_path, estimator, "", files)
    for _ in range(100):
        said = capsys.readouterr().out
        if "the fit has failed; the server says why" in said:
            return
        time.sleep(0.05)
    raise AssertionError(said)


def test_a_folder_is_used_by_one_process(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n" * 20)
    joined = ["join", "--name", "a", "--data", f"{tmp_path}/a.csv", "--state", f"{tmp_path}/own"]
    with locked(tmp_path / "own"), pytest.raises(SystemExit, match="OSError: Expected to be alone"):
        main([*joined, "--server", "http://127.0.0.1:1"])
    (tmp_path / "plan.toml").write_text(PLAN.format(port=0).partition("[keys]")[0])
    with locked(tmp_path / "run"), pytest.raises(SystemExit, match="OSError: Expected to be alone"):
        main(["serve", f"{tmp_path}/plan.toml"])


def test_some_of_the_certificates_are_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n" * 20)
    joined = ["join", "--name", "a", "--data", f"{tmp_path}/a.csv", "--certificate", "a.pem"]
    with pytest.raises(SystemExit, match="ValueError: Expected --certificate, --private-key and"):
        main([*joined, "--server", "https://127.0.0.1:1"])


def test_tables_with_and_without_names(tmp_path):
    pd = pytest.importorskip("pandas")
    path = tmp_path / "table.csv"
    path.write_text("1,2\n3,4.5\n")
    assert_array_equal(read_table(path), np.array([[1, 2], [3, 4.5]]))
    path.write_text("1\n2\n")
    assert read_table(path).shape == (2, 1)
    path.write_text(",2\n3, \n", encoding="utf-8-sig")
    assert_array_equal(read_table(path), np.array([[np.nan, 2], [3, np.nan]]))
    path.write_text("age,weight\n1,2\n3,4.5\n", encoding="utf-8-sig")
    table = read_table(path)
    assert isinstance(table, pd.DataFrame) and [*table.columns] == ["age", "weight"]


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("index", [True, False])
def test_numbers_of_columns_are_no_row(header, index, tmp_path):
    pd = pytest.importorskip("pandas")
    path, rows = tmp_path / "table.csv", np.array([[5.0, 1.5], [6.0, 2.5]])
    pd.DataFrame(rows).to_csv(path, header=header, index=index)
    if header:
        with pytest.raises(ValueError, match="names of columns or none, got the numbers 0, 1"):
            read_table(path)
    else:
        assert_array_equal(read_table(path)[:, -2:], rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.csv", b"1,2\n3,x\n"),
        ("a.csv", "Größe,b\n1,2\n".encode("latin-1")),
        ("a.csv", b"PAR1\x15\xa0"),
        ("a.parquet", b"1,2\n3,4\n"),
    ],
)
def test_files_that_are_no_tables(name, content, tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    kind = "Parquet" if name == "a.parquet" else "CSV"
    with pytest.raises(ValueError, match=f"Expected a {kind} file, got {tmp_path}/{name} "):
        read_table(tmp_path / name)


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
    server = server_of(read_plan(MATRIX), tmp_path)
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
