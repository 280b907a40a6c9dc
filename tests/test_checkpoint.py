"""Runs that are saved, killed and resumed."""

import errno
import functools
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from mixtures import WithKeywords
from skfedem import (
    FederatedGaussianMixture,
    FederatedMatrixImputer,
    _checkpoint,
)
from skfedem.compression import Compressor, RandK
from skfedem.solvers import _loop
from skfedem.solvers._loop import client_round
from skfedem.solvers._resume import _FREE

pytestmark = pytest.mark.filterwarnings("ignore:Not converged")
NAN = np.nan


def make_clients(n_clients=6, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.normal(3.0 * (k % 2), 1.0, size=(12 + k, 3)) for k in range(n_clients)]


def matrices(n_clients=5, seed=0):
    generator = np.random.default_rng(seed)
    counts = generator.poisson(4.0, size=(9, 7)).astype(float)
    return [np.where(generator.random(counts.shape) < 0.4, counts, NAN) for _ in range(n_clients)]


ROUGH = {"omega": 1.0, "participation": 0.6, "tol": 0.0}
CASES = {
    "mixture": (FederatedGaussianMixture(2, tol=0.0, max_iter=12), make_clients),
    "mixture-rough": (FederatedGaussianMixture(2, max_iter=30, **ROUGH), make_clients),
    "mixture-vr_fedem": (
        FederatedGaussianMixture(
            2, covariance_type="tied", solver="vr_fedem", batch_size=3, max_iter=30, **ROUGH
        ),
        make_clients,
    ),
    "imputer": (FederatedMatrixImputer(3, family="poisson", tol=0.0, max_iter=12), matrices),
    "imputer-rough": (FederatedMatrixImputer(2, family="poisson", max_iter=30, **ROUGH), matrices),
    "imputer-vr_fedem": (
        FederatedMatrixImputer(
            2, family="bernoulli", solver="vr_fedem", batch_size=3, max_iter=30, **ROUGH
        ),
        lambda: [np.minimum(client, 1) for client in matrices()],
    ),
}
every_case = pytest.mark.parametrize(("estimator", "data"), CASES.values(), ids=CASES)


def assert_same_fit(one, other):
    for name, value in vars(one).items():
        if name in ("checkpoint", "checkpoint_every", "max_iter", "n_jobs"):
            continue
        if name == "_memory" and value is not None:
            value, other_value = value.server, other._memory.server
            assert_array_equal(value.statistics, other_value.statistics)
            assert_array_equal(value.control, other_value.control)
            continue
        if isinstance(value, dict):
            for key, column in value.items():
                assert_array_equal(getattr(other, name)[key], column, err_msg=key)
        else:
            assert_array_equal(getattr(other, name), value, err_msg=name)


@every_case
@pytest.mark.parametrize("stopped_after", [1, 7])
def test_a_resumed_fit_is_the_uninterrupted_one(estimator, data, stopped_after, tmp_path):
    path = tmp_path / "run.npz"
    clients = data()
    # Evaluations at the end of a run are no part of a longer one.
    whole = clone(estimator).set_params(random_state=0, eval_every=None).fit(clients)
    saved = clone(whole).set_params(max_iter=stopped_after, checkpoint=path, checkpoint_every=3)
    saved.fit(clients)
    assert saved.n_iter_ == stopped_after
    resumed = clone(whole).fit(clients, resume_from=path)
    assert_same_fit(resumed, whole)
    # Without a seed of its own, a fit goes on with that of the run.
    anew = clone(whole).set_params(random_state=None).fit(clients, resume_from=path)
    assert_array_equal(anew.history_["uplink_bits"], whole.history_["uplink_bits"])


def test_the_last_two_saves_are_kept(tmp_path):
    path = tmp_path / "run.npz"
    parameters = {**ROUGH, "random_state": 0, "max_iter": 10}
    estimator = FederatedGaussianMixture(2, checkpoint=path, checkpoint_every=4, **parameters).fit(
        make_clients()
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    for name, n_rounds in ((path, 10), (f"{path}.previous", 8)):
        at = clone(estimator).set_params(checkpoint=None, max_iter=n_rounds)
        assert at.fit(make_clients(), resume_from=name).n_iter_ == n_rounds
        with np.load(name) as file:
            assert file["state.server.round_index"] == n_rounds


def test_a_save_that_was_killed_leaves_no_file_for_good(tmp_path):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 1})
    os.link(path, f"{path}.previous")  # and no more: another process has kept it
    _checkpoint.save(path, {}, {"rounds": 2})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("n_names", [0, 1])
def test_a_damaged_file_never_replaces_the_last_whole_one(n_names, error, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    for rounds in (1, 2):
        _checkpoint.save(path, {}, {"rounds": rounds})
    path.write_bytes(path.read_bytes()[:100])
    replace, named = os.replace, []

    def stopped(source, target):
        if len(named) == n_names:
            raise error
        named.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(error):
        _checkpoint.save(path, {}, {"rounds": 3})  # by a run that goes on from the one before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    whole = path if n_names else f"{path}.previous"
    assert _checkpoint._read(whole)[1]["state.rounds"] == (3 if n_names else 1)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "too many open files")])
def test_a_shortage_is_no_damage(error, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 1})

    def failing(*_, **__):
        raise error

    monkeypatch.setattr(np, "load", failing)
    with pytest.raises(type(error)):
        _checkpoint._read(path)
    if isinstance(error, MemoryError):  # a damaged header may claim any size
        path.write_bytes(path.read_bytes().replace(b"descr", b"discr", 1))
        with pytest.raises(ValueError, match="truncated or damaged"):
            _checkpoint._read(path)


def test_links_are_followed_as_the_system_does(tmp_path):
    (tmp_path / "real" / "sub").mkdir(parents=True)
    try:
        os.symlink(tmp_path / "real" / "sub", tmp_path / "link", target_is_directory=True)
    except OSError:
        pytest.skip("links need a privilege here")
    path = f"{tmp_path}/link/../run.npz"
    gm = FederatedGaussianMixture(2, checkpoint=path, tol=0, max_iter=3, random_state=0)
    gm.fit(make_clients())
    gm.set_params(checkpoint=None, max_iter=5).fit(make_clients(), resume_from=path)
    assert gm.n_iter_ == 5


def test_a_run_saves_where_it_began(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    gm = FederatedGaussianMixture(2, checkpoint="run.npz", checkpoint_every=1, tol=0, max_iter=4)

    def moving(number):
        os.chdir(tmp_path / "elsewhere")
        return 1.0

    with pytest.warns(ConvergenceWarning, match="Not converged"):
        gm.set_params(step_size=moving, random_state=0).fit(make_clients())
    assert not list((tmp_path / "elsewhere").iterdir())
    assert _checkpoint._read(tmp_path / "run.npz")[1]["state.server.round_index"] == 4


def test_what_killed_saves_left_is_removed_when_nobody_can_be_at_work(tmp_path, monkeypatch):
    left, other = (tmp_path / f"{name}0123abcd.tmp" for name in ("run[1].npz", "run1.npz"))
    left.touch()
    other.touch()
    os.utime(left, (0, 0))  # a link to an old checkpoint, which may be just about to be renamed
    _checkpoint.try_out(tmp_path / "run[1].npz")
    assert sorted(tmp_path.iterdir()) == sorted([left, other])
    monkeypatch.setattr(_checkpoint, "_LEFT_BEHIND", -1)
    _checkpoint.try_out(tmp_path / "run[1].npz")
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_save_that_fails_leaves_no_file(error, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 1})

    def fail(source, target):
        target.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(os, "link", lambda *args: os.stat(tmp_path / "no hard links here"))
    monkeypatch.setattr(_checkpoint.shutil, "copy2", fail)
    with pytest.raises(error):
        _checkpoint.save(path, {}, {"rounds": 2})
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize("fails", [3, 9])
def test_a_full_disk_is_told_and_the_fit_goes_on(fails, tmp_path, monkeypatch):
    path, saves, savez = tmp_path / "run.npz", [], np.savez

    def full_once(file, **arrays):
        saves.append(file)
        if len(saves) == fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", full_once)
    gm = FederatedGaussianMixture(2, max_iter=9, random_state=0, tol=0.0, omega=1.0)
    whole = clone(gm).fit(make_clients())
    gm.set_params(checkpoint=path, checkpoint_every=1)
    with pytest.warns(UserWarning, match=f"Round {fails} could not be saved at .*No space left"):
        gm.fit(make_clients())
    assert_array_equal(gm.means_, whole.means_)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    last = 9 if fails < 9 else 8
    assert _checkpoint._read(path)[1]["state.server.round_index"] == last
    assert _checkpoint._read(f"{path}.previous")[1]["state.server.round_index"] == last - 1


# Python collects the archive that it could not close.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fit_stopped_from_the_keyboard_in_a_save_leaves_what_it_had_reached(
    tmp_path, monkeypatch
):
    path, saves = tmp_path / "run.npz", []
    savez = np.savez

    def stopped_in_a_member(file, **arrays):
        saves.append(file)
        if len(saves) < 3:
            return savez(file, **arrays)
        with zipfile.ZipFile(file, "w") as archive:
            member = archive.open("state.npy", "w")
            member.write(b"half of it")
            raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", stopped_in_a_member)
    gm = FederatedGaussianMixture(2, max_iter=9, random_state=0, tol=0.0, omega=1.0)
    gm.set_params(checkpoint=path, checkpoint_every=1)
    with pytest.warns(ConvergenceWarning, match="keyboard after 3 rounds"):
        gm.fit(make_clients())
    assert gm.n_iter_ == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    with np.load(path) as file:
        assert file["state.server.round_index"] == 2


def test_several_may_save_to_one_file(tmp_path):
    # As the fits of a search do, from several processes.
    path = tmp_path / "run.npz"

    def save_often(number):
        for k in range(60):
            _checkpoint.save(path, {"of": number}, {"rounds": k})

    Parallel(n_jobs=4, prefer="threads")(delayed(save_often)(number) for number in range(4))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz", "run.npz.previous"]
    with np.load(path) as file:
        assert file["state.rounds"] == 59


def test_who_may_read_a_checkpoint_is_who_may_read_any_file(tmp_path):
    path, any_file = tmp_path / "run.npz", tmp_path / "any"
    umask = os.umask(0o027)
    try:
        gm = FederatedGaussianMixture(2, checkpoint=path, checkpoint_every=1, max_iter=2)
        gm.fit(make_clients())
        any_file.touch()
    finally:
        os.umask(umask)
    modes = {os.stat(file).st_mode for file in (path, f"{path}.previous", any_file)}
    assert len(modes) == 1


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640])  # of which one is not that of new files
def test_a_private_checkpoint_stays_private(tmp_path, mode):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"rounds": 0})
    path.chmod(mode)
    _checkpoint.save(path, {}, {"rounds": 1})
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_converged_run_does_not_go_on(tmp_path):
    path = tmp_path / "run.npz"
    saved = FederatedGaussianMixture(2, checkpoint=path, random_state=0).fit(make_clients())
    assert saved.converged_
    resumed = clone(saved).set_params(max_iter=1000).fit(make_clients(), resume_from=path)
    assert (resumed.n_iter_, resumed.converged_) == (saved.n_iter_, True)
    assert_same_fit(resumed, saved)


# ---- files that do not fit


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
    with pytest.raises(ValueError, match=r"lengths of clients|n_samples"):
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
    # The archive's directory says how members are compressed, and whether they are encrypted.
    directory = content.index(b"PK\x01\x02")
    for place in [*range(40, len(content), 997), *range(directory, directory + 46)]:
        changed = bytearray(content)
        changed[place] ^= 0xFF
        damaged.write_bytes(changed)
        try:
            fit = clone(estimator).fit(matrices(), resume_from=damaged)
        except ValueError as error:
            assert "checkpoint" in str(error)
            assert len(str(error)) < 600 + 2 * len(str(damaged))  # not all that may follow
        else:  # a byte of the archive that holds no content, as a time stamp
            assert_same_fit(fit, estimator)


def test_damaged_members_are_refused(tmp_path):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {"of": 1}, {"large": np.arange(1000)})
    assert _checkpoint.identity_of(path) == {"of": 1}
    with np.load(path) as file:
        arrays = dict(file)
    content = bytearray(path.read_bytes())
    # A member of more than 4096 bytes is parsed before its checksum is known.
    content[content.index(b"}", content.index(b"state.large.npy"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"truncated or damaged.*previous"):
        _checkpoint.identity_of(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="it ends after 0 bytes"):
        _checkpoint.identity_of(path)
    np.savez(path, **{**arrays, "digest": np.array(["a", "b"])})
    with pytest.raises(ValueError, match="its digest differs"):
        _checkpoint.identity_of(path)
    del arrays["digest"]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="its digest differs"):
        _checkpoint.identity_of(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("digest", "a text, no array")
    with pytest.raises(ValueError, match="its digest differs"):
        _checkpoint.identity_of(path)
    np.savez(path, header=np.array("5"))
    with pytest.raises(ValueError, match="got another file"):
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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_resumed_fit_knows_what_its_start_was_worth(tmp_path):
    # Without a history, only the file has it.
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(60, 2)) + shift for shift in (-3, 3, 0)]
    optimum = FederatedGaussianMixture(2, random_state=0).fit(clients)
    gm = FederatedGaussianMixture(
        2, weights_init=optimum.weights_, means_init=optimum.means_,
        precisions_init=optimum.precisions_, batch_size=2, step_size=0.9, tol=0, max_iter=30,
        eval_every=None, random_state=0, checkpoint=tmp_path / "run.npz",
    ).fit(clients)  # fmt: skip
    with pytest.warns(ConvergenceWarning, match="below its value at the start: do not use"):
        gm.set_params(max_iter=60).fit(clients, resume_from=tmp_path / "run.npz")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_is_saved_goes_with_a_version(tmp_path):
    # Change this list and the version together: files of others would be read as if they had it.
    path = tmp_path / "run.npz"
    names = set()
    for kwargs in ({}, {"omega": 1.0}):
        gm = FederatedGaussianMixture(2, max_iter=3, tol=0, checkpoint=path, **kwargs)
        gm.fit([np.random.default_rng(0).normal(size=(20, 2))] * 3)
        names |= {name.removeprefix("state.") for name in _checkpoint._read(path)[1]}
    kept = {name for name in names if not name.startswith(("history.", "stopping.parameters."))}
    server = "round_index statistics control step_limit has_field n_restarts rest_until"
    gains = "latest criterion step_size next_criterion"
    sweep = "outer_loop travelled n_rounds n_messages n_quiet quiet_since converged"
    assert _checkpoint._VERSION == 8
    run = "n_expectations converged trace criteria_before initial_criterion states.controls"
    assert kept == {
        *run.split(),
        *(f"server.{name}" for name in server.split()),
        *(f"stopping.{name}" for name in f"{gains} {sweep}".split()),
    }
    # A number that is missing is no number.
    with pytest.raises(KeyError):
        _checkpoint._rebuilt("state", {"initial_criterion": 0.0}, {})


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced on Windows")
def test_a_file_is_on_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    path, calls = tmp_path / "run.npz", []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        calls.append(("sync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(source, target):
        calls.append(("name", os.stat(source).st_ino, str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    for value in range(2):
        calls.clear()
        _checkpoint.save(path, {}, {"a": np.full(3, value)})
        file, folder = path.stat().st_ino, tmp_path.stat().st_ino
        named = calls.index(("name", file, str(path)))
        assert calls.index(("sync", file)) < named < calls.index(("sync", folder))
    assert path.with_name("run.npz.previous").exists()


def test_a_file_that_is_open_elsewhere_is_waited_for(tmp_path, monkeypatch):
    path, refusals = tmp_path / "run.npz", []
    replace = os.replace

    def refused_at_first(source, target):  # what Windows does while a virus scanner reads
        refusals.append(target)
        if len(refusals) in (1, 3, 4):
            raise PermissionError(13, "in use", target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused_at_first)
    for value in range(2):
        _checkpoint.save(path, {}, {"a": np.full(3, value)})
    assert len(refusals) == 6
    for name, value in ((path, 1), (path.with_name("run.npz.previous"), 0)):
        assert_array_equal(_checkpoint._read(name)[1]["state.a"], value)


def test_a_file_that_stays_open_elsewhere_is_an_error(tmp_path, monkeypatch):
    def refused(source, target):
        raise PermissionError(13, "in use", target)

    monkeypatch.setattr(os, "replace", refused)
    monkeypatch.setattr(_checkpoint, "_WAITS", (0.0,))
    with pytest.raises(PermissionError, match="in use"):
        _checkpoint.save(tmp_path / "run.npz", {}, {"a": np.zeros(3)})
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(ValueError, match="lengths of clients"):
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


def test_what_is_none_in_a_save_is_none_again(tmp_path):
    path = tmp_path / "run.npz"
    _checkpoint.save(path, {}, {"factor": None, "round": 3})
    assert _checkpoint.load(path, {}, {"factor": np.eye(2), "round": 0}) == {
        "factor": None,
        "round": 3,
    }


def test_names_types_shapes_and_numbers_make_a_digest():
    numbers = np.arange(4)
    unlike = [
        {"a": numbers},
        {"b": numbers},
        {"a": numbers + 1},
        {"a": numbers.astype(np.uint64)},
        {"a": numbers.reshape(2, 2)},
        {"a": numbers[:0]},
        {"a": numbers[:0].reshape(3, 0)},
    ]
    assert len(set(map(_checkpoint._digest, unlike))) == len(unlike)
    both = _checkpoint._digest({"a": numbers, "b": numbers + 1})
    assert _checkpoint._digest({"b": numbers + 1, "a": numbers}) == both
    assert _checkpoint._digest({"b": numbers, "a": numbers + 1}) != both


@every_case
def test_a_checkpoint_of_a_machine_of_another_byte_order_is_resumed(estimator, data, tmp_path):
    path = tmp_path / "run.npz"
    whole = clone(estimator).set_params(random_state=0, eval_every=None).fit(data())
    clone(whole).set_params(max_iter=5, checkpoint=path).fit(data())
    with np.load(path) as file:
        swapped = {name: file[name].astype(file[name].dtype.newbyteorder()) for name in file.files}
    del swapped["digest"]
    np.savez(path, **swapped, digest=np.array(_checkpoint._digest(swapped)))
    assert all(array.dtype.isnative for array in _checkpoint._read(path)[1].values())
    assert_same_fit(clone(whole).fit(data(), resume_from=path), whole)


def test_a_save_with_a_setting_that_this_fit_does_not_know_is_refused(tmp_path):
    path, state = tmp_path / "run.npz", {"round": 3}
    _checkpoint.save(path, {"seed": 0, "momentum": 0.9}, state)
    with pytest.raises(ValueError, match="with momentum=0.9 where this fit has momentum=None"):
        _checkpoint.load(path, {"seed": 0}, state)


# ---- stopped from the keyboard


@every_case
@pytest.mark.parametrize("n_rounds", [2, 7])
def test_a_fit_stopped_from_the_keyboard_leaves_the_save_before(
    estimator, data, n_rounds, tmp_path, monkeypatch
):
    path = tmp_path / "run.npz"
    clients = data()
    whole = clone(estimator).set_params(random_state=0, eval_every=None).fit(clients)
    n_calls = 0

    def interrupted(*args):
        nonlocal n_calls
        n_calls += 1
        received = client_round(*args)
        if n_calls == n_rounds + 1:
            raise KeyboardInterrupt  # clients have moved their control variates
        return received

    stopped = clone(whole).set_params(checkpoint=path, checkpoint_every=3)
    with monkeypatch.context() as patched:
        patched.setattr(_loop, "client_round", interrupted)
        with pytest.warns(ConvergenceWarning, match=f"keyboard after {n_rounds} rounds"):
            stopped.fit(clients)
    assert stopped.n_iter_ == n_rounds
    if n_rounds < 3:
        assert not list(tmp_path.iterdir())
        return
    with np.load(path) as file:
        assert file["state.server.round_index"] == 6
    assert_same_fit(clone(whole).fit(clients, resume_from=path), whole)


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


class Keep(Compressor):
    """RandK of a user's, without a repr."""

    def __init__(self, k):
        self._operator = RandK(k)

    def omega_for(self, length):
        return self._operator.omega_for(length)

    def compress(self, values, uniforms, lengths=None):
        return self._operator.compress(values, uniforms, lengths)

    def variance(self, values, lengths=None):
        return self._operator.variance(values, lengths)

    def n_bytes(self, values, lengths=None):
        return self._operator.n_bytes(values, lengths)

    def encode(self, values):
        return self._operator.encode(values)

    def decode(self, data):
        return self._operator.decode(data)


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


# ---- killed

# Every line of its input begins a run in a process of its own; what they import is imported once.
SCRIPT = """
import os, pickle, sys
with open(sys.argv[1], "rb") as file:
    estimator, clients = pickle.load(file)
for resume_from in sys.stdin:
    process = os.fork()
    if not process:
        estimator.fit(clients, resume_from=resume_from.strip() or None)
        os._exit(0)
    print(process, flush=True)
    sys.stdin.readline()
    print(os.waitpid(process, 0)[1], flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, which needs POSIX")
def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_been(tmp_path):
    path, script = tmp_path / "run.npz", tmp_path / "run.pickle"
    clients = make_clients(20)
    endless = FederatedGaussianMixture(
        3, max_iter=10**6, **ROUGH, random_state=0, checkpoint=path, checkpoint_every=5
    )
    script.write_bytes(pickle.dumps((endless, clients)))

    def rounds_saved():
        if not path.exists():
            return 0
        with np.load(path) as file:
            return int(file["state.server.round_index"])

    n_rounds = [0]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as parent:
        for enough in (20, 60, 120):
            print(path if path.exists() else "", file=parent.stdin)
            process = int(parent.stdout.readline())
            try:
                deadline = time.monotonic() + 60
                seen = [rounds_saved()]
                while seen[-1] < enough and time.monotonic() < deadline:
                    time.sleep(0.003)
                    seen.append(rounds_saved())
            finally:
                os.kill(process, signal.SIGKILL)
            print("killed", file=parent.stdin)
            assert int(parent.stdout.readline()) == signal.SIGKILL
            # It went on where the one before was killed: a run begun anew saves its fifth round.
            assert min(seen) >= n_rounds[-1]
            n_rounds.append(rounds_saved())
            assert n_rounds[-1] >= enough
    # It ends where nobody knows of the processes before, not even by its seed of hashes.
    whole = clone(endless).set_params(checkpoint=None, max_iter=n_rounds[-1] + 20)
    assert_same_fit(clone(whole).fit(clients, resume_from=path), whole.fit(clients))


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
        with pytest.raises(ValueError, match="Expected a checkpoint of this run .* with data="):
            clone(estimator).fit(other, resume_from=path)
    if kind == "imputer":
        with pytest.raises(ValueError, match="Expected a checkpoint of this run"):
            clone(estimator).fit([table.T for table in make()], resume_from=path)


@pytest.mark.parametrize("as_path", [str, Path])
def test_a_tilde_is_no_home_as_for_numpy(as_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    imputer = FederatedMatrixImputer(checkpoint=as_path("~/run.npz"), max_iter=3)
    with pytest.raises(ValueError, match=r"got .*~/run.npz.*Give os\.path\.expanduser\(path\)"):
        imputer.fit(matrices())


def test_a_folder_that_does_not_exist_is_said_before_the_first_round(tmp_path):
    imputer = FederatedMatrixImputer(checkpoint=tmp_path / "none" / "run.npz", max_iter=3)
    with pytest.raises(ValueError, match="in a folder that exists"):
        imputer.fit(matrices())


def test_a_folder_is_no_file(tmp_path):
    for folder in (tmp_path, ""):
        with pytest.raises(ValueError, match="to be a file, got the folder.* Give the path"):
            FederatedMatrixImputer(checkpoint=folder, max_iter=3).fit(matrices())
    with pytest.raises(ValueError, match="got a folder.* Give the path"):
        FederatedMatrixImputer(max_iter=3).fit(matrices(), resume_from=tmp_path)
    with pytest.raises(TypeError, match="Expected resume_from to be a path or None, got True"):
        FederatedMatrixImputer(max_iter=3).fit(matrices(), resume_from=True)


@pytest.mark.skipif(os.name == "nt", reason="pipes have no name in a folder on Windows")
def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="to be a file, got .* pipe .*pipe.*Give the path"):
        FederatedMatrixImputer(checkpoint=tmp_path / "pipe", max_iter=3).fit(matrices())
    assert (tmp_path / "pipe").is_fifo()
    # Nor is one read, which would wait for ever.
    with pytest.raises(ValueError, match="resume from at .*pipe, got a .*pipe. Give the path"):
        FederatedMatrixImputer(max_iter=3).fit(matrices(), resume_from=tmp_path / "pipe")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_link_is_kept_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "scratch").mkdir()
    link, target = tmp_path / "run.npz", tmp_path / "scratch" / "a.npz"
    link.symlink_to(target)
    for value in range(2):
        _checkpoint.save(link, {}, {"a": np.full(3, value)})
    assert link.is_symlink() and not target.is_symlink()
    assert_array_equal(_checkpoint._read(link)[1]["state.a"], 1)
    assert {path.name for path in target.parent.iterdir()} == {"a.npz", "a.npz.previous"}


@pytest.mark.parametrize("name", ["a" * 250, "a" * 300, "run\0.npz"], ids=["long", "longer", "NUL"])
def test_a_name_that_no_file_can_have_is_said_before_the_first_round(name, tmp_path):
    gm = FederatedGaussianMixture(2, checkpoint=tmp_path / name, max_iter=3)
    with pytest.raises(ValueError, match="Expected checkpoint to be a file that can be written"):
        gm.fit(make_clients())
    assert not hasattr(gm, "n_iter_")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "pathconf"), reason="Windows limits whole paths, not names")
def test_the_longest_name_that_is_accepted_is_saved_twice(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len("12345678.tmp")
    gm = FederatedGaussianMixture(2, checkpoint=tmp_path / ("a" * longest), checkpoint_every=1)
    gm.set_params(max_iter=2).fit(make_clients())
    assert len(list(tmp_path.iterdir())) == 2
