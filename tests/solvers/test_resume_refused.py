"""What a saved run goes on with: other data, parameters and files are refused."""

import functools
import pickle
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from checkpoints import CASES, ROUGH, assert_same_fit, make_clients, matrices
from mixtures import Forwarding, WithKeywords
from skfedem import FederatedGaussianMixture, FederatedMatrixImputer, _checkpoint
from skfedem.compression import RandK
from skfedem.solvers._resume import _FREE

pytestmark = pytest.mark.filterwarnings("ignore:Not converged")


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.npz"
    estimator = FederatedMatrixImputer(
        2, family="poisson", checkpoint=path, max_iter=5, random_state=0, **ROUGH
    )
    return estimator.fit(matrices()), path


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"rank": 1}, "rank=2 where this fit has rank=1"),
        ({"random_state": 1}, "Expected the random_state .* or None to use the seed in the file"),
        ({"omega": 2.0}, "omega=1.0 where this fit has omega=2.0"),
        ({"step_size": lambda k: 0.1}, "step_size='auto'"),
    ],
)
def test_other_parameters_are_refused(run, parameters, says):
    estimator, path = run
    other = clone(estimator).set_params(**parameters)
    with pytest.raises(ValueError, match=says):
        other.fit(matrices(), resume_from=path)
    assert not hasattr(other, "n_iter_")


def test_numbers_of_numpy_are_numbers(run):
    estimator, path = run
    other = clone(estimator).set_params(rank=np.int64(2), replacement=np.True_)
    assert other.fit(matrices(), resume_from=path).n_iter_ == 5


class Labelled(FederatedGaussianMixture):
    def __init__(self, names=("a", "b"), *, checkpoint=None, max_iter=2, random_state=0):
        super().__init__(2, checkpoint=checkpoint, max_iter=max_iter, random_state=random_state)
        self.names = names


def test_a_subclass_may_have_words_for_a_parameter(tmp_path):
    path = tmp_path / "run.npz"
    labelled = Labelled(checkpoint=path).fit(make_clients())
    again = clone(labelled).fit(make_clients(), resume_from=path)
    assert_same_fit(again, labelled)
    with pytest.raises(ValueError, match="names="):
        Labelled(["a", "c"]).fit(make_clients(), resume_from=path)


class Half(FederatedGaussianMixture):
    """Whoever edits this class between two runs changes the parameters of both."""

    share = 0.5

    def __init__(self, *, checkpoint=None, max_iter=5):
        super().__init__(
            2, participation=self.share, checkpoint=checkpoint, max_iter=max_iter, random_state=0
        )


def test_parameters_that_a_subclass_hides_are_compared(tmp_path, monkeypatch):
    data, path = make_clients(), tmp_path / "run.npz"
    given = {"n_components": 2, "random_state": 0, "max_iter": 5, "omega": 1.0}
    WithKeywords(checkpoint=path, **given).fit(data)
    again = WithKeywords(**{**given, "max_iter": 8}).fit(data, resume_from=path)
    assert_same_fit(again, WithKeywords(**{**given, "max_iter": 8}).fit(data))
    with pytest.raises(ValueError, match="covariance_type='full' where this fit has .*'tied'"):
        WithKeywords(**given, covariance_type="tied").fit(data, resume_from=path)
    Half(checkpoint=path).fit(data)
    monkeypatch.setattr(Half, "share", 0.9)
    with pytest.raises(ValueError, match="participation=0.5 where this fit has .*=0.9"):
        Half(max_iter=8).fit(data, resume_from=path)


def test_what_may_differ_is_what_fit_says():
    """That ``tol`` and ``eval_every`` change no round does not let them differ."""
    for estimator in (FederatedGaussianMixture, FederatedMatrixImputer):
        _, said = estimator.fit.__doc__.split("resume_from :")
        said = said.split("Returns")[0]
        named = {name for name in estimator().get_params() if f"``{name}``" in said}
        assert named == _FREE


def test_other_data_and_other_estimators_are_refused(run):
    estimator, path = run
    with pytest.raises(ValueError, match=r"of other data|n_samples"):
        clone(estimator).fit(matrices(seed=1), resume_from=path)
    with pytest.raises(ValueError, match="n_clients=5 where this fit has n_clients=4"):
        clone(estimator).fit(matrices()[:4], resume_from=path)
    with pytest.raises(ValueError, match="estimator='FederatedMatrixImputer'"):
        FederatedGaussianMixture(random_state=0).fit(make_clients(5), resume_from=path)


def test_damaged_files_are_refused(run, tmp_path):
    estimator, path = run
    content = path.read_bytes()
    damaged = tmp_path / "damaged{}{run}.npz"  # no format of a message
    for n_bytes in (0, 1, 30, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:n_bytes])
        with pytest.raises(ValueError, match=r"truncated or damaged.*previous"):
            clone(estimator).fit(matrices(), resume_from=damaged)
    # Anywhere: the archive's directory says how members are compressed and whether encrypted.
    directory = content.index(b"PK\x01\x02")
    last = range(len(content) - 100, len(content))
    for place in [*range(60, len(content), 997), *range(directory, directory + 46), *last]:
        changed = bytearray(content)
        changed[place] ^= 0xFF
        damaged.write_bytes(changed)
        with pytest.raises(ValueError, match=r"truncated or damaged.*previous"):
            clone(estimator).fit(matrices(), resume_from=damaged)


def test_a_checkpoint_without_its_digest_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {"of": 1}, {"large": np.arange(1000)})
    assert _checkpoint.identity_of(path) == {"of": 1}
    with np.load(path) as file:
        arrays = dict(file)
    content = path.read_bytes()
    for other in (content[:-64], content + b"0", content[:70] + content):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"truncated or damaged.*before it.*previous"):
            _checkpoint.identity_of(path)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="truncated or damaged"):
        _checkpoint.identity_of(path)


def test_what_is_no_checkpoint_is_refused(run, tmp_path):
    estimator, path = run
    foreign = tmp_path / "foreign.npz"
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(ValueError, match="got another file"):
        clone(estimator).fit(matrices(), resume_from=tmp_path / "array.npy")
    for arrays in (
        {"a": np.arange(3)},
        {"header": np.arange(3)},
        {"header": np.array("a text, no JSON")},
    ):
        np.savez(foreign, **arrays)
        with pytest.raises(ValueError, match="got another file"):
            clone(estimator).fit(matrices(), resume_from=foreign)
    for content in (b"round,loss\n", pickle.dumps(estimator)):
        foreign.write_bytes(content)
        with pytest.raises(ValueError, match="got another file") as caught:
            clone(estimator).fit(matrices(), resume_from=foreign)
        assert "pickle" not in str(caught.value)
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("header", "a text, no array")
    with pytest.raises(ValueError, match="got another file"):
        clone(estimator).fit(matrices(), resume_from=foreign)
    for name in ("none.npz", "x" * 300):
        with pytest.raises(FileNotFoundError, match="no such file"):
            clone(estimator).fit(matrices(), resume_from=tmp_path / name)
    identity, arrays = _checkpoint._read(path)
    ours = _checkpoint._VERSION
    for version in (ours - 1, ours + 1):
        monkey = pytest.MonkeyPatch()
        monkey.setattr(_checkpoint, "_VERSION", version)
        _checkpoint.save(foreign, identity, {"a": np.arange(3)})
        monkey.undo()
        with pytest.raises(ValueError, match=f"version {ours} at .*, got version {version}"):
            clone(estimator).fit(matrices(), resume_from=foreign)
    assert "state.server.control" in arrays


@pytest.mark.parametrize(
    ("parameters", "error", "says"),
    [
        ({"checkpoint": 3}, TypeError, "checkpoint to be a path"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every to be an integer >= 1, got 0"),
        ({"checkpoint": "run.npz", "n_init": 2}, ValueError, "n_init=1 with a checkpoint"),
    ],
)
def test_bad_parameters(parameters, error, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=says):
        FederatedGaussianMixture(**parameters).fit(make_clients())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["imputer", "mixture"])
def test_other_data_of_the_same_sizes_are_refused(kind, tmp_path):
    path = tmp_path / "run.npz"
    estimator, make = CASES[kind]
    estimator = clone(estimator).set_params(checkpoint=path, max_iter=3, random_state=0)
    estimator.fit(make())
    others = [[table[::-1] for table in make()]]
    if kind == "imputer":
        others += [[100 * table for table in make()]]
    else:
        # The rows of two clients between the first and the last, which leaves the pooled moments.
        swapped = [table.copy() for table in make()]
        swapped[0][1:10], swapped[1][1:10] = make()[1][1:10], make()[0][1:10]
        others += [swapped]
    for other in others:
        with pytest.raises(ValueError, match="Expected a checkpoint of this run .* other data"):
            clone(estimator).fit(other, resume_from=path)
    if kind == "imputer":
        with pytest.raises(ValueError, match="Expected a checkpoint of this run"):
            clone(estimator).fit([table.T for table in make()], resume_from=path)


def test_other_shares_of_the_same_cells_are_refused(tmp_path):
    counts = np.random.default_rng(0).poisson(3.0, size=(6, 4)).astype(float)
    imputer = FederatedMatrixImputer(1, client_weights="uniform", max_iter=2, random_state=0)

    def share(n_rows):
        """The first client has the first rows, the second the others."""
        own = np.arange(6)[:, None] < n_rows
        return [np.where(own, counts, np.nan), np.where(own, np.nan, counts)]

    path = tmp_path / "run.npz"
    with pytest.warns(ConvergenceWarning, match="^Not converged"):
        clone(imputer).set_params(checkpoint=path).fit(share(4))
    with pytest.raises(ValueError, match="of other data"):
        imputer.fit(share(2), resume_from=path)


@pytest.mark.filterwarnings("ignore:Not converged")
def test_the_same_cells_of_another_matrix_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    cells = [
        np.column_stack([rng.permutation(12)[:8], rng.integers(6, size=8), rng.normal(size=8)])
        for _ in range(4)
    ]
    path = tmp_path / "run.npz"
    imputer = FederatedMatrixImputer(2, penalty=0.1, max_iter=3, random_state=0, checkpoint=path)
    imputer.fit(cells, shape=(12, 6))
    with pytest.raises(ValueError, match="constants of the model"):
        clone(imputer).fit(cells, shape=(14, 9), resume_from=path)


def test_a_save_with_a_setting_that_this_fit_does_not_know_is_refused(tmp_path):
    path, state = tmp_path / "run.npz", {"round": 3}
    _checkpoint.save(path, {"seed": 0, "momentum": 0.9}, state)
    with pytest.raises(ValueError, match="with momentum=0.9 where this fit has momentum=None"):
        _checkpoint.load(path, {"seed": 0}, state)


# ---- functions and objects as parameters


def decay(k, a):
    return 1 / (1 + k) ** a


class Decay:
    def __init__(self, a):
        self.a = a

    def __call__(self, k):
        return decay(k, self.a)

    def step(self, k):
        return decay(k, self.a)


class Keep(Forwarding):
    def __init__(self, k):
        super().__init__(RandK(k))


SCHEDULES = {
    "lambda": lambda a: lambda k: decay(k, a),
    "partial": lambda a: functools.partial(decay, a=a),
    "partial-of-object": lambda a: functools.partial(Decay(a)),
    "object": Decay,
    "method": lambda a: Decay(a).step,
}


def rough_mixture(**parameters):
    return FederatedGaussianMixture(
        2, **{**ROUGH, "omega": 9.0, "max_iter": 6, "random_state": 0, **parameters}
    )


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_a_function_is_known_by_its_name_and_its_steps(make, tmp_path):
    path = tmp_path / "run.npz"
    # All of them are alive, and none is where another was.
    schedules = [make(0.5) for _ in range(3)]
    whole = rough_mixture(step_size=schedules[0]).fit(make_clients())
    first = rough_mixture(step_size=schedules[1], max_iter=4, checkpoint=path)
    first.fit(make_clients())
    resumed = rough_mixture(step_size=schedules[2]).fit(make_clients(), resume_from=path)
    assert_array_equal(resumed.means_, whole.means_)
    other = rough_mixture(step_size=make(0.9))
    with pytest.raises(ValueError, match=r"Expected a checkpoint of this run .* got one with step"):
        other.fit(make_clients(), resume_from=path)
    assert not hasattr(other, "n_iter_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_steps_that_the_safeguard_cut_are_not_compared(tmp_path):
    path = tmp_path / "run.npz"
    gm = rough_mixture(step_size=lambda k: 0.9, participation=0.3, max_iter=30)
    whole = clone(gm).set_params(max_iter=35).fit(make_clients())
    gm.set_params(checkpoint=path).fit(make_clients())
    cut = gm.history_["safeguarded"][1:] > 0
    assert cut.any() and not cut.all()
    assert_array_equal(gm.history_["step_size"][1:] < 0.9, cut)
    gm.set_params(max_iter=35).fit(make_clients(), resume_from=path)
    assert_array_equal(gm.means_, whole.means_)


def test_steps_are_compared_at_the_rounds_they_were_taken(tmp_path):
    path = tmp_path / "run.npz"
    gm = rough_mixture(step_size=lambda k: 1 / k, warm_start=True).fit(make_clients())
    gm.set_params(checkpoint=path).fit(make_clients())  # rounds 7 to 12
    steps = np.concatenate([np.full(7, np.nan), 1 / np.arange(7, 13)])
    resumed = rough_mixture(step_size=lambda k: steps[k])
    assert resumed.fit(make_clients(), resume_from=path).n_iter_ == 6
    steps *= 1 + 1e-15  # as another release of NumPy may round them
    assert resumed.fit(make_clients(), resume_from=path).n_iter_ == 6
    steps[9] *= 1.001
    with pytest.raises(ValueError, match=r"got one with step_size\(9\)=0\.1"):
        resumed.fit(make_clients(), resume_from=path)
    steps[9] = 0.2
    with pytest.raises(ValueError, match=r"step_size\(9\)=0\.1\d* where .* step_size\(9\)=0\.2\."):
        resumed.fit(make_clients(), resume_from=path)
    with pytest.raises(TypeError, match=r"Expected step_size\(7\) to be a number .* got None"):
        rough_mixture(step_size=lambda k: None).fit(make_clients(), resume_from=path)


def test_a_compressor_without_a_repr_is_known_by_its_class_and_its_omega(tmp_path):
    path = tmp_path / "run.npz"
    operators = [Keep(4) for _ in range(3)]
    whole = rough_mixture(compressor=operators[0]).fit(make_clients())
    rough_mixture(compressor=operators[1], max_iter=4, checkpoint=path).fit(make_clients())
    resumed = rough_mixture(compressor=operators[2]).fit(make_clients(), resume_from=path)
    assert_array_equal(resumed.means_, whole.means_)
    for other, name in ((Keep(5), "omega of the compressor"), (RandK(4), "compressor='Keep'")):
        with pytest.raises(ValueError, match=f"got one with {name}"):
            rough_mixture(compressor=other).fit(make_clients(), resume_from=path)
    rough_mixture(compressor=RandK(4), checkpoint=path).fit(make_clients())
    with pytest.raises(ValueError, match=r"RandK\(k=4, omega=None\)' where .*='RandK\(k=5"):
        rough_mixture(compressor=RandK(5)).fit(make_clients(), resume_from=path)


def test_a_start_is_known_by_its_numbers(tmp_path):
    path = tmp_path / "run.npz"
    means = [[0, 0, 0], [3, 3, 3]]
    rough_mixture(means_init=means, checkpoint=path).fit(make_clients())
    array = np.array(means)
    for same in (array, array.astype(float), array.astype(np.float32), array.astype(object)):
        gm = rough_mixture(means_init=same)
        assert gm.fit(make_clients(), resume_from=path).n_iter_ == 6
    with pytest.raises(ValueError, match="got one with means_init="):
        rough_mixture(means_init=array + 1).fit(make_clients(), resume_from=path)


def counts(clients):
    """Counts at the same four sites, of more months than triplets have columns."""
    return [np.abs(rows[:12].reshape(4, 9)).round() for rows in clients]


@pytest.mark.parametrize(
    ("estimator", "tables", "name", "other"),
    [
        (rough_mixture(), make_clients(), "client_weights", "uniform"),
        (FederatedMatrixImputer(max_iter=2), counts(make_clients()), "family", "poisson"),
        (FederatedMatrixImputer(max_iter=2), counts(make_clients()), "rows", "disjoint"),
    ],
)
def test_a_parameter_that_differs_is_named_and_not_what_it_makes_of_the_data(
    estimator, tables, name, other, tmp_path
):
    path = tmp_path / "run.npz"
    clone(estimator).set_params(checkpoint=path).fit(tables)
    with pytest.raises(ValueError, match=f"got one with {name}=.* where this fit has {name}="):
        clone(estimator).set_params(**{name: other}).fit(tables, resume_from=path)
